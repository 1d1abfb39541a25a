"""Our codec is compared with kio and kafka-python, with random messages of every API and version, in both directions.

Both libraries cover every version of every request, response and client blob that we have a class for; were one of
them to drop a version, the test of that version would fail, not vanish. The exceptions are the records of the
coordinators, which neither library knows: `tests/unit/protocol/test_stored_records*.py` hold their bytes; and
kafka-python does not know KIP-848.
"""

from __future__ import annotations

import importlib
import io
import random
import warnings
from datetime import datetime, timedelta
from enum import Enum
from typing import Any
from uuid import UUID

import pytest
from kio.serial import entity_reader, entity_writer

from headrace.protocol.codec import Message
from headrace.protocol.messages.api_versions import ApiVersionsResponse
from tests.fixtures.messages import (
    comparable,
    every_version,
    joined,
    message_class,
    random_message,
    schemas,
)
from tools.message_schema import StructSchema

WITHOUT_ORACLE = {name for name, (stem, _) in schemas().items() if stem.endswith("_record")}
UNKNOWN_TO_KAFKA_PYTHON = (
    "ConsumerGroupHeartbeat",
    "ConsumerGroupDescribe",
    "ShareGroupHeartbeat",
    "UnregisterBroker",
)
KIO_PACKAGES = {
    "ConsumerProtocolSubscription": "consumer_protocol_subscription",
    "ConsumerProtocolAssignment": "consumer_protocol_assignment",
}
with warnings.catch_warnings():
    warnings.simplefilter(
        "ignore", DeprecationWarning
    )  # kafka-python reads its schemas with a deprecated call
    KAFKA_PYTHON_MODULES = [
        importlib.import_module(f"kafka.protocol.{name}")
        for name in ("admin", "consumer", "metadata", "producer", "sasl")
    ]
SAMPLES = 8
OURS = "headrace_"
# The timestamp and the UUID that kio reads as None, the authorized operations that kafka-python does.
READ_AS_NONE = [-1, bytes(16), -(2**31)]
CASES = [case for case in every_version() if case[0] not in WITHOUT_ORACLE]
KAFKA_PYTHON_CASES = [case for case in CASES if not case[0].startswith(UNKNOWN_TO_KAFKA_PYTHON)]


def shared_message(name: str, version: int, source: random.Random) -> Message:
    """Return a random message without the tagged fields that are Headrace's own."""
    message = random_message(name, version, source)
    leave_out_ours(message, schemas()[name][1])
    return message


def leave_out_ours(part: Any, schema: StructSchema) -> None:
    empty = type(part)()
    for field in schema.fields:
        content = getattr(part, field.name)
        if field.name.startswith(OURS):
            setattr(part, field.name, getattr(empty, field.name))
        elif field.struct is not None and content is not None:
            for each in content if field.is_array else [content]:
                leave_out_ours(each, field.struct)


def kio_class(name: str, version: int) -> Any:
    stem, schema = schemas()[name]
    package = KIO_PACKAGES.get(name, stem)
    module = importlib.import_module(f"kio.schema.{package}.v{version}.{schema.kind}")
    return getattr(module, name)


def kafka_python_class(name: str) -> Any:
    return next(getattr(module, name) for module in KAFKA_PYTHON_MODULES if hasattr(module, name))


def plain(value: Any) -> Any:
    """Return a value of either library in the form of our codec."""
    match value:
        case UUID():
            found: Any = value.bytes
        case Enum():
            found = int(value.value)
        case timedelta():
            found = value // timedelta(milliseconds=1)
        case datetime():
            found = round(value.timestamp() * 1000)
        case memoryview() | bytearray():
            found = bytes(value)
        case set():  # kafka-python returns authorized operations as the numbers of the bits
            bits = sum(1 << bit for bit in value)
            found = bits - (1 << 32) if bits >> 31 else bits
        case _:
            found = value
    return found


def their_field(theirs: Any, name: str) -> Any:
    """Return a field under its name in the other library.

    kio drops the unit from what it makes a timedelta or a datetime of; kafka-python shortens the names of authorized
    operations.
    """
    shorter = [name.removesuffix("_ms"), name.removeprefix("cluster_").removeprefix("topic_")]
    return getattr(theirs, next(known for known in (name, *shorter) if hasattr(theirs, known)))


def assert_same(ours: Any, theirs: Any, schema: StructSchema, version: int) -> None:
    """Compare field by field, so that two swapped fields of one type do not pass."""
    for f in schema.fields:
        if version not in f.versions or f.name.startswith(OURS):
            continue
        mine, other = getattr(ours, f.name), their_field(theirs, f.name)
        if f.struct is None:
            assert_same_value(mine, other, f.name)
        elif mine is None and f.tag is not None:
            continue  # absent: ours says None, theirs a struct of defaults; the bytes were compared
        elif mine is None:
            assert other is None, f.name
        elif f.is_array:
            assert len(mine) == len(other), f.name
            for left, right in zip(mine, other, strict=True):
                assert_same(left, right, f.struct, version)
        else:
            assert_same(mine, other, f.struct, version)


def assert_same_value(mine: Any, other: Any, name: str) -> None:
    if isinstance(other, list | tuple):
        assert [plain(item) for item in other] == mine, name
    elif other is None and mine is not None:
        assert mine in READ_AS_NONE, name
    else:
        assert plain(other) == plain(mine), name


def assert_round_trip(message: Message, name: str, version: int, theirs: bytes) -> None:
    decoded, position = message_class(name).decode(memoryview(theirs), 0, version)
    assert position == len(theirs)
    assert comparable(decoded) == comparable(message)


@pytest.mark.parametrize(("name", "version"), CASES)
def test_kio_and_headrace_encode_every_message_alike(name: str, version: int) -> None:
    source = random.Random(f"kio {name} {version}")
    their_class = kio_class(name, version)
    read, write = entity_reader(their_class), entity_writer(their_class)
    for _ in range(SAMPLES):
        message = shared_message(name, version, source)
        encoded = joined(message.encode(version))
        theirs, size = read(encoded, 0)
        assert size == len(encoded)
        assert_same(message, theirs, schemas()[name][1], version)
        with io.BytesIO() as buffer:
            write(buffer, theirs)
            written = buffer.getvalue()
        assert written == encoded
        assert_round_trip(message, name, version, written)


@pytest.mark.parametrize(("name", "version"), KAFKA_PYTHON_CASES)
def test_kafka_python_agrees(name: str, version: int) -> None:
    source = random.Random(f"kafka-python {name} {version}")
    their_class = kafka_python_class(name)
    header = {} if schemas()[name][1].kind != "data" else {"header": False}
    for _ in range(SAMPLES):
        message = shared_message(name, version, source)
        if isinstance(message, ApiVersionsResponse):
            # kafka-python reads an answer with an error as version 0, whatever its version is.
            message.error_code = 0
        encoded = joined(message.encode(version))
        theirs = their_class.decode(encoded, version=version, **header)
        assert_same(message, theirs, schemas()[name][1], version)
        if not header:
            theirs._header = None  # its decoder leaves it unset, its encoder looks at it
        written = bytes(theirs.encode(version=version, **header))
        assert written == encoded
        assert_round_trip(message, name, version, written)


def test_the_oracles_have_every_request_and_response() -> None:
    for name, version in CASES:
        assert kio_class(name, version).__version__ == version
    for name, version in KAFKA_PYTHON_CASES:
        assert kafka_python_class(name).max_version >= version
