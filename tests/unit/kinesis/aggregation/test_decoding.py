"""Aggregates of the Kinesis Producer Library, compared with Protocol Buffers, and arbitrary bytes."""

from __future__ import annotations

import tracemalloc
from hashlib import md5
from random import Random
from typing import Any

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.core.lease.checkpoint import TRIM_HORIZON, Checkpoint
from headrace.core.lease.lease import HashRange
from headrace.kinesis.aggregation.decoding import UserRecord, belongs, taken_apart
from headrace.kinesis.aggregation.encoding import MAGIC, Aggregate
from headrace.kinesis.client.get_records import FetchedRecord
from headrace.kinesis.hash_keys import hash_key_of
from headrace.kinesis.reading.records import KinesisRecord
from headrace.kinesis.reading.unpacking import Unpacking
from tests.effort import examples
from tests.fuzz.mutation import mutated

Field = descriptor_pb2.FieldDescriptorProto


def message_class() -> Any:
    """Return the message type in the publisher's definition, for Protocol Buffers."""
    file = descriptor_pb2.FileDescriptorProto(name="kpl.proto", package="kpl", syntax="proto2")

    def message(name: str, *fields: tuple[str, int, int, int, str]) -> None:
        described = file.message_type.add(name=name)
        for field, number, kind, label, type_name in fields:
            described.field.add(
                name=field, number=number, type=kind, label=label, type_name=type_name or None
            )

    message(
        "Record",
        ("key", 1, Field.TYPE_UINT64, Field.LABEL_REQUIRED, ""),
        ("hash_key", 2, Field.TYPE_UINT64, Field.LABEL_OPTIONAL, ""),
        ("data", 3, Field.TYPE_BYTES, Field.LABEL_REQUIRED, ""),
        ("tags", 4, Field.TYPE_BYTES, Field.LABEL_REPEATED, ""),  # messages, which are not read
    )
    message(
        "Aggregate",
        ("keys", 1, Field.TYPE_STRING, Field.LABEL_REPEATED, ""),
        ("hash_keys", 2, Field.TYPE_STRING, Field.LABEL_REPEATED, ""),
        ("records", 3, Field.TYPE_MESSAGE, Field.LABEL_REPEATED, ".kpl.Record"),
    )
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("kpl.Aggregate"))


ORACLE = message_class()


def sealed(message: bytes) -> bytes:
    return MAGIC + message + md5(message, usedforsecurity=False).digest()


def by_oracle(message: bytes) -> list[UserRecord] | None:
    """Return the content that Protocol Buffers decodes; None if the data is not an aggregate."""
    parsed = ORACLE()
    try:
        parsed.MergeFromString(message)
        if not parsed.IsInitialized():
            return None
        return [
            UserRecord(
                parsed.keys[each.key],
                parsed.hash_keys[each.hash_key] if each.HasField("hash_key") else None,
                each.data,
            )
            for each in parsed.records
        ] or None
    except Exception:  # noqa: BLE001 - whatever it finds wrong with it
        return None


KEY = st.sampled_from(["a", "b", "", "ключ", "x" * 256])
EXPLICIT = st.none() | st.sampled_from(["0", "17", str(2**128 - 1)])
USERS = st.lists(st.tuples(KEY, EXPLICIT, st.binary(max_size=300)), min_size=1, max_size=30)


def written(users: list[tuple[str, str | None, bytes]], *, tables_last: bool = False) -> bytes:
    message = ORACLE()
    for key, explicit, data in users:
        if key not in message.keys:
            message.keys.append(key)
        if explicit is not None and explicit not in message.hash_keys:
            message.hash_keys.append(explicit)
        record = message.records.add(key=list(message.keys).index(key), data=data)
        if explicit is not None:
            record.hash_key = list(message.hash_keys).index(explicit)
        record.tags.append(b"\n\x01k\x12\x01v")
    if not tables_last:
        return bytes(message.SerializeToString())
    records, tables = (
        ORACLE(records=message.records),
        ORACLE(keys=message.keys, hash_keys=message.hash_keys),
    )
    return bytes(records.SerializePartialToString() + tables.SerializeToString())


