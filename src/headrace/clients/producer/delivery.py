"""What a program holds while its record is under way."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple, Self

from headrace.clients.arguments import shown
from headrace.errors import ConfigError, HeadraceError
from headrace.types import TopicPartition


def check_callback(callback: object) -> None:
    """Raise a ConfigError for what cannot be called, before it is to be called."""
    if callback is not None and not callable(callback):
        raise ConfigError(f"a callback is a function, not {shown(callback)}")


class RecordMetadata(NamedTuple):
    """Where a record went."""

    topic: str
    partition: int
    offset: int
    """-1 where the broker does not tell (acks=0)."""
    timestamp_ms: int
    """The record's time, or the broker's for topics that keep that."""


class Written(NamedTuple):
    """Where a batch went."""

    base_offset: int
    """-1 where the broker does not tell (acks=0)."""
    append_time_ms: int = -1
    """The broker's time, for topics that keep that; else -1."""


class Fate:
    """What becomes of a batch, and so of each of its records: known once, however many they are."""

    __slots__ = ("halves", "outcome", "topic_partition", "watched")

    def __init__(self, topic_partition: TopicPartition) -> None:
        self.topic_partition = topic_partition
        self.outcome: Written | HeadraceError | None = None
        self.halves: list[Fate] = []
        """Of what the batch was divided into; its records have theirs."""
        self.watched: list[tuple[Delivery, Callable[[Any], object]]] = []
        """Functions to call when the outcome is known, with what they are called with."""

    def done(self) -> bool:
        """Whether the batch was delivered or given up."""
        if self.halves:
            return all(half.done() for half in self.halves)
        return self.outcome is not None

    def settle(self, outcome: Written | HeadraceError) -> Iterator[Callable[[], object]]:
        """Set the outcome; yield the calls of the program's code that are now due, in the order of the records."""
        self.outcome = outcome
        watched, self.watched = self.watched, []
        for delivery, callback in sorted(watched, key=lambda entry: entry[0].index):
            yield partial(callback, delivery)

    def divide(self, halves: Sequence[tuple[Fate, Sequence[Delivery]]]) -> None:
        """Let the records be those of two batches from now on."""
        for half, deliveries in halves:
            self.halves.append(half)
            for index, delivery in enumerate(deliveries):
                delivery.fate, delivery.index = half, index
        for entry in self.watched:
            entry[0].fate.watched.append(entry)


class Delivery:
    """The fate of one record: pending, delivered or failed. The producer's faces add the waiting."""

    __slots__ = ("fate", "index", "observed", "producer", "timestamp_ms")

    def __init__(self, producer: Any, fate: Fate, index: int, timestamp_ms: int) -> None:
        """Prepare a delivery; one call and no more, since it is made for each record.

        Args:
            producer: Who can wait for it.
            fate: That of its batch.
            index: Its place in the batch.
            timestamp_ms: Its time.
        """
        self.producer = producer
        self.fate = fate
        self.index = index
        self.timestamp_ms = timestamp_ms
        self.observed = False
        """Whether the program has looked, or asked to be told: then a failure need not be raised elsewhere."""

    @property
    def topic_partition(self) -> TopicPartition:
        """The partition that was chosen for it."""
        return self.fate.topic_partition

    def done(self) -> bool:
        """Whether the record was delivered or given up."""
        return self.fate.outcome is not None

    def exception(self) -> HeadraceError | None:
        """Return why the record was given up; None while it is under way, and when it was delivered."""
        self.observed = True
        outcome = self.fate.outcome
        return outcome if isinstance(outcome, HeadraceError) else None

    def metadata(self) -> RecordMetadata:
        """Return where the record went, or raise why it was given up; only when done."""
        self.observed = True
        outcome = self.fate.outcome
        if isinstance(outcome, Written):
            base_offset, append_time_ms = outcome
            offset = base_offset + self.index if base_offset >= 0 else -1
            timestamp_ms = self.timestamp_ms if append_time_ms < 0 else append_time_ms
            return RecordMetadata(*self.fate.topic_partition, offset, timestamp_ms)
        assert outcome is not None, "the record is still under way"
        raise outcome

    def add_done_callback(self, callback: Callable[[Self], object]) -> None:
        """Have a function called with this object when it is done; at once if it is.

        Raises:
            ConfigError: It is no function.
        """
        check_callback(callback)
        self.observed = True
        if self.done():
            callback(self)
        else:
            self.fate.watched.append((self, callback))
