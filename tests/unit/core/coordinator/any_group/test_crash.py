"""The coordinator is killed: the state that it loads, and how groups continue (five crash scenarios first)."""

from __future__ import annotations

import pytest

from headrace.core.coordinator.state.classic_states import GroupState
from headrace.core.coordinator.state.records import GenerationRecord, GroupRecord, OffsetCommit
from headrace.errors import ErrorCode
from tests.fixtures.group_clients import GroupClient, converge
from tests.fixtures.group_harness import (
    SESSION_MS,
    GroupHarness,
    assignment,
    now,
    parked,
    subscription,
)


class Harness(GroupHarness):
    """Members first (the leader) and second, Stable in generation 2, all of it synced."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = self.stable(2)
        self.sync()
        self.log.manual = True

    def members(self, *names: str) -> list[GroupClient]:
        """Return first and second as clients that continue, and new members."""
        known = {"first": self.first, "second": self.second}
        return [
            GroupClient(
                self, name, member=known.get(name, ""), generation=2 if name in known else -1
            )
            for name in names
        ]


@pytest.fixture
def world() -> Harness:
    return Harness()


def test_1_after_a_crash_a_change_that_members_have_not_seen_is_noticed_again(world):
    """The second member has left, and the others are not notified."""
    now(world.leave((world.second, None)))
    world.restart()
    assert world.heartbeat(world.first, 2) == ErrorCode.NONE
    world.advance(SESSION_MS - 1)
    assert world.heartbeat(world.first, 2) == ErrorCode.NONE
    world.advance(1)
    assert world.heartbeat(world.first, 2) == ErrorCode.REBALANCE_IN_PROGRESS
    (first,) = world.members("first")
    first.assignment = {0}
    assert converge(world, [first]) == 3


def test_1_after_a_crash_an_unchanged_membership_is_not_rebalanced(world):
    """The session of the second member expired before the crash, but the membership is unchanged after it."""
    world.advance(SESSION_MS - 1)
    world.heartbeat(world.first, 2)
    world.advance(1)
    assert world.group().state is GroupState.PREPARING_REBALANCE
    world.restart()
    world.take_records()
    for member in (world.first, world.second):
        assert world.heartbeat(member, 2) == ErrorCode.NONE
    assert world.group().state is GroupState.STABLE
    assert world.take_records() == []


def test_2_after_a_crash_notified_and_unnotified_members_continue(world):
    _, newcomer = world.admitted()
    assert world.heartbeat(world.second, 2) == ErrorCode.REBALANCE_IN_PROGRESS
    world.restart()
    assert parked(newcomer)  # its connection is closed
    # The member with an answer joins again and, as an unchanged follower, finds its generation as it was.
    assert now(world.join(world.second)).generation_id == 2
    assert now(world.sync_group(world.second, 2)).assignment == assignment("t", 1)
    assert world.group().state is GroupState.STABLE
    # The new member joins again, with an unknown member id.
    clients = world.members("first", "second", "third")
    clients[0].assignment, clients[1].assignment = {0}, {1}
    clients[2].member = "client-lost"
    assert converge(world, clients) == 3


def test_3_killed_with_only_some_joins_received(world):
    world.admitted()
    world.join(world.second)
    world.restart()
    assert world.group().state is GroupState.STABLE
    assert world.heartbeat(world.first, 2) == ErrorCode.NONE
    # The connection of second was closed while its join was parked: it repeats it.
    clients = world.members("first", "second", "third")
    clients[0].assignment, clients[1].generation = {0}, -1
    assert converge(world, clients) == 3


def test_3_killed_while_the_join_phase_is_complete_but_not_durable(world):
    leader, follower = world.join(world.first), world.join(world.second)
    assert world.group().generation.number == 3
    assert parked(leader)
    assert parked(follower)
    world.restart()
    assert world.group().generation.number == 2
    assert world.group().state is GroupState.STABLE
    for member in (world.first, world.second):
        assert world.heartbeat(member, 2) == ErrorCode.NONE


def test_4_killed_after_the_new_generation_is_durable(world):
    leader, follower = world.join(world.first), world.join(world.second)
    world.log.sync(0)
    world.restart()
    assert parked(leader)
    assert parked(follower)
    world.take_records()
    assert world.group().state is GroupState.COMPLETING_REBALANCE
    # No member got an answer: both repeat their joins and get the answers they missed, without another rebalance.
    leader, follower = now(world.join(world.first)), now(world.join(world.second))
    assert (leader.generation_id, follower.generation_id) == (3, 3)
    assert [member.member_id for member in leader.members] == [world.first, world.second]
    assert world.take_records() == []
    waiting = world.sync_group(world.second, 3)
    world.sync_group(world.first, 3, {world.first: b"a", world.second: b"b"})
    world.sync()
    assert now(waiting).assignment == b"b"


def test_4_members_that_support_more_than_the_elected_protocol_are_recognised():
    world = GroupHarness()
    protocols = {"range": subscription("t"), "sticky": b"anything"}
    first, _ = world.admitted(protocols=protocols)
    world.restart()
    assert now(world.join(first, protocols=protocols)).generation_id == 1
    changed = {"range": subscription("u"), "sticky": b"anything"}
    assert now(world.join(first, protocols=changed)).generation_id == 2


def test_5_killed_with_only_some_join_answers_sent(world):
    world.join(world.first)
    world.join(world.second)
    world.log.sync(0)
    world.restart()
    # First had its answer: it goes on with its sync. Second did not: it joins again.
    leader = world.sync_group(world.first, 3, {world.first: b"a", world.second: b"b"})
    world.sync()
    assert now(leader).assignment == b"a"
    assert now(world.join(world.second)).generation_id == 3
    assert now(world.sync_group(world.second, 3)).assignment == b"b"
    assert world.group().state is GroupState.STABLE


def test_5_killed_with_only_some_assignments_sent(world):
    world.join(world.first)
    world.join(world.second)
    world.sync()
    world.sync_group(world.second, 3)
    world.sync_group(world.first, 3, {world.first: b"a", world.second: b"b"})
    world.log.sync(0)
    world.restart()
    world.take_records()
    assert world.group().state is GroupState.STABLE
    assert world.heartbeat(world.first, 3) == ErrorCode.NONE
    assert now(world.sync_group(world.second, 3)).assignment == b"b"
    assert world.take_records() == []


def test_5_killed_with_the_assignment_not_durable(world):
    world.join(world.first)
    world.join(world.second)
    world.sync()
    waiting = world.sync_group(world.first, 3, {world.first: b"a"})
    assert parked(waiting)
    world.restart()
    assert world.group().state is GroupState.COMPLETING_REBALANCE
    again = world.sync_group(world.first, 3, {world.first: b"a"})
    world.sync()
    assert now(again).assignment == b"a"


# --- what comes back ---


def test_after_a_restart_a_stable_group_goes_on_without_a_rebalance(world):
    world.advance(SESSION_MS - 1)
    world.restart()
    world.take_records()
    world.advance(SESSION_MS - 1)  # every member has a full session from the load
    for member in (world.first, world.second):
        assert world.heartbeat(member, 2) == ErrorCode.NONE
        assert now(world.sync_group(member, 2)).error_code == ErrorCode.NONE
    world.advance(SESSION_MS)
    assert world.group().members == {} or world.group().state is not GroupState.STABLE


def test_members_that_died_with_the_broker_expire_after_it_is_back(world):
    world.restart()
    world.advance(SESSION_MS)
    world.sync()
    assert world.group().state is GroupState.EMPTY
    assert world.group().generation.number == 3


def test_a_generation_that_waits_for_its_assignment_is_not_waited_for_for_ever(world):
    world.join(world.first, session_ms=1_000_000)
    world.join(world.second, session_ms=1_000_000)
    world.sync()
    world.restart()
    world.advance(60_000)
    assert world.group().members == {}


def test_acknowledged_commits_come_back_and_others_were_not_acknowledged(world):
    acknowledged = world.commit({("t", 0): 5}, member=world.first, generation=2)
    world.sync()
    lost = world.commit({("t", 0): 9}, member=world.first, generation=2)
    world.restart()
    assert now(acknowledged).topics[0].partitions[0].error_code == ErrorCode.NONE
    assert parked(lost)
    assert world.offsets() == {("t", 0): 5}


def test_an_old_generation_stays_invalid_after_a_restart(world):
    world.join(world.first)
    world.join(world.second)
    world.sync()
    world.sync_group(world.first, 3, {})
    world.sync()
    world.restart()
    code = world.commit_code({("t", 0): 1}, member=world.first, generation=2)
    assert code == ErrorCode.ILLEGAL_GENERATION
    assert world.offsets() == {}


def test_unload_answers_all_requests_and_the_next_load_replays_the_log(world):
    now(world.leave((world.second, None)))
    _, join = world.admitted()
    commit = world.commit({("t", 0): 1}, member=world.first, generation=2)
    world.coordinator.unload(0)
    assert now(join).error_code == ErrorCode.NOT_COORDINATOR
    assert now(commit).topics[0].partitions[0].error_code == ErrorCode.NOT_COORDINATOR
    assert world.heartbeat(world.first, 2) == ErrorCode.NOT_COORDINATOR
    world.coordinator.load(0, world.now_ms)
    world.sync()
    assert world.heartbeat(world.first, 2) == ErrorCode.NONE
    assert world.offsets() == {("t", 0): 1}


def test_a_compacted_log_gives_the_same_state(world):
    """Only the last record of each key is left, and tombstones of groups that are not known."""
    world.commit({("t", 0): 1, ("t", 1): 2}, member=world.first, generation=2)
    world.commit({("t", 0): 3}, member=world.first, generation=2)
    world.commit({("t", 0): 1}, group="other")
    world.sync()
    before, offsets = world.group().generation, world.offsets()
    last: dict[object, GroupRecord] = {}
    for record in world.log.records():
        assert record is not None
        key = record[:3] if isinstance(record, OffsetCommit) else record.group_id
        last.pop(key, None)
        last[key] = record
    shard = world.coordinator._shards[0]
    world.log.batches[0] = []
    tombstones: list[GroupRecord] = [
        GenerationRecord("gone", None),
        OffsetCommit("gone", "t", 0, None),
    ]
    for record in [*tombstones, *last.values()]:
        world.log.append(0, shard.encode([record], world.now_ms), world.now_ms)
        base, batch = world.log.batches[0].pop()
        world.log.batches[0].append((base * 7, (base * 7).to_bytes(8, "big") + batch[8:]))
    world.log.sync(0)
    world.restart()
    assert (world.group().generation, world.offsets()) == (before, offsets)
    assert set(world.coordinator._shards[0].classic_groups) == {"g", "other"}


def test_a_group_tombstone_leaves_the_offsets_that_are_still_there():
    world = GroupHarness()
    (first,) = world.stable()
    world.commit({("t", 0): 1}, member=first, generation=1)
    shard = world.coordinator._shards[0]
    world.log.append(0, shard.encode([GenerationRecord("g", None)], 0), 0)
    world.restart()
    assert world.offsets() == {("t", 0): 1}
    assert world.group().state is GroupState.EMPTY


def test_a_member_read_from_the_log_is_the_one_of_the_last_generation():
    world = GroupHarness()
    (first,) = world.stable()
    world.join(first, protocols={"range": subscription("u")}, session_ms=20_000)
    world.restart()
    member = world.group().members[first]
    assert member.metadata("range") == subscription("u")
    assert member.session_timeout_ms == 20_000
