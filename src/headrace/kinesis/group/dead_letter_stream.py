"""Dead letters that go to another stream, whose records have no headers: JSON that has everything."""

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
"""What every stream takes, key and data together."""


class DeadLetterStream:
    """Writes dead letters to a stream: `{"data": <base64>, "stream": .., "error-type": .., ...}`."""

    def __init__(self, stream: str, aws: AwsSettings) -> None:
        """Take the stream's name or ARN, and where it is."""
        self._stream = stream
        self._aws = aws
        self._producer = Producer(aws, linger_ms=0)

    async def prepare(self) -> None:
        """Look whether the stream is there. A worker may write to a stream that it has no right to describe.

        Raises:
            StreamNotFoundError: There is none.
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
                _log.info("the stream for dead letters cannot be looked at: %s", error)

    async def write(
        self, record: ConsumerRecord, headers: tuple[tuple[str, bytes | None], ...]
    ) -> None:
        """Write a record with what its dead letter's headers say, and wait until it is safe.

        Raises:
            KinesisError: It could not be written.
        """
        said = {
            name.removeprefix(_PREFIX): (value or b"").decode(errors="backslashreplace")
            for name, value in headers
            if name.startswith(_PREFIX)
        }
        traceback = dict(headers).get(_TRACEBACK)
        if traceback is not None:
            said["error-traceback"] = traceback.decode(errors="replace")
        key = (record.key or b"").decode()
        letter = {
            "stream": record.topic,
            "shard": record.shard if isinstance(record, StreamRecord) else str(record.partition),
            "timestamp_ms": record.timestamp_ms,
            "partition_key": key,
            **said,
        }
        data = _with_data(letter, record.value or b"", RECORD_BYTES - len(key.encode()))
        await (await self._producer.send(self._stream, data, partition_key=key))

    async def close(self) -> None:
        """Disconnect."""
        await self._producer.close(flush=False)


def _with_data(letter: dict[str, Any], data: bytes, limit_bytes: int) -> bytes:
    """Return a letter as JSON; of data that does not fit, the first part and how many bytes all are.

    Letters are longer than their records. One that the stream refuses would be written again for ever, and hold up its
    shard; it says where the whole record is.
    """
    cut = {**letter, "data_bytes": len(data), "data": ""}
    room = max(0, limit_bytes - len(msgspec.json.encode(cut)))
    kept = data[: room // 4 * 3]
    whole = {**letter, "data": ""} if len(kept) == len(data) else cut
    return msgspec.json.encode({**whole, "data": b64encode(kept).decode()})
