"""The checker of histories raises no alarm without a reason, and finds every fault that it is there to find."""

from __future__ import annotations

import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.effort import examples
from tests.fixtures.history.checker import check
from tests.fixtures.history.made_up import CleanHistory, planted
from tests.fixtures.history.operations import (
    FAIL,
    INFO,
    INVOKE,
    OK,
    Journal,
    Operation,
    read_operations,
)

FAULTS = [
    "inconsistent-offsets",
    "duplicate",
    "G1a",
    "phantom",
    "precommitted-read",
    "lost-write",
    "unseen",
    "poll-skip",
    "int-poll-skip",
    "nonmonotonic-poll",
    "int-nonmonotonic-poll",
    "nonmonotonic-send",
    "int-nonmonotonic-send",
    "int-send-skip",
    "G0",
    "G1c",
    "G1c-ww",
]
SEEDS = st.integers(0, 1 << 32)
STEPS = 150  # enough for some records in each partition


def history(*told: tuple[str, str, list[Any]]) -> list[Operation]:
    """Return a history of transactions, each given as process, end and steps. One without an end stays open."""
    lines = []
    for process, end, value in told:
        f = "assign" if value and isinstance(value[0], str) else "txn"
        lines += [(process, INVOKE, f, value), *([(process, end, f, value)] if end else [])]
    return [Operation(time_ns, *line) for time_ns, line in enumerate(lines)]


def kinds(operations: list[Operation]) -> set[str]:
    return {anomaly.kind for anomaly in check(operations, frozenset())}


def send(offset: int | None, value: str, partition: str = "p") -> list[Any]:
    return ["send", partition, value if offset is None else [offset, value]]


def poll(*pairs: tuple[int, str], partition: str = "p") -> list[Any]:
    return ["poll", {partition: [list(pair) for pair in pairs]}]


ALL = ("r", OK, [poll((0, "a"), (1, "b"), (2, "c"))])
SENT = ("w", OK, [send(0, "a"), send(1, "b"), send(2, "c")])


@pytest.mark.parametrize(
    ("wanted", "told"),
    [
        (set(), [SENT, ALL]),
        (set(), [("w", INFO, [send(None, "a")])]),
        (set(), [("w", "", [send(None, "a")]), ("r", OK, [poll((0, "a"))])]),
        (set(), [("w", FAIL, [send(None, "a")])]),
        (set(), [SENT, ALL, ("r", OK, ["p"]), ("r", OK, [poll((1, "b"))])]),
        ({"inconsistent-offsets"}, [SENT, ALL, ("v", OK, [send(None, "d")]), ("q", OK, [poll((1, "d"))])]),
        ({"inconsistent-offsets"}, [SENT, ALL, ("v", FAIL, [send(1, "d")])]),
        ({"duplicate"}, [SENT, ALL, ("q", OK, [poll((3, "a"))])]),
        ({"duplicate"}, [SENT, ALL, ("q", OK, [poll((0, "a"), partition="p2")])]),
        ({"G1a"}, [("w", FAIL, [send(None, "a")]), ("r", OK, [poll((0, "a"))])]),
        ({"phantom"}, [("r", OK, [poll((0, "a"))])]),
        ({"precommitted-read"}, [("w", OK, [send(0, "a"), poll((0, "a"))])]),
        ({"lost-write"}, [SENT, ("r", OK, [poll((1, "b"))]), ("q", OK, [poll((2, "c"))])]),
        ({"unseen"}, [SENT, ("r", OK, [poll((0, "a"), (1, "b"))])]),
        ({"unseen"}, [("w", OK, [send(None, "a")])]),
        ({"poll-skip"}, [SENT, ALL, ("q", OK, [poll((0, "a"))]), ("q", OK, [poll((2, "c"))])]),
        ({"int-poll-skip"}, [SENT, ALL, ("q", OK, [poll((0, "a"), (2, "c"))])]),
        ({"nonmonotonic-poll"}, [SENT, ALL, ("r", OK, [poll((2, "c"))])]),
        ({"int-nonmonotonic-poll"}, [SENT, ALL, ("q", OK, [poll((1, "b"), (0, "a"))])]),
        ({"nonmonotonic-send"}, [("w", OK, [send(1, "b"), send(2, "c")]), ("w", OK, [send(0, "a")]), ALL]),
        ({"int-nonmonotonic-send", "int-send-skip"}, [("w", OK, [send(1, "b"), send(0, "a"), send(2, "c")]), ALL]),
        ({"int-send-skip", "G0"}, [("w", OK, [send(0, "a"), send(2, "c")]), ("v", OK, [send(1, "b")]), ALL]),
        (
            {"G1c"},
            [
                ("w", OK, [poll((0, "y"), partition="q"), send(0, "x")]),
                ("v", OK, [poll((0, "x")), send(0, "y", "q")]),
            ],
        ),
        (
            {"G1c-ww"},
            [
                ("w", OK, [send(0, "a"), poll((0, "y"), partition="q")]),
                ("v", OK, [send(1, "b"), send(0, "y", "q")]),
                ("r", OK, [poll((0, "a"), (1, "b"))]),
            ],
        ),
    ],
)  # fmt: skip
def test_the_checker_finds_each_violation_and_no_other(wanted: set[str], told: list[Any]) -> None:
    assert kinds(history(*told)) == wanted


def test_the_checker_allows_what_kafka_does_not_promise() -> None:
    told = history(("w", OK, [send(0, "a"), send(2, "c")]), ("v", OK, [send(1, "b")]), ALL)
    assert check(told) == []


def test_the_checker_refuses_an_impossible_history() -> None:
    begun, ended = history(SENT)
    with pytest.raises(ValueError, match="was open"):
        check([begun, begun])
    with pytest.raises(ValueError, match="had not begun"):
        check([ended])
    with pytest.raises(ValueError, match="sent by two"):
        check(history(SENT, ("v", OK, [send(None, "a")])))


@settings(max_examples=examples(100))
@given(SEEDS)
def test_a_clean_history_raises_no_alarm(seed: int) -> None:
    assert check(CleanHistory(seed, STEPS).operations) == []


@pytest.mark.parametrize("fault", FAULTS)
@settings(max_examples=examples(25))
@given(seed=SEEDS)
def test_a_planted_fault_is_found(fault: str, seed: int) -> None:
    assert fault in kinds(planted(CleanHistory(seed, STEPS).operations, fault, seed))


def test_two_hundred_thousand_operations_are_checked_within_a_minute() -> None:
    made_up = CleanHistory(1, 42_000).operations  # a tenth of them: the cost grows linearly
    assert sum(operation.type == INVOKE for operation in made_up) >= 20_000
    began = time.process_time()
    assert check(made_up) == []
    assert time.process_time() - began < 6


def test_a_journal_outlives_its_writer(tmp_path) -> None:
    journal = Journal(tmp_path / "a", "w")
    journal.write(INVOKE, "txn", [send(None, "a")])
    journal.write(OK, "txn", [send(0, "a")])
    with (tmp_path / "a").open("a") as file:
        file.write('[1,"half')
    found = read_operations([tmp_path / "a"])
    assert [(each.process, each.type, each.value) for each in found] == [
        ("w", INVOKE, [send(None, "a")]),
        ("w", OK, [send(0, "a")]),
    ]
    journal.close()
