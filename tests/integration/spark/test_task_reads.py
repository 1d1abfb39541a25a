"""A task's ranges are read from a server completely and in few rounds, with and without the accelerator."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import pytest

from headrace.clients.blocking import BlockingClient, FetchedPartition, FetchPosition
from headrace.clients.producer.blocking import Producer
from headrace.records.builder import build_batch
from headrace.records.compression import Compression
from headrace.spark.options.source import SourceOptions, source_options
from headrace.spark.source import reading
from headrace.spark.source.arrow import RangeDecoder
from headrace.spark.source.cluster_client import ClusterClient
from headrace.spark.source.offsets import OffsetRange
from headrace.spark.source.tasks import ReadTask
from headrace.types import TopicPartition
from tests.fixtures.accelerator import built_kernels
from tests.fixtures.targets import Target
from tests.integration.spark.conftest import Topics


@pytest.fixture(params=["Python", "C"], autouse=True)
def walk(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = built_kernels() if request.param == "C" else None
    monkeypatch.setattr(reading, "RangeDecoder", partial(RangeDecoder, compiled=compiled))


class CountingClient(ClusterClient):
    def __init__(self, options: SourceOptions) -> None:
        super().__init__(options.client)
        self.rounds: list[list[int]] = []

    def fetch(
        self, positions: Mapping[TopicPartition, FetchPosition]
    ) -> Mapping[TopicPartition, FetchedPartition]:
        self.rounds.append([each.partition for each in positions])
        return super().fetch(positions)


class Task:
    """Read ranges as a task does."""

    def __init__(self, server: Target, topic: str, **given: str) -> None:
        required = {"kafka.bootstrap.servers": server.bootstrap, "subscribe": topic}
        self.options = source_options(
            {**required, "kafkaConsumer.pollTimeoutMs": "20000", **given}, streaming=False
        )
        self.topic = topic
        self.client = CountingClient(self.options)

    def rows(self, *ranges: tuple[int, int, int]) -> list[dict[str, Any]]:
        wanted = [
            OffsetRange(TopicPartition(self.topic, number), start, end)
            for number, start, end in ranges
        ]
        batches = reading.read_task(self.client, ReadTask(wanted), self.options)
        return [row for batch in batches for row in batch.to_pylist()]


@pytest.fixture
def task(server: Target) -> Iterator[Any]:
    made: list[Task] = []

    def make(topic: str, **given: str) -> Task:
        made.append(Task(server, topic, **given))
        return made[-1]

    yield make
    for each in made:
        each.client.close()


def test_many_partitions_are_read_in_one_round(
    client: BlockingClient, topics: Topics, task: Any
) -> None:
    codecs = list(Compression)
    topic = topics.create(len(codecs))
    for number, codec in enumerate(codecs):
        for first in (0, 20):
            records = [
                (None if n % 2 else b"k", b"%d" % n, [("h", None)] * (n % 3), n)
                for n in range(first, first + 20)
            ]
            client.produce(TopicPartition(topic, number), build_batch(records, compression=codec))
    reader = task(topic, columns="partition,offset,value,headers")

    rows = reader.rows(*((number, 5, 37) for number in range(len(codecs))))

    assert reader.client.rounds == [list(range(len(codecs)))]
    assert rows == [
        {
            "partition": number,
            "offset": offset,
            "value": b"%d" % offset,
            "headers": [{"key": "h", "value": None}] * (offset % 3),
        }
        for number in range(len(codecs))
        for offset in range(5, 37)
    ]


@pytest.mark.parametrize("limit", ["33554432", "100000"])
def test_records_of_ten_megabytes(
    client: BlockingClient, topics: Topics, task: Any, limit: str
) -> None:
    topic = topics.create(2, max_message_bytes=str(12 << 20))
    for number in range(2):
        for size in (10, 10 << 20, 5 << 20, 20):
            batch = build_batch([(None, b"%d" % number * size, (), 0)])
            client.produce(TopicPartition(topic, number), batch)

    rows = task(topic, **{"kafka.max.partition.fetch.bytes": limit}).rows((0, 0, 4), (1, 1, 4))

    assert [len(row["value"]) for row in rows] == [
        *(10, 10 << 20, 5 << 20, 20),
        *(10 << 20, 5 << 20, 20),
    ]
    assert [row["value"][:1] for row in rows] == [b"0"] * 4 + [b"1"] * 3


def test_aborted_records_are_left_out_in_every_range(
    server: Target, topics: Topics, task: Any
) -> None:
    topic = topics.create(2)
    with Producer(server.bootstrap, transactional_id=f"tx-{topic}") as producer:
        for number in range(6):
            try:
                with producer.transaction():
                    for part in range(2):
                        producer.send(topic, b"%d" % number, partition=part)
                    producer.flush()
                    assert number % 3, "this one is given up"
            except AssertionError:
                pass

    rows = task(topic, **{"kafka.isolation.level": "read_committed"}).rows((0, 0, 12), (1, 2, 12))
    expected = [b"1", b"2", b"4", b"5"]
    assert [row["value"] for row in rows] == expected * 2
    everything = task(topic).rows((0, 0, 12), (1, 0, 12))
    assert [row["value"] for row in everything] == [b"%d" % n for n in range(6)] * 2
