"""An event is one line of the log with any client id, and the JSON format is valid JSON."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.server.log import (
    TRACEBACK_LIMIT,
    VALUE_LIMIT,
    JsonFormatter,
    LoggingJournal,
    TextFormatter,
)

HOSTILE = (
    "\n2026-01-31T12:00:00.000Z INFO server_stopped clean=True",
    "\r\n",
    "a\x85b\u2028c\u2029d\x0be\x0cf\x1cg",
    "\x1b[2J\x1b]0;title\x07",
    "\u202egnp.exe",
    "\x00\x7f\x9b",
    "\ud800",
    'x" y=1 principal="User:admin',
    "'} principal=User:admin",
    "%s %d %n {0}",
    "n" * 1_000_000,
    "\n" * 1_000_000,
    "\U0001f600" * 300_000,
)
texts = st.one_of(st.sampled_from(HOSTILE), st.text(st.characters()))
values = st.recursive(
    st.one_of(texts, st.none(), st.booleans(), st.integers(), st.floats(), st.binary()),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.dictionaries(texts, inner, max_size=4), st.tuples(inner)
    ),
    max_leaves=6,
)
formatters = pytest.mark.parametrize("formatter", [TextFormatter, JsonFormatter])


def logged(formatter: logging.Formatter, tell: Callable[[LoggingJournal], None]) -> str:
    """Return the text that one event of a journal writes."""
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(formatter)
    logger = logging.Logger("apart", logging.INFO)  # noqa: LOG001  # pytest would report megabytes of it
    logger.addHandler(handler)
    tell(LoggingJournal(logger))
    return stream.getvalue()


def check_one_line(line: str) -> str:
    assert line.endswith("\n")
    body = line[:-1]
    assert body.isprintable()
    assert len(body.splitlines()) == 1
    return body


@formatters
@given(value=values)
def test_a_value_of_a_client_makes_one_line(
    formatter: type[logging.Formatter], value: object
) -> None:
    line = logged(formatter(), lambda journal: journal.warning("group_left", reason=value, last=7))
    body = check_one_line(line)
    assert len(body) < 2_000_000
    if formatter is JsonFormatter:
        found = json.loads(body, parse_constant=pytest.fail)
        assert found["event"] == "group_left"
        assert found["last"] == 7
        if isinstance(value, str) and len(value) <= VALUE_LIMIT:
            assert found["reason"] == value
    else:
        assert body.endswith(" last=7")
        assert body.split(" ")[1:3] == ["WARNING", "group_left"]


@formatters
@pytest.mark.parametrize("text", HOSTILE)
def test_a_long_value_is_cut(formatter: type[logging.Formatter], text: str) -> None:
    line = logged(formatter(), lambda journal: journal.info("group_left", reason=text))
    assert len(check_one_line(line)) <= VALUE_LIMIT * 12 + 200


@formatters
@given(text=texts)
def test_a_message_of_another_library_is_one_line(
    formatter: type[logging.Formatter], text: str
) -> None:
    record = logging.LogRecord("asyncio", logging.ERROR, "x", 1, "%s failed", (text,), None)
    body = check_one_line(formatter().format(record) + "\n")
    assert "failed" in body or len(text) > VALUE_LIMIT


@formatters
@given(text=texts)
def test_a_traceback_cannot_forge_a_line(formatter: type[logging.Formatter], text: str) -> None:
    def fail() -> None:
        raise ValueError(text)

    def tell(journal: LoggingJournal) -> None:
        try:
            fail()
        except ValueError:
            journal.error("request_failed")

    lines = logged(formatter(), tell)
    if formatter is JsonFormatter:
        found = json.loads(check_one_line(lines))
        assert len(found["traceback"]) <= TRACEBACK_LIMIT + 4
        return
    first, *others = lines[:-1].split("\n")
    check_one_line(first + "\n")
    assert others
    for line in others:
        assert line.startswith("    | ")
        assert line.isprintable()


def test_an_unprintable_value_is_quoted_in_text() -> None:
    line = logged(
        TextFormatter(), lambda journal: journal.info("x", client_id="a\nb", n=float("nan"))
    )
    assert line.endswith("Z INFO x client_id='a\\nb' n='not a usable number'\n")
