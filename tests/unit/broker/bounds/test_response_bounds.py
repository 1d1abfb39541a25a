"""A name that occurs twice has one result, and the size of each response is bounded."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.broker.bounds import response_bounds as answer_bounds
from headrace.broker.bounds.response_bounds import within_bounds
from headrace.broker.handlers import (
    consumer_group_describe,
    describe_producers,
    describe_transactions,
    offset_fetch,
)
from headrace.errors import ErrorCode
from headrace.protocol.messages.consumer_group_describe import ConsumerGroupDescribeRequest
from headrace.protocol.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from headrace.protocol.messages.describe_groups import DescribeGroupsRequest
from headrace.protocol.messages.describe_producers import DescribeProducersRequest, TopicRequest
from headrace.protocol.messages.describe_transactions import DescribeTransactionsRequest
from headrace.protocol.messages.init_producer_id import InitProducerIdRequest
from headrace.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from headrace.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
)
from tests.fixtures.broker_harness import BrokerHarness, batch, produce_request

AGAIN = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS


def with_topic(partitions: int, **options: Any) -> BrokerHarness:
    harness = BrokerHarness(offsets_topic_num_partitions=2, **options)
    harness.create_offsets_topic()
    harness.create_topic("t", partitions=partitions)
    return harness


def commit(harness: BrokerHarness, group: str, partitions: int, metadata: str = "") -> None:
    wanted = [
        OffsetCommitRequestPartition(
            partition_index=index, committed_offset=index, committed_metadata=metadata
        )
        for index in range(partitions)
    ]
    topics = [OffsetCommitRequestTopic(name="t", partitions=wanted)]
    response = harness.call(OffsetCommitRequest(group_id=group, topics=topics), 9)
    assert {p.error_code for t in response.topics for p in t.partitions} == {0}


def test_parts_are_refused_when_those_before_fill_the_answer(monkeypatch):
    monkeypatch.setattr(answer_bounds, "ANSWER_BYTES", 10)
    parts = ["12345", "67890", "more", ""]
    assert list(within_bounds(parts, len, lambda _: "no")) == ["12345", "67890", "no", "no"]
    assert list(within_bounds(["x" * 100], len, lambda _: "no")) == ["x" * 100]


def test_groups_are_described_once_and_no_more_than_an_answer_holds(monkeypatch):
    harness = with_topic(2)
    for group in ("a", "b"):
        commit(harness, group, 1)
    request = DescribeGroupsRequest(groups=["a"] * 100 + ["b", "a"])
    assert [group.group_id for group in harness.call(request).groups] == ["a", "b"]
    monkeypatch.setattr(answer_bounds, "ANSWER_BYTES", 0)
    codes = [group.error_code for group in harness.call(request).groups]
    assert codes == [AGAIN, AGAIN]
    assert AGAIN.retriable


def test_offsets_are_fetched_once():
    harness = with_topic(3)
    commit(harness, "g", 3)
    topic = OffsetFetchRequestTopics(name="t", partition_indexes=[2, 0, 2, 2, 0])
    group = OffsetFetchRequestGroup(group_id="g", topics=[topic, topic])
    (answer,) = harness.call(OffsetFetchRequest(groups=[group] * 50), 8).groups
    (found,) = answer.topics
    assert [(p.partition_index, p.committed_offset) for p in found.partitions] == [(2, 2), (0, 0)]
    single = OffsetFetchRequestTopic(name="t", partition_indexes=[1] * 1_000)
    (found,) = harness.call(OffsetFetchRequest(group_id="g", topics=[single]), 7).topics
    assert [(p.partition_index, p.committed_offset) for p in found.partitions] == [(1, 1)]


def test_offsets_of_many_groups_are_no_more_than_an_answer_holds(monkeypatch):
    harness = with_topic(4)
    names = ["a", "b", "c"]
    for name in names:
        commit(harness, name, 4, metadata="x" * 100)

    def fetched() -> list[tuple[int, int]]:
        groups = [OffsetFetchRequestGroup(group_id=name, topics=None) for name in names]
        answers = harness.call(OffsetFetchRequest(groups=groups), 8).groups
        assert [answer.group_id for answer in answers] == names
        return [(a.error_code, sum(len(t.partitions) for t in a.topics)) for a in answers]

    assert fetched() == [(0, 4)] * 3
    with monkeypatch.context() as patch:
        patch.setattr(answer_bounds, "ANSWER_BYTES", 500)
        assert fetched() == [(0, 4), (AGAIN, 0), (AGAIN, 0)]
    monkeypatch.setattr(offset_fetch, "ANSWER_ENTRIES", 8)
    assert fetched() == [(0, 4), (0, 4), (AGAIN, 0)]


@pytest.mark.slow
def test_many_offsets_are_fetched_in_steps_and_in_one_piece():
    harness = with_topic(9_000)
    topic = OffsetFetchRequestTopics(name="t", partition_indexes=list(range(9_000)))
    request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id="g", topics=[topic])])
    pending = harness.send(request, 8)
    steps = 0
    while not pending.done:
        assert harness.step()
        steps += 1
    assert steps == 9_000 // 5 // 1_000
    ((found,),) = (group.topics for group in pending.response.groups)
    assert [p.partition_index for p in found.partitions] == list(range(9_000))


def test_consumer_groups_are_described_once_and_no_more_than_an_answer_holds(monkeypatch):
    harness = with_topic(3)
    names = ["a", "b"]
    for name in names:
        beat = ConsumerGroupHeartbeatRequest(
            group_id=name,
            member_id=name,
            member_epoch=0,
            rebalance_timeout_ms=60_000,
            subscribed_topic_names=["t"],
            topic_partitions=[],
        )
        assert harness.call(beat).error_code == 0
    request = ConsumerGroupDescribeRequest(group_ids=[*names, *names] * 20)

    def described() -> list[tuple[str, int]]:
        groups = harness.call(request).groups
        return sorted((group.group_id, group.error_code) for group in groups)

    assert described() == [("a", 0), ("b", 0)]
    monkeypatch.setattr(consumer_group_describe, "ANSWER_ENTRIES", 3)
    assert described() == [("a", 0), ("b", AGAIN)]


def test_transactions_are_described_once_and_no_more_than_an_answer_holds(monkeypatch):
    harness = BrokerHarness()
    for name in ("a", "b"):
        harness.call(InitProducerIdRequest(transactional_id=name, transaction_timeout_ms=1_000), 4)
    request = DescribeTransactionsRequest(transactional_ids=["a", "b", "c"] * 30)

    def described() -> list[tuple[str, int]]:
        states = harness.call(request).transaction_states
        return [(state.transactional_id, state.error_code) for state in states]

    unknown = ("c", ErrorCode.TRANSACTIONAL_ID_NOT_FOUND)
    assert described() == [("a", 0), ("b", 0), unknown]
    monkeypatch.setattr(describe_transactions, "ANSWER_ENTRIES", 0)
    assert described() == [("a", AGAIN), ("b", AGAIN), ("c", AGAIN)]


@pytest.mark.parametrize(("most", "expected"), [(20_000, [2, 2]), (2, [2, 0])])
def test_producers_are_described_up_to_a_number(monkeypatch, most: int, expected: list[int]):
    monkeypatch.setattr(describe_producers, "_MOST", most)
    harness = with_topic(2)
    for index in range(2):
        for producer_id in (7, 8):
            records = batch(b"x", producer_id=producer_id, producer_epoch=0, base_sequence=0)
            harness.call(produce_request("t", index, records))
    wanted = TopicRequest(name="t", partition_indexes=[0, 1, 0])
    (topic,) = harness.call(DescribeProducersRequest(topics=[wanted, wanted])).topics
    found: list[Any] = topic.partitions
    assert [len(partition.active_producers) for partition in found] == expected
    refused = ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert [p.error_code for p in found] == [0 if count else refused for count in expected]
