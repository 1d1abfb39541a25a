"""Compare the codec with kio and kafka-python, with the messages that a broker handles most often.

    python -m benchmarks.micro.codec [SECONDS_PER_CELL]

Prints CPU microseconds per operation, the best of several rounds.
"""

from __future__ import annotations

import importlib
import io
import sys
import time
import timeit
from collections.abc import Callable
from typing import Any, NamedTuple

from kafka.protocol.consumer import FetchRequest as TheirFetchRequest
from kafka.protocol.consumer import FetchResponse as TheirFetchResponse
from kafka.protocol.metadata import MetadataResponse as TheirMetadataResponse
from kafka.protocol.producer import ProduceRequest as TheirProduceRequest
from kafka.protocol.producer import ProduceResponse as TheirProduceResponse
from kio.serial import entity_reader, entity_writer

from headrace.protocol.codec import Message
from headrace.protocol.messages.fetch import (
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
)
from headrace.protocol.messages.metadata import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from headrace.protocol.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)

ROUNDS = 7
TOPIC_ID = bytes(range(16))


def produce_request() -> ProduceRequest:
    """Return a request with one batch of 16 KiB."""
    partition = PartitionProduceData(index=3, records=bytes(16384))
    topic = TopicProduceData(name="flights", partition_data=[partition])
    return ProduceRequest(acks=-1, timeout_ms=30_000, topic_data=[topic])


def produce_response() -> ProduceResponse:
    """Return a response for one partition."""
    partition = PartitionProduceResponse(index=3, base_offset=123_456, log_start_offset=0)
    topic = TopicProduceResponse(name="flights", partition_responses=[partition])
    return ProduceResponse(responses=[topic])


def fetch_request() -> FetchRequest:
    """Return a request for ten partitions of one topic."""
    partitions = [
        FetchPartition(
            partition=index,
            current_leader_epoch=1,
            fetch_offset=123_456,
            partition_max_bytes=1_048_576,
        )
        for index in range(10)
    ]
    topics = [FetchTopic(topic="flights", partitions=partitions)]
    return FetchRequest(max_wait_ms=500, min_bytes=1, session_epoch=-1, topics=topics)


def fetch_response() -> FetchResponse:
    """Return a response for one partition with 1 MiB of records."""
    partition = PartitionData(
        partition_index=3,
        high_watermark=123_456,
        last_stable_offset=123_456,
        log_start_offset=0,
        records=bytes(1 << 20),
    )
    return FetchResponse(
        responses=[FetchableTopicResponse(topic="flights", partitions=[partition])]
    )


def metadata_response() -> MetadataResponse:
    """Return a response with a hundred topics of six partitions."""
    topics = [
        MetadataResponseTopic(
            name=f"a-topic-name-{number}",
            topic_id=TOPIC_ID,
            partitions=[
                MetadataResponsePartition(
                    partition_index=index,
                    leader_id=1,
                    leader_epoch=3,
                    replica_nodes=[1, 2, 3],
                    isr_nodes=[1, 2, 3],
                )
                for index in range(6)
            ],
        )
        for number in range(100)
    ]
    brokers = [
        MetadataResponseBroker(node_id=node, host="localhost", port=9092) for node in range(3)
    ]
    return MetadataResponse(brokers=brokers, cluster_id="headrace", controller_id=1, topics=topics)


def microseconds(operation: Callable[[], object], seconds: float) -> float:
    """Return the CPU time of one call, best of several rounds."""
    timer = timeit.Timer(operation, timer=time.thread_time)
    count = 1
    while timer.timeit(count) < seconds / ROUNDS:
        count *= 2
    return min(timer.repeat(ROUNDS, count)) / count * 1e6


def kio_class(module: str, version: int, message: Message) -> Any:
    """Return kio's class of a message."""
    kind = "request" if type(message).__name__.endswith("Request") else "response"
    return getattr(
        importlib.import_module(f"kio.schema.{module}.v{version}.{kind}"), type(message).__name__
    )


def kio_encode(write: Callable[[Any, Any], None], entity: Any) -> bytes:
    """Encode in the way of kio's users."""
    with io.BytesIO() as buffer:
        write(buffer, entity)
        return buffer.getvalue()


class Comparison(NamedTuple):
    """One message, with the other libraries that can encode it."""

    name: str
    build: Callable[[], Message]
    module: str
    version: int
    theirs: Any


COMPARISONS = [
    Comparison("ProduceRequest v9, 16 KiB", produce_request, "produce", 9, TheirProduceRequest),
    Comparison("ProduceResponse v9", produce_response, "produce", 9, TheirProduceResponse),
    Comparison("FetchRequest v12, 10 partitions", fetch_request, "fetch", 12, TheirFetchRequest),
    Comparison("FetchResponse v12, 1 MiB", fetch_response, "fetch", 12, TheirFetchResponse),
    Comparison(
        "MetadataResponse v12, 100 topics x 6",
        metadata_response,
        "metadata",
        12,
        TheirMetadataResponse,
    ),
]


def operations(comparison: Comparison) -> dict[str, list[Callable[[], object]]]:
    """Return the operations to measure by library: Headrace, kio, kafka-python."""
    version, build, theirs = comparison.version, comparison.build, comparison.theirs
    message = build()
    encoded = b"".join(message.encode(version))  # type: ignore[arg-type]  # no file ranges here
    view, cls = memoryview(encoded), type(message)
    their_kio = kio_class(comparison.module, version, message)
    read, write = entity_reader(their_kio), entity_writer(their_kio)
    entity, _ = read(encoded, 0)
    other = theirs.decode(encoded, version=version)
    other._header = None  # noqa: SLF001 - its decoder leaves it unset, its encoder looks at it
    return {
        "decode": [
            lambda: cls.decode(view, 0, version),
            lambda: read(encoded, 0),
            lambda: theirs.decode(encoded, version=version),
        ],
        "encode": [
            lambda: message.encode(version),
            lambda: kio_encode(write, entity),
            lambda: other.encode(version=version),
        ],
        "build and encode": [lambda: build().encode(version)],
    }


def main(seconds: float) -> None:
    """Measure all messages and print the table."""
    print(f"{'CPU microseconds':<58}{'headrace':>10}{'kio':>10}{'kafka-py':>10}")
    for comparison in COMPARISONS:
        for operation, candidates in operations(comparison).items():
            cells = [f"{microseconds(candidate, seconds):10.1f}" for candidate in candidates]
            print(f"{operation + ' ' + comparison.name:<58}" + "".join(cells), flush=True)


if __name__ == "__main__":
    main(float(sys.argv[1]) if len(sys.argv) > 1 else 0.3)
