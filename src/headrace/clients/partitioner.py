"""Which partition a record goes to: Kafka's hash of the key, or one that sticks for a batch."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from struct import Struct
from typing import Final

_SEED: Final = 0x9747B28C
_FACTOR: Final = 0x5BD1E995
_MASK: Final = 0xFFFFFFFF
_WORDS: Final = [Struct(f"<{count}I") for count in range(17)]

LONGEST_CACHED_KEY: Final = 64


def murmur2(data: bytes) -> int:
    """Return the 32-bit murmur2 hash with the seed that Kafka's clients use, as an unsigned number."""
    length = len(data)
    words = length >> 2
    unpack = _WORDS[words] if words < len(_WORDS) else Struct(f"<{words}I")
    result = _SEED ^ length
    for word in unpack.unpack_from(data):
        mixed = (word * _FACTOR) & _MASK
        mixed = ((mixed ^ (mixed >> 24)) * _FACTOR) & _MASK
        result = ((result * _FACTOR) & _MASK) ^ mixed
    if tail := data[words << 2 :]:
        result = ((result ^ int.from_bytes(tail, "little")) * _FACTOR) & _MASK
    result ^= result >> 13
    result = (result * _FACTOR) & _MASK
    return result ^ (result >> 15)


@lru_cache(maxsize=8192)
def _cached(key: bytes) -> int:
    return murmur2(key)


def partition_for_key(key: bytes, partitions_count: int) -> int:
    """Return the partition that every client of Kafka's Java family gives a key."""
    digest = _cached(key) if len(key) <= LONGEST_CACHED_KEY else murmur2(key)
    return (digest & 0x7FFFFFFF) % partitions_count


class StickyPartitioner:
    """Partitions for records without a key: one until its batch is closed, then another (KIP-480).

    Records that follow each other share a batch, which costs fewer requests than taking turns record by record; over
    many batches the partitions fill evenly.
    """

    def __init__(self, choose: Callable[[int], int]) -> None:
        """Start without a choice.

        Args:
            choose: Returns a number below its argument, at random.
        """
        self._choose = choose
        self._current: dict[str, int] = {}

    def partition(self, topic: str, partitions_count: int) -> int:
        """Return the partition that the topic's records go to at the moment."""
        current = self._current.get(topic)
        if current is None or current >= partitions_count:
            current = self._current[topic] = self._choose(partitions_count)
        return current

    def batch_closed(self, topic: str, partition: int, partitions_count: int) -> None:
        """Move on to another partition, if the closed batch was of the current one."""
        if self._current.get(topic) != partition:
            return
        if partitions_count > 1:
            step = 1 + self._choose(partitions_count - 1)
            self._current[topic] = (partition + step) % partitions_count
