"""Dead letters in a stream: their fields, also for records that hardly fit into a stream record."""

from __future__ import annotations

import asyncio
import json
from base64 import b64decode

import pytest

from headrace.kinesis import AwsSettings
from headrace.kinesis.group.dead_letter_stream import DeadLetterStream
from headrace.stream_record import StreamRecord
from headrace.workers.failure.tracebacks import MAX_TEXT

KEY = "k" * 256
TRACEBACK = "Traceback (most recent call last):\n" + "\0" * (MAX_TEXT - 40)
HEADERS = (
    ("dlq-error-type", b"ValueError"),
    ("kafka_dlt-exception-stacktrace", TRACEBACK.encode()),
    ("kafka_dlt-original-topic", b"orders"),
)
LIMIT = 1 << 20


class Stream:
    def __init__(self) -> None:
        self.written: list[bytes] = []

    async def send(self, _stream: str, data: bytes, partition_key: str) -> asyncio.Future[None]:
        assert len(data) + len(partition_key) <= LIMIT, "Kinesis refuses it, however often"
        self.written.append(data)
        done = asyncio.get_running_loop().create_future()
        done.set_result(None)
        return done


@pytest.mark.parametrize("size", [0, 10, 700_000, LIMIT - 256])
def test_a_dead_letter_of_any_record_fits_into_a_stream_record(size: int) -> None:
    async def write() -> dict[str, object]:
        letters, stream = DeadLetterStream("dead", AwsSettings(region="eu-central-1")), Stream()
        letters._producer = stream  # type: ignore[assignment] # it has what is asked of it
        record = StreamRecord("orders", 3, 9 << 24, 7, KEY.encode(), b"x" * size, (), 1)
        await letters.write(record, HEADERS)
        (data,) = stream.written
        return dict(json.loads(data))

    letter = asyncio.run(write())
    kept = len(b64decode(str(letter["data"])))
    assert (letter["shard"], letter["error-type"]) == ("shardId-000000000003", "ValueError")
    assert letter["error-traceback"] == TRACEBACK, "of any length that it may have"
    assert "original-topic" not in letter, "the stream says that"
    if size <= 700_000:
        assert (kept, "data_bytes" in letter) == (size, False)
    else:
        assert 700_000 < kept < size
        assert letter["data_bytes"] == size
