"""What a broker or a record says cannot drive the terminal; and JSON is what it was."""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
from collections.abc import Callable
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.cli._configs import config_values
from headrace.cli._output import json_text, print_facts, print_json, print_table, say

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


def test_what_is_readable_stays() -> None:
    assert json_text({"name": "Zürich 東京 😀"}) == '{"name": "Zürich 東京 😀"}'


@given(
    rows=st.lists(st.tuples(st.text(max_size=60), st.text(max_size=60), st.integers()), max_size=4),
    width=st.integers(30, 200),
)
def test_a_table_that_fits_is_cut_on_a_terminal_alone(
    rows: list[tuple[str, str, int]], width: int
) -> None:
    wide = printed(lambda: print_table(["A", "B", "N"], rows))
    assert printed(lambda: print_table(["A", "B", "N"], rows, fit=True)) == wide
    with mock.patch("shutil.get_terminal_size", return_value=os.terminal_size((width, 24))):
        lines = printed(lambda: _on_a_terminal(rows)).splitlines()
    assert len(lines) == len(rows) + 1
    # No column gets narrower than twelve characters.
    assert all(len(line) <= max(width, 3 * 12 + 4) for line in lines)


def _on_a_terminal(rows: list[tuple[str, str, int]]) -> None:
    with mock.patch.object(sys.stdout, "isatty", return_value=True):
        print_table(["A", "B", "N"], rows, fit=True)


def test_durations_and_sizes_are_numbers_for_a_broker() -> None:
    given = {
        "retention.ms": "1h30m",
        "segment.bytes": "64MiB",
        "max.message.bytes": "2m",
        "retention.bytes": "-1",
        "segment.ms": "500",
        "delete.retention.ms": "-5m",
        "cleanup.policy": "1h",
    }
    assert config_values(given) == {
        **given,
        "retention.ms": "5400000",
        "segment.bytes": str(64 << 20),
        "max.message.bytes": str(2 << 20),
    }
