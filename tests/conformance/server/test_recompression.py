"""A server compresses batches again: it serves other clients meanwhile, and loses or reorders no records."""

from __future__ import annotations

import random
import select
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from headrace.records.builder import build_batch
from headrace.records.compression import Compression
from tests.conformance.server.wire import NOW_MS, WireClient
from tests.fixtures.processes import ServerProcess, running_server

SLOW_LEVEL = "22"
"""The level of zstd at which a megabyte takes half a second."""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    with running_server(tmp_path, "--config", "message.max.bytes=5000000") as running:
        yield running


@pytest.fixture
def client(server: ServerProcess) -> Iterator[WireClient]:
    opened = WireClient((server.host, server.port), 60)
    yield opened
    opened.sock.close()


def text(size: int) -> bytes:
    return bytes(random.Random(1).choices(b"abcdefghijklmnop", k=size))


def request(value: bytes, codec: Compression = Compression.NONE, acks: int = -1) -> ProduceRequest:
    batch = build_batch([(None, value, (), NOW_MS)], compression=codec)
    data = PartitionProduceData(index=0, records=batch)
    topic = TopicProduceData(name="t", partition_data=[data])
    return ProduceRequest(acks=acks, timeout_ms=60_000, topic_data=[topic])


def test_pipelined_batches_stay_in_order(client: WireClient):
    client.create_topic("t", compression_type="gzip")
    slow = text(700_000)
    values = [(slow if number % 4 == 0 else b"") + b"%d" % number for number in range(40)]
    sent = [
        client.send(request(value, Compression(number % 5))) for number, value in enumerate(values)
    ]
    answers = [client.receive() for _ in sent]
    assert [received for received, _ in answers] == sent
    parts = [response.responses[0].partition_responses[0] for _, response in answers]
    assert [(part.error_code, part.base_offset) for part in parts] == [(0, n) for n in range(40)]
    assert [record.value for record in client.read("t", 0)] == values


def test_others_are_answered_while_a_batch_is_compressed(server: ServerProcess, client: WireClient):
    client.create_topic("t", compression_type="zstd", compression_zstd_level=SLOW_LEVEL)
    client.ping()
    client.send(request(text(2_000_000)))
    other = WireClient((server.host, server.port), 60)
    for _ in range(20):
        other.ping()
    readable, _, _ = select.select([client.sock], [], [], 0)
    other.sock.close()
    assert not readable, "the batch takes longer than twenty requests of another connection"
    _, response = client.receive()
    assert response.responses[0].partition_responses[0].error_code == 0


def test_batches_without_an_answer_stay_when_their_client_leaves(
    server: ServerProcess, client: WireClient
):
    client.create_topic("t", compression_type="gzip")
    leaving = WireClient((server.host, server.port), 60)
    for number in range(6):
        leaving.send(request(b"%d" % number + text(900_000), acks=0))
    leaving.sock.close()
    found: list[bytes | None] = []
    while len(found) < 6:
        found = [record.value for record in client.read("t", 0)]
    assert [(value or b"")[:1] for value in found] == [b"%d" % number for number in range(6)]


def test_the_server_ends_in_order_while_a_batch_is_compressed(
    server: ServerProcess, client: WireClient
):
    client.create_topic("t", compression_type="zstd", compression_zstd_level=SLOW_LEVEL)
    answer = client.request(request(b"acknowledged"))
    assert answer.responses[0].partition_responses[0].error_code == 0
    client.send(request(text(2_000_000)))
    other = WireClient((server.host, server.port), 60)
    other.ping()
    server.signal(signal.SIGTERM)
    assert server.wait() == 0
    assert "server_stopped" in server.log
    server.restart()
    again = WireClient((server.host, server.port), 60)
    values = [record.value for record in again.read("t", 0)]
    assert values[0] == b"acknowledged"
    assert len(values) <= 2
    again.sock.close()
    other.sock.close()
