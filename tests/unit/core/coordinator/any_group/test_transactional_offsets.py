"""Offsets that are committed in a transaction (hazards B6, B17 and B20)."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.core.coordinator.state import memory
from headrace.core.log import Marker
from headrace.deferred import Deferred
from headrace.errors import ErrorCode
from headrace.protocol.messages.delete_groups import DeletableGroupResult
from headrace.protocol.messages.offset_fetch import (
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from headrace.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from tests.fixtures.consumer_group_harness import Consumer, ConsumerGroupHarness
from tests.fixtures.group_harness import GroupHarness, now, parked

UNSTABLE = ErrorCode.UNSTABLE_OFFSET_COMMIT


def txn_commit(
    harness: GroupHarness | ConsumerGroupHarness,
    offset: int,
    *,
    producer: int = 1,
    epoch: int = 0,
    partition: int = 0,
    generation: int = -1,
    member: str = "",
    instance: str | None = None,
    metadata: str = "",
) -> Any:
    request = TxnOffsetCommitRequest(
        transactional_id="id",
        group_id="g",
        producer_id=producer,
        producer_epoch=epoch,
        generation_id=generation,
        member_id=member,
        group_instance_id=instance,
        topics=[
            TxnOffsetCommitRequestTopic(
                name="t",
                partitions=[
                    TxnOffsetCommitRequestPartition(
                        partition_index=partition,
                        committed_offset=offset,
                        committed_metadata=metadata,
                    )
                ],
            )
        ],
    )
    return harness.coordinator.commit_transactional_offsets(request, harness.now_ms)


def code(reply: Any) -> int:
    return int(now(reply).topics[0].partitions[0].error_code)


def end(
    harness: GroupHarness, *, committed: bool, producer: int = 1, epoch: int = 0
) -> ErrorCode | Deferred[ErrorCode]:
    marker = Marker(producer, epoch, 0, committed)
    return harness.coordinator.end_transaction(0, marker, harness.now_ms)


def stable(harness: GroupHarness, partition: int = 0) -> tuple[int, int]:
    """Return the error code and offset that a consumer of the next transaction gets."""
    wanted = OffsetFetchRequestTopics(name="t", partition_indexes=[partition])
    request = OffsetFetchRequestGroup(group_id="g", topics=[wanted])
    reply = harness.coordinator.fetch_offsets([request], harness.now_ms, require_stable=True)
    fetched = now(reply)[0].topics[0].partitions[0]
    return fetched.error_code, fetched.committed_offset


@pytest.mark.parametrize("restarts", [True, False])
@pytest.mark.parametrize("committed", [True, False])
def test_b17_offsets_count_from_the_commit_marker_on(*, committed: bool, restarts: bool) -> None:
    harness = GroupHarness()
    harness.commit({("t", 0): 5})
    assert code(txn_commit(harness, 9)) == 0
    if restarts:
        harness.restart()
    assert harness.offsets() == {("t", 0): 5}
    assert stable(harness) == (UNSTABLE, -1)
    assert stable(harness, 1) == (0, -1)
    assert end(harness, committed=committed) is ErrorCode.NONE
    if restarts:
        harness.restart()
    assert stable(harness) == (0, 9 if committed else 5)


@pytest.mark.parametrize("committed", [True, False])
def test_a_transaction_commits_a_bounded_number_of_offsets(
    monkeypatch: pytest.MonkeyPatch, *, committed: bool
) -> None:
    monkeypatch.setattr(memory, "PENDING_LIMIT", 3)
    harness = GroupHarness()
    for partition in range(3):
        assert code(txn_commit(harness, 9, partition=partition)) == 0
    refused = ErrorCode.INVALID_COMMIT_OFFSET_SIZE
    assert code(txn_commit(harness, 9, partition=3)) == refused
    assert code(txn_commit(harness, 10, partition=2)) == 0, "it is one of the three"
    assert code(txn_commit(harness, 9, partition=3, producer=2)) == 0, "in another transaction"
    harness.restart()
    assert code(txn_commit(harness, 9, partition=3)) == refused
    end(harness, committed=committed)
    assert code(txn_commit(harness, 9, partition=3)) == 0
    end(harness, committed=committed)
    end(harness, committed=committed, producer=2)
    assert not harness.coordinator.memory._pending


def test_a_group_that_has_pending_offsets_only_exists() -> None:
    harness = GroupHarness(offsets_retention_minutes=1, offsets_retention_check_interval_ms=1_000)
    txn_commit(harness, 9)
    harness.advance(200_000)
    assert harness.coordinator.exists("g")
    end(harness, committed=False)
    assert not harness.coordinator.exists("g")


def test_b6_a_marker_of_an_older_epoch_does_not_end_a_later_transaction() -> None:
    harness = GroupHarness()
    txn_commit(harness, 9, epoch=4)
    end(harness, committed=True, epoch=3)
    assert stable(harness) == (UNSTABLE, -1)
    end(harness, committed=False, epoch=5)  # the coordinator has fenced the producer
    assert stable(harness) == (0, -1)


def test_b20_a_response_contains_durable_offsets_only() -> None:
    harness = GroupHarness(manual=True)
    reply = txn_commit(harness, 9)
    assert parked(reply)
    harness.sync()
    assert code(reply) == 0
    marked = end(harness, committed=True)
    assert parked(marked)
    read = harness.fetch({"t": [0]})
    assert parked(read)
    harness.sync()
    assert now(marked) is ErrorCode.NONE
    assert harness.offsets() == {("t", 0): 9}
    txn_commit(harness, 20)
    harness.sync()
    end(harness, committed=True)
    harness.restart()
    assert stable(harness) == (
        UNSTABLE,
        -1,
    )  # the marker was lost; the transaction's coordinator writes it again


@pytest.mark.parametrize("restarts", [True, False])
def test_the_last_written_offset_counts(*, restarts: bool) -> None:
    harness = GroupHarness()
    txn_commit(harness, 1, producer=1)
    txn_commit(harness, 2, producer=2)
    txn_commit(harness, 3, producer=3)
    if restarts:
        harness.restart()
    end(harness, committed=True, producer=2)
    assert harness.offsets() == {("t", 0): 2}
    end(harness, committed=True, producer=1)
    assert harness.offsets() == {("t", 0): 2}
    assert stable(harness) == (UNSTABLE, -1)
    harness.commit({("t", 0): 4})
    end(harness, committed=True, producer=3)
    if restarts:
        harness.restart()
    assert stable(harness) == (0, 4)


def test_deleting_a_group_deletes_its_pending_offsets() -> None:
    harness = GroupHarness()
    txn_commit(harness, 1)
    list(harness.coordinator.forget_offsets("t", harness.now_ms))
    assert not harness.coordinator.exists("g")
    harness.commit({("t", 1): 4})
    txn_commit(harness, 1, producer=2)
    deleted: list[DeletableGroupResult] = now(
        harness.coordinator.delete_groups(["g"], harness.now_ms)
    )
    assert deleted[0].error_code == 0
    for producer in (1, 2):
        end(harness, committed=True, producer=producer)
    assert not harness.coordinator.exists("g")


def test_members_are_fenced_by_generation_and_instance() -> None:
    harness = GroupHarness()
    (member,) = harness.stable()
    generation = harness.group().generation.number
    assert code(txn_commit(harness, 1)) == 0  # requests before version 3 have no member id
    assert code(txn_commit(harness, 1, member=member, generation=generation)) == 0
    assert code(txn_commit(harness, 1, member=member, generation=generation - 1)) == (
        ErrorCode.ILLEGAL_GENERATION
    )
    assert code(txn_commit(harness, 1, member="x", generation=generation)) == (
        ErrorCode.UNKNOWN_MEMBER_ID
    )
    assert code(txn_commit(harness, 1, member=member, generation=generation, instance="i")) == (
        ErrorCode.UNKNOWN_MEMBER_ID
    )
    harness.admitted()  # a rebalance begins: what was consumed before may still be committed
    assert code(txn_commit(harness, 1, member=member, generation=generation)) == 0


def test_metadata_that_is_too_large_is_refused() -> None:
    harness = GroupHarness(offset_metadata_max_bytes=3)
    assert code(txn_commit(harness, 1, metadata="four")) == ErrorCode.OFFSET_METADATA_TOO_LARGE
    assert not harness.coordinator.exists("g")


def test_a_commit_with_a_generation_for_an_unknown_group_is_refused() -> None:
    assert code(txn_commit(GroupHarness(), 1, generation=3)) == ErrorCode.ILLEGAL_GENERATION


def test_members_of_the_server_side_protocol_are_fenced_by_their_epoch() -> None:
    harness = ConsumerGroupHarness()
    harness.topics.create("t", 1)
    member = Consumer(harness, "a", "t")
    member.beat()

    def committed(name: str, epoch: int) -> int:
        return code(txn_commit(harness, 1, member=name, generation=epoch))

    assert committed("a", member.epoch) == 0
    assert committed("a", member.epoch - 1) == ErrorCode.ILLEGAL_GENERATION
    assert committed("b", member.epoch) == ErrorCode.UNKNOWN_MEMBER_ID
