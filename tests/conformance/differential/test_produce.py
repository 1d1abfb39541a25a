"""Produce and InitProducerId: both brokers get the same batches, valid and invalid."""

from __future__ import annotations

import pytest

from headrace.protocol.messages.init_producer_id import InitProducerIdRequest
from headrace.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from headrace.records.builder import BatchBuilder
from headrace.records.compression import Compression
from tests.conformance.differential.batches import (
    ATTRIBUTES,
    BASE_OFFSET,
    BASE_TIMESTAMP,
    COUNT,
    LAST_DELTA,
    LEADER_EPOCH,
    LENGTH,
    MAGIC,
    MAX_TIMESTAMP,
    NOW_MS,
    OLD_MS,
    PRODUCER_EPOCH,
    PRODUCER_ID,
    SEQUENCE,
    batch,
    patched,
    with_payload,
)
from tests.conformance.differential.pair import Pair, Scenario, Scenarios
from tests.conformance.differential.peer import Peer
from tests.conformance.differential.requests import fetch, wanted

pytestmark = pytest.mark.java
scenarios = Scenarios()
LAST_SEQUENCE = 2**31 - 1


@scenarios.mark()
def test_headrace_answers_produce_requests_as_kafka_does(pair: Pair, scenario: Scenario) -> None:
    pair.compare(scenario)


def request(
    topic: str,
    *partitions: tuple[int, bytes | None],
    acks: int = -1,
    transactional_id: str | None = None,
) -> ProduceRequest:
    data = [PartitionProduceData(index=index, records=records) for index, records in partitions]
    return ProduceRequest(
        transactional_id=transactional_id,
        acks=acks,
        timeout_ms=10_000,
        topic_data=[TopicProduceData(name=topic, partition_data=data)],
    )


def each_in_its_partition(peer: Peer, topic: str, cases: dict[str, bytes], **configs: str) -> None:
    """Produce every case to a partition of its own, so that none changes the offsets of the next."""
    peer.create(topic, len(cases), **configs)
    for index, (label, records) in enumerate(cases.items()):
        peer.ask(label, request(topic, (index, records)), 9)
        peer.ask(f"stored: {label}", fetch(topic, 0, wanted(0, index)), 11)


def look(peer: Peer, topic: str) -> None:
    """Note the records of the topic."""
    peer.ask(f"what is in {topic}", fetch(topic, 0), 11)


@scenarios
def produce_every_version(peer: Peer) -> None:
    peer.create("produce-versions")
    for version in peer.range_of(ProduceRequest):

        def ask(label: str, asked: ProduceRequest, version: int = version) -> None:
            peer.ask(label, peer.by_id(asked), version)

        for acks in (1, -1):
            ask(f"acks={acks}", request("produce-versions", (0, batch(b"a", b"b")), acks=acks))
        zstd = batch(b"c" * 99, compression=Compression.ZSTD)
        ask("codecs", request("produce-versions", (0, zstd)))
        ask("unknown topic", request("produce-nowhere", (0, batch())))
        ask("unknown partition", request("produce-versions", (7, batch()), (-1, batch())))
    look(peer, "produce-versions")


@scenarios
def produce_by_id(peer: Peer) -> None:
    topic = "produce-by-id"
    peer.create(topic)
    peer.ask("id", peer.by_id(request(topic, (0, batch()))), 13)
    peer.ask("zero id", request(topic, (0, batch())), 13)
    both = peer.by_id(request(topic, (0, batch())))
    both.topic_data += peer.by_id(request("produce-nowhere", (0, batch()))).topic_data
    peer.ask("one of two is unknown", both, 13)
    old = peer.by_id(request(topic, (0, batch(b"old"))))
    peer.delete(topic)
    peer.ask("deleted", old, 13)
    peer.create(topic)
    peer.ask("the id of the deleted topic", old, 13)
    look(peer, topic)


@scenarios
def produce_acks(peer: Peer) -> None:
    peer.create("produce-acks")
    for acks in (2, -2, 127, -32768):
        peer.ask(f"acks={acks}", request("produce-acks", (0, batch())), acks_version(peer))
        peer.ask(f"acks={acks}", request("produce-acks", (0, batch()), acks=acks), 9)
    peer.on().send(request("produce-acks", (0, batch(b"silent")), acks=0), 9, answered=False)
    peer.ask("after acks=0", request("produce-acks", (0, batch())), 9)
    for label, bad in {
        "bad crc": patched(batch(), (MAX_TIMESTAMP, 1), crc=False),
        "empty": b"",
    }.items():
        peer.on(label).send(request("produce-acks", (0, bad), acks=0), 9, answered=False)
        peer.ask(f"after acks=0, {label}", request("produce-acks", (0, batch())), 9, on=label)
    peer.on("u").send(request("produce-nowhere", (0, batch()), acks=0), 9, answered=False)
    peer.ask("after acks=0, no topic", request("produce-acks", (0, batch())), 9, on="u")
    look(peer, "produce-acks")


