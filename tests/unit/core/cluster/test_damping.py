"""The pause before elections when most brokers are gone at once."""

from __future__ import annotations

from headrace.core.cluster.damping import DAMPING_MS, Damping


def test_a_minority_that_is_gone_is_replaced_at_once() -> None:
    damping = Damping((1, 2, 3))
    assert damping.waits_until_ms((1, 2, 3), 0) is None
    assert damping.waits_until_ms((1, 2), 10) is None


def test_half_of_the_brokers_are_replaced_at_once() -> None:
    assert Damping((1, 2)).waits_until_ms((1,), 10) is None


def test_a_majority_that_is_gone_has_time_to_return() -> None:
    damping = Damping((1, 2, 3))
    assert damping.waits_until_ms((1,), 100) == 100 + DAMPING_MS
    assert damping.waits_until_ms((1,), 100 + DAMPING_MS - 1) == 100 + DAMPING_MS
    assert damping.waits_until_ms((1,), 100 + DAMPING_MS) is None


def test_the_pause_ends_when_all_brokers_are_back() -> None:
    damping = Damping((1, 2, 3))
    assert damping.waits_until_ms((1,), 100) == 100 + DAMPING_MS
    assert damping.waits_until_ms((1, 2), 200) == 100 + DAMPING_MS
    assert damping.waits_until_ms((1, 2, 3), 300) is None
    assert damping.waits_until_ms((1, 2), 400) is None


def test_brokers_that_go_one_after_the_other_count_together() -> None:
    damping = Damping(range(5))
    assert damping.waits_until_ms((0, 1, 2), 0) is None
    assert damping.waits_until_ms((0, 1), 1_000) == DAMPING_MS
    assert damping.waits_until_ms((0, 1), DAMPING_MS) is None, "the first two are long gone"


def test_brokers_that_stay_away_are_forgotten() -> None:
    damping = Damping(range(5))
    assert damping.waits_until_ms((0,), 0) == DAMPING_MS
    assert damping.waits_until_ms((0,), DAMPING_MS) is None
    assert damping.waits_until_ms((0, 1), DAMPING_MS + 1) is None
    assert damping.waits_until_ms((0,), DAMPING_MS + 2) is None, "one of two"
