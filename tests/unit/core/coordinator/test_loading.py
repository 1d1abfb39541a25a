"""Loading a partition in steps: what requests get meanwhile, what ends a load, and how long a step takes."""

from __future__ import annotations

from collections.abc import Generator, Iterator

import pytest

from headrace.core.coordinator.runtime import ShardState
from headrace.core.coordinator.state import offset_store
from headrace.core.coordinator.state.classic_states import GroupState
from headrace.core.coordinator.state.records import (
    CommittedOffset,
    Generation,
    GenerationRecord,
    GroupRecord,
    OffsetCommit,
    PendingOffset,
    StoredMember,
    encode_records,
)
from headrace.core.coordinator.state.shard import SESSION_US
from headrace.core.coordinator.transaction.producers import NO_PRODUCER
from headrace.core.coordinator.transaction.records import TransactionRecord
from headrace.core.coordinator.transaction.states import TransactionState
from headrace.core.log import Marker
from headrace.errors import ErrorCode
from headrace.types import TopicPartition
from tests.fixtures.group_harness import GroupHarness, now, parked
from tests.fixtures.transaction_harness import TransactionHarness

MANY = 3_000
LARGEST_STEP = 400
"""The most records between two pauses. A millisecond of work is about half of that."""


def commit(number: int, group: str = "g", offset: int = 1) -> OffsetCommit:
    return OffsetCommit(group, "t", number, CommittedOffset(offset, -1, "", 1_000))


def stored(*records: GroupRecord) -> bytes:
    return encode_records(records, 1_000)


def with_offsets(*, at_once: bool = False) -> GroupHarness:
    """A coordinator that is not loaded yet, with a log that is read batch by batch, or at once."""
    harness = GroupHarness()
    for start in range(0, MANY, 100):
        harness.log.append(0, stored(*map(commit, range(start, start + 100))), 0)
    if at_once:
        harness.log.batches[0] = [(0, b"".join(batch for _, batch in harness.log.batches[0]))]
    return harness


def loading(harness: GroupHarness | TransactionHarness) -> Generator[None, None, None]:
    """Begin to load partition 0; the generator does one step at a time."""
    harness.coordinator.begin(0)

    def load() -> Iterator[None]:
        yield from harness.coordinator.replay_in_steps(0)
        yield from harness.coordinator.activate_in_steps(0, lambda: harness.now_ms)

    work = load()
    assert isinstance(work, Generator)
    return work


def fetch_code(harness: GroupHarness) -> int:
    return int(now(harness.fetch({"t": [0]}))[0].error_code)


def state(harness: GroupHarness) -> ShardState:
    return harness.coordinator._shards[0].runtime.state


def test_requests_are_refused_until_the_last_step():
    harness = with_offsets()
    steps = 0
    for _ in loading(harness):
        steps += 1
        if state(harness) is not ShardState.ACTIVE:
            assert fetch_code(harness) == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
            assert harness.heartbeat("m", 1) == ErrorCode.NONE
    assert steps > MANY // LARGEST_STEP
    assert fetch_code(harness) == ErrorCode.NONE
    assert harness.coordinator.offsets_count("g") == MANY


@pytest.mark.parametrize("at_once", [True, False])
@pytest.mark.parametrize("steps", range(0, 40, 3))
def test_a_role_that_ends_while_the_partition_is_loaded_ends_the_load(steps, *, at_once):
    harness = with_offsets(at_once=at_once)
    work = loading(harness)
    for _ in range(steps):
        next(work, None)
    harness.coordinator.unload(0)
    assert list(work) == []
    assert state(harness) is ShardState.FAILED
    assert fetch_code(harness) == ErrorCode.NOT_COORDINATOR
    assert harness.coordinator.offsets_count("g") == 0
    assert harness.coordinator.memory.offsets_bytes == 0
    assert harness.coordinator.next_deadline_ms is None


@pytest.mark.parametrize("at_once", [True, False])
@pytest.mark.parametrize("steps", range(0, 40, 3))
def test_a_role_that_begins_again_loads_from_the_start(steps, *, at_once):
    harness = with_offsets(at_once=at_once)
    first = loading(harness)
    for _ in range(steps):
        next(first, None)
    harness.coordinator.unload(0)
    harness.log.append(0, stored(commit(0, offset=9)), 0)
    second = loading(harness)
    next(second)
    assert list(first) == []
    list(second)
    assert state(harness) is ShardState.ACTIVE
    (response,) = now(harness.fetch({"t": [0]}))
    assert response.topics[0].partitions[0].committed_offset == 9
    assert harness.coordinator.offsets_count("g") == MANY


def test_a_second_load_finds_nothing_to_do():
    harness = with_offsets()
    harness.coordinator.begin(0)
    first, second = harness.coordinator.replay_in_steps(0), harness.coordinator.replay_in_steps(0)
    next(first)
    assert list(second) == []
    list(first)
    assert harness.coordinator.offsets_count("g") == MANY


# --- unloading ---


