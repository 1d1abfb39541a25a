"""GetRecords, and its answer without botocore's parser.

That parser spends several times as much on a record as everything else together. botocore itself hands out the
answer before it parses: what is a success of GetRecords is decoded here and the parser gets an empty object. The
request, its signature, credentials that are renewed, and errors remain botocore's.
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
    """A shard that follows one that has ended."""

    shard_id: str
    parent_shards: list[str]
    hash_key_range: HashKeyRange


class GetRecordsReply(msgspec.Struct, rename="pascal"):
    """The answer of a GetRecords call."""

    records: list[FetchedRecord] = []
    next_shard_iterator: str | None = None
    """None: the shard has ended, and these are its last records."""
    millis_behind_latest: int | None = None
    child_shards: list[ChildShard] | None = None


_decoder: Final = msgspec.json.Decoder(GetRecordsReply)
_REPLY: Final = "HeadraceReply"
_wanted: Final[ContextVar[bool]] = ContextVar("_wanted", default=False)
"""Whether the current call in this task is Headrace's. The program may share the client and expects dicts."""


def prepare(client: AwsClient) -> None:
    """Let a client decode faster what `get_records` asks for; one that cannot, such as a fake, stays as it is."""
    register = getattr(getattr(getattr(client, "meta", None), "events", None), "register", None)
    if register is not None:
        register("before-parse.kinesis.GetRecords", _before_parse, unique_id="headrace-get-records")


async def get_records(client: AwsClient, arguments: Mapping[str, Any]) -> GetRecordsReply:
    """Call GetRecords.

    Raises:
        Exception: What the client raises.
    """
    token = _wanted.set(True)
    try:
        answer = await client.get_records(**arguments)
    finally:
        _wanted.reset(token)
    reply = answer.get(_REPLY)
    return reply if isinstance(reply, GetRecordsReply) else reply_of(answer)


def reply_of(answer: Mapping[str, Any]) -> GetRecordsReply:
    """Return an answer that was parsed by botocore in the same form."""
    return GetRecordsReply(
        records=[stored_record(record) for record in answer.get("Records", ())],
        next_shard_iterator=answer.get("NextShardIterator"),
        millis_behind_latest=answer.get("MillisBehindLatest"),
        child_shards=child_shards(answer.get("ChildShards")),
    )


def stored_record(record: Mapping[str, Any]) -> FetchedRecord:
    """Return a record that was parsed by botocore."""
    stamp = record.get("ApproximateArrivalTimestamp", 0.0)
    return FetchedRecord(
        sequence_number=record["SequenceNumber"],
        data=record["Data"],
        partition_key=record["PartitionKey"],
        approximate_arrival_timestamp=stamp.timestamp() if isinstance(stamp, datetime) else stamp,
        encryption_type=record.get("EncryptionType"),
    )


def child_shards(parsed: Any) -> list[ChildShard] | None:
    """Return child shards that were parsed by botocore."""
    return None if parsed is None else msgspec.convert(parsed, list[ChildShard])


def _before_parse(
    response_dict: dict[str, Any], customized_response_dict: dict[str, Any], **_others: object
) -> None:
    if not _wanted.get() or response_dict["status_code"] != 200:
        return
    try:
        customized_response_dict[_REPLY] = _decoder.decode(response_dict["body"])
    except msgspec.DecodeError:
        return  # botocore's parser takes more kinds of numbers and dates, and knows how to complain
    response_dict["body"] = b"{}"
