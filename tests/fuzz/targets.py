"""The targets of the fuzzer. Each makes a case from a seed and runs it. An exception is a bug.

Cases are damaged messages, batches and files (`mutation.py`). A seed always makes the same case.
"""

from __future__ import annotations

import contextlib
import itertools
import tracemalloc
from collections.abc import Callable, Sequence
from functools import cache
from random import Random
from typing import Any

import pytest
from crc32c import crc32c

from headrace.broker.context import CloseConnection
from headrace.clients.flows.classic_group import decode_assignment, decode_subscription
from headrace.core.coordinator.state.classic_states import GroupState
from headrace.core.coordinator.state.records import (
    CommittedOffset,
    Generation,
    GenerationRecord,
    OffsetCommit,
    StoredMember,
    decode_records,
    encode_records,
)
from headrace.core.coordinator.state.subscription import subscribed_topics
from headrace.core.log import validate_batch
from headrace.errors import ApiError, CorruptRecordError, ErrorCode, ProtocolError, StorageError
from headrace.protocol.codec import REQUEST_ELEMENTS, read_tag, read_varint, skip_tags
from headrace.protocol.frame import RequestHeader, decode_request, encode_request
from headrace.protocol.messages.describe_groups import DescribeGroupsRequest
from headrace.protocol.messages.find_coordinator import FindCoordinatorRequest
from headrace.protocol.messages.list_groups import ListGroupsRequest
from headrace.protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup
from headrace.records.accel import Kernels
from headrace.records.batch import CRC_POSITION, CRC_START, TimestampType, iterate_headers
from headrace.records.builder import build_batch
from headrace.records.compression import RATIO_FLOOR, Compression, compress
from headrace.records.reader import read_records
from headrace.storage.memory_files import MemoryFileSystem
from tests.fixtures.accelerator import built_kernels
from tests.fixtures.broker_harness import START_MS, BrokerHarness, produce_request, values
from tests.fixtures.columns import ALL, assert_alike, walked
from tests.fixtures.messages import every_version, joined, message_class, random_message
from tests.fuzz.configuration import (
    fuzz_access_control,
    fuzz_configuration,
    fuzz_configuration_file,
)
from tests.fuzz.mutation import HOSTILE, mutated
from tests.fuzz.recovery import recover_from_damage
from tests.fuzz.sasl import fuzz_sasl, fuzz_sasl_at_the_broker
from tests.fuzz.structure import fuzz_structure

FLOOR = 1 << 20
DECOMPRESSED = 64 << 10
CASES = list(every_version())
REQUESTS = [case for case in CASES if case[0].endswith("Request")]
OFFSETS_PARTITIONS = 1


def assert_bounded(run: Callable[[], object], size: int) -> None:
    """Check the peak of memory of a call: one MiB, and 64 bytes for each byte of input."""
    tracemalloc.start()
    try:
        kept = run()
        _, peak = tracemalloc.get_traced_memory()
        del kept
    finally:
        tracemalloc.stop()
    assert peak <= FLOOR + 64 * size, f"{peak} bytes of memory for {size} bytes of input"


# 1: the header of requests, and every decoder


def random_frame(chance: Random) -> bytes:
    name, version = chance.choice(REQUESTS)
    header = RequestHeader(
        message_class(name).API_KEY,
        version,
        chance.randrange(1 << 31),
        chance.choice([None, "", "fuzz"]),
    )
    return joined(encode_request(header, random_message(name, version, chance)))[4:]


def fuzz_requests(chance: Random) -> None:
    """Decode a frame. It is a request or is refused, and the decoded request can be encoded."""
    data = mutated(random_frame(chance), chance, random_frame(chance))
    with contextlib.suppress(ProtocolError):
        header, request = decode_request(memoryview(data))
        joined(request.encode(header.api_version))


def fuzz_messages(chance: Random) -> None:
    """Decode every message, including responses and stored records, with a limit on memory."""
    name, version = chance.choice(CASES)
    cls = message_class(name)
    data = mutated(joined(random_message(name, version, chance).encode(version)), chance)

    def decode() -> object:
        with contextlib.suppress(ProtocolError):
            message, position = cls.decode(memoryview(data), 0, version)
            assert position <= len(data)
            return message
        return None

    if chance.random() < 0.2:
        assert_bounded(decode, len(data))
    elif (message := decode()) is not None:
        joined(message.encode(version))  # type: ignore[attr-defined]  # a Message


