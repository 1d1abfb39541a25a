"""The constraints of Kinesis's API model on the members of requests."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from headrace.testing.kinesis.errors import AwsError, malformed

REQUIRED: Final[Mapping[str, tuple[str, ...]]] = {
    "CreateStream": ("StreamName",),
    "DecreaseStreamRetentionPeriod": ("RetentionPeriodHours",),
    "GetRecords": ("ShardIterator",),
    "GetShardIterator": ("ShardId", "ShardIteratorType"),
    "IncreaseStreamRetentionPeriod": ("RetentionPeriodHours",),
    "ListStreamConsumers": ("StreamARN",),
    "MergeShards": ("ShardToMerge", "AdjacentShardToMerge"),
    "PutRecord": ("Data", "PartitionKey"),
    "PutRecords": ("Records",),
    "RegisterStreamConsumer": ("StreamARN", "ConsumerName"),
    "SplitShard": ("ShardToSplit", "NewStartingHashKey"),
    "StartStreamEncryption": ("EncryptionType", "KeyId"),
    "SubscribeToShard": ("ConsumerARN", "ShardId", "StartingPosition"),
    "UpdateMaxRecordSize": ("MaxRecordSizeInKiB",),
    "UpdateShardCount": ("TargetShardCount", "ScalingType"),
    "UpdateStreamMode": ("StreamARN", "StreamModeDetails"),
}

_NAME: Final = re.compile(r"[a-zA-Z0-9_.-]{1,128}", re.ASCII)
_PATTERNS: Final = {
    "StreamName": _NAME,
    "ShardId": _NAME,
    "ShardToSplit": _NAME,
    "ShardToMerge": _NAME,
    "AdjacentShardToMerge": _NAME,
    "ExclusiveStartShardId": _NAME,
    "ConsumerName": _NAME,
    "StreamARN": re.compile(r"arn:aws.*:kinesis:.*:\d{12}:stream/\S+", re.ASCII),
    "ConsumerARN": re.compile(
        r"arn:aws.*:kinesis:.*:\d{12}:.*stream/[\w.-]+/consumer/[\w.-]+:\d+", re.ASCII
    ),
    "NewStartingHashKey": re.compile(r"0|[1-9]\d{0,38}", re.ASCII),
    "ExplicitHashKey": re.compile(r"0|[1-9]\d{0,38}", re.ASCII),
    "SequenceNumber": re.compile(r"0|[1-9]\d{0,128}", re.ASCII),
    "StartingSequenceNumber": re.compile(r"0|[1-9]\d{0,128}", re.ASCII),
    "ShardIterator": re.compile(r".{1,512}", re.DOTALL),
}
_NUMBERS: Final = {
    "Limit": (1, 10_000),
    "MaxResults": (1, 10_000),
    "MaxRecordSizeInKiB": (1_024, 10_240),
    "ShardCount": (1, 100_000),
    "TargetShardCount": (1, 100_000),
}
KINDS_OF_START: Final = frozenset(
    {"AT_SEQUENCE_NUMBER", "AFTER_SEQUENCE_NUMBER", "TRIM_HORIZON", "LATEST", "AT_TIMESTAMP"}
)
_CHOICES: Final = {
    "ShardIteratorType": KINDS_OF_START,
    "ScalingType": frozenset({"UNIFORM_SCALING"}),
    "EncryptionType": frozenset({"NONE", "KMS"}),
}
_FILTERS: Final = frozenset(
    {
        "AFTER_SHARD_ID",
        "AT_TRIM_HORIZON",
        "FROM_TRIM_HORIZON",
        "AT_LATEST",
        "AT_TIMESTAMP",
        "FROM_TIMESTAMP",
    }
)


_TYPES: Final[Mapping[str, type | tuple[type, ...]]] = {
    **dict.fromkeys(_PATTERNS, str),
    **dict.fromkeys(_NUMBERS, int),
    **dict.fromkeys(_CHOICES, str),
    **dict.fromkeys(("Data", "ExclusiveStartStreamName", "KeyId", "NextToken"), str),
    **dict.fromkeys(("PartitionKey", "StreamMode", "Type"), str),
    **dict.fromkeys(("ShardFilter", "StartingPosition", "StreamModeDetails"), dict),
    **dict.fromkeys(("StreamCreationTimestamp", "Timestamp"), (int, float)),
    "Records": list,
    "RetentionPeriodHours": int,
}
_UNKNOWN: Final = frozenset({"DryRun", "StreamId"})


def validate(operation: str, request: dict[str, Any]) -> None:
    """Refuse a request with a missing member, or with one that breaks a constraint.

    Raises:
        AwsError: ValidationException, or SerializationException for a member of another type.
    """
    for member in REQUIRED.get(operation, ()):
        if request.get(member) is None:
            raise malformed(None, member, "not be null")
    _check_all(request)
    chosen = request.get("ShardFilter")
    if chosen is not None and chosen.get("Type") not in _FILTERS:
        raise malformed(
            chosen.get("Type"),
            "shardFilter.type",
            f"satisfy enum value set: [{', '.join(sorted(_FILTERS))}]",
        )


def _check_all(members: dict[str, Any]) -> None:
    for member, value in members.items():
        if value is not None:
            _check_type(member, value)
            _check(member, value)


def _check_type(member: str, value: Any) -> None:
    if member in _UNKNOWN:
        raise AwsError("ValidationException", f"the fake does not know {member}")
    wanted = _TYPES.get(member, object)
    if not isinstance(value, wanted) or (wanted is not object and isinstance(value, bool)):
        raise AwsError("SerializationException", f"{member}: {value!r} is of another type")
    if isinstance(value, dict):
        _check_all(value)
    if isinstance(value, list) and not all(isinstance(each, dict) for each in value):
        raise AwsError("SerializationException", "Records: not all of them are structures")


def _check(member: str, value: Any) -> None:
    if (pattern := _PATTERNS.get(member)) is not None:
        if not pattern.fullmatch(value):
            raise malformed(value, member, f"satisfy regular expression pattern: {pattern.pattern}")
    elif (bounds := _NUMBERS.get(member)) is not None:
        if value < bounds[0]:
            raise malformed(value, member, f"have value greater than or equal to {bounds[0]}")
        if value > bounds[1]:
            raise malformed(value, member, f"have value less than or equal to {bounds[1]}")
    elif member in _CHOICES and value not in _CHOICES[member]:
        raise malformed(
            value, member, f"satisfy enum value set: [{', '.join(sorted(_CHOICES[member]))}]"
        )
