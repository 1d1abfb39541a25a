"""Hostile bytes in the codec: truncated, damaged, random, and inflated.

For any input a decoder returns a message or raises ProtocolError. It raises nothing else, it ends, and it takes at most
64 KiB of memory and 64 bytes for each byte of input.
"""

from __future__ import annotations

import contextlib
import struct
import sys
import tracemalloc
from collections.abc import Callable, Iterator
from functools import partial
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import ProtocolError
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.codec import Message, Structure
from headrace.protocol.frame import RequestHeader, decode_request, encode_request
from tests.fixtures.messages import every_version, joined, message_class, random_message, schemas
from tools.message_schema import StructSchema

CASES = list(every_version())
MAX_CUTS = 60
MUTATIONS = 30
ELEMENTS = 2_000
FLOOR = 64 << 10
# Replacements of a count or a length: int32, int16 and varints, huge, negative and off by one.
HOSTILE = [
    b"\x7f\xff\xff\xff",
    b"\xff\xff\xff\xff",
    b"\x80\x00\x00\x00",
    b"\x00\x10\x00\x00",
    b"\x7f\xff",
    b"\xff\xfe",
    b"\x80\x00",
    b"\xff\xff\xff\xff\x07",
    b"\xff\xff\xff\xff\x0f",
    b"\xff\xff\xff\xff\x7f",
    b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
    b"\x80\x80\x80\x80\x00",
    b"\xff\x7f",
    b"\x00",
    b"\xff",
]


def decode_leniently(cls: type[Message], data: bytes, version: int) -> Message | None:
    """Decode, and accept only ProtocolError as a refusal."""
    try:
        message, position = cls.decode(memoryview(data), 0, version)
    except ProtocolError:
        return None
    assert position <= len(data)
    return message


def assert_bounded(decode: Callable[[], object], size: int) -> None:
    """Check the peak of memory of a call. Its result stays alive meanwhile."""
    tracemalloc.start()
    try:
        kept = decode()
        _, peak = tracemalloc.get_traced_memory()
        del kept
    finally:
        tracemalloc.stop()
    assert peak <= FLOOR + 64 * size, f"{peak} bytes for {size} bytes of input"


@pytest.mark.parametrize(("name", "version"), CASES)
def test_truncated_anywhere_is_refused(name: str, version: int) -> None:
    random = Random(f"truncate {name} {version}")
    encoded = joined(random_message(name, version, random).encode(version))
    cuts: Any = range(len(encoded))
    if len(cuts) > MAX_CUTS:
        cuts = random.sample(cuts, MAX_CUTS)
    for cut in cuts:
        with pytest.raises(ProtocolError):
            message_class(name).decode(memoryview(encoded)[:cut], 0, version)


@pytest.mark.parametrize(("name", "version"), CASES)
def test_mutated_messages_are_read_or_refused(name: str, version: int) -> None:
    random = Random(f"mutate {name} {version}")
    encoded = joined(random_message(name, version, random).encode(version))
    for _ in range(MUTATIONS):
        data = bytearray(encoded)
        for _ in range(random.randint(1, 3)):
            position = random.randrange(len(data) + 1)
            hostile = random.choice(HOSTILE)
            data[position : position + random.choice([0, len(hostile)])] = hostile
        message = decode_leniently(message_class(name), bytes(data), version)
        if message is not None:
            # The decoded message is like any other.
            joined(message.encode(version))


@pytest.mark.parametrize("name", sorted(schemas()))
def test_mutated_messages_take_little_memory(name: str) -> None:
    random = Random(f"memory {name}")
    cls = message_class(name)
    for version in (cls.MIN_VERSION, cls.MAX_VERSION):
        encoded = joined(random_message(name, version, random).encode(version))
        for hostile in HOSTILE:
            position = random.randrange(len(encoded) + 1)
            data = encoded[:position] + hostile + encoded[position:]
            assert_bounded(partial(decode_leniently, cls, data, version), len(data))


def array_paths(
    struct: StructSchema, version: int, path: tuple[str, ...] = ()
) -> Iterator[tuple[str, ...]]:
    """Yield the names of the fields that lead to each array of structs or strings."""
    for f in struct.fields:
        if version not in f.versions:
            continue
        if f.is_array and (f.struct is not None or f.type in {"string", "uuid"}):
            yield (*path, f.name)
        if f.struct is not None:
            yield from array_paths(f.struct, version, (*path, f.name))


