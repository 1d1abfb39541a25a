"""A `context` for the unit test of a handler, without a broker."""

from __future__ import annotations

from collections.abc import Collection, Generator
from typing import Any, NamedTuple

from headrace.clients.consumer.records import ConsumerRecord
from headrace.clients.producer.delivery import RecordMetadata
from headrace.dead_letters.letter_headers import Headers, origin_of
from headrace.records.directives import directives
from headrace.workers.context import Context, SyncContext


class Published(NamedTuple):
    """The arguments of one call of `context.publish`."""

    topic: str
    value: Any
    """The value as given, not serialized."""
    key: Any
    headers: Headers
    """With what the times and tags lead to."""


class Sent(RecordMetadata):
    """Where a record went; it may be awaited, as in a coroutine, or used at once, as in a plain function."""

    def __await__(self) -> Generator[Any, None, RecordMetadata]:
        yield from ()
        return self


class _Held:
    """A partition that is the test's to keep or to lose."""

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.is_valid = True

    def wanted(self) -> bool:
        return self.is_valid

    def valid(self) -> bool:
        return self.is_valid


class HandlerContext(SyncContext):
    """The object that `context` returns: a `Context` and `SyncContext` that records what is published.

    Attributes:
        published: What the handler published, in order.
    """

    __slots__ = ("_held", "published")

    def __init__(self, records: list[ConsumerRecord], attempt: int, epoch: int) -> None:
        self._held = _Held(epoch)
        nowhere: Any = None  # `publish` is this class's own
        held: Any = self._held
        Context.__init__(self, records, origin_of(records[0]), attempt, nowhere, held)
        self.published: list[Published] = []

    def lose(self) -> None:
        """Have `valid()` return False from now on: the partition is another member's."""
        self._held.is_valid = False

    def publish(
        self,
        topic: str,
        value: Any,
        *,
        key: Any = None,
        headers: Headers = (),
        deliver_at_ms: int | None = None,
        delay_ms: int | None = None,
        ttl_ms: int | None = None,
        tags: Collection[str] = (),
    ) -> Sent:
        """Keep a record, and return where it would be; to be awaited, or not, as in a handler."""
        own = tuple(
            directives(
                headers, ttl_ms=ttl_ms, deliver_at_ms=deliver_at_ms, delay_ms=delay_ms, tags=tags
            )
        )
        offset = sum(each.topic == topic for each in self.published)
        self.published.append(Published(topic, value, key, own))
        return Sent(topic, 0, offset, self.timestamp_ms)


def context(
    topic: str = "test",
    *,
    partition: int = 0,
    offset: int = 0,
    key: bytes | None = None,
    value: bytes | None = None,
    headers: Headers = (),
    timestamp_ms: int = 0,
    attempt: int = 1,
    epoch: int = 1,
    records: Collection[ConsumerRecord] = (),
) -> HandlerContext:
    """Return the `context` of a call that a unit test makes, as in `bill(order, headrace.testing.context("orders"))`.

    Args:
        topic: The record's topic.
        partition: Its partition.
        offset: Its offset.
        key: Its key.
        value: Its value, as bytes: `context.record.value`. The handler's own argument is the test's to give.
        headers: Its headers.
        timestamp_ms: Its time, milliseconds since 1970.
        attempt: Which attempt it is, from 1.
        epoch: The fencing token.
        records: The records of a batch, in place of the one that the arguments describe.
    """
    one = ConsumerRecord(topic, partition, offset, timestamp_ms, key, value, headers, 0)
    return HandlerContext(list(records) or [one], attempt, epoch)
