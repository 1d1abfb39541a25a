"""Which partition a record goes to: by its key, in turns, one for each batch, at random, or as the program says."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from struct import Struct
from typing import ClassVar, Final, Protocol, runtime_checkable

from headrace.errors import ConfigError
from headrace.records.accel import kernels

_SEED: Final = 0x9747B28C
_FACTOR: Final = 0x5BD1E995
_MASK: Final = 0xFFFFFFFF
_WORDS: Final = [Struct(f"<{count}I") for count in range(17)]

LONGEST_CACHED_KEY: Final = 64

Choose = Callable[[int], int]
"""Returns a number below its argument, at random."""


@runtime_checkable
class Partitioner(Protocol):
    """Chooses partitions for the records of one topic.

    Besides `partition`, a class of one's own may have
    `batch_closed(partition, available)`, called when a partition's batch takes no more records;
    `dump() -> bytes` and `load(bytes)`, by which an embedded broker shares one partitioner among its producers and
    keeps its state over a restart; and
    `begin(count)`, called with the number of records that the topic has had, if no state was kept.
    """

    def partition(
        self, key: bytes | None, value: bytes | None, available: Sequence[int], count: int
    ) -> int:
        """Return the partition of a record.

        Args:
            key: The record's key, as bytes.
            value: Its value, as bytes.
            available: The partitions that have a leader at the moment; all, if none has.
            count: How many partitions the topic has.
        """


@lru_cache(maxsize=8192)
def _cached(key: bytes) -> int:
    return murmur2(key)


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


def _remembered(key: bytes) -> int:
    return _cached(key) if len(key) <= LONGEST_CACHED_KEY else murmur2(key)


_hash = _remembered if kernels is None else kernels.murmur2


def partition_for_key(key: bytes, partitions_count: int) -> int:
    """Return the partition that every client of Kafka's Java family gives a key."""
    return (_hash(key) & 0x7FFFFFFF) % partitions_count


class Sticky:
    """One partition until its batch is closed, then another (KIP-480); keys do not count.

    Records that follow each other share a batch, which costs fewer requests than taking turns record by record; over
    many batches the partitions fill evenly.
    """

    name: ClassVar = "sticky"

    def __init__(self, choose: Choose) -> None:
        self._choose = choose
        self._current: int | None = None

    def partition(
        self,
        key: bytes | None,  # noqa: ARG002 - it does not count here
        value: bytes | None,  # noqa: ARG002 - nor does it
        available: Sequence[int],
        count: int,
    ) -> int:
        """Return the partition of the batch that is being filled."""
        if self._current is None or self._current >= count:
            self._current = available[self._choose(len(available))]
        return self._current

    def batch_closed(self, partition: int, available: Sequence[int]) -> None:
        """Move on to another partition, if the closed batch was of the current one."""
        if self._current != partition:
            return
        others = [other for other in available if other != partition]
        if others:
            self._current = others[self._choose(len(others))]


class KeyHash(Sticky):
    """Kafka's default: records with a key by its hash, those without in batches as `Sticky` does."""

    name: ClassVar = "key_hash"

    def partition(
        self, key: bytes | None, value: bytes | None, available: Sequence[int], count: int
    ) -> int:
        """Return the key's partition, the same in every client of Kafka's Java family."""
        if key is not None:
            return partition_for_key(key, count)
        return super().partition(key, value, available, count)


class RoundRobin:
    """All partitions in turns, record by record."""

    name: ClassVar = "round_robin"

    def __init__(self, choose: Choose | None = None) -> None:  # noqa: ARG002 - all are made alike
        self._next = 0

    def partition(
        self,
        key: bytes | None,  # noqa: ARG002 - it does not count here
        value: bytes | None,  # noqa: ARG002 - nor does it
        available: Sequence[int],
        count: int,
    ) -> int:
        """Return the next partition in turn that has a leader."""
        partition = self._next % count
        self._next = partition + 1
        if len(available) == count or partition in available:
            return partition
        return available[partition % len(available)]

    def begin(self, count: int) -> None:
        """Go on where a topic with so many records is, if they were all given out in turns."""
        self._next = count

    def dump(self) -> bytes:
        """Return whose turn it is, to be kept."""
        return b"%d" % self._next

    def load(self, state: bytes) -> None:
        """Go on where `dump` was called."""
        self._next = int(state)


class Random:
    """Any partition, each time anew."""

    name: ClassVar = "random"

    def __init__(self, choose: Choose) -> None:
        self._choose = choose

    def partition(
        self,
        key: bytes | None,  # noqa: ARG002 - it does not count here
        value: bytes | None,  # noqa: ARG002 - nor does it
        available: Sequence[int],
        count: int,  # noqa: ARG002 - those with a leader do
    ) -> int:
        """Return one of the partitions that have a leader."""
        return available[self._choose(len(available))]


PartitionerFactory = Callable[[Choose], Partitioner]

_FACTORIES: dict[str, PartitionerFactory] = {
    kind.name: kind for kind in (KeyHash, RoundRobin, Sticky, Random)
}


def register_partitioner(name: str, factory: PartitionerFactory) -> None:
    """Make a partitioner known under a name, which then may stand in a topic's `headrace.partitioner`.

    Args:
        name: The name.
        factory: Called for each topic with a function that returns a random number below its argument.
    """
    _FACTORIES[name] = factory


def partitioner_factory(given: str | type[Partitioner] | Partitioner) -> PartitionerFactory:
    """Return what makes a topic's partitioner.

    Args:
        given: A registered name, a class without arguments, or an object that serves all topics.

    Raises:
        ConfigError: Nothing has that name, or the object is no partitioner.
    """
    if isinstance(given, str):
        if given not in _FACTORIES:
            raise ConfigError(
                f"no partitioner is called {given!r}: known are {', '.join(sorted(_FACTORIES))}; "
                "one of your own is made known by headrace.register_partitioner(name, class)"
            )
        return _FACTORIES[given]
    if isinstance(given, type):
        kind = given
        if not callable(getattr(kind, "partition", None)):
            raise ConfigError(f"{kind.__name__} is no partitioner: it has no method partition")
        if kind in (KeyHash, RoundRobin, Sticky, Random):
            return kind
        return lambda _choose: kind()
    if not isinstance(given, Partitioner):
        raise ConfigError(f"{given!r} is no partitioner: it has no method partition")
    shared = given
    return lambda _choose: shared
