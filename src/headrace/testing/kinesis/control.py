"""The operations on whole streams: create, describe, list, delete, and change settings."""

from __future__ import annotations

from typing import Final

from headrace.testing.kinesis.account import Account
from headrace.testing.kinesis.calls import Call
from headrace.testing.kinesis.errors import AwsError, in_use, invalid, malformed
from headrace.testing.kinesis.limits import KIB
from headrace.testing.kinesis.stream import ACCOUNT, ACTIVE, CREATING, DELETING, UPDATING, Stream

_MODE: Final = "StreamModeDetails"
_MODES: Final = frozenset({"PROVISIONED", "ON_DEMAND"})
_ON_DEMAND_SHARDS: Final = 4
_DEFAULT_PAGE: Final = 100
_SHORTEST_RETENTION_HOURS: Final = 24
_LONGEST_RETENTION_HOURS: Final = 8_760


def create_stream(account: Account, call: Call) -> None:
    """Handle CreateStream: create a stream."""
    request = call.request
    name = request["StreamName"]
    account.settle(call.now_ms)
    if name in account.streams:
        raise in_use(f"Stream {name} under account {ACCOUNT} already exists.")
    mode = _mode(request.get(_MODE, {}))
    shards = request.get("ShardCount", _ON_DEMAND_SHARDS if mode == "ON_DEMAND" else None)
    if shards is None:
        raise invalid("ShardCount must be specified for a stream of mode PROVISIONED.")
    stream = Stream(name, account.arn(name), shards, call.now_ms, mode)
    stream.max_record_bytes = request.get("MaxRecordSizeInKiB", KIB) * KIB
    account.streams[name] = stream
    account.begin(stream, CREATING, call.now_ms, stream.build)


def _mode(details: dict[str, str]) -> str:
    mode = details.get("StreamMode", "PROVISIONED")
    if mode not in _MODES:
        raise malformed(
            mode, "streamModeDetails.streamMode", "satisfy enum value set: [PROVISIONED, ON_DEMAND]"
        )
    return mode


def delete_stream(account: Account, call: Call) -> None:
    """Handle DeleteStream: delete a stream, with its consumers of fan-out if the request says so."""
    stream = account.stream(call)
    if stream.status == DELETING:
        return
    readers = [each for each in account.consumers.values() if each.stream is stream]
    if readers and not call.request.get("EnforceConsumerDeletion"):
        raise in_use(
            f"Stream {stream.name} under account {ACCOUNT} has enhanced consumers registered and "
            "EnforceConsumerDeletion is not set."
        )
    account.begin(stream, DELETING, call.now_ms, lambda _: account.remove(stream))


def list_streams(account: Account, call: Call) -> dict[str, object]:
    """Handle ListStreams: list streams by name."""
    account.settle(call.now_ms)
    after = call.request.get("NextToken") or call.request.get("ExclusiveStartStreamName") or ""
    limit = call.request.get("Limit", _DEFAULT_PAGE)
    names = sorted(name for name in account.streams if name > after)
    page = names[:limit]
    reply: dict[str, object] = {
        "StreamNames": page,
        "HasMoreStreams": len(names) > limit,
        "StreamSummaries": [_summary(account.streams[name]) for name in page],
    }
    return reply | ({"NextToken": page[-1]} if len(names) > limit else {})


def describe_stream_summary(account: Account, call: Call) -> dict[str, object]:
    """Handle DescribeStreamSummary: describe a stream without its shards."""
    stream = account.stream(call)
    consumers = sum(each.stream is stream for each in account.consumers.values())
    reply = _described(stream) | {
        "OpenShardCount": len(stream.open_shards()),
        "ConsumerCount": consumers,
        "MaxRecordSizeInKiB": stream.max_record_bytes // KIB,
    }
    return {"StreamDescriptionSummary": reply}