def acks_version(peer: Peer) -> int:
    return peer.versions[ProduceRequest.API_KEY][1]


@scenarios
def produce_bad_batches(peer: Peer) -> None:
    topic = "produce-bad"
    good = batch(b"one", b"two")
    control = BatchBuilder(control=True)
    control.append(b"\0\0\0\1", b"\0\0\0\0\0\0")
    transactional = BatchBuilder(transactional=True)
    transactional.append(b"k", b"v")
    cases = {
        "empty": b"",
        "one byte": b"\0",
        "sixteen bytes": good[:16],
        "seventeen bytes": good[:17],
        "header only": good[:61],
        "cut": good[:-1],
        "one byte more": good + b"\0",
        "two batches": good + good,
        "a batch and a half": good + good[:30],
        "length too small": patched(good, (LENGTH, 10)),
        "length zero": patched(good, (LENGTH, 0)),
        "length negative": patched(good, (LENGTH, -5)),
        "length too large": patched(good, (LENGTH, len(good))),
        "magic 0": patched(good, (MAGIC, 0)),
        "magic 1": patched(good, (MAGIC, 1)),
        "magic 3": patched(good, (MAGIC, 3)),
        "magic -1": patched(good, (MAGIC, -1)),
        "wrong crc": patched(good, (COUNT, 1), crc=False),
        "control": control.build(),
        "control of a producer": control.build(7, 0, 0),
        "transactional": transactional.build(),
        "no records": with_payload(patched(good, (COUNT, 0), (LAST_DELTA, -1)), b""),
        "no records, delta 0": with_payload(patched(good, (COUNT, 0), (LAST_DELTA, 0)), b""),
        "count too large": patched(good, (COUNT, 3), (LAST_DELTA, 2)),
        "count too small": patched(good, (COUNT, 1), (LAST_DELTA, 0)),
        "count negative": patched(good, (COUNT, -1)),
        "delta too large": patched(good, (LAST_DELTA, 5)),
        "delta negative": patched(good, (LAST_DELTA, -1)),
        "base offset 7": patched(good, (BASE_OFFSET, 7)),
        "base offset -1": patched(good, (BASE_OFFSET, -1)),
        "leader epoch 9": patched(good, (LEADER_EPOCH, 9)),
        "codec 5": patched(good, (ATTRIBUTES, 5)),
        "codec 7": patched(good, (ATTRIBUTES, 7)),
        "append time": patched(good, (ATTRIBUTES, 8)),
        "delete horizon": patched(good, (ATTRIBUTES, 0x40)),
        "unused attributes": patched(good, (ATTRIBUTES, 0x4000)),
        "garbage as records": with_payload(good, b"\xff" * 30),
        "bytes after the records": with_payload(good, good[61:] + b"\0\0\0"),
    }
    each_in_its_partition(peer, topic, cases)


@scenarios
def produce_null_records(peer: Peer) -> None:
    peer.create("produce-null")
    peer.ask("null", request("produce-null", (0, None)), 9, patience_s=1)


@scenarios
def produce_codecs(peer: Peer) -> None:
    good = {codec.name: batch(b"one" * 30, b"two" * 30, compression=codec) for codec in Compression}
    each_in_its_partition(peer, "produce-codecs", good)
    zstd = batch(b"z" * 50, compression=Compression.ZSTD)
    for version in (3, 6, 7):
        peer.ask("zstd", request("produce-codecs", (0, zstd)), version)


@scenarios
def produce_garbage_in_codecs(peer: Peer) -> None:
    cases = {}
    for codec in Compression:
        if codec:
            good = batch(b"one" * 30, b"two" * 30, compression=codec)
            cases[f"{codec.name} garbage"] = with_payload(good, b"\xde\xad" * 20)
            cases[f"{codec.name} cut"] = with_payload(good, good[61:-4])
            cases[f"{codec.name} no payload"] = with_payload(good, b"")
            cases[f"{codec.name} count"] = patched(good, (COUNT, 5), (LAST_DELTA, 4))
    each_in_its_partition(peer, "produce-garbage", cases)


