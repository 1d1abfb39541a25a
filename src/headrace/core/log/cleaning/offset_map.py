"""The offset of the newest record of each key, for the part of a log that a compaction reads.

A key of up to 15 bytes stands for itself, a longer key is replaced by its BLAKE2b digest of 16 bytes. A short key can
never equal a digest, because their lengths differ. Two long keys with the same digest take some 2^64 attempts to find,
also for an attacker. That matters: of two keys with the same digest, the older record would be dropped. (Kafka uses
MD5, for which such pairs can be made easily.)

The number of entries bounds the memory, about 150 bytes for each. A full map ends the round there, in the middle of a
batch if need be. The next round continues.
"""

from __future__ import annotations

from functools import partial
from hashlib import blake2b
from typing import Final

from headrace.records.batch import BatchHeader
from headrace.records.raw import iterate_raw, records_of
from headrace.types import Buffer

SHORT_KEY: Final = 16
"""The length in bytes from which on a key is replaced by its digest."""
_blake2b = partial(blake2b, digest_size=SHORT_KEY)


def key_id(key: bytes) -> bytes:
    """Return the entry that stands for a key in the map."""
    return key if len(key) < SHORT_KEY else _blake2b(key).digest()


class OffsetMap:
    """The newest offset of each key, complete for the log from `start_offset` to `end_offset`."""

    __slots__ = ("_limit", "end_offset", "newest", "start_offset")

    def __init__(self, start_offset: int, limit: int) -> None:
        self._limit = limit
        self.newest: dict[bytes, int] = {}
        self.start_offset = start_offset
        self.end_offset = start_offset

    @property
    def is_full(self) -> bool:
        """Whether no key can be added."""
        return len(self.newest) >= self._limit

    def add_batch(self, header: BatchHeader, batch: Buffer) -> None:
        """Add the keys of a batch, up to the record at which the map is full.

        Raises:
            CorruptRecordError: The records cannot be decoded.
        """
        if not header.is_control and header.next_offset > self.end_offset:
            newest, start, limit = self.newest, self.end_offset, self._limit
            data = records_of(header, batch)
            for _, _, _, delta, key, _ in iterate_raw(data, header.records_count):
                offset = header.base_offset + delta
                if key is None or offset < start:
                    continue
                known = key if len(key) < SHORT_KEY else _blake2b(key).digest()
                if len(newest) >= limit and known not in newest:
                    self.end_offset = offset
                    return
                newest[known] = offset
        self.end_offset = max(self.end_offset, header.next_offset)
