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
def harness() -> Harness:
    return Harness()


def test_1_after_a_crash_a_change_that_members_have_not_seen_is_noticed_again(harness):
    """The second member has left, and the others are not notified."""
    now(harness.leave((harness.second, None)))
    harness.restart()
    assert harness.heartbeat(harness.first, 2) == ErrorCode.NONE
    harness.advance(SESSION_MS - 1)
    assert harness.heartbeat(harness.first, 2) == ErrorCode.NONE
    harness.advance(1)
    assert harness.heartbeat(harness.first, 2) == ErrorCode.REBALANCE_IN_PROGRESS
    (first,) = harness.members("first")
    first.assignment = {0}
    assert converge(harness, [first]) == 3


def test_1_after_a_crash_an_unchanged_membership_is_not_rebalanced(harness):
    """The session of the second member expired before the crash, but the membership is unchanged after it."""
    harness.advance(SESSION_MS - 1)
    harness.heartbeat(harness.first, 2)
    harness.advance(1)
    assert harness.group().state is GroupState.PREPARING_REBALANCE
    harness.restart()
    harness.take_records()
    for member in (harness.first, harness.second):
        assert harness.heartbeat(member, 2) == ErrorCode.NONE
    assert harness.group().state is GroupState.STABLE
    assert harness.take_records() == []


def test_2_after_a_crash_notified_and_unnotified_members_continue(harness):
    _, newcomer = harness.admitted()
    assert harness.heartbeat(harness.second, 2) == ErrorCode.REBALANCE_IN_PROGRESS
    harness.restart()
    assert parked(newcomer)  # its connection is closed
    # The member with an answer joins again and, as an unchanged follower, finds its generation as it was.
    assert now(harness.join(harness.second)).generation_id == 2
    assert now(harness.sync_group(harness.second, 2)).assignment == assignment("t", 1)
    assert harness.group().state is GroupState.STABLE
    # The new member joins again, with an unknown member id.
    clients = harness.members("first", "second", "third")
    clients[0].assignment, clients[1].assignment = {0}, {1}
    clients[2].member = "client-lost"
    assert converge(harness, clients) == 3


def test_3_killed_with_only_some_joins_received(harness):
    harness.admitted()
    harness.join(harness.second)
    harness.restart()
    assert harness.group().state is GroupState.STABLE
    assert harness.heartbeat(harness.first, 2) == ErrorCode.NONE
    # The connection of second was closed while its join was parked: it repeats it.
    clients = harness.members("first", "second", "third")
    clients[0].assignment, clients[1].generation = {0}, -1
    assert converge(harness, clients) == 3


def test_3_killed_while_the_join_phase_is_complete_but_not_durable(harness):
    leader, follower = harness.join(harness.first), harness.join(harness.second)
    assert harness.group().generation.number == 3
    assert parked(leader)
    assert parked(follower)
    harness.restart()
    assert harness.group().generation.number == 2
    assert harness.group().state is GroupState.STABLE
    for member in (harness.first, harness.second):
        assert harness.heartbeat(member, 2) == ErrorCode.NONE


def test_4_killed_after_the_new_generation_is_durable(harness):
    leader, follower = harness.join(harness.first), harness.join(harness.second)
    harness.log.sync(0)
    harness.restart()
    assert parked(leader)
    assert parked(follower)
    harness.take_records()
    assert harness.group().state is GroupState.COMPLETING_REBALANCE
    # No member got an answer: both repeat their joins and get the answers they missed, without another rebalance.
    leader, follower = now(harness.join(harness.first)), now(harness.join(harness.second))
    assert (leader.generation_id, follower.generation_id) == (3, 3)
    assert [member.member_id for member in leader.members] == [harness.first, harness.second]
    assert harness.take_records() == []
    waiting = harness.sync_group(harness.second, 3)
    harness.sync_group(harness.first, 3, {harness.first: b"a", harness.second: b"b"})
    harness.sync()
    assert now(waiting).assignment == b"b"


def test_4_members_that_support_more_than_the_elected_protocol_are_recognised():
    harness = GroupHarness()
    protocols = {"range": subscription("t"), "sticky": b"anything"}
    first, _ = harness.admitted(protocols=protocols)
    harness.restart()
    assert now(harness.join(first, protocols=protocols)).generation_id == 1
    changed = {"range": subscription("u"), "sticky": b"anything"}
    assert now(harness.join(first, protocols=changed)).generation_id == 2


def test_5_killed_with_only_some_join_answers_sent(harness):
    harness.join(harness.first)
    harness.join(harness.second)
    harness.log.sync(0)
    harness.restart()
    # The first member has its response, and continues with SyncGroup. The second member has none, and joins again.
    leader = harness.sync_group(harness.first, 3, {harness.first: b"a", harness.second: b"b"})
    harness.sync()
    assert now(leader).assignment == b"a"
    assert now(harness.join(harness.second)).generation_id == 3
    assert now(harness.sync_group(harness.second, 3)).assignment == b"b"
    assert harness.group().state is GroupState.STABLE


def test_5_killed_with_only_some_assignments_sent(harness):
    harness.join(harness.first)
    harness.join(harness.second)
    harness.sync()
    harness.sync_group(harness.second, 3)
    harness.sync_group(harness.first, 3, {harness.first: b"a", harness.second: b"b"})
    harness.log.sync(0)
    harness.restart()
    harness.take_records()
    assert harness.group().state is GroupState.STABLE
    assert harness.heartbeat(harness.first, 3) == ErrorCode.NONE
    assert now(harness.sync_group(harness.second, 3)).assignment == b"b"
    assert harness.take_records() == []


