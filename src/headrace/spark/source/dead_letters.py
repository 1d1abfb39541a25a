"""Write records whose values do not decode to a dead-letter topic, with the same headers as workers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain
from types import TracebackType
from typing import Any, Final, Self

from headrace.clients.consumer.records import ConsumerRecord
from headrace.clients.producer.blocking import Producer
from headrace.clients.producer.blocking_delivery import DeliveryFuture
from headrace.dead_letters.letter_headers import (
    FailedRecord,
    dead_letter_headers,
    ever_smaller,
    origin_of,
)
from headrace.errors import HeadraceError, MessageTooLargeError
from headrace.spark.client.settings import client_properties
from headrace.spark.options.source import SourceOptions

GROUP: Final = "headrace-spark"
"""The group in the headers of dead letters if the read has no option `group`."""
MAX_REQUEST_BYTES: Final = 96 << 20
"""The largest request. Only the topic's `max.message.bytes` limits a dead letter, because it is as large as its
record."""


class DeadLetters:
    """The producer of one task's dead letters; a context manager."""

    def __init__(self, options: SourceOptions) -> None:
        """Prepare a producer. It connects when the first dead letter is sent."""
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
        """Write the records of some rows to the dead-letter topic, and wait until they are durable.

        A dead letter that is too large for the topic is shortened: its least important parts are left out.

        Args:
            batch: The rows, with the columns of `DEAD_LETTER_COLUMNS`.
            errors: The reasons by row number.

        Raises:
            HeadraceError: A dead letter could not be written. A repeated task writes all of them again.
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

    def _begin(self, record: ConsumerRecord, smaller: Iterator[FailedRecord]) -> DeliveryFuture:
        """Send the largest variant of a dead letter that the producer accepts.

        Raises:
            MessageTooLargeError: All variants are too large.
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
        assert refusal is not None, "there is at least one variant"
        raise refusal

    def _finish(
        self, delivery: DeliveryFuture, record: ConsumerRecord, smaller: Iterator[FailedRecord]
    ) -> None:
        """Wait until a dead letter is durable. If the broker refuses it as too large, send the next smaller variant."""
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


class UndecodableValue(ValueError):  # noqa: N818 - dead letters show this name to users
    """The error in a dead letter's headers."""


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
