"""Which partition a record goes to: by its key, in turns, one for each batch, at random, or as the program says."""

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

Choose = Callable[[int], int]
"""Returns a number below its argument, at random."""


@runtime_checkable
class Partitioner(Protocol):
    """Chooses partitions for the records of one topic.

    Besides `partition`, your class may have
    `batch_closed(partition, available)`, called when a partition's batch takes no more records;
    `dump() -> bytes` and `load(bytes)`, by which an embedded broker shares one partitioner among its producers and
    keeps its state over a restart;
    `begin(count)`, called with the number of records that the topic has had, if no state was kept; and
    `name` and `parameters` (a dictionary), by which other processes can make the same one, see `create_topic`.
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
"""The parameter of a factory that gets the producer's source of randomness."""


def register_partitioner(name: str, factory: Callable[..., Partitioner]) -> None:
    """Make a partitioner known under a name, which then may stand in a topic's `headrace.partitioner`.

    Args:
        name: The name.
        factory: Returns a partitioner; a class does. It is called for each topic, with the topic's
            `headrace.partitioner.parameters` as keyword arguments. If it has a parameter named `choose`, that is a
            function that returns a random number below its argument.

    Raises:
        ConfigError: The name or the factory cannot be used.
    """
    PARTITIONERS.add(name, factory)


def partitioner_factory(given: str | Named | type[Any] | Partitioner) -> PartitionerFactory:
    """Return what makes a topic's partitioner.

    Args:
        given: A registered name, the name of an entry point in the group `headrace.partitioners`, a class, which is
            called as a registered one is, or an object that serves all topics. What a topic's metadata name comes with
            its parameters.

    Raises:
        ConfigError: Nothing has that name, or the object is no partitioner.
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
    """Check a class or an object.

    Raises:
        ConfigError: It is no partitioner.
    """
    # Text and bytes have a method of that name, too.
    kind = given if isinstance(given, type) else type(given)
    is_text = issubclass(kind, str | bytes | bytearray)
    if is_text or not callable(getattr(given, "partition", None)):
        name = given.__name__ if isinstance(given, type) else shown(given)
        raise ConfigError(f"{name} is no partitioner: it has no method partition")


class Unusable:
    """Stands for a partitioner that cannot be made, until a record needs it: one with a partition does not."""

    def __init__(self, reason: str, forget: Callable[[], object]) -> None:
        """Prepare a partitioner.

        Args:
            reason: What to tell.
            forget: Has the producer look at the topic again, as the partitioner may be known by then.
        """
        self._reason = reason
        self._forget = forget

    def partition(self, *_record: object) -> int:
        """Refuse to choose.

        Raises:
            ConfigError: Always.
        """
        self._forget()
        raise ConfigError(self._reason)
