"""GetRecords, with its reply decoded without botocore's parser.

That parser takes several times as long for a record as everything else together. botocore passes the reply to a handler
before it parses the reply. The handler decodes a successful reply of GetRecords here, and leaves an empty object for
the parser. botocore still does the request, its signature, the renewal of credentials, and errors.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar
from datetime import datetime
from typing import Any, Final

import msgspec

from headrace.kinesis.client.settings import AwsClient


class FetchedRecord(msgspec.Struct, rename="pascal", gc=False):
    """A record as Kinesis returns it."""

    sequence_number: str
    data: bytes
    partition_key: str
    approximate_arrival_timestamp: float = 0.0
    """The time of arrival in seconds since 1970."""
    encryption_type: str | None = None


class HashKeyRange(msgspec.Struct, rename="pascal"):
    """A range of hash keys, as text."""

    starting_hash_key: str
    ending_hash_key: str


class ChildShard(msgspec.Struct, rename="pascal"):
    """A child of a shard that has ended."""

    shard_id: str
    parent_shards: list[str]
    hash_key_range: HashKeyRange


class GetRecordsReply(msgspec.Struct, rename="pascal"):
    """The response of a GetRecords call."""

    records: list[FetchedRecord] = []
    next_shard_iterator: str | None = None
    """The iterator behind these records. None: the shard has ended, and these are its last records."""
    millis_behind_latest: int | None = None
    child_shards: list[ChildShard] | None = None


_decoder: Final = msgspec.json.Decoder(GetRecordsReply)
_REPLY: Final = "HeadraceReply"
_wanted: Final[ContextVar[bool]] = ContextVar("_wanted", default=False)
"""Whether the current call in this task is Headrace's. The program may share the client and expects dicts."""


def prepare(client: AwsClient) -> None:
    """Make a client decode replies faster in `get_records`. A client without events, such as a fake, is unchanged."""
    register = getattr(getattr(getattr(client, "meta", None), "events", None), "register", None)
    if register is not None:
        register("before-parse.kinesis.GetRecords", _before_parse, unique_id="headrace-get-records")


async def get_records(client: AwsClient, arguments: Mapping[str, Any]) -> GetRecordsReply:
    """Call GetRecords.

    Raises:
        Exception: The exception of the client.
    """
    token = _wanted.set(True)
    try:
        answer = await client.get_records(**arguments)
    finally:
        _wanted.reset(token)
    reply = answer.get(_REPLY)
    return reply if isinstance(reply, GetRecordsReply) else reply_of(answer)


def reply_of(answer: Mapping[str, Any]) -> GetRecordsReply:
    """Return a reply that botocore has parsed as a `GetRecordsReply`."""
    return GetRecordsReply(
        records=[stored_record(record) for record in answer.get("Records", ())],
        next_shard_iterator=answer.get("NextShardIterator"),
        millis_behind_latest=answer.get("MillisBehindLatest"),
        child_shards=child_shards(answer.get("ChildShards")),
    )


def stored_record(record: Mapping[str, Any]) -> FetchedRecord:
    """Return a record that botocore has parsed as a `FetchedRecord`."""
    stamp = record.get("ApproximateArrivalTimestamp", 0.0)
    return FetchedRecord(
        sequence_number=record["SequenceNumber"],
        data=record["Data"],
        partition_key=record["PartitionKey"],
        approximate_arrival_timestamp=stamp.timestamp() if isinstance(stamp, datetime) else stamp,
        encryption_type=record.get("EncryptionType"),
    )


def child_shards(parsed: Any) -> list[ChildShard] | None:
    """Return child shards that botocore has parsed as `ChildShard` objects."""
    return None if parsed is None else msgspec.convert(parsed, list[ChildShard])


def _before_parse(
    response_dict: dict[str, Any], customized_response_dict: dict[str, Any], **_others: object
) -> None:
    if not _wanted.get() or response_dict["status_code"] != 200:
        return
    try:
        customized_response_dict[_REPLY] = _decoder.decode(response_dict["body"])
    except msgspec.DecodeError:
        return  # botocore's parser accepts more forms of numbers and dates, and raises its own errors
    response_dict["body"] = b"{}"
