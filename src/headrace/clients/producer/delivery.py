"""What a program holds while its record is under way."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, Self

from headrace.errors import HeadraceError
from headrace.types import TopicPartition


class RecordMetadata(NamedTuple):
    """Where a record went."""

    topic: str
    partition: int
    offset: int
    """-1 where the broker does not tell (acks=0)."""
    timestamp_ms: int
    """The record's time, or the broker's for topics that keep that."""


class Delivery:
    """The fate of one record: pending, delivered or failed. The producer's faces add the waiting."""

    __slots__ = ("_callbacks", "_outcome", "observed", "timestamp_ms", "topic_partition")

    def __init__(self, topic_partition: TopicPartition, timestamp_ms: int) -> None:
        self.topic_partition = topic_partition
        self.timestamp_ms = timestamp_ms
        self.observed = False
        """Whether the program has looked, or asked to be told: then a failure need not be raised elsewhere."""
        self._outcome: RecordMetadata | HeadraceError | None = None
        self._callbacks: tuple[Callable[[Any], object], ...] = ()

    def done(self) -> bool:
        """Whether the record was delivered or given up."""
        return self._outcome is not None

    def exception(self) -> HeadraceError | None:
        """Return why the record was given up; None while it is under way, and when it was delivered."""
        self.observed = True
        return self._outcome if isinstance(self._outcome, HeadraceError) else None

    def metadata(self) -> RecordMetadata:
        """Return where the record went, or raise why it was given up; only when done."""
        self.observed = True
        if isinstance(self._outcome, RecordMetadata):
            return self._outcome
        assert self._outcome is not None, "the record is still under way"
        raise self._outcome

    def add_done_callback(self, callback: Callable[[Self], object]) -> None:
        """Have a function called with this object when it is done; at once if it is."""
        self.observed = True
        if self.done():
            callback(self)
        else:
            self._callbacks = (*self._callbacks, callback)

    def settle(self, outcome: RecordMetadata | HeadraceError) -> Sequence[Callable[[], object]]:
        """Set the outcome; return the calls of the program's code that are now due."""
        self._outcome = outcome
        if not self._callbacks:
            return ()
        callbacks, self._callbacks = self._callbacks, ()
        return [partial(callback, self) for callback in callbacks]
