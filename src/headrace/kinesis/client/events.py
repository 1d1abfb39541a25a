"""The events that SubscribeToShard pushes, decoded without botocore's parser if botocore allows it."""

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
    """An event with records that Kinesis pushed."""

    records: list[FetchedRecord] = []
    continuation_sequence_number: str | None = None
    """The position at which the next subscription begins. None: the shard has ended."""
    millis_behind_latest: int | None = None
    child_shards: list[ChildShard] | None = None


_decoder: Final = msgspec.json.Decoder(PushedEvent)


async def events_of(stream: Any) -> AsyncIterator[PushedEvent]:
    """Yield the events of a subscription as they arrive.

    Raises:
        Exception: The exception of the stream: the subscription was refused or the connection broke.
    """
    # Private methods of botocore, as old as its event streams. If one is missing, the stream parses its events.
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
            await parse(message)  # raises the exception that an exception event describes


def event_of(parsed: Mapping[str, Any]) -> PushedEvent:
    """Return an event that botocore has parsed as a `PushedEvent`."""
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
        return None  # botocore's parser accepts more forms of numbers and dates
