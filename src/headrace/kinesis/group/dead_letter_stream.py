"""Dead letters in a stream. Records of streams have no headers, so a dead letter is a JSON object."""

from __future__ import annotations

import logging
from base64 import b64encode
from typing import TYPE_CHECKING, Any, Final

import msgspec

from headrace.clients.consumer.records import ConsumerRecord
from headrace.errors import KinesisError, StreamNotFoundError
from headrace.kinesis.aio import Producer
from headrace.kinesis.client.backoff import FIRST_CONTACT_MS
from headrace.kinesis.client.opening import open_client
from headrace.kinesis.reading.shards import StreamShards
from headrace.stream_record import StreamRecord

if TYPE_CHECKING:
    from headrace.kinesis.client.settings import AwsSettings

_log: Final = logging.getLogger("headrace.kinesis")

_PREFIX = "dlq-"
_TRACEBACK: Final = "kafka_dlt-exception-stacktrace"
RECORD_BYTES: Final = 1 << 20
"""The largest record that every stream accepts, in bytes of key and data together."""


class DeadLetterStream:
    """Writes dead letters to a stream: `{"data": <base64>, "stream": .., "error-type": .., ...}`."""

    def __init__(self, stream: str, aws: AwsSettings) -> None:
        """Prepare a writer; it connects in `prepare` or with the first dead letter."""
        self._stream = stream
        self._aws = aws
        self._producer = Producer(aws, linger_ms=0)

    async def prepare(self) -> None:
        """Check that the stream exists. A worker without permission to describe the stream can still write to it.

        Raises:
            StreamNotFoundError: The stream does not exist.
            ConfigError: Credentials, region or endpoint are wrong.
        """
        async with open_client(self._aws, "kinesis") as client:
            try:
                await StreamShards(client, self._stream).describe(
                    within_ms=0, answer_within_ms=FIRST_CONTACT_MS
                )
            except StreamNotFoundError:
                raise
            except KinesisError as error:
                _log.info("the stream for dead letters cannot be described: %s", error)

    async def write(
        self, record: ConsumerRecord, headers: tuple[tuple[str, bytes | None], ...]
    ) -> None:
        """Write a record with the headers of its dead letter as fields, and wait until the dead letter is stored.

        Raises:
            KinesisError: The dead letter could not be written.
        """
        fields = {
            name.removeprefix(_PREFIX): (value or b"").decode(errors="backslashreplace")
            for name, value in headers
            if name.startswith(_PREFIX)
        }
        traceback = dict(headers).get(_TRACEBACK)
        if traceback is not None:
            fields["error-traceback"] = traceback.decode(errors="replace")
        key = (record.key or b"").decode()
        letter = {
            "stream": record.topic,
            "shard": record.shard if isinstance(record, StreamRecord) else str(record.partition),
            "timestamp_ms": record.timestamp_ms,
            "partition_key": key,
            **fields,
        }
        data = _with_data(letter, record.value or b"", RECORD_BYTES - len(key.encode()))
        await (await self._producer.send(self._stream, data, partition_key=key))

    async def close(self) -> None:
        """Disconnect from Kinesis at once."""
        await self._producer.close(flush=False)


def _with_data(letter: dict[str, Any], data: bytes, limit_bytes: int) -> bytes:
    """Return a dead letter as JSON. If the data is too large, include its first part and the number of all its bytes.

    A dead letter is larger than its record. If the stream refused it, the worker would retry the write for ever and the
    shard would not advance. The dead letter says where the whole record is.
    """
    cut = {**letter, "data_bytes": len(data), "data": ""}
    space = max(0, limit_bytes - len(msgspec.json.encode(cut)))
    kept = data[: space // 4 * 3]
    whole = {**letter, "data": ""} if len(kept) == len(data) else cut
    return msgspec.json.encode({**whole, "data": b64encode(kept).decode()})
