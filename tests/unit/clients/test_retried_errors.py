"""Errors that are retried: which of them are logged as warnings, how often, and what a time-out reports of them."""

from __future__ import annotations

from headrace.clients.trouble import FORGET_AFTER_MS, WARN_AFTER_MS, WARN_AGAIN_MS, Trouble
from headrace.errors import ApiError, ErrorCode, HeadraceError, TransportError

FULL = ApiError.for_code(ErrorCode.KAFKA_STORAGE_ERROR, "no space left")
AWAY = TransportError("a:1: Connection refused")


def watched() -> tuple[Trouble, list[str]]:
    trouble, warnings = Trouble(), list[str]()
    trouble.warn = warnings.append
    return trouble, warnings


def note(trouble: Trouble, error: HeadraceError, until_ms: int, every_ms: int = 100) -> None:
    for now_ms in range(0, until_ms + 1, every_ms):
        trouble.note(error, now_ms)


def test_an_error_of_a_broker_is_a_warning_after_a_second_and_again_after_a_minute() -> None:
    trouble, warnings = watched()
    note(trouble, FULL, WARN_AFTER_MS - 100)
    assert warnings == []
    note(trouble, FULL, WARN_AFTER_MS + WARN_AGAIN_MS)
    assert len(warnings) == 2
    assert all("free space on the broker's disk" in text for text in warnings)


def test_retries_log_no_warning_about_unreachable_brokers() -> None:
    trouble, warnings = watched()
    note(trouble, AWAY, 300_000)
    assert warnings == []
    assert trouble.explain("timed out", 0).startswith(
        "timed out; last error: a:1: Connection refused"
    )


def test_an_error_that_passed_is_a_new_one_when_it_comes_back() -> None:
    trouble, warnings = watched()
    trouble.note(FULL, 0)
    trouble.note(FULL, FORGET_AFTER_MS + 1)
    assert warnings == []
    assert trouble.explain("timed out", FORGET_AFTER_MS + 2) == "timed out", (
        "it was before the call"
    )


def test_an_error_is_the_same_with_other_numbers_in_its_text() -> None:
    trouble, warnings = watched()
    for now_ms in range(0, WARN_AGAIN_MS, 100):
        trouble.note(ApiError.for_code(FULL.code, f"t-0: {now_ms} bytes are free"), now_ms)
    assert len(warnings) == 1
    assert f"{WARN_AFTER_MS} bytes are free" in warnings[0]


def test_names_with_numbers_distinguish_errors() -> None:
    trouble, warnings = watched()
    places = ("t-0", "t-1", "orders2-1", "10.0.0.1:9092", "10.0.0.2:9092", "10.0.0.2:9093")
    for now_ms in range(0, WARN_AFTER_MS + 1, 100):
        for place in places:
            trouble.note(ApiError.for_code(FULL.code, f"{place}: {now_ms} bytes are free."), now_ms)
    assert len(warnings) == len(places)
