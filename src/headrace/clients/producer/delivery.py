"""Deliveries: the results of single records, and the outcome of the batch that contains them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple, Self

from headrace.clients.arguments import shown
from headrace.errors import ConfigError, HeadraceError
from headrace.types import TopicPartition


def check_callback(callback: object) -> None:
    """Raise ConfigError if a callback is not callable."""
    if callback is not None and not callable(callback):
        raise ConfigError(f"a callback is a function, not {shown(callback)}")


class RecordMetadata(NamedTuple):
    """The partition, offset and timestamp of a record that was delivered."""

    topic: str
    partition: int
    offset: int
    """The offset; -1 with acks=0, because the broker does not return it."""
    timestamp_ms: int
    """The record's time in milliseconds since 1970; the broker's time on topics with LogAppendTime."""


class Written(NamedTuple):
    """The outcome of a batch that was delivered."""

    base_offset: int
    """The offset of the batch's first record; -1 with acks=0."""
    append_time_ms: int = -1
    """The broker's time in milliseconds since 1970, on topics with LogAppendTime; -1 on other topics."""


class Fate:
    """The outcome of a batch. All records of the batch share it."""

    __slots__ = ("halves", "outcome", "topic_partition", "watched")

    def __init__(self, topic_partition: TopicPartition) -> None:
        self.topic_partition = topic_partition
        self.outcome: Written | HeadraceError | None = None
        self.halves: list[Fate] = []
        """The fates of the two batches into which a too large batch was split; empty for other batches."""
        self.watched: list[tuple[Delivery, Callable[[Any], object]]] = []
        """Callbacks that wait for the outcome, each with the delivery with which it is called."""

    def done(self) -> bool:
        """Whether the batch was delivered or given up."""
        if self.halves:
            return all(half.done() for half in self.halves)
        return self.outcome is not None

    def settle(self, outcome: Written | HeadraceError) -> Iterator[Callable[[], object]]:
        """Set the outcome; yield the callbacks that are due, in the order of the records."""
        self.outcome = outcome
        watched, self.watched = self.watched, []
        for delivery, callback in sorted(watched, key=lambda entry: entry[0].index):
            yield partial(callback, delivery)

    def divide(self, halves: Sequence[tuple[Fate, Sequence[Delivery]]]) -> None:
        """Move the records to the two batches into which this batch was split."""
        for half, deliveries in halves:
            self.halves.append(half)
            for index, delivery in enumerate(deliveries):
                delivery.fate, delivery.index = half, index
        for entry in self.watched:
            entry[0].fate.watched.append(entry)


class Delivery:
    """The delivery of one record: pending, delivered or failed. Subclasses add methods that wait."""

    __slots__ = ("fate", "index", "observed", "producer", "timestamp_ms")

    def __init__(self, producer: Any, fate: Fate, index: int, timestamp_ms: int) -> None:
        """Prepare a delivery. This method calls nothing, because it runs for each record.

        Args:
            producer: The object that waits for deliveries.
            fate: The fate of the record's batch.
            index: The index of the record in its batch.
            timestamp_ms: The record's time in milliseconds since 1970.
        """
        self.producer = producer
        self.fate = fate
        self.index = index
        self.timestamp_ms = timestamp_ms
        self.observed = False
        """Whether the program has asked for the outcome or set a callback. If not, `flush` raises a failure."""

    @property
    def topic_partition(self) -> TopicPartition:
        """The partition of the record."""
        return self.fate.topic_partition

    def done(self) -> bool:
        """Return whether the record was delivered or has failed."""
        return self.fate.outcome is not None

    def exception(self) -> HeadraceError | None:
        """Return the error of a record that failed; None if it is pending or was delivered."""
        self.observed = True
        outcome = self.fate.outcome
        return outcome if isinstance(outcome, HeadraceError) else None

    def metadata(self) -> RecordMetadata:
        """Return the record's partition and offset, or raise its error; only when `done`."""
        self.observed = True
        outcome = self.fate.outcome
        if isinstance(outcome, Written):
            base_offset, append_time_ms = outcome
            offset = base_offset + self.index if base_offset >= 0 else -1
            timestamp_ms = self.timestamp_ms if append_time_ms < 0 else append_time_ms
            return RecordMetadata(*self.fate.topic_partition, offset, timestamp_ms)
        assert outcome is not None, "the record is pending"
        raise outcome

    def add_done_callback(self, callback: Callable[[Self], object]) -> None:
        """Call a function with this object when the record is delivered or has failed; now, if it is `done`.

        Raises:
            ConfigError: The callback is not callable.
        """
        check_callback(callback)
        self.observed = True
        if self.done():
            callback(self)
        else:
            self.fate.watched.append((self, callback))
