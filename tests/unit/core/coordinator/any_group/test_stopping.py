"""An administrator stops one member: its heartbeats notify the member, which leaves, or is removed at the deadline."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.core.coordinator.state import stops
from headrace.core.coordinator.state.stops import Stops, StopState
from headrace.errors import ErrorCode
from tests.fixtures.classic_consumers import ClassicConsumer
from tests.fixtures.consumer_group_harness import Consumer, ConsumerGroupHarness
from tests.fixtures.group_harness import SESSION_MS, GroupHarness, now, parked

TIMEOUT_MS = 5_000


def must_stop(harness: GroupHarness, member: str, generation: int, **options: Any) -> bool:
    response = now(harness.heartbeat_reply(member, generation, **options))
    return bool(response.headrace_stop)


# --- classic groups ---


def test_each_heartbeat_asks_the_member_to_stop_until_it_has_left():
    harness = GroupHarness()
    first, second = harness.stable(2)
    answer = harness.stop(second, timeout_ms=TIMEOUT_MS)
    assert (answer.state, answer.told, answer.error_code) == (StopState.STOPPING, False, 0)
    assert (answer.member_id, answer.remaining_ms) == (second, TIMEOUT_MS)
    assert not must_stop(harness, first, 2)
    assert must_stop(harness, second, 2)
    assert must_stop(harness, second, 2)
    assert harness.stop(second, again=True).told
    assert now(harness.leave((second, None))).error_code == 0
    for again in (True, False):
        answer = harness.stop(second, again=again)
        assert (answer.state, answer.error_code) == (StopState.STOPPED, 0)


def test_the_member_is_asked_to_stop_during_a_rebalance_too():
    harness = GroupHarness()
    first, second = harness.stable(2)
    harness.stop(second)
    harness.join(first)
    response = now(harness.heartbeat_reply(second, 2))
    assert response.error_code == ErrorCode.REBALANCE_IN_PROGRESS
    assert response.headrace_stop


def test_a_member_that_has_not_left_is_removed_at_the_deadline():
    harness = GroupHarness()
    first, second = harness.stable(2)
    harness.stop(second, timeout_ms=TIMEOUT_MS)
    harness.advance(TIMEOUT_MS - 1)
    assert must_stop(harness, second, 2)
    harness.advance(1)
    assert harness.heartbeat(second, 2) == ErrorCode.UNKNOWN_MEMBER_ID
    assert harness.heartbeat(first, 2) == ErrorCode.REBALANCE_IN_PROGRESS
    assert harness.stop(second, again=True).state == StopState.REMOVED


def test_a_member_that_waits_in_a_join_is_asked_to_stop_at_once():
    """A member in a JoinGroup sends no heartbeats, and the other members may take minutes to join."""
    harness = GroupHarness()
    first, _second = harness.stable(2)
    waiting = harness.join(first)
    assert parked(waiting)
    answer = harness.stop(first)
    assert answer.told
    assert (now(waiting).error_code, now(waiting).headrace_stop) == (
        ErrorCode.REBALANCE_IN_PROGRESS,
        True,
    )
    # A client that does not know the field joins again. Further requests of the administrator do not answer its
    # JoinGroup.
    again = harness.join(first)
    harness.stop(first, again=True)
    assert parked(again)
    now(harness.leave((first, None)))
    assert harness.stop(first, again=True).state == StopState.STOPPED


def test_a_member_that_waits_in_a_join_is_removed_at_the_deadline_too():
    harness = GroupHarness()
    first, second = harness.stable(2)
    harness.stop(first, timeout_ms=TIMEOUT_MS)
    waiting = harness.join(first)
    harness.heartbeat(second, 2)
    harness.advance(TIMEOUT_MS)
    assert now(waiting).error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert harness.stop(first, again=True).state == StopState.REMOVED


def test_the_earliest_deadline_of_a_stop_counts():
    harness = GroupHarness()
    (only,) = harness.stable()
    harness.stop(only, timeout_ms=TIMEOUT_MS)
    assert harness.stop(only, timeout_ms=9_000).remaining_ms == TIMEOUT_MS
    assert harness.stop(only, timeout_ms=2_000).remaining_ms == 2_000
    harness.advance(2_000)
    assert harness.stop(only, again=True).state == StopState.REMOVED


def test_a_stopping_member_whose_session_expires_has_no_outcome():
    harness = GroupHarness()
    first, second = harness.stable(2)
    harness.stop(second, timeout_ms=10 * SESSION_MS)
    for _ in range(3):
        harness.advance(SESSION_MS // 2)
        harness.heartbeat(first, 2)
    answer = harness.stop(second, again=True)
    assert (answer.state, answer.error_code) == (0, ErrorCode.UNKNOWN_MEMBER_ID)
    assert len(harness.coordinator._timers) == len(GroupHarness().coordinator._timers) + 2


def test_an_unknown_member_cannot_be_stopped():
    harness = GroupHarness()
    harness.stable()
    assert harness.stop("stranger").error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert harness.stop("").error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert harness.stop("x", group="other").error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert harness.stop(instance="i").error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert now(harness.join()).error_code == ErrorCode.MEMBER_ID_REQUIRED
    pending = next(iter(harness.group().pending))
    assert harness.stop(pending).error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_a_static_member_is_named_by_its_instance_id():
    harness = GroupHarness()
    joined = now(harness.join(instance="one"))
    member = joined.member_id
    harness.sync_group(member, 1, {member: b""}, instance="one")
    assert harness.stop("wrong", instance="one").error_code == ErrorCode.FENCED_INSTANCE_ID
    assert harness.stop(instance="one").member_id == member
    assert must_stop(harness, member, 1, instance="one")
    now(harness.leave((member, "one")))
    assert harness.stop(member, again=True).state == StopState.STOPPED


def test_the_replacement_of_a_stopping_static_member_does_not_stop():
    harness = GroupHarness()
    member = now(harness.join(instance="one")).member_id
    harness.sync_group(member, 1, {member: b""}, instance="one")
    harness.stop(member)
    successor = now(harness.join(instance="one"))
    assert not must_stop(harness, successor.member_id, successor.generation_id, instance="one")
    assert harness.stop(member, again=True).error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_after_a_restart_the_next_request_begins_the_stop_again():
    harness = GroupHarness()
    first, _second = harness.stable(2)
    harness.stop(first, timeout_ms=TIMEOUT_MS)
    harness.restart()
    assert not must_stop(harness, first, 2)
    assert harness.stop(first, timeout_ms=3_000, again=True).remaining_ms == 3_000
    assert must_stop(harness, first, 2)


def test_a_deadline_from_before_a_restart_removes_no_member():
    harness = GroupHarness()
    first, second = harness.stable(2)
    harness.stop(first, timeout_ms=TIMEOUT_MS)
    harness.coordinator.unload(0)
    harness.coordinator.load(0, harness.now_ms)
    harness.advance(TIMEOUT_MS)
    assert {harness.heartbeat(member, 2) for member in (first, second)} == {ErrorCode.NONE}


# --- groups of the server-side protocol, and of both kinds ---


@pytest.fixture
def consumers() -> ConsumerGroupHarness:
    harness = ConsumerGroupHarness()
    harness.topics.create("t", 6)
    return harness


def settle(*members: Consumer | ClassicConsumer) -> None:
    for _ in range(12):
        for member in members:
            member.beat()


def test_a_member_of_a_consumer_group_is_asked_to_stop_and_leaves(consumers):
    one, two = Consumer(consumers, "one", "t"), Consumer(consumers, "two", "t")
    settle(one, two)
    consumers.stop("two", timeout_ms=TIMEOUT_MS)
    assert not one.beat().headrace_stop
    assert two.beat().headrace_stop
    two.leave()
    assert consumers.stop("two", again=True).state == StopState.STOPPED
    settle(one)
    assert len(one.owned) == 6


def test_a_consumer_group_member_that_does_not_stop_is_removed_at_the_deadline(consumers):
    one, two = Consumer(consumers, "one", "t"), Consumer(consumers, "two", "t")
    settle(one, two)
    consumers.stop("two", timeout_ms=TIMEOUT_MS)
    consumers.advance(TIMEOUT_MS)
    assert two.beat().error_code == ErrorCode.UNKNOWN_MEMBER_ID
    two.beat()  # under the same id
    assert consumers.group().members.keys() == {"one", "two"}
    assert consumers.stop("two", again=True).state == StopState.REMOVED
    # A new request means the member that there is now.
    assert consumers.stop("two").state == StopState.STOPPING


def test_a_removal_that_cannot_be_written_is_tried_again(consumers):
    settle(Consumer(consumers, "one", "t"))
    consumers.stop("one", timeout_ms=TIMEOUT_MS)
    consumers.refuse_appends()
    consumers.advance(TIMEOUT_MS)
    assert consumers.stop("one", again=True).state == StopState.STOPPING
    consumers.accept_appends()
    consumers.advance(0)
    assert consumers.stop("one", again=True).state == StopState.REMOVED


def test_a_classic_member_of_a_consumer_group_is_asked_to_stop(consumers):
    modern, classic = Consumer(consumers, "one", "t"), ClassicConsumer(consumers, "t")
    settle(modern, classic)
    consumers.stop(classic.member)
    assert must_stop(consumers, classic.member, classic.generation)
    assert not modern.beat().headrace_stop
    member = classic.member
    classic.leave()
    assert consumers.stop(member, again=True).state == StopState.STOPPED


def test_the_stop_of_the_last_consumer_ends_when_the_group_becomes_a_classic_one(consumers):
    modern, classic = Consumer(consumers, "one", "t"), ClassicConsumer(consumers, "t")
    settle(modern, classic)
    consumers.stop("one")
    modern.leave()
    assert consumers.stop("one", again=True).state == StopState.STOPPED


@pytest.mark.parametrize("to", ["classic", "consumer"])
def test_a_stop_continues_when_the_group_changes_its_protocol(consumers, to):
    classic, other = ClassicConsumer(consumers, "t"), ClassicConsumer(consumers, "t")
    modern = Consumer(consumers, "one", "t")
    settle(classic, other, *([modern] if to == "classic" else []))
    consumers.stop(classic.member, timeout_ms=TIMEOUT_MS)
    if to == "classic":
        modern.leave()
    else:
        modern.beat()
    assert must_stop(consumers, classic.member, classic.generation)
    consumers.advance(TIMEOUT_MS)
    assert consumers.stop(classic.member, again=True).state == StopState.REMOVED


def test_a_static_member_of_a_consumer_group_that_comes_back_has_not_stopped(consumers):
    member = Consumer(consumers, "one", "t", instance="i")
    settle(member)
    consumers.stop(instance="i")
    member.leave(-2)  # for a while, as a program does that does not know that it has to stop
    assert consumers.stop("one", again=True).state == StopState.STOPPING
    successor = Consumer(consumers, "two", "t", instance="i")
    assert not successor.beat().headrace_stop
    assert consumers.stop("one", again=True).error_code == ErrorCode.UNKNOWN_MEMBER_ID


# --- the state of stops ---


def test_the_outcomes_of_stops_in_memory_are_bounded(monkeypatch):
    monkeypatch.setattr(stops, "ENDS_LIMIT", 3)
    kept = Stops()
    for number in range(5):
        kept.begin("g", f"m{number}", 1)
        kept.ends("g", f"m{number}", StopState.STOPPED)
        kept.gone("g", f"m{number}")
    found = [kept.end_of("g", f"m{number}") for number in range(5)]
    assert found == [None, None, StopState.STOPPED, StopState.STOPPED, StopState.STOPPED]
    assert not kept.pending


def test_stops_of_different_groups_and_members_are_distinguished():
    kept = Stops()
    kept.begin("ab", "c", 1)
    kept.ends("ab", "c", StopState.STOPPED)
    kept.gone("ab", "c")
    assert kept.end_of("a", "bc") is None
    assert kept.end_of("ab", "c") is StopState.STOPPED
