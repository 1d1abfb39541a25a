"""B5: slow consumers, as docs/design/adr/0023 describes, in virtual time with a broker and complete consumers."""

from __future__ import annotations

from typing import Any

import pytest

from headrace import TopicPartition
from headrace.errors import ApiError, ErrorCode
from headrace.protocol.messages.leave_group import LeaveGroupRequest
from tests.acceptance.test_coordinator_failures import SERVER_SIDE, Scenario, is_kind
from tests.fixtures.consumer_simulation import Program, rebalance

POLL_MS = 15_000
SESSION_MS = 10_000
ASSIGNORS = ["range", "equal", SERVER_SIDE]


class Slow:
    """A group of two members, of which the second has a slow program. It keeps the calls of its listener."""

    def __init__(self, assignor: str, **options: Any) -> None:
        self.scenario = Scenario(assignor, members=1, session_ms=SESSION_MS)
        self.slow: Program = self.scenario.member(max_poll_interval_ms=POLL_MS, **options)
        self.told: list[str] = []
        self.slow.subscribe(["t"], listener=self)
        self.scenario.members.append(self.slow)
        self.scenario.settle()
        self.told.clear()

    @property
    def other(self) -> Program:
        return self.scenario.members[0]

    def on_revoked(self, _partitions: list[TopicPartition]) -> None:
        self.told.append("revoked")

    def on_lost(self, _partitions: list[TopicPartition]) -> None:
        self.told.append("lost")

    def works_for(self, milliseconds: int) -> None:
        """Let time pass. The slow program makes no call; the other member polls."""
        rebalance(self.other, rounds=milliseconds // 500)

    def leaves(self) -> int:
        return sum(is_kind(call.request, LeaveGroupRequest) for call in self.slow.calls)


@pytest.mark.parametrize("assignor", ASSIGNORS)
def test_b5_a_member_that_works_longer_than_its_session_keeps_its_partitions(assignor: str) -> None:
    """Heartbeats do not depend on the program."""
    group = Slow(assignor)
    held = group.slow.assignment()
    group.works_for(SESSION_MS + 3_000)
    assert group.slow.assignment() == held
    assert not group.slow.warnings
    group.slow.poll()
    assert group.told == []
    assert group.slow.assignment() == held


@pytest.mark.parametrize("assignor", ASSIGNORS)
def test_b5_a_member_that_polls_too_late_leaves_and_the_others_do_not_wait(
    assignor: str,
) -> None:
    group = Slow(assignor)
    group.scenario.world.fill("t", 6, 3)
    group.slow.poll(5_000)
    began_ms = group.scenario.world.now_ms
    while group.slow.core.trouble is None:
        group.works_for(500)
    assert group.scenario.world.now_ms - began_ms <= POLL_MS + 1_000
    assert group.leaves() == 1
    assert any("max.poll.interval.ms" in warning for warning in group.slow.warnings)
    # Not after the slow one's session, nor after its rebalance timeout: with the next heartbeats of the others.
    began_ms = group.scenario.world.now_ms
    while len(group.other.assignment()) < 6:
        group.works_for(500)
    assert group.scenario.world.now_ms - began_ms < SESSION_MS


@pytest.mark.parametrize("assignor", ASSIGNORS)
def test_b5_a_member_that_left_commits_nothing_and_joins_again_with_its_next_poll(
    assignor: str,
) -> None:
    group = Slow(assignor, enable_auto_commit=False)
    [where, *_] = group.slow.assignment()
    group.works_for(POLL_MS + 5_000)
    with pytest.raises(ApiError) as refused:
        group.slow.commit({where: 1})
    assert refused.value.code in {ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION}
    assert group.other.committed(where)[where] in {None, 0}
    assert group.told == []  # the program gets the error from its next call
    group.slow.poll()
    assert group.told == ["lost"]
    group.scenario.settle()
    assert group.slow.assignment()


@pytest.mark.parametrize("assignor", ASSIGNORS)
def test_b5_a_member_with_lag_that_polls_keeps_its_partitions(assignor: str) -> None:
    """Lag is no reason: one record a poll, ten seconds of work for each, for minutes."""
    group = Slow(assignor)
    group.scenario.world.fill("t", 6, 100)
    held = group.slow.assignment()
    for _ in range(20):
        assert len(group.slow.poll(1_000, max_records=1)) == 1
        group.works_for(10_000)
    assert group.slow.assignment() == held
    assert group.told == []
    assert not group.slow.warnings


@pytest.mark.parametrize("assignor", ASSIGNORS)
def test_b5_a_slow_static_member_keeps_its_partitions_until_its_session_ends(assignor: str) -> None:
    """A static member sends no LeaveGroup when it stops, as in Kafka: its instance id means that it returns."""
    group = Slow(assignor, group_instance_id="slow")
    held = group.slow.assignment()
    began_ms = group.scenario.world.now_ms
    while len(group.other.assignment()) < 6:
        group.works_for(500)
        assert group.scenario.world.now_ms - began_ms < POLL_MS + 2 * SESSION_MS + 5_000
    assert group.scenario.world.now_ms - began_ms >= POLL_MS + SESSION_MS // 2
    group.scenario.settle()
    assert len(group.slow.assignment()) == len(held)


@pytest.mark.parametrize("assignor", ["range", "equal"])
def test_b5_a_slow_member_holds_up_a_classic_rebalance_for_its_poll_interval_at_most(
    assignor: str,
) -> None:
    group = Slow(assignor)
    group.slow.poll()
    newcomer = group.scenario.member()
    began_ms = group.scenario.world.now_ms
    while not newcomer.assignment():
        rebalance(group.other, newcomer, rounds=1)
    took_ms = group.scenario.world.now_ms - began_ms
    assert POLL_MS - 2_000 <= took_ms <= POLL_MS + SESSION_MS


def test_b5_a_slow_member_of_a_consumer_group_delays_only_its_revoked_partitions() -> None:
    group = Slow(SERVER_SIDE)
    group.slow.poll()
    newcomer = group.scenario.member()
    began_ms = group.scenario.world.now_ms
    while not newcomer.assignment():
        rebalance(group.other, newcomer, rounds=1)
    assert group.scenario.world.now_ms - began_ms < POLL_MS - 2_000
