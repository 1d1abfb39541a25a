"""The operations GetShardIterator and GetRecords."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import msgspec

from headrace.testing.kinesis.account import Account
from headrace.testing.kinesis.calls import Call
from headrace.testing.kinesis.errors import THROTTLED, AwsError, invalid, not_found
from headrace.testing.kinesis.numbers import parse_sequence
from headrace.testing.kinesis.putting import throttled_message
from headrace.testing.kinesis.shard import Shard, Slice
from headrace.testing.kinesis.stream import ACCOUNT, Stream
from headrace.testing.kinesis.tokens import Iterator

AT: Final = "AT_SEQUENCE_NUMBER"
AFTER: Final = "AFTER_SEQUENCE_NUMBER"


class Start(NamedTuple):
    """The start position in a request."""

    kind: str
    sequence_number: str | None
    timestamp: float | None


def get_shard_iterator(account: Account, call: Call) -> dict[str, object]:
    """Handle GetShardIterator: return an iterator for a start position."""
    request = call.request
    stream = account.usable(call)
    shard = stream.shard(request["ShardId"])
    shard.trim(stream.horizon_ms(call.now_ms))
    if account.limits.throttled and not shard.iterator_calls.take(
        call.now_ms, 1, account.limits.reads_per_s
    ):
        raise AwsError(THROTTLED, throttled_message(stream, shard))
    start = Start(
        request["ShardIteratorType"],
        request.get("StartingSequenceNumber"),
        request.get("Timestamp"),
    )
    sequence = starting_sequence(stream, shard, start, call)
    place = Iterator(stream.name, stream.created_ms, shard.number, sequence)
    return {"ShardIterator": account.tokens.write_iterator(place, call.now_ms)}


def starting_sequence(stream: Stream, shard: Shard, start: Start, call: Call) -> int:
    """Return the first sequence number to read, for each of the five kinds of start positions."""
    kind, number, timestamp = start
    if kind == "TRIM_HORIZON":
        return shard.first_sequence
    if kind == "LATEST":
        return shard.last_sequence + 1
    if kind == "AT_TIMESTAMP":
        return _at_timestamp(shard, timestamp, call.now_ms)
    if number is None:
        raise invalid(
            f"Must specify startingSequenceNumber parameter for iterator of type {kind}. Current "
            "request has no startingSequenceNumber parameter."
        )
    found = parse_sequence(int(number))
    if found is None or (found.shard, found.created_s) != (shard.number, shard.created_s):
        raise invalid(
            f"StartingSequenceNumber {number} used in {call.operation} on shard {shard.name} in "
            f"stream {stream.name} "
            f"under account {ACCOUNT} is invalid because it did not come from this stream."
        )
    return int(number) + (kind == AFTER)


def _at_timestamp(shard: Shard, timestamp: Any, now_ms: int) -> int:
    if timestamp is None:
        raise invalid(
            "Must specify timestampInMillis parameter for iterator of type AT_TIMESTAMP. "
            "Current request has no timestamp parameter."
        )
    timestamp_ms = round(timestamp * 1000)
    if timestamp_ms > now_ms:
        raise invalid(
            "The timestampInMillis parameter cannot be greater than the currentTimestampInMillis. "
            f"timestampInMillis: {timestamp_ms}, currentTimestampInMillis: {now_ms}"
        )
    return shard.sequence_at(timestamp_ms)


def get_records(account: Account, call: Call) -> bytes:
    """Handle GetRecords: return the records of a shard from an iterator on."""
    limits = account.limits
    place = account.tokens.read_iterator(call.request["ShardIterator"], call.now_ms, limits)
    limit = min(call.request.get("Limit", limits.get_records), limits.get_records)
    stream, shard = _shard_at(account, place, call.now_ms)
    if not shard.read_budget.admit(call.now_ms, limits):
        raise AwsError(THROTTLED, throttled_message(stream, shard))
    found = shard.read(place.sequence, limit, limits.get_bytes, call.now_ms)
    shard.read_budget.spend(call.now_ms, found.size, limits)
    return _answer(account, call, place, shard, found)


def _answer(account: Account, call: Call, place: Iterator, shard: Shard, found: Slice) -> bytes:
    rest: dict[str, object] = {"MillisBehindLatest": found.behind_ms}
    if has_ended(account, shard, found):
        rest["ChildShards"] = shard.child_shards()
    else:
        following = place._replace(sequence=found.next_sequence)
        rest["NextShardIterator"] = account.tokens.write_iterator(following, call.now_ms)
    return b'{"Records":[%b],%b' % (found.body, msgspec.json.encode(rest)[1:])


def nothing_yet(account: Account, call: Call) -> bytes:
    """Reply without records though there may be some, as GetRecords sometimes does. The position stays."""
    place = account.tokens.read_iterator(call.request["ShardIterator"], call.now_ms, account.limits)
    stream, shard = _shard_at(account, place, call.now_ms)
    if not shard.read_budget.admit(call.now_ms, account.limits):
        raise AwsError(THROTTLED, throttled_message(stream, shard))
    reply = {
        "Records": [],
        "NextShardIterator": account.tokens.write_iterator(place, call.now_ms),
        "MillisBehindLatest": shard.behind_ms(place.sequence, call.now_ms),
    }
    return msgspec.json.encode(reply)


def has_ended(account: Account, shard: Shard, found: Slice) -> bool:
    """Whether a read has reached the end of a closed shard."""
    if shard.closed_ms is None or not found.is_last:
        return False
    return not found.records or account.shard_end == "with_data"


def _shard_at(account: Account, place: Iterator, now_ms: int) -> tuple[Stream, Shard]:
    stream = account.named(place.stream, now_ms)
    if stream.created_ms != place.created_ms or place.shard not in stream.shards:
        raise not_found(
            f"Shard of the iterator in stream {place.stream} under account {ACCOUNT} does not "
            "exist."
        )
    shard = stream.shards[place.shard]
    shard.trim(stream.horizon_ms(now_ms))
    return stream, shard
