"""Transactions through the whole broker: handlers, coordinators, logs; crashes at every step."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.broker.topic_names import OFFSETS_TOPIC
from headrace.errors import ErrorCode
from headrace.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from headrace.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
)
from headrace.protocol.messages.describe_transactions import DescribeTransactionsRequest
from headrace.protocol.messages.end_txn import EndTxnRequest
from headrace.protocol.messages.find_coordinator import FindCoordinatorRequest
from headrace.protocol.messages.init_producer_id import InitProducerIdRequest
from headrace.protocol.messages.list_transactions import ListTransactionsRequest
from headrace.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from headrace.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from headrace.records.builder import BatchBuilder
from headrace.storage.os_files import OsFileSystem
from tests.fixtures.broker_harness import BrokerHarness, produce_request, values

READ_COMMITTED = 1
OPTIONS: dict[str, Any] = {
    "offsets_topic_num_partitions": 1,
    "transaction_state_log_num_partitions": 1,
}


class Producer:
    """A transactional producer, request by request; of the classic protocol."""

    produce_version, commit_version, end_version = 9, 3, 3

    def __init__(self, harness: BrokerHarness, name: str = "id") -> None:
        self.harness = harness
        self.name = name
        response = self.init()
        for _ in range(3):
            if response.error_code != ErrorCode.CONCURRENT_TRANSACTIONS:
                break
            harness.sync()
            response = self.init()
        assert response.error_code == 0
        self.id, self.epoch = response.producer_id, response.producer_epoch
        self.sequences: dict[int, int] = {}

    def init(self, version: int = 4) -> Any:
        request = InitProducerIdRequest(
            transactional_id=self.name, transaction_timeout_ms=60_000, producer_id=-1
        )
        request.producer_epoch = -1
        return self.harness.call(request, version)

    def add(self, *partitions: int, topic: str = "t", version: int = 3) -> list[int]:
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self.name,
            v3_and_below_producer_id=self.id,
            v3_and_below_producer_epoch=self.epoch,
            v3_and_below_topics=[AddPartitionsToTxnTopic(name=topic, partitions=list(partitions))],
        )
        (answer,) = self.harness.call(request, version).results_by_topic_v3_and_below
        return [part.partition_error_code for part in answer.results_by_partition]

    def batch(self, value: bytes, partition: int = 0) -> bytes:
        builder = BatchBuilder(transactional=True)
        builder.append(None, value, (), self.harness.now_ms)
        sequence = self.sequences.get(partition, 0)
        return builder.build(self.id, self.epoch, sequence)

    def send(self, value: bytes, partition: int = 0, topic: str = "t") -> int:
        request = produce_request(
            topic, partition, self.batch(value, partition), transactional_id=self.name
        )
        response = self.harness.call(request, self.produce_version)
        code = response.responses[0].partition_responses[0].error_code
        if code == 0:
            self.sequences[partition] = self.sequences.get(partition, 0) + 1
        return int(code)

    def add_offsets(self, group: str = "g") -> int:
        request = AddOffsetsToTxnRequest(
            transactional_id=self.name,
            producer_id=self.id,
            producer_epoch=self.epoch,
            group_id=group,
        )
        return int(self.harness.call(request).error_code)

    def commit_offset(self, offset: int, partition: int = 0) -> int:
        request = TxnOffsetCommitRequest(
            transactional_id=self.name,
            group_id="g",
            producer_id=self.id,
            producer_epoch=self.epoch,
            generation_id=-1,
            topics=[
                TxnOffsetCommitRequestTopic(
                    name="t",
                    partitions=[
                        TxnOffsetCommitRequestPartition(
                            partition_index=partition, committed_offset=offset
                        )
                    ],
                )
            ],
        )
        response = self.harness.call(request, self.commit_version)
        return int(response.topics[0].partitions[0].error_code)

    def end_request(self, *, committed: bool = True) -> EndTxnRequest:
        return EndTxnRequest(
            transactional_id=self.name,
            producer_id=self.id,
            producer_epoch=self.epoch,
            committed=committed,
        )

    def end(self, *, committed: bool = True, version: int = 3) -> int:
        return int(self.harness.call(self.end_request(committed=committed), version).error_code)


def settle(harness: BrokerHarness) -> None:
    while harness.sync():
        pass


def committed_values(harness: BrokerHarness, partition: int = 0) -> list[bytes | None]:
    """What a consumer of committed records keeps of a partition."""
    fetched = harness.fetch("t", 0, partition, isolation_level=READ_COMMITTED)
    assert fetched.error_code == 0
    found = values(fetched.records)
    aborted = len(fetched.aborted_transactions or [])
    return found[aborted:] if aborted else found


def group_offset(harness: BrokerHarness) -> tuple[int, int]:
    wanted = OffsetFetchRequestTopics(name="t", partition_indexes=[0])
    request = OffsetFetchRequest(
        groups=[OffsetFetchRequestGroup(group_id="g", topics=[wanted])], require_stable=True
    )
    fetched = harness.call(request).groups[0].topics[0].partitions[0]
    return fetched.error_code, fetched.committed_offset


def state(harness: BrokerHarness) -> Any:
    request = DescribeTransactionsRequest(transactional_ids=["id"])
    return harness.call(request).transaction_states[0]


@pytest.fixture
def harness(tmp_path: Any) -> BrokerHarness:
    harness = BrokerHarness(files=OsFileSystem(tmp_path), **OPTIONS)
    harness.create_topic("t", partitions=2)
    harness.call(FindCoordinatorRequest(key_type=0, coordinator_keys=["g"]))
    found = harness.call(FindCoordinatorRequest(key_type=1, coordinator_keys=["id"]))
    assert found.coordinators[0].error_code == 0
    return harness


@pytest.mark.parametrize("committed", [True, False])
def test_records_and_offsets_count_together_or_not_at_all(
    harness: BrokerHarness, *, committed: bool
) -> None:
    producer = Producer(harness)
    assert producer.add(0, 1) == [0, 0]
    assert [producer.send(b"a", 0), producer.send(b"b", 1)] == [0, 0]
    assert producer.commit_offset(7) == ErrorCode.INVALID_TXN_STATE  # its group was not added
    assert producer.add_offsets() == 0
    assert producer.commit_offset(7) == 0
    assert producer.commit_offset(7, partition=9) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert committed_values(harness) == []
    assert group_offset(harness) == (ErrorCode.UNSTABLE_OFFSET_COMMIT, -1)
    topics = {topic.topic: topic.partitions for topic in state(harness).topics}
    assert topics == {"t": [0, 1], OFFSETS_TOPIC: [0]}
    assert producer.end(committed=committed) == 0
    settle(harness)
    assert state(harness).transaction_state == ("CompleteCommit" if committed else "CompleteAbort")
    assert committed_values(harness, 0) == ([b"a"] if committed else [])
    assert committed_values(harness, 1) == ([b"b"] if committed else [])
    assert group_offset(harness) == (0, 7 if committed else -1)
    assert producer.end(committed=committed) == 0


@pytest.mark.parametrize("syncs", range(5))
@pytest.mark.parametrize("committed", [True, False])
def test_a_crash_between_any_two_syncs_of_the_end_changes_nothing(
    harness: BrokerHarness, *, committed: bool, syncs: int
) -> None:
    producer = Producer(harness)
    producer.add(0, 1)
    producer.send(b"a", 0)
    producer.send(b"b", 1)
    producer.add_offsets()
    producer.commit_offset(7)
    harness.send(producer.end_request(committed=committed), producer.end_version)
    for _ in range(syncs):
        harness.sync()
    harness.crash()
    settle(harness)
    assert producer.end(committed=committed) == 0
    settle(harness)
    assert committed_values(harness, 0) == ([b"a"] if committed else [])
    assert committed_values(harness, 1) == ([b"b"] if committed else [])
    assert group_offset(harness) == (0, 7 if committed else -1)


def test_b9_a_batch_that_is_not_of_the_open_transaction_is_refused(harness: BrokerHarness) -> None:
    producer = Producer(harness)
    assert producer.send(b"x") == ErrorCode.INVALID_TXN_STATE
    producer.add(0)
    assert producer.send(b"x", 1) == ErrorCode.INVALID_TXN_STATE
    assert producer.send(b"x", 0) == 0
    producer.end()
    settle(harness)
    assert producer.send(b"late") == ErrorCode.INVALID_TXN_STATE
    assert committed_values(harness) == [b"x"]
    unnamed = produce_request("t", 0, producer.batch(b"x"))
    part = harness.call(unnamed).responses[0].partition_responses[0]
    assert part.error_code == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED


def test_b11_a_replaced_producer_is_shut_out_everywhere(harness: BrokerHarness) -> None:
    zombie = Producer(harness)
    zombie.add(0)
    zombie.add_offsets()
    zombie.send(b"lost")
    producer = Producer(harness)
    assert (producer.id, producer.epoch) == (zombie.id, zombie.epoch + 2)
    assert zombie.send(b"zombie") == ErrorCode.INVALID_PRODUCER_EPOCH
    assert zombie.add(0) == [ErrorCode.PRODUCER_FENCED]
    assert zombie.add(0, version=1) == [ErrorCode.INVALID_PRODUCER_EPOCH]
    assert zombie.end() == ErrorCode.PRODUCER_FENCED
    assert zombie.end(version=1) == ErrorCode.INVALID_PRODUCER_EPOCH
    assert zombie.add_offsets() == ErrorCode.PRODUCER_FENCED
    assert zombie.commit_offset(1) == ErrorCode.INVALID_PRODUCER_EPOCH
    producer.add(0)
    assert producer.send(b"kept") == 0
    producer.end()
    settle(harness)
    assert committed_values(harness) == [b"kept"]


def test_b10_a_forgotten_transaction_does_not_hold_up_readers(harness: BrokerHarness) -> None:
    producer = Producer(harness)
    producer.add(0)
    producer.send(b"forgotten")
    listed = harness.call(ListTransactionsRequest(state_filters=["Ongoing", "Nonsense"]))
    assert [each.transactional_id for each in listed.transaction_states] == ["id"]
    assert listed.unknown_state_filters == ["Nonsense"]
    harness.produce("t", b"after")
    assert committed_values(harness) == []
    harness.advance(60_000)
    settle(harness)
    assert committed_values(harness) == [b"after"]
    assert producer.end() == ErrorCode.PRODUCER_FENCED


def test_all_partitions_are_added_or_none(harness: BrokerHarness) -> None:
    producer = Producer(harness)
    attempted = producer.add(0, 9)
    assert attempted == [
        ErrorCode.OPERATION_NOT_ATTEMPTED,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ]
    assert producer.add(0, topic=OFFSETS_TOPIC) == [ErrorCode.INVALID_TOPIC_EXCEPTION]
    assert state(harness).transaction_state == "Empty"


def test_a_transaction_whose_topic_was_deleted_ends(harness: BrokerHarness) -> None:
    harness.create_topic("gone")
    producer = Producer(harness)
    assert producer.add(0, topic="gone") == [0]
    producer.add(0)
    producer.send(b"x", 0, "gone")
    harness.broker.delete_topic(harness.broker.topics.require("gone"), harness.now_ms)
    assert producer.end() == 0
    settle(harness)
    assert state(harness).transaction_state == "CompleteCommit"


def test_unknown_ids_and_groups(harness: BrokerHarness) -> None:
    request = DescribeTransactionsRequest(transactional_ids=["other", ""])
    codes = [each.error_code for each in harness.call(request).transaction_states]
    assert codes == [ErrorCode.TRANSACTIONAL_ID_NOT_FOUND, ErrorCode.INVALID_REQUEST]
    assert Producer(harness).add_offsets("") == ErrorCode.INVALID_GROUP_ID
