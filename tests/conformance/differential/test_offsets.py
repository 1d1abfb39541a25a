"""Scenarios of ListOffsets and OffsetForLeaderEpoch."""

from __future__ import annotations

import pytest

from headrace.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from headrace.protocol.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from headrace.records.compression import Compression
from tests.conformance.differential.batches import OLD_MS, batch
from tests.conformance.differential.pair import Pair, Scenario, Scenarios
from tests.conformance.differential.peer import Peer

pytestmark = pytest.mark.java
scenarios = Scenarios()
SPECIAL = (-1, -2, -3, -4, -5, -6, -7, -100, -(2**63))


@scenarios.mark()
def test_headrace_answers_list_offsets_and_leader_epoch_requests_as_kafka_does(
    pair: Pair, scenario: Scenario
) -> None:
    pair.compare(scenario)


def listing(
    topic: str,
    timestamp: int,
    partition: int = 0,
    *,
    epoch: int = -1,
    isolation: int = 0,
    replica: int = -1,
) -> ListOffsetsRequest:
    wanted = ListOffsetsPartition(
        partition_index=partition, current_leader_epoch=epoch, timestamp=timestamp
    )
    return ListOffsetsRequest(
        replica_id=replica,
        isolation_level=isolation,
        topics=[ListOffsetsTopic(name=topic, partitions=[wanted])],
    )


@scenarios
def list_offsets(peer: Peer) -> None:
    topic = "offsets"
    peer.create(topic)
    for version in peer.range_of(ListOffsetsRequest):
        for timestamp in (*SPECIAL, 0, OLD_MS):
            peer.ask(f"empty, {timestamp}", listing(topic, timestamp), version)
    for start in (0, 100, 50, 400):
        peer.produce(topic, batch(b"a", b"b", b"c", timestamp_ms=OLD_MS + start, step_ms=10))
    for version in peer.range_of(ListOffsetsRequest):
        for timestamp in SPECIAL:
            peer.ask(f"{timestamp}", listing(topic, timestamp), version)
        peer.ask("unknown topic", listing("offsets-nowhere", -1), version)
        peer.ask("unknown partition", listing(topic, -1, 3), version)
        peer.ask("negative partition", listing(topic, -1, -3), version)
        peer.ask("bad name", listing("a/b", -1), version)
    for delta in (
        -1,
        0,
        1,
        10,
        11,
        20,
        21,
        49,
        50,
        61,
        99,
        100,
        101,
        120,
        121,
        300,
        400,
        410,
        420,
        421,
    ):
        peer.ask(f"timestamp +{delta}", listing(topic, OLD_MS + delta), 7)
    for timestamp in (0, 1, 2**62):
        peer.ask(f"timestamp {timestamp}", listing(topic, timestamp), 7)


@scenarios
def list_offsets_options(peer: Peer) -> None:
    topic = "offsets-options"
    peer.create(topic)
    peer.produce(topic, batch(b"a", b"b", b"c"))
    for version in peer.range_of(ListOffsetsRequest):
        for isolation in (0, 1, 2):
            for timestamp in (-1, -2, OLD_MS):
                peer.ask(
                    f"isolation {isolation}, {timestamp}",
                    listing(topic, timestamp, isolation=isolation),
                    version,
                )
    for replica in (-2, -1, 0, 1, 9):
        peer.ask(f"replica {replica}", listing(topic, -1, replica=replica), 7)
    for epoch in (-2, -1, 0, 1, 50):
        for version in (4, 7):
            peer.ask(f"epoch {epoch}", listing(topic, -1, epoch=epoch), version)
    twice = listing(topic, -1)
    twice.topics[0].partitions.append(
        ListOffsetsPartition(partition_index=0, current_leader_epoch=-1, timestamp=-2)
    )
    peer.ask("a partition twice", twice, 7)
    topics = listing(topic, -1)
    topics.topics.append(ListOffsetsTopic(name=topic, partitions=topics.topics[0].partitions))
    peer.ask("a topic twice", topics, 7)
    peer.ask("no topics", ListOffsetsRequest(replica_id=-1), 7)
    for timestamp in (-1, -2, -3, 0):
        peer.ask(f"internal {timestamp}", listing("__consumer_offsets", timestamp, 99), 7)


@scenarios
def list_offsets_of_compressed(peer: Peer) -> None:
    peer.create("offsets-compressed", len(Compression))
    for codec in Compression:
        records = batch(*[b"x" * 50] * 5, compression=codec, timestamp_ms=OLD_MS, step_ms=10)
        peer.produce("offsets-compressed", records, codec)
        for delta in (0, 1, 15, 40, 41):
            peer.ask(
                f"{codec.name} +{delta}", listing("offsets-compressed", OLD_MS + delta, codec), 7
            )
        peer.ask(f"{codec.name} newest", listing("offsets-compressed", -3, codec), 7)


@scenarios
def offset_for_leader_epoch(peer: Peer) -> None:
    topic = "epochs"
    peer.create(topic)

    def ask(
        label: str,
        epoch: int,
        version: int,
        *,
        partition: int = 0,
        current: int = -1,
        name: str = topic,
    ) -> None:
        wanted = OffsetForLeaderPartition(
            partition=partition, current_leader_epoch=current, leader_epoch=epoch
        )
        request = OffsetForLeaderEpochRequest(
            replica_id=-1, topics=[OffsetForLeaderTopic(topic=name, partitions=[wanted])]
        )
        peer.ask(label, request, version)

    for state in ("empty", "filled"):
        for version in peer.range_of(OffsetForLeaderEpochRequest):
            for epoch in (-2, -1, 0, 1, 7):
                ask(f"{state}, epoch {epoch}", epoch, version)
            for current in (-2, 0, 1):
                ask(f"{state}, current {current}", 0, version, current=current)
            ask("unknown partition", 0, version, partition=5)
            ask("unknown topic", 0, version, name="epochs-nowhere")
        if state == "empty":
            peer.produce(topic, batch(b"a", b"b"))
