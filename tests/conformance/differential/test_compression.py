"""Topics with a codec of their own: both brokers get the same batches, and store and return the same."""

from __future__ import annotations

import itertools

import pytest

from headrace.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from headrace.records.builder import BatchBuilder
from headrace.records.compression import Compression, compress
from tests.conformance.differential.batches import (
    ATTRIBUTES,
    BASE_TIMESTAMP,
    COUNT,
    LAST_DELTA,
    MAX_TIMESTAMP,
    NOW_MS,
    OLD_MS,
    batch,
    patched,
    with_payload,
)
from tests.conformance.differential.pair import Pair, Scenario, Scenarios
from tests.conformance.differential.peer import Peer
from tests.conformance.differential.requests import fetch, wanted
from tests.conformance.differential.test_produce import request

pytestmark = pytest.mark.java
scenarios = Scenarios()
TYPES = ("uncompressed", "gzip", "snappy", "lz4", "zstd", "producer")


@scenarios.mark()
def test_headrace_compresses_batches_as_kafka_does(pair: Pair, scenario: Scenario) -> None:
    pair.compare(scenario)


def rich(
    codec: Compression, *, transactional: bool = False, producer: int = -1, sequence: int = -1
) -> bytes:
    """Return a batch whose records have every optional part."""
    builder = BatchBuilder(codec, transactional=transactional)
    builder.append(b"k", b"v" * 300, [("h", b"1"), ("h", None), ("empty", b"")], OLD_MS + 5)
    builder.append(None, b"", [], OLD_MS - 7)
    builder.append(b"", None, [], OLD_MS + 9)
    return bytes(builder.build(producer, 0 if producer >= 0 else -1, sequence))


@scenarios
def produce_compression_of_every_pair(peer: Peer) -> None:
    """Every codec of a topic, with every codec of a producer."""
    for kind in TYPES:
        topic = f"compression-{kind}"
        peer.create(topic, len(Compression), compression_type=kind)
        for codec in Compression:
            peer.ask(f"{codec.name} to {kind}", request(topic, (codec, rich(codec))), 9)
            found = fetch(topic, 0, wanted(0, codec))
            peer.ask(f"stored: {codec.name} to {kind}", found, 11)


@scenarios
def produce_compression_levels(peer: Peer) -> None:
    for name in ("gzip", "lz4", "zstd"):
        peer.create(f"compression-level-{name}", compression_type=name)
    for name, value in (
        ("gzip", "-1"), ("gzip", "1"), ("gzip", "9"), ("gzip", "0"), ("gzip", "10"), ("gzip", "-2"),
        ("lz4", "1"), ("lz4", "9"), ("lz4", "17"), ("lz4", "0"), ("lz4", "18"),
        ("zstd", "-131072"), ("zstd", "22"), ("zstd", "-131073"), ("zstd", "23"), ("zstd", "x"),
    ):  # fmt: skip
        topic = f"compression-level-{name}"
        peer.ask(f"{name} {value}", altered(topic, f"compression.{name}.level", value), 1)
        peer.ask(f"produced with {name} {value}", request(topic, (0, rich(Compression.NONE))), 9)
    for name in ("gzip", "lz4", "zstd"):
        peer.ask(f"stored: {name}", fetch(f"compression-level-{name}", 0), 11)


def altered(topic: str, name: str, value: str) -> IncrementalAlterConfigsRequest:
    return IncrementalAlterConfigsRequest(
        resources=[
            AlterConfigsResource(
                resource_type=2,
                resource_name=topic,
                configs=[AlterableConfig(name=name, config_operation=0, value=value)],
            )
        ]
    )


@scenarios
def produce_compression_changes(peer: Peer) -> None:
    peer.create("compression-changes")
    for kind, codec in itertools.product(TYPES, (Compression.NONE, Compression.GZIP)):
        peer.ask(f"to {kind}", altered("compression-changes", "compression.type", kind), 1)
        for number in range(2):
            # Kafka answers before its log has the new setting. It applies metadata in order: it serves the first of
            # these topics after it has read the setting, and the second after the setting is in force.
            peer.create(f"compression-{kind}-{codec.name}-{number}")
        peer.ask(f"{codec.name}", request("compression-changes", (0, rich(codec))), 9)
    peer.ask("to brotli", altered("compression-changes", "compression.type", "brotli"), 1)
    peer.ask("stored", fetch("compression-changes", 0), 11)


