"""Hash keys, by which Kinesis chooses the shard of a record."""

from __future__ import annotations

from hashlib import md5
from typing import Final

HASH_KEYS: Final = 1 << 128
"""The number of hash keys. The shards of a stream divide the range from 0 to `HASH_KEYS - 1` among them."""


def hash_key_of(partition_key: str) -> int:
    """Return the hash key that Kinesis computes from a partition key."""
    return int.from_bytes(md5(partition_key.encode(), usedforsecurity=False).digest(), "big")
