"""Tracebacks of handlers: in the log once for each type and place, in every dead letter, and bounded."""

from __future__ import annotations

import json
import logging
import traceback
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from headrace import App, Retry
from headrace.errors import WorkerFailedError
from headrace.workers.failure import tracebacks
from headrace.workers.failure.tracebacks import Failures, place_in

QUICK = Retry(attempts=2, first=0.001)
STACKTRACE = "kafka_dlt-exception-stacktrace"


def look_up(order: dict[str, Any]) -> Any:
    return order["totl"]  # the line that tracebacks have to show


LINE = look_up.__code__.co_firstlineno + 1


def handlers() -> dict[str, Callable[..., Any]]:
    async def in_loop(order: dict[str, Any]) -> None:
        look_up(order)

    def in_thread(order: dict[str, Any]) -> None:
        look_up(order)

    def batch(orders: list[dict[str, Any]]) -> None:
        for order in orders:
            look_up(order)

    return {"in_loop": in_loop, "in_thread": in_thread, "batch": batch}


@pytest.mark.parametrize("delivery", ["at_least_once", "at_most_once", "exactly_once"])
@pytest.mark.parametrize("kind", handlers())
def test_a_failure_is_logged_once_with_its_traceback_and_each_dead_letter_has_its_own(
    kind: str, delivery: Any, caplog: pytest.LogCaptureFixture
) -> None:
    app = App(group="g")
    retry = QUICK if delivery != "at_most_once" else None
    app.worker("orders", dead_letter=True, retry=retry, delivery=delivery)(handlers()[kind])
    with app.test() as t:
        for number in range(3):
            t.produce("orders", {"id": number})
        t.wait_idle()
        found = t.messages("dlq.orders")
    [told] = [each for each in caplog.records if "failed in attempt" in each.message]
    assert told.levelno == logging.WARNING
    assert f"KeyError('totl') at {__file__}:{LINE}" in told.message
    text = logging.Formatter().format(told)
    assert f'File "{__file__}", line {LINE}, in look_up' in text
    assert "processor.py" not in text, "frames of Headrace say nothing of the program"
    assert len(found) == 3
    for letter in found:
        trace = letter.header(STACKTRACE)
        assert trace is not None
        assert trace.startswith("Traceback (most recent call last):\n")
        assert f'File "{__file__}", line {LINE}, in look_up\n    return order["totl"]' in trace
        assert trace.endswith("KeyError: 'totl'\n")


def test_a_worker_that_stops_says_where_its_handler_failed() -> None:
    app = App(group="g")
    app.worker("orders", retry=1)(handlers()["in_loop"])
    stopped = pytest.raises(
        WorkerFailedError, match=rf"KeyError\('totl'\) at .*{__name__.split('.')[-1]}.py:{LINE}"
    )
    with stopped as raised, app.test() as t:
        t.produce("orders", {})
        t.wait_idle()
    assert "in look_up" in Failures().text(raised.value.__cause__ or raised.value)


def failure(function: Callable[[], Any]) -> Exception:
    try:
        function()
    except Exception as error:  # noqa: BLE001 - the test examines the error
        return error
    raise AssertionError("it did not fail")


def number_of(text: str) -> int:
    return int(text)


def test_each_dead_letter_has_its_own_message_although_stacks_are_formatted_once(
    monkeypatch,
) -> None:
    formatted = []
    extract = traceback.StackSummary.extract

    def count(*given: Any, **named: Any) -> Any:
        formatted.append(1)
        return extract(*given, **named)

    monkeypatch.setattr(traceback.StackSummary, "extract", count)
    seen = Failures()
    texts = [seen.text(failure(partial(number_of, f"x{number}"))) for number in range(50)]
    assert len(formatted) == 1
    assert [text.splitlines()[-1] for text in texts] == [
        f"ValueError: invalid literal for int() with base 10: 'x{number}'" for number in range(50)
    ]


def test_the_text_of_a_failure_starts_with_its_causes() -> None:
    def chained() -> None:
        try:
            json.loads("{")
        except ValueError as error:
            raise KeyError("outer") from error

    text = Failures().text(failure(chained))
    first, second = text.split("\nThe above exception was the direct cause")
    assert "JSONDecodeError" in first
    assert second.endswith("KeyError: 'outer'\n")


def test_an_exception_group_shows_its_exceptions() -> None:
    def group() -> None:
        raise ExceptionGroup("two", [failure(lambda: look_up({})), ValueError("b")])

    text = Failures().text(failure(group))
    assert "in look_up" in text
    assert "ValueError: b" in text


class Unreadable(Exception):  # noqa: N818 - the name describes the exception
    def __str__(self) -> str:
        raise RuntimeError("no text")


def deep() -> None:
    deep()


def raises(error: Exception) -> None:
    raise error


def in_a_circle() -> None:
    first, second = ValueError("first"), ValueError("second")
    first.__cause__, second.__cause__ = second, first
    raise first


@pytest.mark.parametrize(
    "function",
    [
        deep,
        in_a_circle,
        lambda: raises(Unreadable()),
        lambda: raises(ValueError("x" * 1_000_000)),
        lambda: compile("no python", "here.py", "exec"),
    ],
)
def test_the_text_of_any_failure_is_bounded_and_names_its_type(function: Any) -> None:
    error = failure(function)
    text = Failures().text(error)
    assert len(text) <= tracebacks.MAX_TEXT
    assert type(error).__name__ in text or "xxx" in text


def test_the_number_of_remembered_failures_is_bounded(monkeypatch) -> None:
    monkeypatch.setattr(tracebacks, "KINDS", 3)
    monkeypatch.setattr(tracebacks, "STACKS", 3)
    seen = Failures()
    for number in range(10):
        code = compile(f"{chr(10) * number}int('x')", "made.py", "exec")
        error = failure(partial(exec, code))
        assert seen.is_new(error)
        assert not seen.is_new(error)
        seen.text(error)
    assert len(seen._kinds) == len(seen._stacks) == 3


def test_a_raised_error_has_a_location_and_an_unraised_error_has_none() -> None:
    assert place_in(failure(lambda: json.loads("{"))) != ""
    assert place_in(ValueError("never raised")) == ""
