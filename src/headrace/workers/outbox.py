"""What one call of a handler wants written, kept until its records' positions are committed with it."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, NamedTuple, Protocol

from headrace.clients.producer.delivery import RecordMetadata
from headrace.clients.producer.record_checks import check_record
from headrace.dead_letters.letter_headers import Headers
from headrace.errors import ConfigError
from headrace.records.builder import encode_headers
from headrace.records.directives import DELAY_MS, DELIVER_AT_MS
from headrace.serdes.serde import Serde
from headrace.types import TopicPartition
from headrace.workers.outlet import Outlet


class Publisher(Protocol):
    """Where results and letters go: at once (`Outlet`), or with their records' positions (`Outbox`)."""

    async def publish(
        self,
        topic: str,
        value: Any,
        *,
        key: Any = None,
        headers: Headers = (),
        serde: Serde | None = None,
    ) -> RecordMetadata:
        """Write a value."""

    async def write(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None,
        headers: Headers = (),
        timestamp_ms: int | None = None,
        partition: int | None = None,
    ) -> RecordMetadata:
        """Write bytes."""


class HandledKey(NamedTuple):
    """A key that `dedupe=` returned, with the offset of the record that it was returned for."""

    partition: TopicPartition
    offset: int
    key: Hashable


class Output(NamedTuple):
    """A record that is to be written."""

    topic: str
    value: bytes | None
    key: bytes | None
    headers: Headers
    timestamp_ms: int | None
    partition: int | None


class Outbox:
    """Takes what one attempt writes. If the attempt fails, nobody ever sees it."""

    __slots__ = ("_outlet", "keys", "outputs")

    def __init__(self, outlet: Outlet) -> None:
        self._outlet = outlet
        self.outputs: list[Output] = []
        self.keys: list[HandledKey] = []
        """Of `dedupe=`, to be remembered when the positions are committed."""

    async def publish(
        self,
        topic: str,
        value: Any,
        *,
        key: Any = None,
        headers: Headers = (),
        serde: Serde | None = None,
    ) -> RecordMetadata:
        """Keep a value, as bytes; where it will be written is not known yet (-1)."""
        if any(name in (DELIVER_AT_MS, DELAY_MS) for name, _ in headers):
            raise ConfigError(
                "what is written in a transaction cannot be delayed: leave the time out, or use another delivery= than "
                '"exactly_once"'
            )
        data, encoded = await self._outlet.encode(topic, value, key, serde)
        return await self.write(topic, data, key=encoded, headers=headers)

    async def write(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None,
        headers: Headers = (),
        timestamp_ms: int | None = None,
        partition: int | None = None,
    ) -> RecordMetadata:
        """Keep bytes. What would refuse them later does so now, while the handler can be told."""
        try:
            size = len(encode_headers(headers)) + len(value or b"") + len(key or b"")
        except (AttributeError, TypeError, ValueError) as error:
            check_record(headers, timestamp_ms)
            text = f"headers are pairs of text and bytes (or None), not {headers!r}"
            raise ConfigError(text) from error
        at_ms = self._outlet.now_ms() if timestamp_ms is None else timestamp_ms
        await self._outlet.check_record(topic, (key, value, headers, at_ms), size)
        self.outputs.append(Output(topic, value, key, headers, at_ms, partition))
        return RecordMetadata(topic, -1, -1, at_ms)
