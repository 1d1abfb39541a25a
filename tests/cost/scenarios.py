"""Expensive requests that the schemas do not suggest: compressed bombs, many requests at once, many connections.

Each scenario yields what it did and the cost. The scenarios run in the order of this module. Those that leave data
behind are last.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, Final

from headrace.protocol.codec import Message
from headrace.protocol.messages.api_versions import ApiVersionsRequest
from headrace.protocol.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from headrace.protocol.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsTopic,
)
from headrace.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from headrace.protocol.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from headrace.protocol.messages.delete_topics import DeleteTopicsRequest
from headrace.protocol.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
)
from headrace.protocol.messages.describe_producers import DescribeProducersRequest
from headrace.protocol.messages.describe_producers import TopicRequest as ProducersTopic
from headrace.protocol.messages.end_txn import EndTxnRequest
from headrace.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from headrace.protocol.messages.heartbeat import HeartbeatRequest
from headrace.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from headrace.protocol.messages.list_groups import ListGroupsRequest
from headrace.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from headrace.protocol.messages.metadata import MetadataRequest
from headrace.protocol.messages.produce import ProduceRequest
from headrace.protocol.messages.sasl_authenticate import SaslAuthenticateRequest
from headrace.protocol.messages.sasl_handshake import SaslHandshakeRequest
from headrace.records.builder import build_batch
from tests.cost.broker import Connection, Cost, WatchedBroker, framed
from tests.cost.contents import (
    NOW_MS,
    SPECIAL,
    Contents,
    begin,
    build_transactional,
    produce_request,
)
from tests.cost.requests import Values, tagged_frames
from tests.cost.shapes import request_schemas

Found = Iterator[tuple[str, int, Cost]]
"""The scenario's name, the number of bytes sent, and the cost."""
PIPELINED_BYTES: Final = 2_000_000
"""The bytes that the sockets buffer while the client does not read the responses."""
TAGS: Final = b"\1" + b"".join(b"\1" + bytes([65 + number]) for number in range(64))


def one(
    harness: Contents,
    name: str,
    request: Message,
    version: int,
    *,
    as_admin: bool = False,
    **more: Any,
) -> Found:
    """Measure one request on a connection of its own."""
    frame = framed(request, version)
    with harness.broker.connection(as_admin=as_admin) as connection:
        yield name, len(frame), harness.broker.measure([frame], connection, **more)


# What is asked of few records


def bombs_are_produced(harness: Contents, values: Values) -> Found:
    """Yield the cost of producing each bomb."""
    yield from harness.planting


def bombs_are_searched(harness: Contents, values: Values) -> Found:
    """Send ListOffsets by time, which decompresses the batch that it finds."""
    for topic in SPECIAL:
        for number, name in enumerate(harness.planted.get(topic, [])):
            time_ms = NOW_MS + 1000 * number
            for what in (time_ms, -3):
                request = ListOffsetsRequest(
                    replica_id=-1,
                    topics=[
                        ListOffsetsTopic(
                            name=topic,
                            partitions=[ListOffsetsPartition(partition_index=0, timestamp=what)],
                        )
                    ],
                )
                yield from one(harness, f"ListOffsets {what} of {topic}: {name}", request, 7)


def bombs_are_fetched(harness: Contents, values: Values) -> Found:
    """Fetch each batch, with and without a filter."""
    for topic in SPECIAL:
        for offset in harness.offsets.get(topic, []):
            for tags in (b"", TAGS):
                request = fetch({topic: [0]}, offset=offset, headrace_filter=tags)
                name = f"Fetch of {topic} at {offset}, {'64 tags' if tags else 'no filter'}"
                yield from one(harness, name, request, 12)


# Much at once


