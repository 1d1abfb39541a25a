"""The coordinator of a group moves to another broker: members stay members, and acknowledged commits stay committed."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import pytest

from headrace.broker.topic_names import OFFSETS_TOPIC
from headrace.core.coordinator.runtime import ShardState
from headrace.core.coordinator.state.classic_states import GroupState
from headrace.errors import ErrorCode
from headrace.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from headrace.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from tests.fixtures.broker_harness import Pending
from tests.fixtures.cluster import SimulatedCluster
from tests.fixtures.moving_groups import (
    GROUP,
    SESSION_MS,
    TOPIC,
    ClassicMember,
    Committer,
    ConsumerMember,
    Member,
    group_cluster,
    is_converged,
)

KINDS = pytest.mark.parametrize("kind", [ClassicMember, ConsumerMember])
DEATHS = pytest.mark.parametrize("death", ["moved", "killed", "power"])


def members_of(cluster: SimulatedCluster, kind: type[Member], count: int = 3) -> list[Any]:
    return [kind(cluster, f"m{number}") for number in range(count)]


def converged(cluster: SimulatedCluster, members: list[Any]) -> None:
    cluster.run_until(lambda: is_converged(members))
    cluster.advance(1_000)
    assert is_converged(members)


def move(cluster: SimulatedCluster, death: str) -> None:
    """Let broker 2 coordinate the group in place of broker 1, which may be dead."""
    if death != "moved":
        cluster.kill(1, power=death == "power")
    isr = (1, 2, 3) if death == "moved" else (2, 3)
    cluster.elect(OFFSETS_TOPIC, 0, 2, isr=isr)


def write(cluster: SimulatedCluster) -> None:
    for index in range(4):
        assert cluster.produce(TOPIC, b"a", b"b", partition=index).error_code == 0


@pytest.mark.slow
@KINDS
@DEATHS
def test_members_keep_their_membership_when_the_coordinator_moves(
    kind: type[Member], death: str
) -> None:
    cluster = group_cluster()
    members = members_of(cluster, kind)
    converged(cluster, members)
    before = [(each.member, each.generation, each.owned, each.told) for each in members]
    move(cluster, death)
    cluster.run_until(lambda: all(each.coordinator == 2 for each in members))
    cluster.advance(3 * SESSION_MS)
    assert [(each.member, each.generation, each.owned, each.told) for each in members] == before
    assert not any(each.fenced for each in members)


def group_of(cluster: SimulatedCluster, broker_id: int = 1) -> Any:
    """Return the group as its coordinator has it; None if the coordinator has no such group."""
    shard = cluster.brokers[broker_id].broker.services.groups._shards.get(0)
    if shard is None:
        return None
    return shard.classic_groups.get(GROUP) or shard.consumer_groups.get(GROUP)


def is_durable(cluster: SimulatedCluster) -> bool:
    log = cluster.replica(1, OFFSETS_TOPIC).log
    return log.high_watermark == log.log_end_offset


class Deaths:
    """A group of two members that a third one joins, and the moments at which its coordinator dies."""

    def __init__(self, kind: type[Member], seed: int = 0) -> None:
        self.cluster = group_cluster(seed)
        self.kind = kind
        self.members: list[Any] = members_of(self.cluster, kind, 2)
        converged(self.cluster, self.members)
        self.old = list(self.members)
        self.generation = self.members[0].generation
        self.told = [each.told for each in self.old]
        self.members.append(kind(self.cluster, "m2"))

    @property
    def group(self) -> Any:
        return group_of(self.cluster)

    def count_told(self) -> int:
        return sum(each.told > before for each, before in zip(self.old, self.told, strict=True))

    # The moments

    def change_noticed(self) -> bool:
        if self.kind is ConsumerMember:
            return bool(self.group.epoch > self.generation and not self.count_told())
        return self.group.state is GroupState.PREPARING_REBALANCE and not self.count_told()

    def some_told(self) -> bool:
        return self.count_told() == 1

    def some_joined(self) -> bool:
        if self.kind is ConsumerMember:
            epochs = [each.generation for each in self.members]
            return epochs.count(self.group.epoch) == 1
        joined = [each for each in self.group.members.values() if each.awaiting_join is not None]
        return self.count_told() > 0 and len(joined) == 2

    def generation_is_durable(self) -> bool:
        if self.kind is ConsumerMember:
            return self.change_noticed() and is_durable(self.cluster)
        is_stable = self.group.state is GroupState.STABLE
        is_new = self.group.generation.number > self.generation
        return bool(is_stable and is_new and is_durable(self.cluster)) and not self.count_synced()

    def some_answered(self) -> bool:
        if self.kind is ConsumerMember:
            return sum(each.is_settled for each in self.members) in {1, 2} and self.some_joined()
        return self.count_synced() == 1

    def count_synced(self) -> int:
        return sum(each.is_settled and each.generation > self.generation for each in self.members)


MOMENTS: list[Callable[[Deaths], bool]] = [
    Deaths.change_noticed,
    Deaths.some_told,
    Deaths.some_joined,
    Deaths.generation_is_durable,
    Deaths.some_answered,
]


def deaths_at(kind: type[Member], moment: Callable[[Deaths], bool]) -> Deaths:
    """Return a group at one of the moments. Not every order of its requests has each of them."""
    for seed in range(20):
        deaths = Deaths(kind, seed)
        with suppress(TimeoutError):
            deaths.cluster.run_until(partial(moment, deaths))
            return deaths
    raise AssertionError("no run reaches the moment")


@pytest.mark.slow
@KINDS
@DEATHS
@pytest.mark.parametrize("moment", MOMENTS)
def test_a_group_converges_after_its_coordinator_dies(
    kind: type[Member], death: str, moment: Callable[[Deaths], bool]
) -> None:
    """The coordinator dies at one of the five moments of a rebalance. Its members go on fetching meanwhile."""
    deaths = deaths_at(kind, moment)
    cluster, members = deaths.cluster, deaths.members
    generation = deaths.group.generation.number if kind is ClassicMember else deaths.group.epoch
    fetched = sum(each.fetched for each in members)
    if death != "moved":
        cluster.kill(1, power=death == "power")
    write(cluster)
    cluster.advance(1_000)
    readers = [each for each in members if each.owned]
    assert readers
    assert sum(each.fetched for each in members) > fetched, "members fetch without a coordinator"
    isr = (1, 2, 3) if death == "moved" else (2, 3)
    cluster.elect(OFFSETS_TOPIC, 0, 2, isr=isr)
    cluster.run_until(lambda: all(each.coordinator == 2 for each in members))
    converged(cluster, members)
    assert not any(each.fenced for each in deaths.old)
    is_decided = moment in {Deaths.generation_is_durable, Deaths.some_answered}
    if death != "moved" and (is_decided or kind is ConsumerMember):
        assert members[0].generation == generation, "the membership is unchanged"
    after = members[0].generation
    cluster.advance(3 * SESSION_MS)
    assert is_converged(members)
    assert members[0].generation == after


def fetch_some(cluster: SimulatedCluster, committer: Committer) -> None:
    wanted = committer.fetches + 20
    cluster.run_until(lambda: committer.fetches >= wanted)


@pytest.mark.slow
@DEATHS
def test_acknowledged_commits_survive_every_move_of_the_coordinator(death: str) -> None:
    cluster = group_cluster()
    committer = Committer(cluster)
    fetch_some(cluster, committer)
    for _ in range(4):
        leader = cluster.leader(OFFSETS_TOPIC)
        following = leader % 3 + 1
        if death != "moved":
            cluster.kill(leader, power=death == "power")
        others = tuple(each for each in (1, 2, 3) if each != leader)
        isr = (1, 2, 3) if death == "moved" else others
        cluster.elect(OFFSETS_TOPIC, 0, following, isr=isr)
        fetch_some(cluster, committer)
        if death != "moved":
            cluster.start(leader)
        cluster.run_until(lambda: cluster.is_in_sync(OFFSETS_TOPIC) or death == "moved")
    assert not committer.problems


# Requests at one broker


def commit(cluster: SimulatedCluster, broker_id: int, offset: int) -> Pending:
    partition = OffsetCommitRequestPartition(partition_index=0, committed_offset=offset)
    topic = OffsetCommitRequestTopic(name=TOPIC, partitions=[partition])
    return cluster.brokers[broker_id].send(OffsetCommitRequest(group_id=GROUP, topics=[topic]), 9)


def fetch_offset(cluster: SimulatedCluster, broker_id: int) -> Pending:
    wanted = OffsetFetchRequestTopics(name=TOPIC, partition_indexes=[0])
    group = OffsetFetchRequestGroup(group_id=GROUP, topics=[wanted])
    return cluster.brokers[broker_id].send(OffsetFetchRequest(groups=[group]), 9)


def committed(pending: Pending) -> tuple[int, int]:
    """Return the error of the group, and the committed offset; -1 for an error."""
    (group,) = pending.response.groups
    offset = -1 if group.error_code else group.topics[0].partitions[0].committed_offset
    return group.error_code, offset


def commit_error(pending: Pending) -> int:
    return int(pending.response.topics[0].partitions[0].error_code)


def acknowledged(cluster: SimulatedCluster, offset: int) -> None:
    """Commit an offset at broker 1."""
    pending = commit(cluster, 1, offset)
    cluster.run_until(lambda: pending.done)
    assert commit_error(pending) == 0


def elected(cluster: SimulatedCluster, leader: int, isr: tuple[int, ...]) -> None:
    """Let a broker coordinate the group, and wait until the broker has loaded the group."""
    cluster.elect(OFFSETS_TOPIC, 0, leader, isr=isr)
    groups = cluster.brokers[leader].broker.services.groups
    cluster.run_until(
        lambda: 0 in groups._shards and groups._shards[0].runtime.state is ShardState.ACTIVE
    )


def appended(cluster: SimulatedCluster) -> tuple[Pending, int]:
    """Let broker 1 append a commit that broker 2 has replicated, too, and broker 3 has not."""
    acknowledged(cluster, 5)
    cluster.advance(1_000)
    cluster.cut(3, 1)
    cluster.cut(3, 2)
    pending = commit(cluster, 1, 6)
    end = cluster.replica(1, OFFSETS_TOPIC).log.log_end_offset
    cluster.run_until(lambda: cluster.replica(2, OFFSETS_TOPIC).log.log_end_offset == end)
    assert not pending.done
    return pending, end


def test_a_coordinator_loads_what_the_previous_one_wrote_above_its_high_watermark() -> None:
    cluster = group_cluster()
    cluster.advance(1_000)
    acknowledged(cluster, 5)
    cluster.kill(1)
    log = cluster.replica(2, OFFSETS_TOPIC).log
    assert log.high_watermark < log.log_end_offset
    elected(cluster, 2, (2, 3))
    pending = fetch_offset(cluster, 2)
    cluster.run_until(lambda: pending.done)
    assert committed(pending) == (0, 5)


def test_a_coordinator_answers_only_when_what_it_has_loaded_is_committed() -> None:
    cluster = group_cluster()
    pending, _ = appended(cluster)
    elected(cluster, 2, (2, 3))
    cluster.run_until(lambda: pending.done, 1_000)
    assert commit_error(pending) == ErrorCode.NOT_COORDINATOR
    early = fetch_offset(cluster, 2)
    cluster.advance(1_000)
    assert not early.done
    cluster.heal()
    cluster.run_until(lambda: cluster.is_in_sync(OFFSETS_TOPIC))
    fetched = fetch_offset(cluster, 2)
    cluster.run_until(lambda: fetched.done and early.done)
    assert committed(fetched) == (0, 6)
    assert committed(early) in {(ErrorCode.NOT_COORDINATOR, -1), (0, 6)}


def test_a_commit_that_no_client_has_seen_may_be_lost() -> None:
    cluster = group_cluster()
    pending, _ = appended(cluster)
    elected(cluster, 2, (2, 3))
    fetched = fetch_offset(cluster, 2)
    cluster.advance(10)
    cluster.elect(OFFSETS_TOPIC, 0, 3, isr=(3,))
    cluster.run_until(lambda: fetched.done)
    assert committed(fetched) == (ErrorCode.NOT_COORDINATOR, -1)
    cluster.run_until(lambda: pending.done, 1_000)
    assert commit_error(pending) == ErrorCode.NOT_COORDINATOR
    cluster.heal()
    elected(cluster, 3, (3,))
    fetched = fetch_offset(cluster, 3)
    cluster.run_until(lambda: fetched.done)
    assert committed(fetched) == (0, 5)


def test_a_coordinator_that_waits_for_replicas_too_long_is_not_available() -> None:
    cluster = group_cluster()
    pending, _ = appended(cluster)
    cluster.advance(6_000)
    assert commit_error(pending) == ErrorCode.COORDINATOR_NOT_AVAILABLE


def test_a_broker_that_does_not_lead_is_not_the_coordinator() -> None:
    cluster = group_cluster()
    for broker_id in (2, 3):
        pending = commit(cluster, broker_id, 1)
        assert commit_error(pending) == ErrorCode.NOT_COORDINATOR
        assert committed(fetch_offset(cluster, broker_id)) == (ErrorCode.NOT_COORDINATOR, -1)


def test_a_coordinator_whose_lease_has_ended_does_not_answer() -> None:
    """Another broker may coordinate the group by now, and may have acknowledged another offset."""
    cluster = group_cluster()
    acknowledged(cluster, 5)
    replicas = cluster.brokers[1].broker.services.replicas
    replicas.is_suspect = True
    assert commit_error(commit(cluster, 1, 6)) == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert committed(fetch_offset(cluster, 1)) == (ErrorCode.NOT_COORDINATOR, -1)
    replicas.is_suspect = False
    pending = fetch_offset(cluster, 1)
    cluster.run_until(lambda: pending.done)
    assert committed(pending) == (0, 5)


def test_the_only_replica_of_a_group_answers_without_a_lease() -> None:
    cluster = group_cluster(replicas=(1,))
    acknowledged(cluster, 5)
    cluster.brokers[1].broker.services.replicas.is_suspect = True
    acknowledged(cluster, 6)
    assert committed(fetch_offset(cluster, 1)) == (0, 6)