@settings(max_examples=examples(50))
@given(users=USERS, tables_last=st.booleans())
def test_aggregates_of_other_libraries_are_divided(
    users: list[tuple[str, str | None, bytes]], *, tables_last: bool
) -> None:
    assert taken_apart(sealed(written(users, tables_last=tables_last))) == [
        UserRecord(*user) for user in users
    ]


@settings(max_examples=examples(50))
@given(USERS)
def test_our_aggregates_are_divided_by_headrace_and_by_protocol_buffers(
    users: list[tuple[str, str | None, bytes]],
) -> None:
    aggregate = Aggregate(1 << 20)
    assert all(aggregate.add(*user) for user in users)
    data = aggregate.encode()
    assert taken_apart(data) == by_oracle(data[4:-16]) == [UserRecord(*user) for user in users]


@settings(max_examples=examples(200))
@given(USERS, st.integers(0, 2**32))
def test_damage_is_detected_as_by_protocol_buffers(
    users: list[tuple[str, str | None, bytes]], seed: int
) -> None:
    """The damaged bytes have a correct digest, because every program that puts records can compute one."""
    message = mutated(written(users), Random(seed))
    ours = taken_apart(sealed(message))
    if ours is not None:
        assert ours == by_oracle(message)
    assert taken_apart(MAGIC + message + bytes(16)) is None


@settings(max_examples=examples(100))
@given(st.binary(max_size=100))
def test_any_bytes_are_either_an_aggregate_or_not(message: bytes) -> None:
    ours, oracle = taken_apart(sealed(message)), by_oracle(message)
    assert ours is None or ours == oracle
    assert taken_apart(message) is None or message.startswith(MAGIC)


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"\x0a\x01k",  # no records
        b"\x0a\x01k\x1a\xff\xff\xff\xff\x07",  # a record of two gigabytes
        b"\x0a\x01k\x1a\x08\x08\x00\x1a\xff\xff\xff\xff\x07",  # data of two gigabytes, in a record of eight bytes
        b"\x0a\x01k\x1a\x04\x08\x00\x1a\x09data",  # data that ends behind its record
        b"\x0a\x01k\x1a\x04\x08\x01\x1a\x00",  # a key that is not in the table
        b"\x0a\x01k\x1a\x06\x08\x00\x10\x00\x1a\x00",  # a hash key that is not in the table
        b"\x0a\x01k\x1a\x02\x08\x00",  # no data
        b"\x0a\x01k\x1a\x02\x1a\x00",  # no key
        b"\x0a\x01\xff\x1a\x04\x08\x00\x1a\x00",  # a key that is not text
        b"\x0a\x01k\x1a\x0f\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01\x1a\x00",  # a number without end
        b"\x0a\x01k\x1b\x1c",  # a group
        b"\x0a\x01k\x19\x00",  # eight bytes, of which one is there
        b"\x02\x00",  # field 0
        b"\x80",
    ],
)  # fmt: skip
def test_an_incomplete_aggregate_is_a_plain_record(message: bytes) -> None:
    data = sealed(message)
    assert taken_apart(data) is None
    (record,) = unpacked(FetchedRecord("1", data, "k"))
    assert (record.data, record.sub_sequence, record.partition_key) == (data, None, "k")


def test_a_false_length_allocates_no_memory() -> None:
    claims = b"\x0a\x01k" + b"\x1a\x06\x1a\xff\xff\xff\xff\x07" * 1_000
    data = sealed(claims)
    tracemalloc.start()
    try:
        assert taken_apart(data) is None
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()


def unpacked(
    *stored: FetchedRecord, start: Checkpoint = TRIM_HORIZON, **options: Any
) -> list[KinesisRecord]:
    options = {"hash_range": None, "deaggregate": True, **options}
    return Unpacking("orders", "shardId-0", **options).records(stored, start)


