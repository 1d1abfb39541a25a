"""ListTransactions: the patterns of transactional ids, and their bounds."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.broker.bounds import expressions
from headrace.errors import ErrorCode
from headrace.protocol.messages.list_transactions import ListTransactionsRequest
from tests.fixtures.broker_harness import BrokerHarness
from tests.fixtures.transactional_producer import Producer, transactional_broker

NAMES = ["orders-1", "orders-2", "payments"]


@pytest.fixture
def harness(tmp_path: Any) -> BrokerHarness:
    harness = transactional_broker(tmp_path)
    for name in NAMES:
        Producer(harness, name)
    return harness


def listed(harness: BrokerHarness, pattern: str | None) -> list[str] | ErrorCode:
    """Return the ids that a pattern finds, or the error."""
    request = ListTransactionsRequest(transactional_id_pattern=pattern)
    answer = harness.call(request, 2)
    if answer.error_code:
        return ErrorCode(answer.error_code)
    return sorted(each.transactional_id for each in answer.transaction_states)


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        (None, NAMES),
        ("", NAMES),
        (".*", NAMES),
        ("orders", []),
        ("orders-.", NAMES[:2]),
        ("^orders-[12]$", NAMES[:2]),
        ("(?i)PAY.*", NAMES[2:]),
        ("nobody", []),
    ],
)
def test_a_pattern_matches_whole_ids(harness: BrokerHarness, pattern: str, found: list[str]):
    assert listed(harness, pattern) == found


@pytest.mark.parametrize("pattern", ["(", "*", "[a", "(?=x)", "a{1001}", "x" * 1001, "(a?){600}"])
def test_a_pattern_that_is_bad_or_too_large_is_refused(harness: BrokerHarness, pattern: str):
    assert listed(harness, pattern) is ErrorCode.INVALID_REGULAR_EXPRESSION


@pytest.mark.parametrize("bound", ["_TEXT_STEPS_LIMIT", "_STEPS_LIMIT"])
def test_a_pattern_that_takes_too_long_over_the_ids_is_refused(
    harness: BrokerHarness, monkeypatch: pytest.MonkeyPatch, bound: str
):
    assert listed(harness, "[a-z]+-.{0,9}") == NAMES[:2]
    monkeypatch.setattr(expressions, bound, 200)
    assert listed(harness, "[a-z]+-.{0,9}") is ErrorCode.INVALID_REGULAR_EXPRESSION


def test_without_the_library_patterns_are_refused_and_the_rest_is_listed(
    harness: BrokerHarness, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(expressions, "re2", None)
    assert listed(harness, ".*") is ErrorCode.INVALID_REGULAR_EXPRESSION
    assert listed(harness, None) == NAMES