HOUR_MS = 3_600_000
TIMESTAMPS = {
    "-1": batch(b"a", b"b", timestamp_ms=-1),
    "0": batch(b"a", b"b", timestamp_ms=0),
    "old": batch(b"a", b"b"),
    "now": batch(b"a", b"b", timestamp_ms=NOW_MS),
    "ahead": batch(b"a", b"b", timestamp_ms=NOW_MS + 40 * 60_000),
    "far ahead": batch(b"a", b"b", timestamp_ms=NOW_MS + 20 * HOUR_MS),
    "-2": batch(timestamp_ms=-2),
    "max -1": patched(batch(), (MAX_TIMESTAMP, -1)),
    "max too small": patched(batch(b"a", b"b", step_ms=9), (MAX_TIMESTAMP, OLD_MS)),
    "max too large": patched(batch(), (MAX_TIMESTAMP, OLD_MS + 99)),
    "max far ahead": patched(batch(), (MAX_TIMESTAMP, NOW_MS + 20 * HOUR_MS)),
    "base negative": patched(batch(), (BASE_TIMESTAMP, -5)),
    "append time": patched(batch(), (ATTRIBUTES, 8)),
    "compressed": batch(b"x" * 90, compression=Compression.GZIP),
}


@scenarios
def produce_create_time(peer: Peer) -> None:
    each_in_its_partition(peer, "produce-create-time", TIMESTAMPS)


@scenarios
def produce_append_time(peer: Peer) -> None:
    settings = {"message_timestamp_type": "LogAppendTime"}
    each_in_its_partition(peer, "produce-append-time", TIMESTAMPS, **settings)
    peer.create("produce-append-time-again", 1, **settings)
    producer = peer.producer()
    for _ in range(2):
        again = batch(producer=producer, sequence=0)
        peer.ask("idempotent", request("produce-append-time-again", (0, again)), 9)


@scenarios
def produce_too_large(peer: Peer) -> None:
    peer.create("produce-large", max_message_bytes="1000")
    size = len(batch(b""))
    for length in (999, 1000, 1001):
        peer.ask(
            f"{length} bytes", request("produce-large", (0, batch(b"x" * (length - size - 2)))), 9
        )
    peer.ask(
        "compressed",
        request("produce-large", (0, batch(b"x" * 5000, compression=Compression.LZ4))),
        9,
    )
    peer.create("produce-default")
    for length in (1_048_588, 1_048_589):
        peer.ask(
            f"{length} bytes", request("produce-default", (0, batch(b"x" * (length - size - 6)))), 9
        )


@scenarios
def produce_sequences(peer: Peer) -> None:
    topic = "produce-sequences"
    peer.create(topic)
    producer = peer.producer()
    peer.symbols.name("producer", producer[0], "<the producer>")

    def step(
        label: str, sequence: int, count: int = 1, *, epoch: int = 0, who: int = producer[0]
    ) -> None:
        records = batch(*[b"x"] * count, producer=(who, epoch), sequence=sequence)
        peer.ask(label, request(topic, (0, records)), 9)

    step("first", 0, 2)
    step("second", 2, 3)
    step("duplicate of the first", 0, 2)
    step("duplicate of the second", 2, 3)
    step("duplicate with fewer records", 2, 2)
    step("duplicate with more records", 2, 4)
    step("gap", 6)
    step("overlap", 4, 3)
    step("back", 1)
    step("third", 5)
    for number in range(6):
        step(f"number {number}", 6 + number)
    step("duplicate of the oldest remembered", 7)
    step("duplicate of one forgotten", 2, 3)
    step("new epoch not at 0", 12, epoch=1)
    step("new epoch at 5", 5, epoch=2)
    step("new epoch", 0, 2, epoch=1)
    step("old epoch, next sequence", 12)
    step("old epoch, duplicate", 11)
    step("old epoch, zero", 0)
    step("duplicate in the new epoch", 0, 2, epoch=1)
    step("epoch skips", 0, epoch=9)
    step("largest epoch", 0, epoch=32767)
    step("unknown producer in the middle", 77, who=producer[0] + 100_000)
    step("unknown producer goes on", 78, who=producer[0] + 100_000)
    step("unknown producer gap", 80, who=producer[0] + 100_000)
    step("unknown producer with an epoch", 5, epoch=3, who=producer[0] + 100_001)
    look(peer, topic)


