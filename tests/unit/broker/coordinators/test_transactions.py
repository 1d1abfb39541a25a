"""Transactions through the whole broker: handlers, coordinators, logs, and crashes at every step."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.broker.topic_names import OFFSETS_TOPIC
from headrace.errors import ErrorCode
from headrace.protocol.messages.describe_transactions import DescribeTransactionsRequest
from headrace.protocol.messages.list_transactions import ListTransactionsRequest
from tests.fixtures.broker_harness import BrokerHarness, produce_request
from tests.fixtures.transactional_producer import (
    Producer,
    committed_values,
    group_offset,
    settle,
    state,
    transactional_broker,
)


@pytest.fixture
def harness(tmp_path: Any) -> BrokerHarness:
    return transactional_broker(tmp_path)


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


def test_b11_a_replaced_producer_is_fenced_everywhere(harness: BrokerHarness) -> None:
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
    harness.delete_topic("gone")
    assert producer.end() == 0
    settle(harness)
    assert state(harness).transaction_state == "CompleteCommit"


def test_unknown_ids_and_groups(harness: BrokerHarness) -> None:
    request = DescribeTransactionsRequest(transactional_ids=["other", ""])
    codes = [each.error_code for each in harness.call(request).transaction_states]
    assert codes == [ErrorCode.TRANSACTIONAL_ID_NOT_FOUND, ErrorCode.INVALID_REQUEST]
    assert Producer(harness).add_offsets("") == ErrorCode.INVALID_GROUP_ID
