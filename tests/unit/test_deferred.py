"""Deferred values: resolved once, or cancelled; a cancelled value is neither reported nor kept."""

from __future__ import annotations

import gc

import pytest

from headrace.deferred import Deferred


def test_callbacks_run_in_order_when_it_is_resolved_and_at_once_afterwards():
    told: list[object] = []
    deferred: Deferred[int] = Deferred()
    deferred.on_done(lambda value: told.append(("first", value)))
    deferred.on_done(lambda value: told.append(("second", value)))
    deferred.resolve(7)
    deferred.on_done(lambda value: told.append(("third", value)))
    assert told == [("first", 7), ("second", 7), ("third", 7)]
    assert deferred.done
    assert deferred.value == 7


def test_resolving_twice_is_a_bug():
    deferred: Deferred[int] = Deferred()
    deferred.resolve(1)
    with pytest.raises(AssertionError, match="once"):
        deferred.resolve(2)


def test_the_maker_of_a_cancelled_value_is_notified_once():
    given_up: list[str] = []
    deferred: Deferred[int] = Deferred(lambda: given_up.append("made"))
    deferred.on_done(lambda _: pytest.fail("the value was cancelled"))
    deferred.cancel()
    deferred.cancel()
    assert given_up == ["made"]
    assert deferred.cancelled
    assert not deferred.done


def test_a_value_resolved_after_the_cancel_is_ignored():
    deferred: Deferred[int] = Deferred()
    deferred.cancel()
    deferred.resolve(1)
    deferred.resolve(2)
    deferred.on_done(lambda _: pytest.fail("there is no value"))
    assert not deferred.done
    with pytest.raises(AssertionError):
        _ = deferred.value


def test_cancelling_a_resolved_deferred_does_nothing():
    given_up: list[str] = []
    deferred: Deferred[int] = Deferred(lambda: given_up.append("made"))
    deferred.resolve(3)
    deferred.cancel()
    assert deferred.value == 3
    assert not deferred.cancelled
    assert given_up == []


def test_cancelling_a_chained_deferred_cancels_its_source():
    given_up: list[str] = []
    source: Deferred[int] = Deferred(lambda: given_up.append("source"))
    last = source.map(lambda _: pytest.fail("called")).map(lambda _: pytest.fail("called"))
    last.cancel()
    assert given_up == ["source"]
    assert source.cancelled
    source.resolve(1)
    assert not last.done


def test_on_cancel_replaces_an_earlier_function():
    given_up: list[str] = []
    deferred: Deferred[int] = Deferred(lambda: given_up.append("before"))
    deferred.on_cancel(lambda: given_up.append("after"))
    deferred.cancel()
    deferred.on_cancel(lambda: given_up.append("late"))
    assert given_up == ["after", "late"]


def test_a_followed_deferred_passes_on_values_and_cancellations():
    first: Deferred[int] = Deferred()
    follower: Deferred[int] = Deferred()
    follower.follow(first)
    first.resolve(5)
    assert follower.value == 5
    second: Deferred[int] = Deferred()
    given_up: Deferred[int] = Deferred()
    given_up.follow(second)
    given_up.cancel()
    assert second.cancelled
    third: Deferred[int] = Deferred()
    given_up.follow(third)
    assert third.cancelled


class Held:
    """Something large that an answer needs."""

    alive = 0

    def __init__(self) -> None:
        Held.alive += 1

    def __del__(self) -> None:
        Held.alive -= 1

    def use(self, *_: object) -> object:
        return None


@pytest.mark.parametrize("cancelled", [True, False])
def test_an_ended_deferred_is_freed_without_the_garbage_collector(cancelled):
    gc.disable()
    try:
        source: Deferred[int] = Deferred(Held().use)
        mapped = source.map(Held().use)
        mapped.on_done(Held().use)
        assert Held.alive == 3
        if cancelled:
            mapped.cancel()
        else:
            source.resolve(1)
        assert Held.alive == 0
    finally:
        gc.enable()