@scenarios
def produce_odd_sequences(peer: Peer) -> None:
    good = batch(b"a", producer=(500_000, 0), sequence=0)
    cases = {
        "sequence -1": ((SEQUENCE, -1),),
        "sequence -2": ((SEQUENCE, -2),),
        "epoch -1": ((PRODUCER_EPOCH, -1),),
        "epoch -2": ((PRODUCER_EPOCH, -2),),
        "no id but epoch and sequence": ((PRODUCER_ID, -1),),
        "id -2": ((PRODUCER_ID, -2),),
        "no id, no epoch, a sequence": ((PRODUCER_ID, -1), (PRODUCER_EPOCH, -1)),
        "id only": ((PRODUCER_EPOCH, -1), (SEQUENCE, -1)),
        "fine": (),
    }
    batches = {label: patched(good, *changes) for label, changes in cases.items()}
    each_in_its_partition(peer, "produce-odd", batches)


@scenarios
def produce_sequence_wrap(peer: Peer) -> None:
    topic = "produce-wrap"
    peer.create(topic)
    producer = peer.producer()
    for label, sequence, count in (
        ("near the end", LAST_SEQUENCE - 2, 2),
        ("across the end", LAST_SEQUENCE, 3),
        ("again", LAST_SEQUENCE, 3),
        ("gap after the wrap", 3, 1),
        ("after the wrap", 2, 1),
        ("again", 2, 1),
        ("long before", LAST_SEQUENCE - 2, 2),
    ):
        records = batch(*[b"x"] * count, producer=producer, sequence=sequence)
        peer.ask(label, request(topic, (0, records)), 9)
    exact = peer.producer()
    for label, sequence in (("last", LAST_SEQUENCE), ("zero", 0), ("one", 1)):
        records = batch(producer=exact, sequence=sequence)
        peer.ask(f"one by one: {label}", request(topic, (0, records)), 9)
    look(peer, topic)


@scenarios
def produce_several_partitions(peer: Peer) -> None:
    topic = "produce-several"
    peer.create(topic, 3)
    bad = patched(batch(), (COUNT, 5), crc=False)
    peer.ask("mixed", request(topic, (0, batch()), (1, bad), (2, b""), (3, batch())), 9)
    peer.ask("the same twice", request(topic, (0, batch(b"a")), (0, batch(b"b"))), 9)
    peer.ask("none", request(topic), 9)
    peer.ask("no topics", ProduceRequest(acks=-1, timeout_ms=1000, topic_data=[]), 9)
    peer.ask("bad name", request("a/b", (0, batch())), 9)
    peer.ask("empty name", request("", (0, batch())), 9)
    two = request(topic, (1, batch()))
    two.topic_data.append(
        TopicProduceData(name=topic, partition_data=two.topic_data[0].partition_data)
    )
    peer.ask("the same topic twice", two, 9)
    internal = request("__consumer_offsets", (0, batch()))
    peer.ask("internal", internal, 9)
    look(peer, topic)


@scenarios
def produce_min_insync_replicas(peer: Peer) -> None:
    peer.create("produce-insync", min_insync_replicas="2")
    for acks in (1, -1):
        peer.ask(f"acks={acks}", request("produce-insync", (0, batch()), acks=acks), 9)


@scenarios
def produce_transactional(peer: Peer) -> None:
    peer.create("produce-transactional")
    for version in (3, 9):
        peer.ask(
            "transactional id",
            request("produce-transactional", (0, batch()), transactional_id="t"),
            version,
            patience_s=0.5,
        )


@scenarios
def produce_compacted(peer: Peer) -> None:
    peer.create("produce-compacted", cleanup_policy="compact")
    keyless = BatchBuilder()
    keyless.append(None, b"v", (), OLD_MS)
    peer.ask("no key", request("produce-compacted", (0, keyless.build())), 9)
    peer.ask("key", request("produce-compacted", (0, batch())), 9)


@scenarios
def init_producer_id(peer: Peer) -> None:
    def ask(
        label: str, version: int, timeout_ms: int = 60_000, had: tuple[int, int] = (-1, -1)
    ) -> None:
        request = InitProducerIdRequest(
            transactional_id=None,
            transaction_timeout_ms=timeout_ms,
            producer_id=had[0],
            producer_epoch=had[1],
        )
        peer.ask(label, request, version)

    for version in peer.range_of(InitProducerIdRequest):
        ask("new", version)
        ask("no timeout", version, timeout_ms=-1)
    for producer_id, epoch in ((0, 0), (5, 3), (5, -1), (-1, 5), (2**62, 32767), (-2, -2)):
        ask(f"again {producer_id}/{epoch}", 4, had=(producer_id, epoch))


@scenarios
def init_transactional_producer(peer: Peer) -> None:
    peer.await_transactions()
    for version in peer.range_of(InitProducerIdRequest):
        for name in ("", "t"):
            request = InitProducerIdRequest(transactional_id=name, transaction_timeout_ms=60_000)
            peer.ask(f"transactional id {name!r}", request, version)