def fuzz_broker(chance: Random) -> None:
    """Handle any request that can be decoded. It is answered or refused, or its connection is closed."""
    harness = BrokerHarness(offsets_topic_num_partitions=OFFSETS_PARTITIONS)
    harness.create_topic("a")
    harness.produce("a", b"x")
    for _ in range(4):
        name, version = chance.choice(_served())
        message: Any = random_message(name, version, chance)
        data = joined(message.encode(version))
        if chance.random() < 0.5:
            data = mutated(data, chance)
        try:
            message, _ = message_class(name).decode(memoryview(data), 0, version)
        except ProtocolError:
            continue
        with contextlib.suppress(CloseConnection):
            harness.send(message, version)
        harness.sync()
        harness.advance(chance.choice([0, 1, 1000]))
    assert values(harness.fetch("a", 0).records)[:1] == [b"x"] or _was_changed(harness)


@cache
def _served() -> list[tuple[str, int]]:
    ranges = {api.key: api.served for api in BrokerHarness().broker.apis}
    return [
        (name, version)
        for name, version in REQUESTS
        if (key := message_class(name).API_KEY) in ranges and version in ranges[key]
    ]


def _was_changed(harness: BrokerHarness) -> bool:
    """Return whether the requests of the case may have changed the topic. Random requests seldom name it."""
    topic = harness.broker.services.topics.get("a")
    return topic is None or harness.fetch("a", 0).log_start_offset > 0


# 2: record batches


def random_records(chance: Random) -> list[tuple[bytes | None, bytes | None, list[Any], int]]:
    return [
        (
            chance.choice([None, b"", chance.randbytes(8)]),
            chance.choice(
                [None, b"", chance.randbytes(chance.choice([1, 63, 64, 300])), b"a" * 500]
            ),
            [("h", chance.choice([None, b"x"]))] * chance.choice([0, 0, 1, 3]),
            START_MS + chance.randrange(1000),
        )
        for _ in range(chance.choice([1, 1, 2, 5, 100]))
    ]


def random_batch(chance: Random) -> bytes:
    identity = {}
    if chance.random() < 0.3:
        identity = {"producer_id": 5, "producer_epoch": 0, "base_sequence": 0}
    codec = chance.choice(list(Compression))
    return build_batch(random_records(chance), compression=codec, **identity)


def with_crc(data: bytes) -> bytes:
    if len(data) <= CRC_START:
        return data
    checksum = crc32c(data[CRC_START:]).to_bytes(4, "big")
    length = (len(data) - 12).to_bytes(4, "big")
    return data[:8] + length + data[12:CRC_POSITION] + checksum + data[CRC_START:]


def damaged_batch(chance: Random) -> bytes:
    data = random_batch(chance)
    other = random_batch(chance)
    if chance.random() < 0.4:  # the records are damaged, then compressed
        plain = build_batch(random_records(chance))
        codec = chance.choice(list(Compression))
        body = compress(codec, mutated(plain[61:], chance, other))
        data = plain[:22] + bytes([codec]) + plain[23:61] + body
    else:
        data = mutated(data, chance, other)
    return with_crc(data) if chance.random() < 0.8 else data


def fuzz_batches(chance: Random) -> None:
    """Append a batch. It is accepted or refused, valid or corrupt. It inflates to at most the limit of the reader."""
    data = damaged_batch(chance)
    with contextlib.suppress(ApiError):
        validate_batch(data, 1 << 20, chance.choice(list(TimestampType)))

    def read() -> object:
        with contextlib.suppress(CorruptRecordError):
            return list(
                read_records(
                    data,
                    tolerate_truncated=chance.random() < 0.5,
                    include_control=True,
                    max_decompressed_size=DECOMPRESSED,
                )
            )
        return None

    if chance.random() < 0.2:
        assert_bounded(read, len(data) + DECOMPRESSED)
    else:
        read()


def fuzz_produce(chance: Random) -> None:
    """Append a batch. A broker that accepts the batch returns it unchanged, also after a crash."""
    harness = BrokerHarness()
    harness.create_topic("a", segment_bytes="1000")
    harness.produce("a", b"before")
    accepted: dict[int, bytes] = {}
    for _ in range(3):
        data = damaged_batch(chance)
        part = harness.call(produce_request("a", 0, data)).responses[0].partition_responses[0]
        if part.error_code == ErrorCode.NONE:
            accepted.setdefault(part.base_offset, data)  # unless it repeats an idempotent batch
    after = harness.produce("a", b"after")
    assert after.error_code == ErrorCode.NONE
    before_crash = _everything(harness, "a")
    harness.crash()
    assert _everything(harness, "a") == before_crash
    assert len(before_crash) == 2 + len(accepted)
    for stored, data in zip(before_crash[1:-1], accepted.values(), strict=True):
        assert stored[16:] == data[16:]