def test_all_waiting_requests_become_not_coordinator_and_all_timers_stop():
    harness = GroupHarness(group_initial_rebalance_delay_ms=3_000)
    first, joining = harness.admitted()
    harness.log.manual = True
    committing = harness.commit({("t", 0): 5}, group="other")
    assert parked(joining)
    assert parked(committing)
    harness.coordinator.unload(0)
    assert now(joining).error_code == ErrorCode.NOT_COORDINATOR
    (partition,) = now(committing).topics[0].partitions
    assert partition.error_code == ErrorCode.NOT_COORDINATOR
    assert harness.heartbeat(first, 1) == ErrorCode.NOT_COORDINATOR
    assert harness.coordinator.next_deadline_ms is None


def test_a_waiting_sync_becomes_not_coordinator():
    harness = GroupHarness()
    leader, follower = harness.stable(2)
    harness.join(leader)
    reply = harness.join(follower)
    generation = now(reply).generation_id
    waiting = harness.sync_group(follower, generation)
    assert parked(waiting)
    harness.coordinator.unload(0)
    assert now(waiting).error_code == ErrorCode.NOT_COORDINATOR


def with_members(groups: int) -> GroupHarness:
    """Load groups of a hundred members."""
    harness = GroupHarness()
    for number in range(groups):
        harness.log.append(0, stored(GenerationRecord(f"g{number}", generation(100))), 0)
    harness.coordinator.load(0, harness.now_ms)
    return harness


def test_a_role_ends_at_once_and_frees_the_state_in_steps():
    harness = with_members(100)
    work = harness.coordinator.unload_in_steps(0)
    assert state(harness) is ShardState.FAILED
    assert not harness.coordinator._shards[0].classic_groups
    assert harness.heartbeat("m1", 1) == ErrorCode.NOT_COORDINATOR
    steps = sum(1 for _ in work)
    assert 100 * 100 * SESSION_US // 1_000 <= steps <= 100
    assert harness.coordinator.memory.groups_bytes == 0
    assert harness.coordinator.next_deadline_ms is None


@pytest.mark.slow
@pytest.mark.parametrize("steps", [0, 1, 20])
def test_a_role_that_begins_again_completes_the_unload_first(steps):
    harness = with_members(100)
    work = harness.coordinator.unload_in_steps(0)
    for _ in range(steps):
        next(work)
    harness.coordinator.begin(0)
    assert harness.coordinator.memory.groups_bytes == 0
    harness.coordinator.load(0, harness.now_ms)
    held = harness.coordinator.memory.groups_bytes
    assert list(work) == []
    assert harness.coordinator.memory.groups_bytes == held
    harness.advance(9_999)
    groups = harness.coordinator._shards[0].classic_groups
    assert sum(len(group.members) for group in groups.values()) == 10_000
    harness.advance(10_000)
    assert not any(group.members for group in groups.values()), "the sessions have timers"


def test_a_role_that_ends_and_begins_during_an_append_answers_not_coordinator():
    harness = GroupHarness(manual=True)
    earlier = harness.commit({("t", 0): 1})

    def role_ends_and_begins(partition: int) -> None:
        harness.log.on_append = harness.appended
        harness.coordinator.unload(partition)
        harness.coordinator.begin(partition)

    harness.log.on_append = role_ends_and_begins
    during = harness.commit({("t", 0): 2})
    for reply in (earlier, during):
        (partition,) = now(reply).topics[0].partitions
        assert partition.error_code == ErrorCode.NOT_COORDINATOR
    assert harness.coordinator.offsets_count("g") == 0, "only the next load replays the record"
    harness.coordinator.load(0, harness.now_ms)
    harness.sync()
    assert harness.coordinator.offsets_count("g") == 1


# --- timers ---


def member(number: int) -> StoredMember:
    return StoredMember(f"m{number}", None, "c", "h", 60_000, 10_000, b"", b"")


def generation(members: int, state: GroupState = GroupState.STABLE) -> Generation:
    return Generation(
        1, state, "consumer", "range", "m0", 1_000, tuple(map(member, range(members)))
    )


def test_a_session_that_expires_before_the_partition_is_active_is_not_lost():
    harness = GroupHarness()
    for number in range(10):
        harness.log.append(0, stored(GenerationRecord(f"g{number}", generation(100))), 0)
    for _ in loading(harness):
        harness.coordinator.expire(harness.now_ms)
        if state(harness) is ShardState.REPLAYED:
            harness.now_ms += 20_000
    groups = list(harness.coordinator._shards[0].classic_groups.values())
    assert sum(len(group.members) for group in groups) == 1_000
    harness.advance(10_000)
    assert not any(group.members for group in groups)


def test_the_timeout_of_an_open_transaction_waits_until_the_partition_is_active():
    harness = TransactionHarness()
    producer = harness.producer()
    partition = TopicPartition("t", 0)
    now(harness.coordinator.add_partitions("id", producer, [partition], harness.now_ms))
    harness.coordinator.unload(0)
    assert harness.coordinator.next_deadline_ms is None
    harness.now_ms += 100_000
    work = loading(harness)
    for _ in work:
        assert harness.coordinator.next_deadline_ms is None
    harness.advance(1)
    found = now(harness.coordinator.describe("id", harness.now_ms))
    assert found.state is TransactionState.COMPLETE_ABORT


