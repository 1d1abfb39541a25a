"""Records whose values do not decode, on their way to a topic of dead letters, with the headers that workers use."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain
from types import TracebackType
from typing import Any, Final, Self

from headrace.clients.consumer.records import ConsumerRecord
from headrace.clients.producer.blocking import Producer
from headrace.clients.producer.blocking_delivery import DeliveryFuture
from headrace.dead_letters.letter_headers import (
    Letter,
    dead_letter_headers,
    ever_smaller,
    origin_of,
)
from headrace.errors import HeadraceError, MessageTooLargeError
from headrace.spark.client.settings import client_properties
from headrace.spark.options.source import SourceOptions

GROUP: Final = "headrace-spark"
"""Whose letters they are, if the read has no group."""
MAX_REQUEST_BYTES: Final = 96 << 20
"""What was a record is one again, however large: the topic's own `max.message.bytes` bounds it."""


class DeadLetters:
    """The producer of one task's letters; a context manager."""

    def __init__(self, options: SourceOptions) -> None:
        """Prepare a producer; nothing is connected before the first letter."""
        assert options.decode is not None
        assert options.decode.dlq_topic is not None
        self._topic = options.decode.dlq_topic
        self._group = options.group or GROUP
        self._producer = Producer(
            options.client.bootstrap,
            serde="bytes",
            key_serde="bytes",
            recreate_topics=False,
            max_request_size=MAX_REQUEST_BYTES,
            **client_properties(options.client),
        )

    def send(self, batch: Any, errors: Mapping[int, str]) -> None:
        """Write the records of some rows, and wait until they are durable.

        A letter that is too large for its topic loses what it can be read without.

        Raises:
            HeadraceError: They could not be written; those of a task that is run again are written again.
        """
        waiting = []
        try:
            for row, why in errors.items():
                record = _record(batch, row)
                error = UndecodableValue(why)
                headers = dead_letter_headers(record, origin_of(record), self._group, 1, error)
                smaller = ever_smaller(record, headers)
                waiting.append((self._begin(record, smaller), record, smaller))
            for delivery, record, smaller in waiting:
                self._finish(delivery, record, smaller)
        except HeadraceError as error:
            raise HeadraceError(
                f"option onError: {len(errors)} values do not decode, and cannot be written to {self._topic}: {error}"
            ) from error

    def _begin(self, record: ConsumerRecord, smaller: Iterator[Letter]) -> DeliveryFuture:
        """Send the first letter that the producer takes.

        Raises:
            MessageTooLargeError: It takes none of them.
        """
        time_ms = max(record.timestamp_ms, 0)
        refusal: MessageTooLargeError | None = None
        for value, key, headers, _ in smaller:
            try:
                return self._producer.send(
                    self._topic, value, key=key, headers=headers, timestamp_ms=time_ms
                )
            except MessageTooLargeError as error:
                refusal = error
        assert refusal is not None, "there is at least one letter to try"
        raise refusal

    def _finish(
        self, delivery: DeliveryFuture, record: ConsumerRecord, smaller: Iterator[Letter]
    ) -> None:
        """Wait for a letter; if it is too large, write the next of those with ever less in them."""
        while True:
            try:
                delivery.result()
            except MessageTooLargeError:
                letter = next(smaller, None)
                if letter is None:
                    raise
                delivery = self._begin(record, chain([letter], smaller))
            else:
                return

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._producer.close()


class UndecodableValue(ValueError):  # noqa: N818 - letters show this name to people
    """What a dead letter names as its error."""


def _record(batch: Any, row: int) -> ConsumerRecord:
    cells = {name: batch.column(name)[row] for name in batch.schema.names}
    return ConsumerRecord(
        cells["topic"].as_py(),
        cells["partition"].as_py(),
        cells["offset"].as_py(),
        cells["timestamp"].value // 1000,
        cells["key"].as_py(),
        cells["value"].as_py(),
        tuple((each["key"], each["value"]) for each in cells["headers"].as_py()),
        -1,
    )