def much_is_asked(harness: Contents, values: Values) -> Found:
    """Send one request for all objects of a kind."""
    every = list(range(harness.scale.partitions))
    few = len(every)
    batch = build_batch([(b"k", b"v", (), NOW_MS)])
    topics = ["few", *(f"few.{i}" for i in range(min(9_000, harness.scale.topics)))]
    resources = [DescribeConfigsResource(resource_type=2, resource_name=name) for name in topics]
    rows = [DeleteRecordsPartition(partition_index=i, offset=-1) for i in every]
    asked: list[tuple[str, Message, int]] = [
        ("Metadata of everything", _metadata(), 9),
        ("Metadata of everything, with rights", _metadata(rights=True), 9),
        ("Metadata of everything, with rights, again", _metadata(rights=True), 9),
        ("ListGroups", ListGroupsRequest(), 4),
        *(
            (f"ListOffsets {timestamp} of {few} partitions", _list_offsets(every, timestamp), 7)
            for timestamp in (-1, -2, -3, 1)
        ),
        (f"Fetch of {few} partitions", fetch({"few": every}), 11),
        (f"Fetch of {few} partitions, 100 bytes", fetch({"few": every}, max_bytes=100), 11),
        (
            f"Fetch of {few} partitions that waits a second",
            fetch({"few": every}, offset=1 << 40, max_wait_ms=1000),
            11,
        ),
        (f"Produce to {few} partitions", produce_request("few", dict.fromkeys(every, batch)), 9),
        ("Produce of 40,000 batches", _much_produced(every, batch, 40_000), 9),
        ("Produce of 100,000 batches", _much_produced(every, batch, 100_000), 9),
        (
            "Produce of a million batches, without records",
            _much_produced(every, None, 1_000_000),
            9,
        ),
        (
            f"DescribeConfigs of {len(topics)} topics",
            DescribeConfigsRequest(
                resources=resources, include_synonyms=True, include_documentation=True
            ),
            4,
        ),
        (
            f"DescribeProducers of {few} partitions",
            DescribeProducersRequest(topics=[ProducersTopic(name="few", partition_indexes=every)]),
            0,
        ),
    ]
    for name, request, version in asked:
        yield from one(harness, name, request, version)
    deletion = DeleteRecordsRequest(topics=[DeleteRecordsTopic(name="few", partitions=rows)])
    yield from one(harness, f"DeleteRecords of {few} partitions", deletion, 2, as_admin=True)


