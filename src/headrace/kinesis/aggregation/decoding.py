"""Divides aggregates of the Kinesis Producer Library into their user records.

An aggregate is a magic number, a message of Protocol Buffers and its MD5:

    message Aggregate {
        repeated string partition_keys = 1;
        repeated string explicit_hash_keys = 2;
        repeated Record records = 3;      // uint64 key = 1; uint64 hash_key = 2; bytes data = 3; repeated Tag tags = 4
    }

Every program with the permission to put records chooses the input of this module. So each length is compared with the
remaining bytes before it is used. A record that is not a complete aggregate is a plain record, and is delivered
unchanged.
"""

from __future__ import annotations

import re
from hashlib import md5
from typing import Final, NamedTuple

from headrace.core.lease.lease import HashRange
from headrace.kinesis.aggregation.encoding import MAGIC, OVERHEAD_BYTES
from headrace.kinesis.hash_keys import hash_key_of

_PARTITION_KEYS: Final = 1
_EXPLICIT_HASH_KEYS: Final = 2
_RECORDS: Final = 3
_TABLES: Final = frozenset({_PARTITION_KEYS, _EXPLICIT_HASH_KEYS, _RECORDS})
_PARTITION_KEY: Final = 1
_EXPLICIT_HASH_KEY: Final = 2
_DATA: Final = 3

_MAX_PARTITION_KEY: Final = 256
"""The most characters of a partition key, as in every record. A longer key that many small records name would be hashed
for each of them."""
_HASH_KEY: Final = re.compile("[0-9]{1,39}", re.ASCII)
_DIGEST_BYTES: Final = OVERHEAD_BYTES - len(MAGIC)
_VARINT: Final = 0
_FIXED64: Final = 1
_BYTES: Final = 2
_FIXED32: Final = 5
_UINT64: Final = (1 << 64) - 1


class UserRecord(NamedTuple):
    """A record as the producer added it to an aggregate."""

    partition_key: str
    explicit_hash_key: str | None
    data: bytes


class _MalformedError(Exception):
    """The record is not an aggregate."""


def taken_apart(data: bytes) -> list[UserRecord] | None:
    """Return the user records of an aggregate, at least one; None if the data is not an aggregate."""
    if len(data) < OVERHEAD_BYTES or not data.startswith(MAGIC):
        return None
    message = data[len(MAGIC) : -_DIGEST_BYTES]
    if md5(message, usedforsecurity=False).digest() != data[-_DIGEST_BYTES:]:
        return None
    try:
        return _aggregate(message) or None
    except (_MalformedError, UnicodeDecodeError):
        return None


def belongs(record: UserRecord, hash_range: HashRange) -> bool:
    """Whether a user record belongs to a shard.

    A producer finds out that user records arrived in another shard than theirs, because the stream was resharded
    meanwhile, and puts them again. So they are to be read in their own shard only.
    """
    explicit = record.explicit_hash_key
    if explicit is None:
        key = hash_key_of(record.partition_key)
    elif _HASH_KEY.fullmatch(explicit):
        key = int(explicit)
    else:
        return True  # its shard is unknown
    return hash_range.first <= key <= hash_range.last


def _aggregate(message: bytes) -> list[UserRecord]:
    keys: list[str] = []
    hash_keys: list[str] = []
    spans: list[tuple[int, int]] = []
    position, end = 0, len(message)
    while position < end:
        field, kind, position = _tag(message, position, end)
        if kind == _BYTES and field in _TABLES:
            start, position = _span(message, position, end)
            if field == _RECORDS:
                spans.append((start, position))
            else:
                table = keys if field == _PARTITION_KEYS else hash_keys
                table.append(message[start:position].decode())
        else:
            position = _skip(message, position, end, kind)
    if any(len(key) > _MAX_PARTITION_KEY for key in keys):
        raise _MalformedError
    # The tables may follow the records.
    return [_record(message, start, stop, keys, hash_keys) for start, stop in spans]


def _record(
    message: bytes, position: int, end: int, keys: list[str], hash_keys: list[str]
) -> UserRecord:
    key = hash_key_index = data = None
    while position < end:
        field, kind, position = _tag(message, position, end)
        if kind == _VARINT and field == _PARTITION_KEY:
            key, position = _varint(message, position, end)
        elif kind == _VARINT and field == _EXPLICIT_HASH_KEY:
            hash_key_index, position = _varint(message, position, end)
        elif kind == _BYTES and field == _DATA:
            start, position = _span(message, position, end)
            data = message[start:position]
        else:
            position = _skip(message, position, end, kind)
    if data is None or key is None or key >= len(keys):
        raise _MalformedError
    if hash_key_index is None:
        return UserRecord(keys[key], None, data)
    if hash_key_index >= len(hash_keys):
        raise _MalformedError
    return UserRecord(keys[key], hash_keys[hash_key_index], data)


def _tag(message: bytes, position: int, end: int) -> tuple[int, int, int]:
    tag, position = _varint(message, position, end)
    if not 8 <= tag < 1 << 32:
        raise _MalformedError
    return tag >> 3, tag & 7, position


def _varint(message: bytes, position: int, end: int) -> tuple[int, int]:
    value = shift = 0
    while position < end and shift < 70:
        byte = message[position]
        position += 1
        if byte < 0x80:
            return (value | byte << shift) & _UINT64, position
        value |= (byte & 0x7F) << shift
        shift += 7
    raise _MalformedError


def _span(message: bytes, position: int, end: int) -> tuple[int, int]:
    size, start = _varint(message, position, end)
    if size > end - start:
        raise _MalformedError
    return start, start + size


def _skip(message: bytes, position: int, end: int, kind: int) -> int:
    if kind == _VARINT:
        return _varint(message, position, end)[1]
    if kind == _BYTES:
        return _span(message, position, end)[1]
    width = {_FIXED64: 8, _FIXED32: 4}.get(kind)
    if width is None or width > end - position:
        raise _MalformedError  # for example groups, which no aggregate contains
    return position + width
