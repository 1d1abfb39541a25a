"""Text of a broker or a record cannot control the terminal, and JSON output keeps it unchanged."""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
from collections.abc import Callable, Sequence
from unittest import mock

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from headrace.cli import main
from headrace.cli.output.printing import (
    cut,
    json_text,
    print_facts,
    print_json,
    print_table,
    say,
    text_width,
)
from headrace.cli.output.terminal import printable
from headrace.testing import Broker

HOSTILE = [
    "\x1b]0;title\x07",
    "\x9b2J",
    "a\nb\r\x85\u2028\u2029",
    "\u202egnp",
    "\ud800",
    "\U000e0001",
    '"\\\x00',
]
texts = st.one_of(st.sampled_from(HOSTILE), st.text(st.characters()))


def printed(call: Callable[[], object]) -> str:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        call()
    return out.getvalue() + err.getvalue()


@given(text=texts, other=texts)
def test_a_table_has_a_line_a_row(text: str, other: str) -> None:
    lines = printed(lambda: print_table(["A", "B"], [(text, 1), (other, "end")])).split("\n")
    assert len(lines) == 4
    assert all(line.isprintable() for line in lines)


@given(text=texts)
def test_facts_have_a_line_each(text: str) -> None:
    lines = printed(lambda: print_facts({"topic": text, "more": 1}, 10)).split("\n")
    assert len(lines) == 3
    assert all(line.isprintable() for line in lines)
    assert lines[1] == "more:     1"


@given(value=st.recursive(texts, lambda one: st.lists(one) | st.dictionaries(texts, one)))
def test_json_is_one_line_and_exact(value: object) -> None:
    text = json_text(value)
    assert text.isprintable()
    assert json.loads(text) == value
    assert printed(lambda: print_json(value)) == text + "\n"


@pytest.mark.parametrize("text", HOSTILE)
def test_messages_are_escaped(text: str) -> None:
    said = printed(lambda: say(f"Error: the broker says {text}"))
    assert all(line.isprintable() for line in said.split("\n"))
    assert said.startswith("Error: the broker says ")


def test_readable_text_is_unchanged() -> None:
    assert json_text({"name": "Zürich 東京 😀"}) == '{"name": "Zürich 東京 😀"}'


@given(
    rows=st.lists(st.tuples(st.text(max_size=60), st.text(max_size=60), st.integers()), max_size=4),
    width=st.integers(30, 200),
)
def test_a_table_that_fits_is_cut_on_a_terminal_alone(
    rows: list[tuple[str, str, int]], width: int
) -> None:
    wide = printed(lambda: print_table(["A", "B", "N"], rows))
    for row, line in zip(rows, wide.splitlines()[1:], strict=True):
        assert all(printable(text) in line for text in row[:2])
    with mock.patch("shutil.get_terminal_size", return_value=os.terminal_size((width, 24))):
        lines = printed(lambda: _on_a_terminal(rows)).splitlines()
    assert len(lines) == len(rows) + 1
    assert all(text_width(line) <= width for line in lines)


def _on_a_terminal(rows: Sequence[Sequence[object]]) -> None:
    with mock.patch.object(sys.stdout, "isatty", return_value=True):
        print_table(["A", "B", "N"], rows)


def test_a_number_is_cut_after_texts() -> None:
    digits = 49_590_338_271_490_256_608_559_692_538_361_571_095_921_575_989_136_588_898
    rows: list[tuple[object, str, int]] = [(digits, "a text " * 9, 17)]
    with mock.patch("shutil.get_terminal_size", return_value=os.terminal_size((60, 24))):
        lines = printed(lambda: _on_a_terminal(rows)).splitlines()
    assert all(len(line) <= 60 for line in lines)
    assert lines[1].endswith("…  a text a te…  17")


@pytest.mark.parametrize(
    ("text", "width"), [("abc", 3), ("東京", 4), ("e\u0301", 1), ("", 0), ("é", 1)]
)
def test_columns_of_a_terminal(text: str, width: int) -> None:
    assert text_width(text) == width


@given(text=st.text(max_size=40), width=st.integers(1, 20))
def test_a_cut_text_fits_its_width(text: str, width: int) -> None:
    shown = cut(text, width)
    assert text_width(shown) <= max(width, 1)
    assert shown == text or (shown.endswith("…") and text.startswith(shown[:-1]))


def test_wide_tables_are_asked_for() -> None:
    name = "n" * 200
    with Broker() as broker, mock.patch.dict("os.environ", COLUMNS="80"):
        broker.create_topic(name)
        where = ("-b", broker.bootstrap)
        with mock.patch("headrace.cli.output.printing.is_terminal", return_value=True):
            cut_off = CliRunner().invoke(main, ["topic", "list", *where])
            whole = CliRunner().invoke(main, ["topic", "list", "--wide", *where])
        piped = CliRunner().invoke(main, ["topic", "list", *where])
    assert name not in cut_off.stdout
    assert name in whole.stdout
    assert name in piped.stdout
