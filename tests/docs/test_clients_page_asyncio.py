"""docs/guides/clients.md: the table of the asyncio API is the API, and the program beside it prints what it says."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

from headrace import aio

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "guides" / "clients.md").read_text()
SECTION = PAGE.partition("## The clients for asyncio")[2].partition("\n## ")[0]
ROW = re.compile(r"^\| `(\w+)` \| (.*?) \| (.*?) \| (.*?) \|$", re.MULTILINE)
CLIENTS = {"Consumer": aio.Consumer, "Producer": aio.Producer, "Admin": aio.Admin}
ROWS = {
    name: [set(re.findall(r"`(\w+)`", cell)) for cell in cells]
    for name, *cells in ROW.findall(SECTION)
}
NOT_CALLED_TO_WAIT = {"owns", "transaction"}
"""Methods that the text excepts from the rule; properties are the others."""


def test_the_table_has_every_client() -> None:
    assert ROWS.keys() == CLIENTS.keys() == set(aio.__all__)


@pytest.mark.parametrize("name", CLIENTS)
def test_the_table_is_the_api(name: str) -> None:
    public = {each: member for each, member in vars(CLIENTS[name]).items() if each[0] != "_"}
    coroutines = {each for each in public if inspect.iscoroutinefunction(public[each])}
    plain = {each for each in public if isinstance(public[each], property)} | (
        NOT_CALLED_TO_WAIT & public.keys()
    )
    assert ROWS[name] == [coroutines, public.keys() - coroutines - plain, plain]


def test_the_text_names_what_the_rule_excepts() -> None:
    text = SECTION.partition("|")[0]
    assert all(f"`{name}`" in text for name in NOT_CALLED_TO_WAIT)


def test_the_program_prints_what_it_says(capsys: pytest.CaptureFixture[str]) -> None:
    (program,) = re.findall(r"```python\n(.*?)```", SECTION, re.DOTALL)
    exec(
        compile(program, "docs/guides/clients.md", "exec", dont_inherit=True), {"__name__": "page"}
    )
    assert capsys.readouterr().out.splitlines() == re.findall(r"print\(.*\)  # (.*)", program)
