"""Writes many user records into one record of a stream, in the format of the Kinesis Producer Library.

The record is a protobuf message between four magic bytes and its MD5. The message contains a table of partition keys, a
table of explicit hash keys, and records that name their keys by index. Readers number the user records of an aggregate.
"""

from __future__ import annotations

from hashlib import md5
from typing import Final

MAGIC: Final = b"\xf3\x89\x9a\xc2"
OVERHEAD_BYTES: Final = len(MAGIC) + 16

_PARTITION_KEY_TABLE: Final = b"\x0a"
_HASH_KEY_TABLE: Final = b"\x12"
_RECORDS: Final = b"\x1a"
_PARTITION_KEY_INDEX: Final = b"\x08"
_HASH_KEY_INDEX: Final = b"\x10"
_DATA: Final = b"\x1a"


class Aggregate:
    """An aggregate that grows. All its user records must belong to one shard: readers drop the others."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._tables: list[bytes] = []
        self._records: list[bytes] = []
        self._partition_keys: dict[str, int] = {}
        self._hash_keys: dict[str, int] = {}
        self.size = OVERHEAD_BYTES
        """The number of bytes that `encode` returns."""

    def __len__(self) -> int:
        return len(self._records)

    def add(self, partition_key: str, explicit_hash_key: str | None, data: bytes) -> bool:
        """Add a user record. If it does not fit, return False and leave the aggregate unchanged."""
        key_index = self._partition_keys.get(partition_key)
        new_key = b""
        if key_index is None:
            key_index = len(self._partition_keys)
            new_key = _field(_PARTITION_KEY_TABLE, partition_key.encode())
        parts = [_PARTITION_KEY_INDEX, _varint(key_index)]
        new_hash_key = b""
        if explicit_hash_key is not None:
            hash_index = self._hash_keys.get(explicit_hash_key)
            if hash_index is None:
                hash_index = len(self._hash_keys)
                new_hash_key = _field(_HASH_KEY_TABLE, explicit_hash_key.encode())
            parts += [_HASH_KEY_INDEX, _varint(hash_index)]
        parts += [_DATA, _varint(len(data)), data]
        record = _field(_RECORDS, b"".join(parts))
        size = self.size + len(new_key) + len(new_hash_key) + len(record)
        if size > self._limit_bytes:
            return False
        self.size = size
        self._records.append(record)
        if new_key:
            self._partition_keys[partition_key] = key_index
            self._tables.append(new_key)
        if new_hash_key and explicit_hash_key is not None:
            self._hash_keys[explicit_hash_key] = len(self._hash_keys)
            self._tables.append(new_hash_key)
        return True

    def encode(self) -> bytes:
        """Return the data of the stored record."""
        message = b"".join([*self._tables, *self._records])
        return b"".join([MAGIC, message, md5(message, usedforsecurity=False).digest()])


def _field(tag: bytes, content: bytes) -> bytes:
    return b"".join([tag, _varint(len(content)), content])


def _varint(number: int) -> bytes:
    if number < 0x80:
        return _SMALL[number]
    out = bytearray()
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


_SMALL: Final = [bytes([number]) for number in range(0x80)]
