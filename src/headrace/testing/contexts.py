"""A `context` for the unit test of a handler, without a broker."""

from __future__ import annotations

from collections.abc import Collection, Generator
from typing import Any, NamedTuple

from headrace.clients.consumer.records import ConsumerRecord
from headrace.clients.producer.delivery import RecordMetadata
from headrace.dead_letters.letter_headers import Headers, origin_of
from headrace.records.directives import directives
from headrace.workers.handler.context import Context, SyncContext


class Published(NamedTuple):
    """The arguments of one call of `context.publish`."""

    topic: str
    value: Any
    """The value before it is serialized."""
    key: Any
    headers: Headers
    """All headers, with those for time to live, delivery time and tags."""


class Sent(RecordMetadata):
    """The result of `publish`. A coroutine may await it; a plain function uses it directly."""

    def __await__(self) -> Generator[Any, None, RecordMetadata]:
        yield from ()
        return self


class _Held:
    """An assigned partition that the test can take away."""

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
        """Make `valid()` return False from now on, as if another member owned the partition."""
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
        """Store a record in `published`; return the partition and offset that it would have. It may be awaited."""
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
    """Return a `context` for a handler that a unit test calls: `bill(order, headrace.testing.context("orders"))`.

    Args:
        topic: The topic of the record.
        partition: The partition of the record.
        offset: The offset of the record.
        key: The key of the record.
        value: The value as bytes, `context.record.value`. The test passes the decoded value to the handler itself.
        headers: The headers of the record.
        timestamp_ms: The timestamp of the record, in milliseconds since 1970.
        attempt: The number of the attempt, from 1.
        epoch: The fencing token of the partition.
        records: The records of a batch, in place of the record that the other arguments describe.
    """
    one = ConsumerRecord(topic, partition, offset, timestamp_ms, key, value, headers, 0)
    return HandlerContext(list(records) or [one], attempt, epoch)