def grown(struct: StructSchema, target: Structure, path: tuple[str, ...], module: Any) -> None:
    """Give the array at the end of `path` many elements of the smallest size."""
    f = next(f for f in struct.fields if f.name == path[0])
    if f.struct is None:
        setattr(target, f.name, ["" if f.type == "string" else bytes(16)] * ELEMENTS)
        return
    cls = getattr(module, f.struct.name)
    if len(path) == 1:
        setattr(target, f.name, [cls() for _ in range(ELEMENTS)])
        return
    child = cls()
    setattr(target, f.name, [child] if f.is_array else child)
    grown(f.struct, child, path[1:], module)


@pytest.mark.parametrize("name", sorted(schemas()))
def test_many_small_elements_take_little_memory(name: str) -> None:
    cls, schema = message_class(name), schemas()[name][1]
    for version in {cls.MIN_VERSION, cls.MAX_VERSION}:
        for path in array_paths(schema, version):
            message = cls()
            grown(schema, message, path, sys.modules[cls.__module__])
            data = joined(message.encode(version))
            del message
            assert_bounded(
                partial(cls.decode, memoryview(data), 0, version),
                len(data),
            )


@pytest.mark.parametrize(("name", "version"), CASES)
def test_patterns_take_little_memory_and_end(name: str, version: int) -> None:
    cls = message_class(name)
    random = Random(f"pattern {name} {version}")
    for unit in (
        b"\x00",
        b"\x01",
        b"\x02",
        b"\x7f",
        b"\xff",
        b"\x00\x00\x00\x01",
        b"\x00\x02",
        b"\x01\x00\x00",
    ):
        decode_leniently(cls, unit * (16384 // len(unit)), version)
    decode_leniently(cls, random.randbytes(4096), version)


@given(st.binary(max_size=200))
def test_random_frames_are_read_or_refused(data: bytes) -> None:
    with contextlib.suppress(ProtocolError):
        decode_request(memoryview(data))


@given(
    st.sampled_from([case for case in CASES if case[0].endswith("Request")]),
    st.binary(max_size=300),
    st.one_of(st.none(), st.text(max_size=20)),
)
def test_random_bodies_behind_a_valid_header(
    case: tuple[str, int], body: bytes, client_id: str | None
) -> None:
    name, version = case
    cls = message_class(name)
    empty = joined(encode_request(RequestHeader(cls.API_KEY, version, 7, client_id), cls()))[4:]
    size = len(empty) - len(joined(cls().encode(version)))
    frame = empty[:size] + body
    try:
        header, _ = decode_request(memoryview(frame))
    except ProtocolError:
        return
    assert header == RequestHeader(cls.API_KEY, version, 7, client_id)


@pytest.mark.parametrize(
    "greeting",
    [
        b"\x01\x00\x02\x00\x01\xfc\x03\x03"
        + bytes(64),  # the bytes after the length of a TLS hello
        b"/ HTTP/1.1\r\nHost: localhost:9092\r\n\r\n",
        b"SSH-2.0-OpenSSH_9.2\r\n",
        b"",
        b"\x00",
        b"\x00\x12\x00\x03\x00\x00\x00\x01\x00",
        b"\x00\x12\x00\x03\x00\x00\x00\x01\xff\xfe" + bytes(8),
        b"\x00\x12\x00\x03\x00\x00\x00\x01\x00\x05abc",
        b"\x00\x12\x00\x00\x00\x00\x00\x01\x00\x05abc",
        b"\x00\x12\x00\x03\x00\x00\x00\x01\x00\x02\xc3\x28" + bytes(8),
        b"\x00\x12\x00\x03\x00\x00\x00\x01\xff\xff\xff\xff\xff\xff\x0f",
    ],
)
def test_other_protocols_and_broken_headers(greeting: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode_request(memoryview(greeting))


def test_a_section_of_tags_cannot_keep_the_decoder_busy() -> None:
    header = struct.pack(">hhihB", ApiKey.API_VERSIONS, 3, 1, -1, 0)
    tags = b"\xff\xff\xff\xff\x0f"  # four thousand million tagged fields
    with pytest.raises(ProtocolError):
        decode_request(memoryview(header + b"\x02a\x02b" + tags + bytes(100_000)))
