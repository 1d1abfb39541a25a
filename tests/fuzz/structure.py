"""A fuzz target with structure: valid requests with hostile values, at a broker with some data of every kind.

Bytes with random damage seldom pass the decoder. These requests do: the names exist, the ids are in use, and the
numbers are limits. Some requests are damaged as well.
"""

from __future__ import annotations

import contextlib
import time
import tracemalloc
from functools import cache
from random import Random
from typing import Any, Final

from headrace.broker.context import CloseConnection
from headrace.errors import ProtocolError
from headrace.protocol.frame import RequestHeader, decode_request
from headrace.protocol.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from headrace.protocol.messages.init_producer_id import InitProducerIdRequest
from headrace.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from headrace.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from tests.cost.broker import framed
from tests.cost.fields import FIELDS, WORDS, Kind
from tests.cost.shapes import Shape, make, request_schemas, walk
from tests.fixtures.broker_harness import START_MS, BrokerHarness, batch
from tests.fuzz.mutation import mutated

REQUESTS: Final = 8
LONGEST_S: Final = 0.5
"""The limit of CPU time for a request, in seconds: ten times the bound of the cost tests, because these requests are
small and the machine may be busy."""
MEMORY: Final = 32 << 20
EXPECTED: Final = {"transaction_markers_refused"}
"""The log events that are no bugs here: nothing was synced for a minute, or a topic was deleted."""
TOPICS: Final = ("plain", "compact", "ttl", "delay", "filter")
NAMES: Final = [
    "",
    "\0",
    "a" * 249,
    "a" * 250,
    "a" * 32_000,
    "é/ü",
    "*",
    "few.*",
    "__consumer_offsets",
    ".",
]
NUMBERS: Final = [-1, 0, 1, 2, 100, -(2**7), 2**7 - 1, -(2**15), 2**15 - 1, -(2**31), 2**31 - 1]
LARGE: Final = [-(2**63), 2**63 - 1, START_MS, -2, -3, -4, -5]
BITS: Final = {"int8": 7, "int16": 15, "int32": 31, "int64": 63}
COUNTS: Final = [0, 1, 1, 1, 2, 3, 30, 300]


class _Contents:
    """A broker, and the names of its topics, groups and producers."""

    def __init__(self) -> None:
        self.harness = BrokerHarness(offsets_topic_num_partitions=1)
        settings: dict[str, dict[str, str]] = {
            "compact": {"cleanup_policy": "compact"},
            "ttl": {"headrace_ttl_enable": "true"},
            "delay": {"headrace_delay_enable": "true"},
            "filter": {"headrace_filter_enable": "true"},
        }
        ids = [
            bytes(self.harness.create_topic(name, partitions=3, **settings.get(name, {})).topic_id)
            for name in TOPICS
        ]
        self.harness.produce("plain", b"a", b"b")
        producer = self.harness.call(
            InitProducerIdRequest(
                transactional_id="x",
                transaction_timeout_ms=10_000,
                producer_id=-1,
                producer_epoch=-1,
            )
        )
        member = self.harness.send(
            JoinGroupRequest(
                group_id="g",
                session_timeout_ms=10_000,
                rebalance_timeout_ms=10_000,
                member_id="",
                protocol_type="consumer",
                protocols=[JoinGroupRequestProtocol(name="range", metadata=b"\0\0")],
            ),
            3,
        )
        self.harness.advance(5_000)
        self.harness.sync()
        self.harness.call(
            ConsumerGroupHeartbeatRequest(
                group_id="c",
                member_id="m",
                member_epoch=0,
                subscribed_topic_names=["plain"],
                topic_partitions=[],
                rebalance_timeout_ms=10_000,
            )
        )
        self._commit()
        members = ["m", member.response.member_id] if member.done else ["m"]
        self.known: dict[Kind, list[Any]] = {
            Kind.TOPIC: list(TOPICS),
            Kind.TOPIC_ID: [*ids, bytes(16), b"\xff" * 16],
            Kind.PARTITION: [0, 1, 2, 3, -1, 2**31 - 1],
            Kind.GROUP: ["g", "c", "o", "new"],
            Kind.MEMBER: members,
            Kind.TRANSACTIONAL_ID: ["x", "y"],
            Kind.PRODUCER_ID: [producer.producer_id, -1, 2**63 - 1],
            Kind.USER: ["alice", "<default>"],
            Kind.RESOURCE: ["plain", "g", "1", "kafka-cluster"],
            Kind.SETTING: [
                "retention.ms",
                "cleanup.policy",
                "log.retention.ms",
                "max.message.bytes",
            ],
            Kind.RECORDS: [batch(b"v"), batch(b"v")[:-1], b"", None],
            Kind.BYTES: [b"", b"\0\0", b"\0" * 1000, b"\xff" * 40],
        }

    def _commit(self) -> None:
        self.harness.call(
            OffsetCommitRequest(
                group_id="o",
                generation_id_or_member_epoch=-1,
                member_id="",
                topics=[
                    OffsetCommitRequestTopic(
                        name="plain",
                        partitions=[
                            OffsetCommitRequestPartition(
                                partition_index=0, committed_offset=1, committed_metadata="note"
                            )
                        ],
                    )
                ],
            ),
            8,
        )


