"""The generated pages of docs/reference/ are complete."""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest

from headrace import aio
from headrace.cli import main
from headrace.config.broker import BROKER_ALIASES, BROKER_OPTIONS
from headrace.config.group import GROUP_OPTIONS
from headrace.config.topic import TOPIC_OPTIONS
from tools.generate_reference import FIRST_LINE, PAGES
from tools.reference.commands import all_commands
from tools.reference.declared import first_sentence, section
from tools.reference.markdown import bounds, value_of

ROOT = Path(__file__).resolve().parents[2]
REFERENCE = ROOT / "docs" / "reference"


@pytest.mark.parametrize("name", PAGES)
def test_the_page_is_up_to_date(name: str) -> None:
    assert (REFERENCE / name).read_text() == FIRST_LINE + PAGES[name](), "make generate writes it"


@pytest.mark.parametrize(
    ("page", "names"),
    [
        ("settings-broker.md", {*BROKER_OPTIONS, *BROKER_ALIASES}),
        ("settings-topic.md", set(TOPIC_OPTIONS)),
        ("settings-group.md", set(GROUP_OPTIONS)),
        ("settings.md", {*BROKER_OPTIONS, *TOPIC_OPTIONS, *GROUP_OPTIONS}),
    ],
)
def test_the_page_has_a_row_for_each_setting(page: str, names: set[str]) -> None:
    rows = re.findall(r"^\| `([^`]+)` \|", (REFERENCE / page).read_text(), re.MULTILINE)
    assert names <= set(rows)


def test_every_setting_has_a_meaning() -> None:
    for name in PAGES:
        if not name.startswith("settings-"):
            continue
        for line in (REFERENCE / name).read_text().splitlines():
            if line.startswith("| `"):
                assert not line.endswith("|  |"), f"{name}: {line}"


def test_the_page_names_every_environment_variable() -> None:
    text = (REFERENCE / "settings.md").read_text()
    for path in (ROOT / "src" / "headrace").rglob("*.py"):
        for name in re.findall(r"\bHEADRACE_[A-Z_]+\b", path.read_text()):
            assert f"`{name}`" in text, f"{name} in {path.name}"


def test_the_page_names_every_command_and_option() -> None:
    text = (REFERENCE / "cli.md").read_text()
    for each in all_commands(main, ()):
        assert f"# `{each.name}`\n" in text
        for option in each.command.params:
            if isinstance(option, click.Option) and not option.hidden:
                assert all(f"`{name}`" in text for name in option.opts), option


@pytest.mark.parametrize("client", aio.__all__)
def test_the_page_names_every_method_of_the_asyncio_clients(client: str) -> None:
    text = (REFERENCE / "python-api.md").read_text()
    chapter = text.partition(f"### `aio.{client}`")[2].partition("\n##")[0]
    rows = re.findall(r"^\| `(\w+)` \|", chapter, re.MULTILINE)
    public = [name for name in dir(getattr(aio, client)) if not name.startswith("_")]
    assert rows == public


def test_every_name_that_a_page_imports_is_public() -> None:
    listed = dict(
        re.findall(
            r"^\| \[`(headrace[.\w]*)`\]\(.*?\) \| (.*?) \|$",
            (REFERENCE / "python-api.md").read_text(),
            re.MULTILINE,
        )
    )
    for path in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]:
        if "design" in path.parts:
            continue  # pages for maintainers, about internal modules
        for module, names in re.findall(
            r"^from (headrace[.\w]*) import ([\w, ]+)$", path.read_text(), re.MULTILINE
        ):
            for name in map(str.strip, names.split(",")):
                is_module = f"{module}.{name}" in listed
                assert is_module or f"`{name}`" in listed[module], f"{path.name}: {module}.{name}"


def test_a_docstring_section_is_read_by_names() -> None:
    text = (
        "Do it.\n\n    Args:\n        one: First,\n            and more.\n"
        "        **rest: Others.\n\n    Raises:\n        E: No."
    )
    assert section(text, "Args") == {"one": "First, and more.", "rest": "Others."}


def test_the_first_sentence_ends_at_its_full_stop() -> None:
    assert (
        first_sentence("Return x.y of a\n    list. Not this.\n\n    Nor this.")
        == "Return x.y of a list."
    )


@pytest.mark.parametrize(
    ("name", "value", "shown"),
    [
        ("retention.ms", 1_209_600_000, "`1209600000` (14d)"),
        ("segment.bytes", 1 << 30, "`1073741824` (1 GiB)"),
        ("flush.ms", 2**63 - 1, "`9223372036854775807` (no limit)"),
        ("num.partitions", 1, "`1`"),
        ("preallocate", False, "`false`"),
        ("super.users", "", ""),
    ],
)
def test_a_default_is_shown_in_readable_units(name: str, value: object, shown: str) -> None:
    assert value_of(name, value) == shown


def test_a_bound_that_is_only_the_size_of_the_type_is_hidden() -> None:
    assert bounds(0, 2**31 - 1) == "at least 0"
    assert bounds(0, 600) == "0 to 600"
    assert bounds(None, 2**63 - 1) == ""
