"""Transaction version 2 (KIP-890) through the whole broker: produces add partitions, and EndTxn raises the epoch."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.broker.context import CloseConnection
from headrace.broker.coordinators import transactional_batches
from headrace.broker.session import Session
from headrace.errors import ErrorCode
from headrace.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)
from headrace.protocol.messages.api_versions import ApiVersionsRequest
from headrace.protocol.messages.describe_transactions import DescribeTransactionsRequest
from headrace.protocol.messages.find_coordinator import FindCoordinatorRequest
from headrace.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from headrace.protocol.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)
from tests.fixtures.broker_harness import BrokerHarness, values
from tests.fixtures.transactional_producer import (
    BumpingProducer,
    committed_values,
    group_offset,
    settle,
    state,
    transactional_broker,
)


@pytest.fixture
def harness(tmp_path: Any) -> BrokerHarness:
    return transactional_broker(tmp_path)


def code(pending: Any) -> int:
    return int(pending.response.responses[0].partition_responses[0].error_code)


def end_offset(harness: BrokerHarness) -> int:
    return harness.broker.services.partitions.require("t", 0).log.log_end_offset


@pytest.mark.parametrize("committed", [True, False])
def test_records_and_offsets_add_their_partitions(
    harness: BrokerHarness, *, committed: bool
) -> None:
    producer = BumpingProducer(harness)
    for epoch, offset in ((0, 7), (1, 8)):
        assert producer.epoch == epoch
        assert [producer.send(b"a", 0), producer.send(b"c", 1)] == [0, 0]
        assert producer.commit_offset(offset) == 0
        assert group_offset(harness)[0] == ErrorCode.UNSTABLE_OFFSET_COMMIT
        assert producer.end(committed=committed) == 0
        settle(harness)
    assert committed_values(harness, 0) == ([b"a"] * 2 if committed else [])
    assert committed_values(harness, 1) == ([b"c"] * 2 if committed else [])
    assert group_offset(harness) == (0, 8 if committed else -1)


@pytest.mark.parametrize("syncs", range(3))
def test_b7_a_batch_is_stored_when_its_partition_is_durably_in_the_transaction(
    harness: BrokerHarness, syncs: int
) -> None:
    """A crash leaves no batch of a partition that the coordinator does not know."""
    producer = BumpingProducer(harness)
    pending = harness.send(producer.produce_request(b"x"), 12)
    end = end_offset(harness)
    assert end == 0
    for _ in range(syncs):
        harness.sync()
    assert pending.done is (syncs == 2)
    harness.crash()
    if end_offset(harness) > 0:
        assert state(harness).transaction_state == "Ongoing"
    assert (end_offset(harness) > 0) is (syncs >= 1)
    harness.advance(60_000)
    settle(harness)
    assert committed_values(harness) == []


def test_batches_that_wait_stay_in_order(harness: BrokerHarness) -> None:
    producer = BumpingProducer(harness)
    sent = []
    for value in (b"1", b"2", b"3"):
        sent.append(harness.send(producer.produce_request(value), 12))
        producer.sequences[0] = producer.sequences.get(0, 0) + 1
    settle(harness)
    assert [code(each) for each in sent] == [0, 0, 0]
    assert producer.end() == 0
    settle(harness)
    assert committed_values(harness) == [b"1", b"2", b"3"]


def test_the_bytes_of_a_batch_that_waits_are_its_own(harness: BrokerHarness) -> None:
    """The buffer of a connection is used again when its requests have been handled."""
    producer = BumpingProducer(harness)
    request = producer.produce_request(b"mine")
    [data] = request.topic_data[0].partition_data
    assert isinstance(data.records, bytes)
    received = bytearray(data.records)
    data.records = memoryview(received)
    pending = harness.send(request, 12)
    received[:] = bytes(len(received))
    settle(harness)
    assert code(pending) == 0
    producer.end()
    settle(harness)
    assert committed_values(harness) == [b"mine"]


def test_a_transaction_that_ends_refuses_its_waiting_batch(
    harness: BrokerHarness,
) -> None:
    producer = BumpingProducer(harness)
    waiting = harness.send(producer.produce_request(b"x"), 12)
    ending = harness.send(producer.end_request(committed=False), 5)
    settle(harness)
    assert ending.response.error_code == 0
    assert code(waiting) == ErrorCode.INVALID_PRODUCER_EPOCH
    assert committed_values(harness) == []


def test_deleting_a_topic_refuses_its_waiting_transactional_batch(harness: BrokerHarness) -> None:
    producer = BumpingProducer(harness)
    waiting = harness.send(producer.produce_request(b"x"), 12)
    harness.delete_topic("t")
    settle(harness)
    assert code(waiting) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert producer.end() == 0
    settle(harness)
    assert state(harness).transaction_state == "CompleteCommit"


def test_a_topic_deleted_during_a_commit_leaves_no_offset(harness: BrokerHarness) -> None:
    producer = BumpingProducer(harness)
    waiting = harness.send(producer.commit_request(7), producer.commit_version)
    assert not waiting.done, "the group's partition is being added"
    harness.delete_topic("t")
    settle(harness)
    [topic] = waiting.response.topics
    assert topic.partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert producer.end() == 0
    settle(harness)
    harness.create_topic("t", partitions=1)
    assert group_offset(harness) == (0, -1)


def test_b8_b9_a_late_request_does_not_affect_a_later_transaction(harness: BrokerHarness) -> None:
    producer = BumpingProducer(harness)
    producer.send(b"first")
    assert producer.end() == 0
    settle(harness)
    late = producer.as_before()
    assert late.send(b"late") == ErrorCode.INVALID_PRODUCER_EPOCH
    assert late.send(b"late", 1) == ErrorCode.INVALID_PRODUCER_EPOCH
    assert late.commit_offset(3) == ErrorCode.INVALID_PRODUCER_EPOCH
    assert producer.send(b"second") == 0
    assert late.send(b"late") == ErrorCode.INVALID_PRODUCER_EPOCH
    assert late.end() == ErrorCode.PRODUCER_FENCED
    assert late.end(committed=False) == ErrorCode.PRODUCER_FENCED
    assert state(harness).transaction_state == "Ongoing"
    assert producer.end() == 0
    settle(harness)
    assert committed_values(harness) == [b"first", b"second"]


def test_the_sequences_of_a_transaction_begin_at_0(harness: BrokerHarness) -> None:
    producer = BumpingProducer(harness)
    producer.sequences[0] = 1
    assert producer.send(b"gap") == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    producer.sequences[0] = 0
    assert producer.send(b"a") == 0
    producer.end()
    settle(harness)
    producer.sequences[0] = 1
    assert producer.send(b"gap") == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    producer.sequences[0] = 0
    assert producer.send(b"b") == 0


def test_the_next_transaction_begins_while_the_one_before_is_completed(
    harness: BrokerHarness,
) -> None:
    producer = BumpingProducer(harness)
    producer.send(b"a")
    ending = harness.send(producer.end_request(), 5)
    harness.sync()
    assert ending.done
    producer.becomes(ending.response.producer_id, ending.response.producer_epoch)
    assert state(harness).transaction_state == "PrepareCommit"
    assert producer.send(b"b") == 0
    producer.end()
    settle(harness)
    assert committed_values(harness) == [b"a", b"b"]


def test_a_produce_with_acks_0_cannot_begin_a_transaction(
    harness: BrokerHarness,
) -> None:
    request = BumpingProducer(harness).produce_request(b"x")
    request.acks = 0
    with pytest.raises(CloseConnection, match="INVALID_REQUIRED_ACKS"):
        harness.call(request, 12)


@pytest.mark.parametrize(
    ("produce", "commit", "told"),
    [(10, 3, ErrorCode.INVALID_TXN_STATE), (11, 4, ErrorCode.TRANSACTION_ABORTABLE)],
)
def test_a_client_of_version_2_gets_the_error_to_abort(
    harness: BrokerHarness, produce: int, commit: int, told: ErrorCode
) -> None:
    producer = BumpingProducer(harness)
    producer.produce_version, producer.commit_version = produce, commit
    assert producer.send(b"x") == told
    assert producer.commit_offset(1) == told


def test_a_client_may_change_its_protocol_between_transactions(harness: BrokerHarness) -> None:
    producer = BumpingProducer(harness)
    for version in (9, 12, 9):
        producer.produce_version = version
        producer.end_version = 5 if version == 12 else 3
        if version == 9:
            producer.add(0)
        assert producer.send(b"%d" % version) == 0
        assert producer.end() == 0
        settle(harness)
    assert committed_values(harness) == [b"9", b"12", b"9"]
    assert producer.epoch == 1


def brokers_request(producer: BumpingProducer, *, verify: bool, topic: str = "t") -> Any:
    return AddPartitionsToTxnRequest(
        transactions=[
            AddPartitionsToTxnTransaction(
                transactional_id=producer.name,
                producer_id=producer.id,
                producer_epoch=producer.epoch,
                verify_only=verify,
                topics=[AddPartitionsToTxnTopic(name=topic, partitions=[0, 1])],
            )
        ]
    )


def test_brokers_add_to_several_transactions_or_ask(harness: BrokerHarness) -> None:
    one, other = BumpingProducer(harness), BumpingProducer(harness, "other")

    def ask(*requests: Any, version: int = 5) -> list[list[int]]:
        together = AddPartitionsToTxnRequest(
            transactions=[each for request in requests for each in request.transactions]
        )
        results = harness.call(together, version).results_by_transaction
        return [
            [part.partition_error_code for part in result.topic_results[0].results_by_partition]
            for result in results
        ]

    asked = brokers_request(one, verify=True)
    assert ask(asked) == [[ErrorCode.TRANSACTION_ABORTABLE] * 2]
    assert ask(asked, version=4) == [[ErrorCode.INVALID_TXN_STATE] * 2]
    added = ask(brokers_request(one, verify=False), brokers_request(other, verify=True))
    assert added == [[0, 0], [ErrorCode.TRANSACTION_ABORTABLE] * 2]
    assert ask(asked) == [[0, 0]]
    nowhere = brokers_request(one, verify=False, topic="nowhere")
    assert ask(nowhere) == [[ErrorCode.UNKNOWN_TOPIC_OR_PARTITION] * 2]
    described = harness.call(DescribeTransactionsRequest(transactional_ids=["other"]))
    assert described.transaction_states[0].transaction_state == "Empty"


def test_a_marker_from_a_client_ends_nothing_of_this_version(harness: BrokerHarness) -> None:
    producer = BumpingProducer(harness)
    producer.send(b"a")

    def mark(epoch: int) -> int:
        marker = WritableTxnMarker(
            producer_id=producer.id,
            producer_epoch=epoch,
            topics=[WritableTxnMarkerTopic(name="t", partition_indexes=[0])],
            coordinator_epoch=0,
            transaction_version=2,
        )
        answer = harness.call(WriteTxnMarkersRequest(markers=[marker]))
        return int(answer.markers[0].topics[0].partitions[0].error_code)

    assert mark(producer.epoch) == ErrorCode.INVALID_PRODUCER_EPOCH
    assert producer.end() == 0
    settle(harness)
    assert mark(producer.epoch) == 0  # the transaction's own once more
    assert producer.send(b"b") == 0
    assert mark(producer.epoch) == ErrorCode.INVALID_PRODUCER_EPOCH
    assert producer.end() == 0
    settle(harness)
    assert committed_values(harness) == [b"a", b"b"]


def test_a_marker_of_a_future_coordinator_blocks_the_transaction_until_it_ends(
    harness: BrokerHarness,
) -> None:
    producer = BumpingProducer(harness)
    producer.send(b"a")

    def mark(epoch: int) -> None:
        marker = WritableTxnMarker(
            producer_id=producer.id,
            producer_epoch=epoch,
            topics=[WritableTxnMarkerTopic(name="t", partition_indexes=[0])],
            coordinator_epoch=1_000,
        )
        harness.call(WriteTxnMarkersRequest(markers=[marker]))

    mark(producer.epoch)
    assert producer.end() == 0
    settle(harness)
    assert state(harness).transaction_state == "CompleteCommit"  # there was nothing left to end
    assert producer.send(b"b") == 0
    assert producer.end() == 0
    settle(harness)
    assert state(harness).transaction_state == "PrepareCommit"
    mark(producer.epoch)
    harness.advance(200)
    settle(harness)
    assert state(harness).transaction_state == "CompleteCommit"


@pytest.mark.parametrize(("setting", "level"), [({}, 2), ({"headrace_transaction_version": 1}, 1)])
def test_the_feature_is_finalized_at_the_level_that_is_set(
    tmp_path: Any, setting: dict[str, int], level: int
) -> None:
    harness = transactional_broker(tmp_path, **setting)
    epochs = []
    for _ in range(2):
        answer = harness.call(ApiVersionsRequest(), 4)
        finalized = {each.name: each.max_version_level for each in answer.finalized_features}
        supported = {each.name: each.max_version for each in answer.supported_features}
        assert (finalized["transaction.version"], supported["transaction.version"]) == (level, 2)
        epochs.append(answer.finalized_features_epoch)
        harness.crash()
    assert epochs[0] < epochs[1]


def test_a_transaction_continues_after_a_change_of_the_level(tmp_path: Any) -> None:
    harness = transactional_broker(tmp_path)
    producer = BumpingProducer(harness)
    assert producer.send(b"a") == 0
    config = {"offsets_topic_num_partitions": 1, "transaction_state_log_num_partitions": 1}
    harness.crash(**config, headrace_transaction_version=1)
    assert producer.end() == 0
    settle(harness)
    producer.produce_version, producer.end_version = 9, 3
    producer.add(0)
    assert producer.send(b"b") == 0
    harness.crash(**config, headrace_transaction_version=2)
    assert producer.end() == 0
    settle(harness)
    assert committed_values(harness) == [b"a", b"b"]


def test_the_batches_that_wait_for_their_transaction_are_bounded(
    harness: BrokerHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transactional_batches, "WAITING_BYTES_MAX", 100)
    producer = BumpingProducer(harness)
    first = harness.send(producer.produce_request(b"x" * 200), 12)  # one may be larger
    second = harness.send(producer.produce_request(b"y", 1), 12)
    assert code(second) == ErrorCode.CONCURRENT_TRANSACTIONS
    settle(harness)
    assert code(first) == 0
    assert harness.broker.services.transactions.waiting_bytes == 0
    assert producer.send(b"y", 1) == 0


def test_batches_of_many_partitions_that_were_added_are_appended_in_steps() -> None:
    harness = BrokerHarness(offsets_topic_num_partitions=1, transaction_state_log_num_partitions=1)
    harness.create_topic("t", partitions=600)
    found = harness.call(FindCoordinatorRequest(key_type=1, coordinator_keys=["id"]))
    assert found.coordinators[0].error_code == 0
    producer = BumpingProducer(harness)
    session = Session()
    first, second = (produce_to_all(producer, value) for value in (b"a", b"b"))
    pending = harness.send(first, 12, session=session)
    services = harness.broker.services
    partitions = services.partitions.of(services.topics.require("t"))
    logs = [each.log for each in partitions if each]
    most = appended = 0
    while session.busy:
        assert harness.step() or harness.sync()
        before, appended = appended, sum(log.log_end_offset for log in logs)
        most = max(most, appended - before)
    assert (appended, 0 < most <= 26) == (600, True)
    again = harness.send(second, 12, session=session)
    while not (pending.done and again.done):
        assert harness.step() or harness.sync()
    for each in (pending, again):
        (topic,) = each.response.responses
        assert [part.error_code for part in topic.partition_responses] == [0] * 600
    assert values(harness.fetch("t", 0, 599).records) == [b"a", b"b"]
    transactions = harness.broker.services.transactions
    assert (transactions.waiting_bytes, transactions.waiting_cost) == (0, 0)


def produce_to_all(producer: BumpingProducer, value: bytes) -> ProduceRequest:
    data = [
        PartitionProduceData(index=index, records=producer.batch(value, index))
        for index in range(600)
    ]
    producer.sequences = dict.fromkeys(range(600), 1)
    return ProduceRequest(
        acks=-1,
        timeout_ms=30_000,
        transactional_id=producer.name,
        topic_data=[TopicProduceData(name="t", partition_data=data)],
    )