def describe_stream(account: Account, call: Call) -> dict[str, object]:
    """Handle DescribeStream: describe a stream with a page of its shards."""
    stream = account.stream(call)
    after = call.request.get("ExclusiveStartShardId", "")
    limit = call.request.get("Limit", _DEFAULT_PAGE)
    shards = [shard for shard in stream.listed(call.now_ms) if shard.name > after]
    reply = _described(stream) | {
        "Shards": [shard.described() for shard in shards[:limit]],
        "HasMoreShards": len(shards) > limit,
    }
    return {"StreamDescription": reply}


def _summary(stream: Stream) -> dict[str, object]:
    return {
        "StreamName": stream.name,
        "StreamARN": stream.arn,
        "StreamStatus": stream.status,
        "StreamModeDetails": {"StreamMode": stream.mode},
        "StreamCreationTimestamp": stream.created_ms / 1000,
    }


def _described(stream: Stream) -> dict[str, object]:
    encryption: dict[str, object] = {"EncryptionType": "NONE"}
    if stream.key_id:
        encryption = {"EncryptionType": "KMS", "KeyId": stream.key_id}
    return (
        _summary(stream)
        | {
            "RetentionPeriodHours": stream.retention_hours,
            "EnhancedMonitoring": [{"ShardLevelMetrics": []}],
        }
        | encryption
    )


def increase_retention(account: Account, call: Call) -> None:
    """Handle IncreaseStreamRetentionPeriod: keep records longer."""
    _set_retention(account, call, grow=True)


def decrease_retention(account: Account, call: Call) -> None:
    """Handle DecreaseStreamRetentionPeriod: keep records for a shorter time."""
    _set_retention(account, call, grow=False)


def _set_retention(account: Account, call: Call, *, grow: bool) -> None:
    stream = account.stream(call)
    hours = call.request["RetentionPeriodHours"]
    if not _SHORTEST_RETENTION_HOURS <= hours <= _LONGEST_RETENTION_HOURS:
        raise invalid(
            f"Retention period must be between {_SHORTEST_RETENTION_HOURS} and "
            f"{_LONGEST_RETENTION_HOURS} hours, not {hours}."
        )
    if (hours < stream.retention_hours) if grow else (hours > stream.retention_hours):
        raise invalid(
            f"Requested retention period ({hours} hours) for stream {stream.name} can not be "
            f"{'shorter' if grow else 'longer'} than the existing retention period "
            f"({stream.retention_hours} hours)."
        )
    stream.require_active()
    stream.retention_hours = hours


def update_max_record_size(account: Account, call: Call) -> None:
    """Handle UpdateMaxRecordSize: allow larger records."""
    stream = account.stream(call)
    stream.require_active()
    stream.max_record_bytes = call.request["MaxRecordSizeInKiB"] * KIB


def update_stream_mode(account: Account, call: Call) -> None:
    """Handle UpdateStreamMode: change between provisioned and on demand."""
    stream = account.stream(call)
    stream.require_active()
    stream.mode = _mode(call.request[_MODE])


def start_encryption(account: Account, call: Call) -> None:
    """Handle StartStreamEncryption: mark later records as encrypted. The fake does not encrypt them."""
    stream = account.stream(call)
    stream.require_active()
    stream.key_id = call.request["KeyId"]
    account.begin(stream, UPDATING, call.now_ms, lambda _: None)


def stop_encryption(account: Account, call: Call) -> None:
    """Handle StopStreamEncryption: stop encrypting records."""
    stream = account.stream(call)
    stream.require_active()
    stream.key_id = None
    account.begin(stream, UPDATING, call.now_ms, lambda _: None)


def require_provisioned(stream: Stream) -> None:
    """Refuse to reshard an on-demand stream, whose shards AWS manages."""
    if stream.mode != "PROVISIONED":
        raise AwsError(
            "ValidationException",
            f"Stream {stream.name} is in mode {stream.mode}: its shards are managed by the "
            "service.",
        )
    if stream.status != ACTIVE:
        stream.require_active()