def aggregated(*users: tuple[str, str | None, bytes]) -> bytes:
    return sealed(written(list(users)))


def test_plain_records_between_aggregates_are_delivered_and_positions_distinguish_them() -> None:
    data = aggregated(("a", None, b"0"), ("b", "17", b"1"), ("a", None, b"2"))
    records = unpacked(
        FetchedRecord("10", b"first", "p", 1.5),
        FetchedRecord("11", data, "q", 2.5, "KMS"),
        FetchedRecord("12", b"last", "p", 3.5),
    )
    assert [each.data for each in records] == [b"first", b"0", b"1", b"2", b"last"]
    assert [each.checkpoint for each in records] == [
        Checkpoint("10"), Checkpoint("11", 0), Checkpoint("11", 1), Checkpoint("11"), Checkpoint("12")
    ]  # fmt: skip
    assert [each.is_last_sub for each in records] == [True, False, False, True, True]
    assert [each.partition_key for each in records] == ["p", "a", "b", "a", "p"]
    assert records[2].explicit_hash_key == "17"
    assert {each.timestamp_ms for each in records[1:4]} == {2500}
    assert {each.encryption_type for each in records[1:4]} == {"KMS"}


def test_only_the_unfinished_user_records_of_an_aggregate_are_read_again() -> None:
    data = aggregated(("a", None, b"0"), ("b", None, b"1"), ("c", None, b"2"))
    stored = [FetchedRecord("11", data, "q"), FetchedRecord("12", data, "q")]
    assert [each.data for each in unpacked(*stored, start=Checkpoint("11", 0))] == [
        b"1",
        b"2",
        b"0",
        b"1",
        b"2",
    ]
    assert [each.data for each in unpacked(*stored, start=Checkpoint("11", 2))] == [
        b"0",
        b"1",
        b"2",
    ]
    assert len(unpacked(*stored, start=Checkpoint("11"))) == 6
    assert [each.data for each in unpacked(*stored, deaggregate=False)] == [data, data]


def test_user_records_of_another_shard_are_dropped_and_keep_their_numbers() -> None:
    keys = sorted((f"k{number}" for number in range(9)), key=hash_key_of)
    data = aggregated(*[(key, None, key.encode()) for key in keys])
    own = HashRange(hash_key_of(keys[2]), hash_key_of(keys[5]))
    records = unpacked(FetchedRecord("11", data, "q"), hash_range=own)
    assert [each.partition_key for each in records] == keys[2:6]
    assert [each.sub_sequence for each in records] == [2, 3, 4, 5]
    assert [each.is_last_sub for each in records] == [False, False, False, True]
    assert records[-1].checkpoint == Checkpoint("11")
    rest = unpacked(FetchedRecord("11", data, "q"), hash_range=own, start=Checkpoint("11", 3))
    assert [each.sub_sequence for each in rest] == [4, 5]
    assert unpacked(FetchedRecord("11", data, "q"), hash_range=HashRange(0, 0)) == []


def test_a_valid_explicit_hash_key_determines_the_shard() -> None:
    own = HashRange(10, 20)
    for explicit, expected in [
        ("9", False),
        ("10", True),
        ("20", True),
        ("21", False),
        ("010", True),
        ("x", True),
        ("٣", True),
        ("9" * 5_000, True),
    ]:
        assert belongs(UserRecord("a", explicit, b""), own) is expected, explicit
    assert not belongs(UserRecord("a", None, b""), own)


def test_an_aggregate_with_a_too_long_key_is_a_plain_record() -> None:
    message = ORACLE(keys=["é" * 256])
    message.records.add(key=0, data=b"one")
    assert taken_apart(sealed(message.SerializeToString())) == [UserRecord("é" * 256, None, b"one")]
    message.keys[0] += "x"
    assert taken_apart(sealed(message.SerializeToString())) is None