# --- the length of a step ---


def batches_of(kind: str) -> Iterator[bytes]:
    commits = [commit(number) for number in range(MANY)]
    if kind == "batches of one record":
        yield from (stored(each) for each in commits)
    elif kind == "one large batch":
        yield stored(*commits)
    elif kind == "transactions":
        for start in range(0, MANY, 100):
            pending = [PendingOffset(start, 0, each) for each in commits[start : start + 100]]
            yield stored(*pending)
            yield stored(Marker(start, 0, 0, committed=True))
    else:
        for number in range(MANY // 100):
            yield stored(GenerationRecord(f"g{number}", generation(100)))


@pytest.mark.parametrize(
    "kind", ["batches of one record", "one large batch", "transactions", "large groups"]
)
def test_a_step_replays_a_bounded_number_of_records(kind, monkeypatch):
    harness = GroupHarness()
    for batch in batches_of(kind):
        harness.log.append(0, batch, 0)
    harness.log.batches[0] = [(0, b"".join(batch for _, batch in harness.log.batches[0]))]
    shard = harness.coordinator._shards[0]
    replayed, largest, replay = 0, 0, shard.replay

    def counted(record: GroupRecord) -> bool:
        nonlocal replayed
        replayed += 1
        if isinstance(record, GenerationRecord) and record.generation is not None:
            replayed += len(record.generation.members)
        return replay(record)

    monkeypatch.setattr(shard, "replay", counted)
    for _ in loading(harness):
        largest = max(largest, replayed)
        replayed = 0
    assert 0 < largest <= LARGEST_STEP


@pytest.mark.parametrize("committed", [True, False])
def test_a_step_ends_a_bounded_number_of_the_offsets_of_one_transaction(committed, monkeypatch):
    monkeypatch.setattr(offset_store, "PLACES_A_STEP", LARGEST_STEP)
    harness = GroupHarness()
    for start in range(0, MANY, 100):
        pending = [PendingOffset(7, 0, commit(start + each)) for each in range(100)]
        harness.log.append(0, stored(*pending), 0)
    later = [PendingOffset(7, 1, commit(MANY + each)) for each in range(2 * LARGEST_STEP)]
    harness.log.append(0, stored(*later), 0)
    harness.log.append(0, stored(Marker(7, 0, 0, committed=committed)), 0)
    before = steps = 0
    shard = harness.coordinator._shards[0]
    for _ in loading(harness):
        offsets = shard.offsets
        ended = before - len(offsets._producers.get(7, ()))
        assert ended <= LARGEST_STEP
        steps += ended > 0
        before = len(offsets._producers.get(7, ()))
    assert steps >= MANY // LARGEST_STEP
    assert sum(map(len, shard.offsets.of_group("g").values())) == (MANY if committed else 0)
    assert len(shard.offsets._producers[7]) == 2 * LARGEST_STEP, "the next transaction stays open"


def test_a_load_that_ends_within_a_marker_leaves_no_state(monkeypatch):
    monkeypatch.setattr(offset_store, "PLACES_A_STEP", 10)
    harness = GroupHarness()
    harness.log.append(0, stored(*(PendingOffset(7, 0, commit(each)) for each in range(100))), 0)
    harness.log.append(0, stored(Marker(7, 0, 0, committed=True)), 0)
    work = loading(harness)
    next(work)
    offsets = harness.coordinator._shards[0].offsets
    while not offsets.of_group("g"):
        next(work)
    assert offsets.has_pending("g")
    harness.coordinator.unload(0)
    assert list(work) == []
    assert not offsets.has_any("g")
    assert not harness.coordinator._shards[0].offsets.has_any("g")


def test_an_active_coordinator_ends_a_large_transaction_at_once(monkeypatch):
    monkeypatch.setattr(offset_store, "PLACES_A_STEP", 10)
    harness = GroupHarness()
    harness.log.append(0, stored(*(PendingOffset(7, 0, commit(each)) for each in range(100))), 0)
    for _ in loading(harness):
        pass
    harness.coordinator.end_transaction(0, Marker(7, 0, 0, committed=True), harness.now_ms)
    offsets = harness.coordinator._shards[0].offsets
    assert not offsets.has_pending("g")
    assert len(offsets.of_group("g")["t"]) == 100


def test_a_step_of_transactions_replays_a_bounded_number_of_records(monkeypatch):
    harness = TransactionHarness()
    for number in range(1_000):
        now(harness.coordinator.init_producer_id(f"id{number}", 1_000, NO_PRODUCER, 0))
    shard = harness.coordinator._shards[0]
    replayed, largest, replay = 0, 0, shard.replay

    def counted(record: TransactionRecord) -> None:
        nonlocal replayed
        replayed += 1
        replay(record)

    monkeypatch.setattr(shard, "replay", counted)
    harness.log.batches[0] = [(0, b"".join(batch for _, batch in harness.log.batches[0]))]
    for _ in loading(harness):
        largest = max(largest, replayed)
        replayed = 0
    assert 0 < largest <= 100
    assert len(shard.transactions) == 1_000