def test_5_killed_with_the_assignment_not_durable(harness):
    harness.join(harness.first)
    harness.join(harness.second)
    harness.sync()
    waiting = harness.sync_group(harness.first, 3, {harness.first: b"a"})
    assert parked(waiting)
    harness.restart()
    assert harness.group().state is GroupState.COMPLETING_REBALANCE
    again = harness.sync_group(harness.first, 3, {harness.first: b"a"})
    harness.sync()
    assert now(again).assignment == b"a"


# --- the loaded state ---


def test_after_a_restart_a_stable_group_continues_without_a_rebalance(harness):
    harness.advance(SESSION_MS - 1)
    harness.restart()
    harness.take_records()
    harness.advance(SESSION_MS - 1)  # every member has a full session from the load
    for member in (harness.first, harness.second):
        assert harness.heartbeat(member, 2) == ErrorCode.NONE
        assert now(harness.sync_group(member, 2)).error_code == ErrorCode.NONE
    harness.advance(SESSION_MS)
    assert harness.group().members == {} or harness.group().state is not GroupState.STABLE


def test_members_that_died_with_the_broker_expire_after_its_restart(harness):
    harness.restart()
    harness.advance(SESSION_MS)
    harness.sync()
    assert harness.group().state is GroupState.EMPTY
    assert harness.group().generation.number == 3


def test_a_loaded_generation_without_an_assignment_times_out(harness):
    harness.join(harness.first, session_ms=1_000_000)
    harness.join(harness.second, session_ms=1_000_000)
    harness.sync()
    harness.restart()
    harness.advance(60_000)
    assert harness.group().members == {}


def test_acknowledged_commits_survive_a_crash(harness):
    acknowledged = harness.commit({("t", 0): 5}, member=harness.first, generation=2)
    harness.sync()
    lost = harness.commit({("t", 0): 9}, member=harness.first, generation=2)
    harness.restart()
    assert now(acknowledged).topics[0].partitions[0].error_code == ErrorCode.NONE
    assert parked(lost)
    assert harness.offsets() == {("t", 0): 5}


def test_an_old_generation_stays_invalid_after_a_restart(harness):
    harness.join(harness.first)
    harness.join(harness.second)
    harness.sync()
    harness.sync_group(harness.first, 3, {})
    harness.sync()
    harness.restart()
    code = harness.commit_code({("t", 0): 1}, member=harness.first, generation=2)
    assert code == ErrorCode.ILLEGAL_GENERATION
    assert harness.offsets() == {}


def test_unload_answers_all_requests_and_the_next_load_replays_the_log(harness):
    now(harness.leave((harness.second, None)))
    _, join = harness.admitted()
    commit = harness.commit({("t", 0): 1}, member=harness.first, generation=2)
    harness.coordinator.unload(0)
    assert now(join).error_code == ErrorCode.NOT_COORDINATOR
    assert now(commit).topics[0].partitions[0].error_code == ErrorCode.NOT_COORDINATOR
    assert harness.heartbeat(harness.first, 2) == ErrorCode.NOT_COORDINATOR
    harness.coordinator.load(0, harness.now_ms)
    harness.sync()
    assert harness.heartbeat(harness.first, 2) == ErrorCode.NONE
    assert harness.offsets() == {("t", 0): 1}


def test_a_compacted_log_gives_the_same_state(harness):
    """Only the last record of each key is left, and tombstones of groups that are not known."""
    harness.commit({("t", 0): 1, ("t", 1): 2}, member=harness.first, generation=2)
    harness.commit({("t", 0): 3}, member=harness.first, generation=2)
    harness.commit({("t", 0): 1}, group="other")
    harness.sync()
    before, offsets = harness.group().generation, harness.offsets()
    last: dict[object, GroupRecord] = {}
    for record in harness.log.records():
        assert record is not None
        key = record[:3] if isinstance(record, OffsetCommit) else record.group_id
        last.pop(key, None)
        last[key] = record
    shard = harness.coordinator._shards[0]
    harness.log.batches[0] = []
    tombstones: list[GroupRecord] = [
        GenerationRecord("gone", None),
        OffsetCommit("gone", "t", 0, None),
    ]
    for record in [*tombstones, *last.values()]:
        harness.log.append(0, shard.encode([record], harness.now_ms), harness.now_ms)
        base, batch = harness.log.batches[0].pop()
        harness.log.batches[0].append((base * 7, (base * 7).to_bytes(8, "big") + batch[8:]))
    harness.log.sync(0)
    harness.restart()
    assert (harness.group().generation, harness.offsets()) == (before, offsets)
    assert set(harness.coordinator._shards[0].classic_groups) == {"g", "other"}


def test_a_group_tombstone_keeps_the_committed_offsets():
    harness = GroupHarness()
    (first,) = harness.stable()
    harness.commit({("t", 0): 1}, member=first, generation=1)
    shard = harness.coordinator._shards[0]
    harness.log.append(0, shard.encode([GenerationRecord("g", None)], 0), 0)
    harness.restart()
    assert harness.offsets() == {("t", 0): 1}
    assert harness.group().state is GroupState.EMPTY


def test_a_member_read_from_the_log_is_the_one_of_the_last_generation():
    harness = GroupHarness()
    (first,) = harness.stable()
    harness.join(first, protocols={"range": subscription("u")}, session_ms=20_000)
    harness.restart()
    member = harness.group().members[first]
    assert member.metadata("range") == subscription("u")
    assert member.session_timeout_ms == 20_000
