"""A compacted topic on a real server: librdkafka writes it, and reads the last value of each key."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from headrace.clients.blocking import BlockingClient
from tests.fixtures.processes import ServerProcess

KEYS = 50
ROUNDS = 120
BATCH_BYTES = 4_000


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    made = ServerProcess(
        tmp_path / "data",
        log_path=tmp_path / "server.log",
        arguments=["--config", "log.cleaner.backoff.ms=200"],
    )
    with made:
        yield made


def until(condition: Callable[[], bool], timeout_s: float = 30.0) -> None:
    deadline = time.monotonic() + timeout_s
    pause = threading.Event()
    while not condition():
        assert time.monotonic() < deadline, "it did not come to pass in time"
        pause.wait(0.05)


def create(server: ServerProcess, name: str, **configs: str) -> None:
    settings = {
        "cleanup.policy": "compact",
        "segment.bytes": "40000",
        "min.cleanable.dirty.ratio": "0.1",
    }
    settings |= {key.replace("_", "."): value for key, value in configs.items()}
    admin = AdminClient({"bootstrap.servers": server.bootstrap})
    topic = NewTopic(name, num_partitions=1, replication_factor=1, config=settings)
    admin.create_topics([topic])[name].result(30)


def fill(server: ServerProcess, name: str, *, codec: str, idempotent: bool) -> dict[bytes, bytes]:
    """Write all keys several times; finally delete the keys that end in 7."""
    producer = Producer(
        {
            "bootstrap.servers": server.bootstrap,
            "compression.type": codec,
            "enable.idempotence": idempotent,
            "batch.size": BATCH_BYTES,
        }
    )
    values: dict[bytes, bytes] = {}
    failures: list[KafkaError] = []
    for number in range(ROUNDS):
        for key_number in range(KEYS):
            key = b"key %d" % key_number
            last = number == ROUNDS - 1
            value = None if last and key.endswith(b"7") else b"%d/%d" % (number, key_number) * 10
            producer.produce(
                name,
                key=key,
                value=value,
                on_delivery=lambda error, _: failures.append(error) if error else None,
            )
            if value is None:
                values.pop(key, None)
            else:
                values[key] = value
        producer.flush(30)
    assert not failures
    return values


def read_all(server: ServerProcess, name: str) -> tuple[dict[bytes, bytes], int]:
    """Read the topic from the start; return the last value of each key, and the number of records."""
    consumer = Consumer(
        {
            "bootstrap.servers": server.bootstrap,
            "group.id": "reader",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "check.crcs": True,
        }
    )
    consumer.assign([TopicPartition(name, 0, 0)])
    values: dict[bytes, bytes] = {}
    count, last = 0, -1
    try:
        while True:
            message = consumer.poll(30)
            assert message is not None, "the consumer is stuck"
            error = message.error()
            if error is not None:
                assert error.code() == KafkaError._PARTITION_EOF, error
                return values, count
            count += 1
            assert message.offset() > last
            last = message.offset()
            if message.value() is None:
                values.pop(message.key(), None)
            else:
                values[message.key()] = message.value()
    finally:
        consumer.close()


def data_bytes(server: ServerProcess, name: str) -> int:
    assert server.data is not None
    return sum(path.stat().st_size for path in (server.data / f"{name}-0").glob("*.log"))


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
@pytest.mark.parametrize("idempotent", [False, True])
def test_a_consumer_finds_the_last_value_of_each_key(
    server: ServerProcess, codec: str, *, idempotent: bool
) -> None:
    create(server, "t")
    expected = fill(server, "t", codec=codec, idempotent=idempotent)
    # Further records seal the segment with the last values.
    until(lambda: "log_compacted" in server.log)
    until(lambda: read_all(server, "t")[1] < ROUNDS * KEYS // 2)
    found, _ = read_all(server, "t")
    assert found == expected
    server.kill()
    server.start()
    assert read_all(server, "t")[0] == expected


def test_a_consumer_may_begin_at_any_offset(server: ServerProcess) -> None:
    create(server, "t")
    fill(server, "t", codec="none", idempotent=True)
    until(lambda: read_all(server, "t")[1] < ROUNDS * KEYS // 3)
    consumer = Consumer({"bootstrap.servers": server.bootstrap, "group.id": "reader"})
    try:
        for offset in range(0, ROUNDS * KEYS, 611):
            consumer.assign([TopicPartition("t", 0, offset)])
            message = consumer.poll(30)
            assert message is not None
            assert message.error() is None
            assert message.offset() >= offset
    finally:
        consumer.close()


def test_a_record_without_a_key_is_refused(server: ServerProcess) -> None:
    create(server, "t")
    producer = Producer({"bootstrap.servers": server.bootstrap})
    outcome: list[KafkaError | None] = []
    producer.produce("t", value=b"v", on_delivery=lambda error, _: outcome.append(error))
    producer.flush(30)
    assert outcome
    assert outcome[0] is not None
    assert outcome[0].code() == KafkaError.INVALID_RECORD
    with BlockingClient(server.bootstrap) as client:
        assert client.metadata(["t"]).topics
