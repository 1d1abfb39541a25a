"""The outbox: the records that one handler call writes, until a transaction commits them with the offsets."""

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
from headrace.workers.output.outlet import Outlet


class Publisher(Protocol):
    """Writes results and dead letters: at once (`Outlet`), or in the transaction of the offsets (`Outbox`)."""

    async def publish(
        self,
        topic: str,
        value: Any,
        *,
        key: Any = None,
        headers: Headers = (),
        serde: Serde | None = None,
    ) -> RecordMetadata:
        """Write a value, encoded by its serde."""

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
        """Write a key and a value as bytes."""


class HandledKey(NamedTuple):
    """A key that `dedupe=` returned, with the offset of the record that it was returned for."""

    partition: TopicPartition
    offset: int
    key: Hashable


class Output(NamedTuple):
    """A record that waits for its transaction."""

    topic: str
    value: bytes | None
    key: bytes | None
    headers: Headers
    timestamp_ms: int | None
    partition: int | None


class Outbox:
    """Keeps what one attempt writes. If the attempt fails, the content is dropped."""

    __slots__ = ("_outlet", "keys", "outputs")

    def __init__(self, outlet: Outlet) -> None:
        self._outlet = outlet
        self.outputs: list[Output] = []
        self.keys: list[HandledKey] = []
        """The keys that `dedupe=` returned. They are remembered when the offsets are committed."""

    async def publish(
        self,
        topic: str,
        value: Any,
        *,
        key: Any = None,
        headers: Headers = (),
        serde: Serde | None = None,
    ) -> RecordMetadata:
        """Keep a value as bytes. The result has partition and offset -1: they are not known yet."""
        if any(name in (DELIVER_AT_MS, DELAY_MS) for name, _ in headers):
            raise ConfigError(
                'delivery="exactly_once" cannot write scheduled records: a transaction cannot delay a record. Leave '
                "the delivery time out, or use another delivery="
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
        """Keep bytes. A record that the topic would refuse raises an error now, so that the handler can react."""
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
