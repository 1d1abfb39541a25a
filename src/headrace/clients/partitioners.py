"""Partitioners, which choose the partition of a record: by key, in turn, one per batch, at random, or by own code."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from struct import Struct
from typing import Any, ClassVar, Final, Protocol, runtime_checkable

from headrace.clients.arguments import shown
from headrace.errors import ConfigError
from headrace.records.accel import kernels
from headrace.registers import Named, Register

_SEED: Final = 0x9747B28C
_FACTOR: Final = 0x5BD1E995
_MASK: Final = 0xFFFFFFFF
_WORDS: Final = [Struct(f"<{count}I") for count in range(17)]

LONGEST_CACHED_KEY: Final = 64
"""The longest key in bytes whose hash is cached."""

Choose = Callable[[int], int]
"""A function that returns a random number below its argument."""


@runtime_checkable
class Partitioner(Protocol):
    """Chooses partitions for the records of one topic.

    Besides `partition`, your class may have these members:
    `batch_closed(partition, available)` is called when a partition's batch accepts no more records.
    `dump() -> bytes` and `load(bytes)` save and restore the state. With them all producers of an embedded broker share
    one partitioner, whose state survives a restart.
    `begin(count)` is called with the number of records that the topic has had, if no state was saved.
    `name` and `parameters` (a dictionary) let other processes create the same partitioner, see `create_topic`.
    """

    def partition(
        self, key: bytes | None, value: bytes | None, available: Sequence[int], count: int
    ) -> int:
        """Return the partition of a record.

        Args:
            key: The record's key, as bytes.
            value: The record's value, as bytes.
            available: The partitions that have a leader now; all partitions if none has.
            count: The number of partitions of the topic.
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
    """Return the partition of a key, as Kafka's Java clients and compatible ones choose it."""
    return (_hash(key) & 0x7FFFFFFF) % partitions_count


class Sticky:
    """Keeps one partition until its batch is closed, then chooses another (KIP-480). Keys are ignored.

    Successive records share a batch, which needs fewer requests than choosing a partition for each record. Over many
    batches the partitions get equal numbers of records.
    """

    name: ClassVar = "sticky"

    def __init__(self, choose: Choose) -> None:
        self._choose = choose
        self._current: int | None = None

    def partition(
        self,
        key: bytes | None,
        value: bytes | None,
        available: Sequence[int],
        count: int,
    ) -> int:
        """Return the partition of the batch that is being filled."""
        if self._current is None or self._current >= count:
            self._current = available[self._choose(len(available))]
        return self._current

    def batch_closed(self, partition: int, available: Sequence[int]) -> None:
        """Choose another partition if the closed batch belongs to the current one."""
        if self._current != partition:
            return
        others = [other for other in available if other != partition]
        if others:
            self._current = others[self._choose(len(others))]


class KeyHash(Sticky):
    """Kafka's default: a record with a key goes by the hash of the key, a record without a key as with `Sticky`."""

    name: ClassVar = "key_hash"

    def partition(
        self, key: bytes | None, value: bytes | None, available: Sequence[int], count: int
    ) -> int:
        """Return the key's partition, which is the same as in Kafka's Java clients."""
        if key is not None:
            return partition_for_key(key, count)
        return super().partition(key, value, available, count)


class RoundRobin:
    """Chooses the partitions in turn, one for each record."""

    name: ClassVar = "round_robin"

    def __init__(self, choose: Choose | None = None) -> None:
        self._next = 0

    def partition(
        self,
        key: bytes | None,
        value: bytes | None,
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
        """Continue after `count` records of the topic, as if all of them had been partitioned in turn."""
        self._next = count

    def dump(self) -> bytes:
        """Return the next partition as bytes."""
        return b"%d" % self._next

    def load(self, state: bytes) -> None:
        """Continue with the partition that `dump` returned."""
        self._next = int(state)


class Random:
    """Chooses a random partition for each record."""

    name: ClassVar = "random"

    def __init__(self, choose: Choose) -> None:
        self._choose = choose

    def partition(
        self,
        key: bytes | None,
        value: bytes | None,
        available: Sequence[int],
        count: int,
    ) -> int:
        """Return one of the partitions that have a leader."""
        return available[self._choose(len(available))]


PartitionerFactory = Callable[[Choose], Partitioner]

PARTITIONERS: Final[Register[Partitioner]] = Register(
    "partitioner",
    "headrace.partitioners",
    "headrace.register_partitioner",
    {kind.name: kind for kind in (KeyHash, RoundRobin, Sticky, Random)},
)
CHOOSE: Final = "choose"
"""The name of a factory's parameter that gets the producer's random function (`Choose`)."""


def register_partitioner(name: str, factory: Callable[..., Partitioner]) -> None:
    """Register a partitioner under a name, which topics can name in `headrace.partitioner`.

    Args:
        name: The name.
        factory: A class or function that returns a partitioner. It is called for each topic, with the topic's
            `headrace.partitioner.parameters` as keyword arguments. If it has a parameter named `choose`, it also gets
            a function that returns a random number below its argument.

    Raises:
        ConfigError: The name or the factory cannot be used.
    """
    PARTITIONERS.add(name, factory)


def partitioner_factory(given: str | Named | type[Any] | Partitioner) -> PartitionerFactory:
    """Return the function that creates the partitioner of a topic.

    Args:
        given: A registered name; the name of an entry point in the group `headrace.partitioners`; a class, which is
            called as a registered one is; or an object, which serves all topics. A `Named` comes from a topic's
            configuration, with parameters.

    Raises:
        ConfigError: The name is unknown, or the object is not a partitioner.
    """
    named = Named(given) if isinstance(given, str) else given
    if isinstance(named, Named):
        if named.given is None:
            factory = PARTITIONERS.find(named.name)
            return lambda choose: PARTITIONERS.build(
                named.name, factory, named.parameters, choose=choose
            )
        value, name, parameters = named.given.value, named.name, named.parameters
    else:
        value, name, parameters = named, "", ""
    check_partitioner(value)
    if isinstance(value, type):
        return lambda choose: PARTITIONERS.build(
            name or value.__name__, value, parameters, choose=choose
        )
    return lambda _choose: value


def check_partitioner(given: object) -> None:
    """Check that a class or an object is a partitioner.

    Raises:
        ConfigError: It is not a partitioner.
    """
    # Text and bytes have a method `partition`, too.
    kind = given if isinstance(given, type) else type(given)
    is_text = issubclass(kind, str | bytes | bytearray)
    if is_text or not callable(getattr(given, "partition", None)):
        name = given.__name__ if isinstance(given, type) else shown(given)
        raise ConfigError(f"{name} is not a partitioner: it has no method `partition`")


class Unusable:
    """Takes the place of a partitioner that cannot be created. Records that name their partition do not need it."""

    def __init__(self, reason: str, forget: Callable[[], object]) -> None:
        """Create the placeholder.

        Args:
            reason: The text of the error.
            forget: Makes the producer look the topic up again, because the partitioner may be known by then.
        """
        self._reason = reason
        self._forget = forget

    def partition(self, *_record: object) -> int:
        """Raise the error that explains why there is no partitioner.

        Raises:
            ConfigError: Always.
        """
        self._forget()
        raise ConfigError(self._reason)
