"""Answers of a broker that lead nowhere: the program gets the broker and the reason, and no client retries without
end."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.clients.blocking import EARLIEST
from headrace.clients.consumer.fetcher import STALLED_ANSWERS
from headrace.clients.flows import metadata
from headrace.clients.flows.fetch import FetchPosition, read_fetch
from headrace.errors import CorruptRecordError, ErrorCode, ProtocolError
from headrace.protocol.messages.fetch import (
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    PartitionData,
)
from headrace.protocol.messages.metadata import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from headrace.types import TopicPartition
from tests.unit.clients.consumer.test_reading import batch, consumer_of
from tests.unit.clients.fake_broker import FakeBroker, FakeCluster
from tests.unit.clients.scripted import ScriptedDriver, known_state

T0 = TopicPartition("t", 0)


def answering(monkeypatch: pytest.MonkeyPatch, records: bytes, code: int = 0) -> None:
    """Make the broker return these records for every fetch, whatever its offset."""

    def answer(
        _broker: FakeBroker, where: TopicPartition, _wanted: Any, _code: Any
    ) -> PartitionData:
        return PartitionData(
            partition_index=where.partition, error_code=code, high_watermark=100, records=records
        )

    monkeypatch.setattr(FakeBroker, "_fetch_one", answer)


@pytest.mark.parametrize(
    ("records", "message"),
    [
        (
            batch(0, b"a"),
            "t-0: broker 1 answers a fetch from offset 5 with records that end at offset 0",
        ),
        (batch(5, b"a" * 99)[:80], "t-0: broker 1 .* with 80 bytes of a batch of 1[0-9]+"),
        (batch(5, b"a")[:60], "t-0: broker 1 .* with 60 bytes, which are no batch"),
    ],
    ids=["records of before", "a part of a batch", "no batch"],
)
def test_answers_that_lead_no_further_are_an_error(
    monkeypatch: pytest.MonkeyPatch, records: bytes, message: str
) -> None:
    answering(monkeypatch, records)
    with FakeCluster(topics={"t": 1}) as cluster, consumer_of(cluster) as consumer:
        consumer.assign({T0: 5})
        with pytest.raises(CorruptRecordError, match=message):
            consumer.poll(30)
        assert consumer.position(T0) == 5
        assert cluster.count(FetchRequest) <= STALLED_ANSWERS + 1


def test_reading_goes_on_when_the_broker_has_recovered(monkeypatch: pytest.MonkeyPatch) -> None:
    with FakeCluster(topics={"t": 1}) as cluster, consumer_of(cluster) as consumer:
        cluster.logs[T0].append(batch(0, b"a", b"b"))
        with monkeypatch.context() as fault:
            answering(fault, batch(0, b"a"))
            consumer.assign({T0: 1})
            with pytest.raises(CorruptRecordError):
                consumer.poll(30)
        records: list[Any] = []
        while not records:
            try:
                records = consumer.poll(30, 1)
            except CorruptRecordError:  # what was answered before
                continue
        assert [record.value for record in records] == [b"b"]


def test_offsets_that_are_all_out_of_range_are_asked_for_after_pauses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answering(monkeypatch, b"", ErrorCode.OFFSET_OUT_OF_RANGE)
    with (
        FakeCluster(topics={"t": 1}) as cluster,
        consumer_of(cluster, retry_backoff_ms=10_000, retry_backoff_max_ms=10_000) as consumer,
    ):
        consumer.assign({T0: EARLIEST})
        while cluster.count(FetchRequest) < 2:
            consumer.poll(0.05)
        for _ in range(5):
            assert consumer.poll(0.05) == []
        assert cluster.count(FetchRequest) == 2, "the first may be a mistake of ours"


def test_metadata_of_topics_that_were_not_requested_is_ignored() -> None:
    state = known_state({"t": {0: 1}})
    before = dict(state.metadata.topics)
    other = [MetadataResponseTopic(name=f"x{number}", topic_id=b"i" * 16) for number in range(9)]
    good = MetadataResponseTopic(
        name="t", partitions=[MetadataResponsePartition(partition_index=0, leader_id=1)]
    )
    told = MetadataResponse(
        brokers=[MetadataResponseBroker(node_id=1, host="h", port=1)], topics=[*other, good]
    )
    ScriptedDriver(lambda _call: told).run(metadata.refresh(state, ["t"]))
    assert state.metadata.topics.keys() == before.keys()
    assert state.stale_topics == set()
    ScriptedDriver(lambda _call: told).run(metadata.name_topics(state, [b"j" * 16]))
    assert state.metadata.topics.keys() == before.keys()


def test_partitions_that_were_not_asked_for_are_passed_over() -> None:
    state = known_state({"t": {0: 1}})
    error = ErrorCode.NOT_LEADER_OR_FOLLOWER
    answer = FetchResponse(
        responses=[
            FetchableTopicResponse(
                topic=f"x{number}", partitions=[PartitionData(partition_index=0, error_code=error)]
            )
            for number in range(9)
        ]
    )
    assert list(read_fetch(state, {T0: FetchPosition(0)}, answer, 1)) == []
    assert state.stale_topics == set()


def test_a_cluster_of_too_many_brokers_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata, "MAX_BROKERS", 3)
    brokers = [MetadataResponseBroker(node_id=node, host="h", port=1) for node in range(4)]
    state = known_state({})
    known = dict(state.metadata.brokers)
    with pytest.raises(ProtocolError, match="names 4 brokers; the limit is 3"):
        metadata.learn(state, MetadataResponse(brokers=brokers))
    assert state.metadata.brokers == known
