"""Flights into a topic, and results out of one, without Spark."""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from headrace.clients.blocking import EARLIEST, LATEST, BlockingClient, FetchPosition, NewTopic
from headrace.clients.producer.blocking import Producer
from headrace.demo.flights import FlightEvent
from headrace.demo.statistics import Results, WindowKey, WindowResult
from headrace.errors import ApiError, ConfigError, ErrorCode
from headrace.records.reader import read_records
from headrace.types import TopicPartition

FLIGHT_PARTITIONS: Final = 4
RESULT_PARTITIONS: Final = 2
PROGRESS_EVERY: Final = 2_000
SENTINEL_AFTER_MS: Final = 30 * 24 * 3_600_000
KEEP_ALL: Final = {"retention.ms": "-1"}
"""The configuration of the topics: no retention, because the timestamps of the records are from 2013."""


@dataclass(frozen=True)
class Topics:
    """The names of the demo's topics."""

    flights: str
    results: str

    @classmethod
    def with_prefix(cls, prefix: str) -> Topics:
        """Name them; the prefix keeps demos apart that share a cluster."""
        return cls(f"{prefix}flights", f"{prefix}flight-delays")


@dataclass(frozen=True)
class Produced:
    """Duration and counts of producing."""

    records: int
    value_bytes: int
    seconds: float


def create_topics(bootstrap: str, topics: Topics) -> None:
    """Create the topics.

    Raises:
        ConfigError: A topic exists. The demo would mix its records with other records.
        ApiError: The broker refused.
    """
    wanted = [
        NewTopic(topics.flights, FLIGHT_PARTITIONS, -1, configs=KEEP_ALL),
        NewTopic(topics.results, RESULT_PARTITIONS, -1, configs=KEEP_ALL),
    ]
    with BlockingClient(bootstrap, client_id="headrace-demo") as client:
        for name, error in client.create_topics(wanted).items():
            if isinstance(error, ApiError) and error.code is ErrorCode.TOPIC_ALREADY_EXISTS:
                raise ConfigError(
                    f"topic {name} exists on {bootstrap}: choose other names with --topic-prefix, or delete it "
                    f"(headrace topic delete {name} --bootstrap {bootstrap})"
                )
            if error is not None:
                raise error


def produce_flights(
    bootstrap: str,
    topic: str,
    events: Sequence[FlightEvent],
    progress: Callable[[int], None],
) -> Produced:
    """Produce the flights as JSON, keyed by carrier, in their order; return when all are acknowledged.

    Args:
        bootstrap: The broker.
        topic: Where to.
        events: In the order of their times.
        progress: Called with the number of further records sent.
    """
    encode = msgspec.json.Encoder().encode
    began = time.perf_counter()
    value_bytes = 0
    with Producer(
        bootstrap,
        compression="lz4",
        linger_ms=20,
        batch_size=256 << 10,
        serde="bytes",
        key_serde="bytes",
        client_id="headrace-demo",
    ) as producer:
        for number, event in enumerate(events, 1):
            value = encode(event.flight)
            value_bytes += len(value)
            producer.send(
                topic,
                value,
                key=event.flight.carrier.encode(),
                timestamp_ms=event.timestamp_ms,
            )
            if number % PROGRESS_EVERY == 0:
                progress(PROGRESS_EVERY)
        producer.flush()
    progress(len(events) % PROGRESS_EVERY)
    return Produced(len(events), value_bytes, time.perf_counter() - began)


def produce_sentinels(bootstrap: str, topic: str, last_ms: int) -> None:
    """Close the stream: a record without content in each partition, dated long after the last flight.

    A window is final when the watermark, which follows the latest time seen, has passed its end. So the last hours of a
    stream that ends stay open until something later comes.
    """
    with Producer(
        bootstrap, serde="bytes", key_serde="bytes", client_id="headrace-demo"
    ) as producer:
        for partition in range(FLIGHT_PARTITIONS):
            producer.send(topic, timestamp_ms=last_ms + SENTINEL_AFTER_MS, partition=partition)


def read_results(bootstrap: str, topic: str) -> tuple[Results, int]:
    """Return the newest result of each window in the topic, and how many records it has."""
    results: dict[WindowKey, WindowResult] = {}
    count = 0
    with BlockingClient(bootstrap, client_id="headrace-demo") as client:
        partitions = [TopicPartition(topic, number) for number in range(RESULT_PARTITIONS)]
        first = client.list_offsets(dict.fromkeys(partitions, EARLIEST))
        ends = client.list_offsets(dict.fromkeys(partitions, LATEST))
        for each in partitions:
            position = first[each].offset
            while position < ends[each].offset:
                fetched = client.fetch({each: FetchPosition(position, max_bytes=8 << 20)})[each]
                if fetched.error and not fetched.error.retriable:
                    raise ApiError.for_code(fetched.error, f"reading {each}")
                for record in read_records(fetched.records, tolerate_truncated=True):
                    if record.offset >= position and record.value is not None:
                        key, result = decode_result(record.value)
                        results[key] = result
                        count += 1
                    position = max(position, record.offset + 1)
    return results, count


class _ResultEvent(msgspec.Struct):
    """The JSON of a result record; Spark leaves null fields out."""

    carrier: str
    window_start: dt.datetime
    flights: int
    cancelled: int
    mean_delay_minutes: float | None = None
    max_delay_minutes: int | None = None
    late_share: float | None = None


_decode_result: Final[Callable[[bytes], Any]] = msgspec.json.Decoder(_ResultEvent).decode


def decode_result(value: bytes) -> tuple[WindowKey, WindowResult]:
    """Return a result record's content."""
    event = _decode_result(value)
    return (
        WindowKey(event.carrier, int(event.window_start.timestamp() * 1000)),
        WindowResult(
            event.flights,
            event.cancelled,
            event.mean_delay_minutes,
            event.max_delay_minutes,
            event.late_share,
        ),
    )