def _everything(harness: BrokerHarness, topic: str) -> list[bytes]:
    offset = 0
    found: list[bytes] = []
    while True:
        part = harness.fetch(topic, offset)
        data = bytes(part.records or b"")
        if not data:
            assert offset == part.high_watermark
            return found
        for position, header in iterate_headers(data):
            found.append(data[position : position + header.size])
            offset = header.next_offset


def fuzz_columns(chance: Random) -> None:
    """Make Arrow columns of damaged batches.

    The result is the same with and without the accelerator, within limits, or an error.
    """
    fetched = b"".join(damaged_batch(chance) for _ in range(chance.choice([1, 1, 3])))
    start = chance.choice([0, 0, chance.randrange(120)])
    rest: dict[str, Any] = {
        "end": chance.choice([1 << 62, start + chance.randrange(1, 120)]),
        "columns": chance.sample(ALL.names, chance.randint(1, len(ALL.names))),
        "max_rows": chance.choice([1, 7, 10_000]),
        "max_bytes": chance.choice([1, 500, 1 << 24]),
    }
    compiled = _built()
    if compiled is None or chance.random() < 0.2:
        # The inflated batch, and the Arrow batch that is being filled.
        assert_bounded(
            lambda: walked(compiled, fetched, start, rest["end"]),
            len(fetched) + (RATIO_FLOOR >> 3),
        )
    else:
        assert_alike(compiled, [fetched], start, **rest)


@cache
def _built() -> Kernels | None:
    with contextlib.suppress(pytest.skip.Exception):
        return built_kernels()
    return None


# 3: primitives


def fuzz_primitives(chance: Random) -> None:
    """Decode primitives. Neither memory nor time depends on claimed counts and lengths."""
    unit = b"".join(chance.choice(HOSTILE) for _ in range(chance.randint(1, 3)))
    data = chance.choice(
        [
            chance.randbytes(chance.randrange(200)),
            unit * chance.randint(1, 400),
            unit + bytes(chance.randrange(4000)),
        ]
    )
    view = memoryview(data)
    for read in (
        lambda: read_varint(view, 0)[1],
        lambda: read_tag(view, 0)[2],
        lambda: skip_tags(view, 1, view[0], REQUEST_ELEMENTS)[0],
    ):
        with contextlib.suppress(ProtocolError, IndexError):
            read()
    name, version = chance.choice(CASES)

    def decode() -> object:
        with contextlib.suppress(ProtocolError):
            return message_class(name).decode(view, 0, version)
        return None

    assert_bounded(decode, len(data))


# 5: the files in a data directory


def fuzz_recovery(chance: Random) -> None:
    """Open a damaged log directory; see recovery.py."""
    recover_from_damage(chance.randrange(1 << 40))


def fuzz_directory(chance: Random) -> None:
    """Damage any file of a broker. The broker starts or has a reason not to, and answers without a bug."""
    files = MemoryFileSystem()
    harness = BrokerHarness(files=files, offsets_topic_num_partitions=OFFSETS_PARTITIONS)
    for name in ("a", "b"):
        harness.create_topic(name, segment_bytes="500")
        for number in range(6):
            harness.produce(name, b"%d" % number * 50)
    harness.call(FindCoordinatorRequest(key_type=0, coordinator_keys=["g"]))
    if chance.random() < 0.5:
        harness.broker.close(harness.now_ms)
    paths = [
        f"{directory}/{name}".strip("/")
        for directory in ("", "a-0", "b-0", "__consumer_offsets-0")
        for name in files.list(directory)
        if files.read_file(f"{directory}/{name}".strip("/")) is not None
    ]
    for path in chance.sample(paths, chance.randint(1, 2)):
        content = files.read_file(path)
        assert content is not None
        other = files.read_file(chance.choice(paths)) or b""
        files.write_file(path, mutated(content, chance, other))
    for _ in range(2):
        try:
            harness.crash()
        except StorageError:
            return
        for name in ("a", "b"):
            offset = max(0, harness.fetch(name, 0).log_start_offset)
            harness.fetch(name, offset)
            harness.produce(name, b"after")
        _ask_about_groups(harness)


