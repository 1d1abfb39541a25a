"""The partition of an internal topic that stores a group or a transactional id, and the names that can be stored."""

from __future__ import annotations

from functools import lru_cache

MAX_STORED_BYTES = 32_767
CACHED_LENGTH = 256
"""The longest name whose hash is cached, in characters. Clients choose the names, so the cache must not hold long
ones."""


def java_hash(text: str) -> int:
    """Return Java's String.hashCode(): over UTF-16 code units, as a signed 32-bit number."""
    units = text.encode("utf-16-be", "surrogatepass")
    result = 0
    for position in range(0, len(units), 2):
        result = (31 * result + (units[position] << 8 | units[position + 1])) & 0xFFFF_FFFF
    return result - (1 << 32) if result >= 1 << 31 else result


_cached_hash = lru_cache(maxsize=4_096)(java_hash)


def partition_for_key(key: str, partitions_count: int) -> int:
    """Return the partition of an internal topic that holds a group or a transactional id, as every Kafka tool does."""
    hashed = java_hash(key) if len(key) > CACHED_LENGTH else _cached_hash(key)
    return (0 if hashed == -(1 << 31) else abs(hashed)) % partitions_count


def can_be_stored(text: str | None) -> bool:
    """Return whether a string fits into a stored record, where its length in bytes is a signed 16-bit number."""
    return text is None or len(text) <= 8_191 or len(text.encode()) <= MAX_STORED_BYTES