@scenarios
def produce_compression_of_bad_batches(peer: Peer) -> None:
    zipped = batch(b"one", b"two", compression=Compression.GZIP)
    plain = batch(b"one", b"two")
    cases = {
        "no gzip": with_payload(zipped, b"garbage" * 9),
        "cut": with_payload(zipped, zipped[61:-4]),
        "no records": with_payload(zipped, compress(Compression.GZIP, b"garbage")),
        "empty": with_payload(zipped, compress(Compression.GZIP, b"")),
        "a byte more": with_payload(zipped, compress(Compression.GZIP, plain[61:] + b"\0")),
        "more records": patched(zipped, (COUNT, 3), (LAST_DELTA, 2)),
        "fewer records": patched(zipped, (COUNT, 1), (LAST_DELTA, 0)),
        "plain, more records": patched(plain, (COUNT, 3), (LAST_DELTA, 2)),
        "plain, fewer records": patched(plain, (COUNT, 1), (LAST_DELTA, 0)),
        "numbers": patched(plain[:-12] + plain[-12:].replace(b"\x02\x02", b"\x04\x02")),
        "crc": patched(zipped, (MAX_TIMESTAMP, 1), crc=False),
        "largest timestamp": patched(zipped, (MAX_TIMESTAMP, OLD_MS - 5)),
        "base timestamp": patched(zipped, (BASE_TIMESTAMP, OLD_MS - 100)),
        "delete horizon": patched(zipped, (ATTRIBUTES, 0x41)),
        "append time": patched(zipped, (ATTRIBUTES, 0x09)),
        "unused flag": patched(zipped, (ATTRIBUTES, 0x81)),
        "no codec": patched(zipped, (ATTRIBUTES, 5)),
        "transactional": rich(Compression.GZIP, transactional=True),
    }
    topic = "compression-bad"
    peer.create(topic, len(cases), compression_type="lz4")
    for index, (label, records) in enumerate(cases.items()):
        peer.ask(label, request(topic, (index, records)), 9)
        peer.ask(f"stored: {label}", fetch(topic, 0, wanted(0, index)), 11)


@scenarios
def produce_compression_to_sizes(peer: Peer) -> None:
    """Both sizes are compared with max.message.bytes: the size that was sent, and the size after compression."""
    peer.create("compression-sizes", compression_type="uncompressed", max_message_bytes="1000")
    for size, codec in itertools.product((800, 2000), (Compression.NONE, Compression.GZIP)):
        sent = batch(b"x" * size, compression=codec)
        peer.ask(f"{codec.name} {size}", request("compression-sizes", (0, sent)), 9)
    peer.ask("stored", fetch("compression-sizes", 0), 11)


@scenarios
def produce_compression_of_old_and_new_records(peer: Peer) -> None:
    configs = {
        "compression_type": "zstd",
        "message_timestamp_before_max_ms": "100000",
        "message_timestamp_after_max_ms": "100000",
    }
    peer.create("compression-times", 6, **configs)
    for index, (label, steps) in enumerate(
        {"now": 0, "older": -1, "too old": -90_000, "newer": 1, "too new": 90_000}.items()
    ):
        sent = batch(b"1", b"2", b"3", timestamp_ms=NOW_MS, step_ms=steps)
        peer.ask(label, request("compression-times", (index, sent)), 9)
    peer.create(
        "compression-append-time", compression_type="gzip", message_timestamp_type="LogAppendTime"
    )
    for codec in Compression:
        peer.ask(f"append time {codec}", request("compression-append-time", (0, rich(codec))), 9)


@scenarios
def produce_compression_of_compacted_topics(peer: Peer) -> None:
    peer.create("compression-compact", compression_type="snappy", cleanup_policy="compact")
    keyless = BatchBuilder(Compression.GZIP)
    for number in range(4):
        keyless.append(b"k" if number % 2 else None, b"v", [], OLD_MS)
    peer.ask("keys", request("compression-compact", (0, batch(b"a", b"b"))), 9)
    peer.ask("no keys", request("compression-compact", (0, bytes(keyless.build()))), 9)
    peer.ask("stored", fetch("compression-compact", 0), 11)


@scenarios
def produce_compression_of_retries(peer: Peer) -> None:
    peer.create("compression-retries", compression_type="gzip")
    identity = peer.producer()
    for sequence in (0, 1, 0, 1, 2, 9):
        sent = batch(b"%d" % sequence, producer=identity, sequence=sequence)
        peer.ask(f"sequence {sequence}", request("compression-retries", (0, sent)), 9)
    peer.ask("stored", fetch("compression-retries", 0), 11)


@scenarios
def produce_compression_for_old_fetches(peer: Peer) -> None:
    """A Fetch version older than zstd is refused with UNSUPPORTED_COMPRESSION_TYPE if the topic has that codec."""
    for kind in ("zstd", "gzip", "producer"):
        topic = f"compression-fetch-{kind}"
        peer.create(topic, compression_type=kind)
        peer.ask(kind, request(topic, (0, batch(b"v" * 50, compression=Compression.ZSTD))), 9)
        for version in (4, 9, 10):
            peer.ask(f"fetch of {kind}", fetch(topic, 0), version)