def hostile_shape(name: str, version: int, known: dict[Kind, list[Any]], chance: Random) -> Shape:
    """Return a shape of a request whose values exist, or are at the limits."""
    types = _types(name)

    def value(kind: Kind, path: str, number: int) -> Any:
        if kind in {Kind.LIST, Kind.STRUCT} or types[path] in {"bool", "float64"}:
            return None
        if types[path] in BITS:
            return _number(types[path], known.get(kind, []), chance)
        if kind in known and (types[path] != "string" or chance.random() < 0.8):
            return chance.choice(known[kind])
        if f"{name}.{path}" in WORDS and chance.random() < 0.6:
            return WORDS[f"{name}.{path}"]
        return chance.choice(NAMES) if types[path] == "string" else None

    counts = {path: chance.choice(COUNTS) for path in FIELDS[name]}
    deep = [path for path in counts if "." in path and counts[path] > 3]
    for path in deep:  # a list in a list is long, or the outer list is
        counts[path.rpartition(".")[0]] = chance.choice([1, 2])
    return Shape(counts, value)


@cache
def _types(name: str) -> dict[str, str]:
    return {path: each.type for path, each in walk(request_schemas()[name][1])}


def _number(type_name: str, known: list[Any], chance: Random) -> int | None:
    if known and chance.random() < 0.7:
        return int(chance.choice(known))
    if chance.random() < 0.5:
        return None
    half = 1 << BITS[type_name]
    numbers = [number for number in [*NUMBERS, *LARGE] if -half <= number < half]
    return chance.choice(numbers)


def fuzz_structure(chance: Random) -> None:
    """Send every request. Each is answered or refused, or its connection is closed, soon and with little memory."""
    simulation = _Contents()
    measured = chance.random() < 0.1
    for _ in range(REQUESTS):
        name = chance.choice(sorted(request_schemas()))
        versions = request_schemas()[name][2]
        version = chance.choice([versions[0], versions[-1], chance.choice(list(versions))])
        frame = _frame(name, version, simulation, chance)
        if frame is None:
            continue
        try:
            header, request = decode_request(memoryview(frame))
        except ProtocolError:
            continue
        _send(simulation.harness, header, request, measured=measured)
        simulation.harness.sync()
        simulation.harness.advance(chance.choice([0, 0, 1, 1000, 60_000]))
    lines = simulation.harness.journal.lines
    errors = [line for line in lines if line[0] == "error" and line[1] not in EXPECTED]
    assert not errors, errors


def _frame(name: str, version: int, simulation: _Contents, chance: Random) -> bytes | None:
    shape = hostile_shape(name, version, simulation.known, chance)
    try:
        frame = framed(make(name, version, shape), version)[4:]
    except (
        ProtocolError
    ):  # a text that is too long for this version, or a null that it does not allow
        return None
    return mutated(frame, chance, frame) if chance.random() < 0.3 else frame


def _send(harness: BrokerHarness, header: RequestHeader, request: Any, *, measured: bool) -> None:
    if measured:
        tracemalloc.start()
    began = time.thread_time()
    try:
        with contextlib.suppress(CloseConnection):
            pending = harness.send(request, header.api_version)
            harness.advance(0)
            if pending.done:
                assert pending.response is not None
        took, peak = (
            time.thread_time() - began,
            tracemalloc.get_traced_memory()[1] if measured else 0,
        )
    finally:
        tracemalloc.stop()
    assert measured or took < LONGEST_S, f"{request.API_KEY} v{header.api_version}: {took:.2f} s"
    assert peak < MEMORY, f"{request.API_KEY} v{header.api_version}: {peak} bytes"
