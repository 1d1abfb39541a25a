"""The events that SubscribeToShard pushes, read without botocore's parser where botocore allows that."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Any, Final

import msgspec

from headrace.kinesis.client.get_records import (
    ChildShard,
    FetchedRecord,
    child_shards,
    stored_record,
)

_NAME: Final = "SubscribeToShardEvent"


class PushedEvent(msgspec.Struct, rename="pascal"):
    """Records that were pushed."""

    records: list[FetchedRecord] = []
    continuation_sequence_number: str | None = None
    """Where the next subscription begins; None: the shard has ended."""
    millis_behind_latest: int | None = None
    child_shards: list[ChildShard] | None = None


_decoder: Final = msgspec.json.Decoder(PushedEvent)


async def events_of(stream: Any) -> AsyncIterator[PushedEvent]:
    """Return the events of a subscription as they come.

    Raises:
        Exception: What the stream raises: it was refused in the middle, or broke.
    """
    # Both are as old as event streams in botocore; where one is missing, the stream itself does it.
    raw, parse = getattr(stream, "_event_generator", None), getattr(stream, "_parse_event", None)
    if raw is None or parse is None:
        async for parsed in stream:
            if _NAME in parsed:
                yield event_of(parsed[_NAME])
        return
    async for message in raw:
        if message.headers.get(":event-type") == _NAME:
            event = _decoded(message.payload)
            yield event_of((await parse(message))[_NAME]) if event is None else event
        else:
            await parse(message)  # it raises what is an exception


def event_of(parsed: Mapping[str, Any]) -> PushedEvent:
    """Return an event that was parsed by botocore in the same form."""
    return PushedEvent(
        records=[stored_record(each) for each in parsed.get("Records", ())],
        continuation_sequence_number=parsed.get("ContinuationSequenceNumber"),
        millis_behind_latest=parsed.get("MillisBehindLatest"),
        child_shards=child_shards(parsed.get("ChildShards")),
    )


def _decoded(payload: bytes) -> PushedEvent | None:
    try:
        return _decoder.decode(payload)
    except msgspec.DecodeError:
        return None  # botocore's parser takes more kinds of numbers and dates