# 6: the data that clients store in the broker


def fuzz_consumer_protocol(chance: Random) -> None:
    """Decode subscriptions and assignments of other clients. They are accepted or refused, without further effect."""
    name = chance.choice(["ConsumerProtocolSubscription", "ConsumerProtocolAssignment"])
    cls = message_class(name)
    version = chance.randint(cls.MIN_VERSION, cls.MAX_VERSION)
    message = random_message(name, version, chance)
    blob = version.to_bytes(2, "big") + joined(message.encode(version))
    data = mutated(blob, chance, blob)
    assert_bounded(lambda: subscribed_topics(data), len(data))
    for decode in (decode_subscription, decode_assignment):
        with contextlib.suppress(ProtocolError):
            decode(data)


def group_records(chance: Random) -> bytes:
    """Return a batch in the form of the coordinator."""
    member = StoredMember(
        "m",
        chance.choice([None, "i"]),
        "c",
        "/127.0.0.1",
        1000,
        1000,
        b"\0\0\0\0\0\1\0\1a",
        b"\0\0",
    )
    generation = Generation(
        chance.choice([0, 1, 2**31 - 1]),
        GroupState.STABLE,
        "consumer",
        "range",
        "m",
        START_MS,
        tuple([member] * chance.choice([0, 1, 2])),
    )
    records: Sequence[OffsetCommit | GenerationRecord] = [
        OffsetCommit("g", "a", 0, CommittedOffset(7, 0, "note", START_MS)),
        GenerationRecord("g", chance.choice([generation, generation, None])),
        OffsetCommit("g", "a", 1, None),
    ]
    return encode_records(chance.sample(list(records), chance.randint(1, 3)), START_MS)


def damaged_group_records(chance: Random) -> bytes:
    """Return a valid batch with damaged keys and values."""
    records = []
    for record in read_records(group_records(chance)):
        key, value = record.key, record.value
        if key is not None and chance.random() < 0.3:
            key = mutated(key, chance, key, most=2)
        if value is not None and chance.random() < 0.6:
            value = mutated(value, chance, value, most=2)
        records.append((key, value, record.headers, record.timestamp))
    return build_batch(records)


def fuzz_group_records(chance: Random) -> None:
    """Load damaged records into a coordinator.

    It serves the groups that it can read, refuses the others, and continues.
    """
    pieces = [damaged_group_records(chance) for _ in range(2)]
    for data in pieces:
        with contextlib.suppress(CorruptRecordError):
            list(decode_records(data))
    harness = BrokerHarness(offsets_topic_num_partitions=OFFSETS_PARTITIONS)
    harness.call(FindCoordinatorRequest(key_type=0, coordinator_keys=["g"]))
    partition = harness.broker.services.partitions.require("__consumer_offsets", 0)
    for data in itertools.chain([group_records(chance)], pieces):
        harness.broker.services.replicas.append(partition, data, harness.now_ms)
    harness.sync()
    harness.crash()
    _ask_about_groups(harness)
    harness.advance(chance.choice([0, 10_000, 10_000_000]))
    _ask_about_groups(harness)


def _ask_about_groups(harness: BrokerHarness) -> None:
    harness.call(ListGroupsRequest())
    harness.call(DescribeGroupsRequest(groups=["g", ""]))
    wanted = OffsetFetchRequestGroup(group_id="g", topics=None)
    harness.call(OffsetFetchRequest(groups=[wanted]))


TARGETS: dict[str, Callable[[Random], None]] = {
    "requests": fuzz_requests,
    "messages": fuzz_messages,
    "broker": fuzz_broker,
    "structure": fuzz_structure,
    "batches": fuzz_batches,
    "columns": fuzz_columns,
    "produce": fuzz_produce,
    "primitives": fuzz_primitives,
    "recovery": fuzz_recovery,
    "directory": fuzz_directory,
    "consumer-protocol": fuzz_consumer_protocol,
    "group-records": fuzz_group_records,
    "sasl": fuzz_sasl,
    "sasl-broker": fuzz_sasl_at_the_broker,
    "configuration": fuzz_configuration,
    "configuration-file": fuzz_configuration_file,
    "access-control": fuzz_access_control,
}


def run_case(target: str, seed: int) -> None:
    """Run one case. A seed always runs the same case."""
    TARGETS[target](Random(f"{target} {seed}"))
