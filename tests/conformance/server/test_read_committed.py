"""A log with transactions of many producers, read by librdkafka, kafka-python and our own consumer.

The broker itself appends the transactional batches; WriteTxnMarkers appends the markers.
"""

from __future__ import annotations

import importlib
import random
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition

import headrace
from headrace.protocol.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)
from headrace.server.stores import open_stores
from tests.conformance.server.wire import NOW_MS, WireClient
from tests.fixtures.broker_harness import BrokerHarness, batch, produce_request
from tests.fixtures.processes import ServerProcess
from tests.fixtures.transactions import transactional

TOPIC = "t"
LEVELS = ("read_committed", "read_uncommitted")
Values = dict[str, list[bytes]]


def marker(producer_id: int, *, committed: bool) -> WriteTxnMarkersRequest:
    topics = [WritableTxnMarkerTopic(name=TOPIC, partition_indexes=[0])]
    return WriteTxnMarkersRequest(
        markers=[
            WritableTxnMarker(producer_id=producer_id, transaction_result=committed, topics=topics)
        ]
    )


class Scenario:
    """The records to write, and the records that readers of both isolation levels have to find."""

    def __init__(self, harness: BrokerHarness) -> None:
        self._harness = harness
        self._chance = random.Random(5)
        self._sequences = dict.fromkeys(range(1, 6), 0)
        self.batches: list[tuple[bytes, list[bool | None]]] = []
        self.is_open: dict[int, list[bool | None]] = {}

    def write(self, number: int) -> None:
        """Append a batch of one of the producers, and sometimes end a transaction."""
        harness, value = self._harness, b"%d" % number + b"." * 200
        producer_id = self._chance.choice([0, *self._sequences])
        if producer_id == 0:
            assert harness.call(produce_request(TOPIC, 0, batch(value, timestamp_ms=NOW_MS)))
            self.batches.append((value, [True]))
            return
        records = transactional(
            (None, value),
            producer_id=producer_id,
            sequence=self._sequences[producer_id],
            timestamp=NOW_MS,
        )
        self._sequences[producer_id] += 1
        partition = harness.broker.services.partitions.require(TOPIC, 0)
        harness.broker.services.replicas.append(partition, records, harness.now_ms)
        outcome = self.is_open.setdefault(producer_id, [None])
        self.batches.append((value, outcome))
        if self._chance.random() < 0.3:
            committed = self._chance.random() < 0.5
            self.end(producer_id, committed=committed)
            response = harness.call(marker(producer_id, committed=committed))
            assert response.markers[0].topics[0].partitions[0].error_code == 0

    def end(self, producer_id: int, *, committed: bool) -> None:
        self.is_open.pop(producer_id)[0] = committed

    @property
    def expected(self) -> Values:
        stable: list[bytes] = []
        for value, outcome in self.batches:
            if outcome[0] is None:
                break
            if outcome[0]:
                stable.append(value)
        return {"read_committed": stable, "read_uncommitted": [value for value, _ in self.batches]}


@pytest.fixture
def scenario(tmp_path: Path) -> Scenario:
    """Write the log with a separate broker."""
    (tmp_path / "data").mkdir()
    stores = open_stores([tmp_path / "data"])
    harness = BrokerHarness(files=stores.files, metadata=stores.metadata, now_ms=NOW_MS)
    harness.create_topic(TOPIC, segment_bytes="20000")
    written = Scenario(harness)
    for number in range(500):
        written.write(number)
    assert written.is_open
    harness.broker.close(harness.now_ms)
    stores.close()
    return written


@pytest.fixture
def server(
    tmp_path: Path, scenario: Scenario
) -> Iterator[ServerProcess]:  # the server serves these records
    made = ServerProcess(tmp_path / "data", log_path=tmp_path / "server.log")
    with made:
        yield made


def by_librdkafka(server: ServerProcess, level: str, count: int) -> list[bytes]:
    consumer = Consumer(
        {
            "bootstrap.servers": server.bootstrap,
            "group.id": "g",
            "isolation.level": level,
            "enable.partition.eof": True,
            "fetch.message.max.bytes": 3_000,  # many answers, and transactions that span them
        }
    )
    consumer.assign([TopicPartition(TOPIC, 0, 0)])
    found: list[bytes] = []
    while (message := consumer.poll(20)) is not None and message.error() is None:
        found.append(message.value())
    assert message is not None, f"no end after {len(found)} of {count}"
    consumer.close()
    return found


def by_kafka_python(server: ServerProcess, level: str, count: int) -> list[bytes]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # kafka-python uses deprecated calls
        kafka = importlib.import_module("kafka")
    consumer = kafka.KafkaConsumer(
        bootstrap_servers=server.bootstrap,
        isolation_level=level,
        max_partition_fetch_bytes=3_000,
    )
    place = kafka.TopicPartition(TOPIC, 0)
    consumer.assign([place])
    consumer.seek(place, 0)
    found: list[bytes] = []
    while len(found) < count and (polled := consumer.poll(20_000)):
        found += [record.value for records in polled.values() for record in records]
    found += [r.value for records in consumer.poll(300).values() for r in records]
    consumer.close()
    return found


def by_our_own(server: ServerProcess, level: str, count: int) -> list[bytes]:
    with headrace.Consumer(
        bootstrap_servers=server.bootstrap,
        isolation_level=level,
        max_partition_fetch_bytes=3_000,
        auto_offset_reset="earliest",
    ) as consumer:
        consumer.assign([headrace.TopicPartition(TOPIC, 0)])
        found: list[bytes] = []
        while len(found) < count and (records := consumer.poll(timeout_s=20)):
            found += [record.value for record in records]
        found += [record.value for record in consumer.poll(timeout_s=0.3)]
    return found


READERS = (by_librdkafka, by_kafka_python, by_our_own)


def test_every_reader_returns_the_records_of_each_isolation_level(
    server: ServerProcess, scenario: Scenario
) -> None:
    for level in LEVELS:
        expected = scenario.expected[level]
        for reader in READERS:
            assert reader(server, level, len(expected)) == expected, (reader.__name__, level)
    before = len(scenario.expected["read_committed"])
    with WireClient((server.host, server.port)) as client:
        for committed, producer_id in enumerate(list(scenario.is_open)):
            client.request(marker(producer_id, committed=bool(committed % 2)), 1)
            scenario.end(producer_id, committed=bool(committed % 2))
    expected = scenario.expected["read_committed"]
    assert len(expected) > before
    for reader in READERS:
        assert reader(server, "read_committed", len(expected)) == expected, reader.__name__
