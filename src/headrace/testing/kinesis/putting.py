"""The operations PutRecord and PutRecords."""

from __future__ import annotations

import binascii
from typing import Any, Final, NamedTuple

from headrace.testing.kinesis.account import Account
from headrace.testing.kinesis.calls import Call
from headrace.testing.kinesis.errors import THROTTLED, AwsError, invalid, malformed
from headrace.testing.kinesis.limits import MIB
from headrace.testing.kinesis.numbers import LAST_HASH_KEY, hash_key
from headrace.testing.kinesis.shard import Shard
from headrace.testing.kinesis.stream import ACCOUNT, Stream

_LONGEST_KEY: Final = 256


class PutEntry(NamedTuple):
    """A record that is to be written.

    Attributes:
        data: The data in base64.
        partition_key: The partition key of the record.
        size: The bytes that count: data and partition key.
        shard: The shard of the record's hash key.
    """

    data: str
    partition_key: str
    size: int
    shard: Shard


def put_record(account: Account, call: Call) -> dict[str, object]:
    """Handle PutRecord: write one record."""
    stream = account.usable(call)
    entry = _entry(call.request, stream, "")
    call.shard = entry.shard.name
    sequence = _store(account, stream, entry, call.now_ms)
    if sequence is None:
        raise AwsError(THROTTLED, throttled_message(stream, entry.shard))
    reply: dict[str, object] = {"ShardId": entry.shard.name, "SequenceNumber": str(sequence)}
    return reply | _encryption(stream)


def put_records(account: Account, call: Call) -> dict[str, object]:
    """Handle PutRecords: write each record separately. Some may be refused."""
    rows = call.request["Records"]
    most = account.limits.put_request_records
    if not 1 <= len(rows) <= most:
        raise malformed("[...]", "Records", f"have length between 1 and {most}")
    stream = account.usable(call)
    entries = [_entry(row, stream, f"records.{at}.member.") for at, row in enumerate(rows, 1)]
    if sum(entry.size for entry in entries) > account.limits.put_request_bytes:
        raise invalid(f"Records size exceeds {account.limits.put_request_bytes // MIB} MB limit")
    reply = [_put_one(account, stream, entry, call, at) for at, entry in enumerate(entries)]
    if len({entry.shard.name for entry in entries}) == 1:
        call.shard = entries[0].shard.name
    failed = sum("ErrorCode" in each for each in reply)
    return {"FailedRecordCount": failed, "Records": reply} | _encryption(stream)


def throttled_message(stream: Stream, shard: Shard) -> str:
    """Return the message of AWS for a shard whose rate limit is exceeded."""
    return f"Rate exceeded for shard {shard.name} in stream {stream.name} under account {ACCOUNT}."


def _put_one(
    account: Account, stream: Stream, entry: PutEntry, call: Call, at: int
) -> dict[str, str]:
    if at in call.failing:
        kind = call.failing[at]
        internal = "Internal service failure."
        message = throttled_message(stream, entry.shard) if kind == THROTTLED else internal
        return {"ErrorCode": kind, "ErrorMessage": message}
    sequence = _store(account, stream, entry, call.now_ms)
    if sequence is None:
        return {"ErrorCode": THROTTLED, "ErrorMessage": throttled_message(stream, entry.shard)}
    return {"SequenceNumber": str(sequence), "ShardId": entry.shard.name}


def _entry(row: dict[str, Any], stream: Stream, where: str) -> PutEntry:
    data, key = row.get("Data"), row.get("PartitionKey")
    if not isinstance(data, str):
        raise malformed(None, f"{where}data", "not be null")
    if not isinstance(key, str):
        raise malformed(None, f"{where}partitionKey", "not be null")
    if not 1 <= len(key) <= _LONGEST_KEY:
        raise malformed(key, f"{where}partitionKey", "have length between 1 and 256")
    try:
        size = len(binascii.a2b_base64(data, strict_mode=True)) if data else 0
    except binascii.Error as error:
        raise AwsError("SerializationException", "Data is not base64") from error
    size += len(key.encode())
    if size > stream.max_record_bytes:
        most = stream.max_record_bytes
        raise malformed(
            "java.nio.HeapByteBuffer", f"{where}data", f"have length less than or equal to {most}"
        )
    return PutEntry(data, key, size, _shard_for(row, key, stream))


def _shard_for(row: dict[str, Any], partition_key: str, stream: Stream) -> Shard:
    explicit = row.get("ExplicitHashKey")
    if explicit is None:
        return stream.shard_of(hash_key(partition_key))
    key = int(explicit) if str(explicit).isdecimal() else -1
    if not 0 <= key <= LAST_HASH_KEY:
        raise invalid(
            "Invalid ExplicitHashKey. ExplicitHashKey must be in the range: [0, 2^128-1]. "
            f"Specified value was {explicit}"
        )
    return stream.shard_of(key)


def _store(account: Account, stream: Stream, entry: PutEntry, now_ms: int) -> int | None:
    """Write a record; None if the rate limit of the shard is exceeded."""
    if not entry.shard.put_budget.take(now_ms, entry.size, account.limits):
        return None
    return entry.shard.append(
        stream.next_record(),
        now_ms,
        entry.data,
        entry.size,
        partition_key=entry.partition_key,
        is_encrypted=stream.key_id is not None,
    )


def _encryption(stream: Stream) -> dict[str, object]:
    return {"EncryptionType": "KMS"} if stream.key_id else {}
