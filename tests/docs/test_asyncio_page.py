"""The program of docs/guides/asyncio.md prints what the page shows, and the page names every exception to its rule."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

from headrace import aio

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "guides" / "asyncio.md").read_text()


def test_the_page_names_each_method_that_is_never_awaited() -> None:
    named = {name for name in ("owns", "transaction") if f"`{name}`" in PAGE}
    plain = {
        name
        for client in (aio.Consumer, aio.Producer, aio.Admin)
        for name, member in vars(client).items()
        if name in {"owns", "transaction"} and not inspect.iscoroutinefunction(member)
    }
    assert named == plain == {"owns", "transaction"}


def test_the_program_prints_what_the_page_shows(capsys: pytest.CaptureFixture[str]) -> None:
    (program,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    exec(
        compile(program, "docs/guides/asyncio.md", "exec", dont_inherit=True), {"__name__": "page"}
    )
    assert capsys.readouterr().out.splitlines() == re.findall(r"print\(.*\)  # (.*)", program)