def _much_produced(every: list[int], batch: bytes | None, count: int) -> ProduceRequest:
    """Return a Produce that names each partition many times."""
    request = produce_request("few", dict.fromkeys(every, batch))
    parts = request.topic_data[0].partition_data
    request.topic_data[0].partition_data = (parts * (1 + count // len(parts)))[:count]
    return request


def expressions(harness: Contents, values: Values) -> Found:
    """Send the longest regular expression, over the names of all topics."""
    patterns = {
        "alternatives": "|".join(f"few.{i}x*" for i in range(90)),
        "repetitions": "(a?){40}" * 2 + ".*x",
        "classes": "([a-z0-9.]+){9}x",
    }
    for number, (name, pattern) in enumerate(patterns.items()):
        request = ConsumerGroupHeartbeatRequest(
            group_id=f"few.regex-{number}",
            member_id="m",
            member_epoch=0,
            subscribed_topic_regex=pattern[:1000],
            topic_partitions=[],
            rebalance_timeout_ms=10_000,
        )
        yield from one(harness, f"ConsumerGroupHeartbeat with a pattern of {name}", request, 1)


def tags_of_heartbeats(harness: Contents, values: Values) -> Found:
    """Send unknown tagged fields before authentication."""
    for name in ("ApiVersionsRequest", "SaslHandshakeRequest", "SaslAuthenticateRequest"):
        _, _, versions = request_schemas()[name]
        for case in tagged_frames(name, versions[-1], values, harness.unauthenticated_bytes):
            with Connection(harness.broker.user) as connection:
                cost = harness.broker.measure([case.frame], connection)
            yield f"{case.name}, before authentication", len(case.frame), cost


def strangers(harness: Contents, values: Values) -> Found:
    """Send the requests that are allowed before authentication."""
    content = b"a" * (harness.unauthenticated_bytes - 100)
    for mechanism in ("PLAIN", "SCRAM-SHA-256"):
        frames = [
            framed(SaslHandshakeRequest(mechanism=mechanism), 1),
            framed(SaslAuthenticateRequest(auth_bytes=content), 2),
        ]
        with Connection(harness.broker.user) as connection:
            cost = harness.broker.measure(frames, connection)
        yield f"a {mechanism} message of {len(content)} bytes", len(content), cost
    name = "m" * 30_000
    with Connection(harness.broker.user) as connection:
        frame = framed(SaslHandshakeRequest(mechanism=name), 1)
        cost = harness.broker.measure([frame], connection)
    yield "a mechanism of 30,000 characters", len(frame), cost


# Many requests, many connections


def pipelined(harness: Contents, values: Values) -> Found:
    """Send as many requests in one write as a connection may have in flight. Check that other clients are served."""
    every = list(range(harness.scale.partitions))
    requests: list[tuple[str, Message, int]] = [
        ("Metadata of everything", _metadata(), 9),
        ("ListOffsets of all partitions", _list_offsets(every), 7),
        ("Fetch of all partitions", fetch({"few": every}, max_bytes=1), 11),
        (
            "ApiVersions",
            ApiVersionsRequest(client_software_name="a", client_software_version="1"),
            3,
        ),
        ("Heartbeat", HeartbeatRequest(group_id="few", generation_id=1, member_id="x"), 3),
    ]
    for name, request, version in requests:
        frame = framed(request, version)
        frames = [frame] * max(1, min(256, PIPELINED_BYTES // len(frame)))
        with harness.broker.connection() as connection:
            cost = harness.broker.measure(frames, connection, wait_s=120)
        yield f"{name}, {len(frames)} pipelined", len(frame) * len(frames), cost


def slow_reader(harness: Contents, values: Values) -> Found:
    """Do not read the responses of a connection."""
    request = framed(_metadata(), 9)
    with harness.broker.connection() as connection:
        cost = harness.broker.measure([request] * 256, connection, answers=1)
    yield "256 answers that are not taken", 256 * len(request), cost


def long_polls(harness: Contents, values: Values) -> Found:
    """Send fetches that wait on connections that close, then complete all that wait."""
    broker = harness.broker
    request = fetch({"few.0": [0]}, offset=0, max_wait_ms=300_000, min_bytes=1 << 30)
    frames = [framed(request, 11)] * 256
    before = broker.resident_mb
    for _ in range(harness.scale.connections):
        with broker.connection() as connection:
            broker.measure(frames, connection, answers=0)
    yield (
        f"{256 * harness.scale.connections} fetches of closed connections, memory kept",
        0,
        _kept(broker.resident_mb - before),
    )
    batch = build_batch([(b"k", b"v", (), NOW_MS)])
    yield from one(harness, "the produce after them", produce_request("few.0", {0: batch}), 9)
    connections = [broker.connection() for _ in range(harness.scale.connections)]
    watching = fetch({"few.0": [0]}, offset=5, max_wait_ms=300_000)
    for connection in connections:
        broker.measure([framed(watching, 11)] * 256, connection, answers=0)
    yield from one(
        harness,
        f"a produce that {256 * len(connections)} fetches of {len(connections)} connections wait for",
        produce_request("few.0", dict.fromkeys([0], batch)),
        9,
    )
    with connections[0] as connection:
        many = [framed(produce_request("few.0", {0: batch}), 9)] * 6
        yield "the produces that wake them", 0, broker.measure(many, harness.spare(), answers=6)
    for connection in connections:
        connection.close()
    broker.settle()


def churn(harness: Contents, values: Values) -> Found:
    """Open and close many connections at once."""
    broker = harness.broker
    before = broker.resident_mb
    with broker.connection(as_admin=True) as connection:
        cost = broker.measure([], connection)
    for _ in range(harness.scale.connections * 3):
        Connection(broker.user).close()
    broker.settle()
    yield "connections that close at once, memory kept", 0, _kept(broker.resident_mb - before)
    del cost


def joins_of_closed_connections(harness: Contents, values: Values) -> Found:
    """Join with much metadata, each member in a new group, on connections that close."""
    broker = harness.broker
    before = broker.resident_mb
    count = harness.scale.connections
    for number in range(count):
        request = JoinGroupRequest(
            group_id=f"few.join-{number}",
            session_timeout_ms=1_800_000,
            rebalance_timeout_ms=1_800_000,
            member_id="",
            protocol_type="x",
            protocols=[JoinGroupRequestProtocol(name="p", metadata=b"m" * 900_000)],
        )
        with broker.connection() as connection, contextlib.suppress(OSError):
            broker.measure([framed(request, 3)], connection)
    yield (
        f"{count} groups with a member of 900 kB, memory kept",
        0,
        _kept(broker.resident_mb - before),
    )


def invented_producers(harness: Contents, values: Values) -> Found:
    """Produce batches with producer ids that the broker never allocated."""
    broker = harness.broker
    count = 10 * harness.scale.producers
    before = broker.resident_mb
    frames = []
    for number in range(count):
        batch = build_batch(
            [(b"", b"", (), NOW_MS)],
            producer_id=5_000_000 + number,
            producer_epoch=0,
            base_sequence=0,
        )
        frames.append(framed(produce_request("few", {number % harness.scale.partitions: batch}), 9))
    with broker.connection() as connection:
        for start in range(0, len(frames), 200):
            broker.measure(frames[start : start + 200], connection)
    yield f"{count} invented producers, memory kept", 0, _kept(broker.resident_mb - before)
    every = list(range(harness.scale.partitions))
    request = DescribeProducersRequest(topics=[ProducersTopic(name="few", partition_indexes=every)])
    yield from one(harness, "DescribeProducers of all of them", request, 0)


def transactions(harness: Contents, values: Values) -> Found:
    """End a transaction in every partition."""
    every = range(harness.scale.partitions)
    for committed in (True, False):
        with harness.broker.connection() as connection:
            made = begin(connection, "few.big")
            batch = build_transactional(made.producer_id, made.producer_epoch)
            frame = framed(
                produce_request("few", dict.fromkeys(every, batch), transactional_id="few.big"), 12
            )
            cost = harness.broker.measure([frame], connection)
            yield f"a transactional Produce to {len(every)} partitions", len(frame), cost
            end = EndTxnRequest(
                transactional_id="few.big",
                producer_id=made.producer_id,
                producer_epoch=made.producer_epoch,
                committed=committed,
            )
            frame = framed(end, 3)
            cost = harness.broker.measure([frame], connection)
            yield f"EndTxn of {len(every)} partitions, committed: {committed}", len(frame), cost
            yield "the markers that follow", 0, idle(harness.broker, 1.0)


def silence(harness: Contents, values: Values) -> Found:
    """Measure the broker's own work while no client sends a request."""
    yield "nothing at all, for three seconds", 0, idle(harness.broker, 3.0)


def administrators(harness: Contents, values: Values) -> Found:
    """Create and delete many topics at once."""
    count = harness.scale.created
    topics = [
        CreatableTopic(name=f"made-{i}", num_partitions=1, replication_factor=1)
        for i in range(count)
    ]
    create = CreateTopicsRequest(topics=topics, timeout_ms=60_000)
    yield from one(harness, f"CreateTopics of {count} topics", create, 7, as_admin=True)
    wide = CreateTopicsRequest(
        topics=[CreatableTopic(name="wide", num_partitions=2 * count, replication_factor=1)],
        timeout_ms=60_000,
    )
    yield from one(harness, f"CreateTopics of {2 * count} partitions", wide, 7, as_admin=True)
    more = CreatePartitionsRequest(
        topics=[CreatePartitionsTopic(name="wide", count=4 * count, assignments=None)],
        timeout_ms=60_000,
    )
    yield from one(harness, f"CreatePartitions of {2 * count} partitions", more, 3, as_admin=True)
    names = [*(f"made-{i}" for i in range(count)), "wide"]
    delete = DeleteTopicsRequest(topic_names=names, timeout_ms=60_000)
    yield from one(harness, f"DeleteTopics of {count} topics", delete, 5, as_admin=True)
    yield "what follows the deletion", 0, idle(harness.broker, 2.0)


SCENARIOS: Final[tuple[Callable[[Contents, Values], Found], ...]] = (
    bombs_are_produced,
    bombs_are_searched,
    bombs_are_fetched,
    strangers,
    tags_of_heartbeats,
    much_is_asked,
    expressions,
    pipelined,
    slow_reader,
    long_polls,
    churn,
    joins_of_closed_connections,
    transactions,
    invented_producers,
    silence,
    administrators,
)


def idle(broker: WatchedBroker, seconds: float) -> Cost:
    """Measure the broker while no client sends requests."""
    with broker.connection(as_admin=True) as connection:
        return broker.measure([], connection, answers=1, wait_s=seconds)


def _kept(memory_mb: float) -> Cost:
    return Cost(0.0, 0.0, 0, 0.0, max(0.0, memory_mb), 0, "answered")


def _metadata(*, rights: bool = False) -> MetadataRequest:
    return MetadataRequest(
        topics=None,
        allow_auto_topic_creation=False,
        include_topic_authorized_operations=rights,
    )


def _list_offsets(partitions: list[int], timestamp: int = -1) -> ListOffsetsRequest:
    return ListOffsetsRequest(
        replica_id=-1,
        topics=[
            ListOffsetsTopic(
                name="few",
                partitions=[
                    ListOffsetsPartition(partition_index=i, timestamp=timestamp) for i in partitions
                ],
            )
        ],
    )


def fetch(wanted: dict[str, list[int]], *, offset: int = 0, **more: Any) -> FetchRequest:
    """Return a Fetch of partitions of topics."""
    settings = {"max_wait_ms": 0, "min_bytes": 1, "max_bytes": 1 << 30, **more}
    return FetchRequest(
        session_epoch=-1,
        topics=[
            FetchTopic(
                topic=topic,
                partitions=[
                    FetchPartition(partition=i, fetch_offset=offset, partition_max_bytes=1 << 30)
                    for i in partitions
                ],
            )
            for topic, partitions in wanted.items()
        ],
        **settings,
    )
