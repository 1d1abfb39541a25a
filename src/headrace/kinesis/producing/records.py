"""The records that a program sends, and their places in the stream."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from headrace.errors import KinesisError
from headrace.kinesis.hash_keys import HASH_KEYS, hash_key_of
from headrace.kinesis.producing.settings import MAX_KEY_CHARACTERS

_HASH_KEY: Final = re.compile(r"0|[1-9][0-9]{0,38}", re.ASCII)


class SentRecord(NamedTuple):
    """The place of a written record: its shard and its sequence number."""

    shard: str
    sequence_number: str
    sub_sequence: int | None = None
    """The index of the record in its aggregate. None: the record is not part of an aggregate."""


@dataclass(slots=True, eq=False, kw_only=True)
class Outgoing:
    """A record of the program, until it is delivered or given up.

    Attributes:
        partition_key: The partition key.
        explicit_hash_key: The hash key that determines the shard instead of the partition key; None if there is none.
        hash_key: The hash key that determines the shard, as a number.
        data: The data of the record.
        size: The bytes of data and key.
        added_ms: The time at which the program sent the record, in milliseconds of the event loop's clock.
        waiting: Whether the record waits in a lane, and is not in flight.
        in_doubt: Whether a request without a response may have written the record.
        done: Whether the record is delivered or given up.
        reason: The error of the last attempt; empty before a failure.
        ticket: An object by which the caller finds the record's delivery.
    """

    partition_key: str
    explicit_hash_key: str | None
    hash_key: int
    data: bytes
    size: int
    added_ms: int
    waiting: bool = False
    in_doubt: bool = False
    done: bool = False
    reason: str = ""
    ticket: Any = None


def outgoing(
    data: bytes,
    partition_key: str,
    explicit_hash_key: str | int | None,
    *,
    record_bytes: int,
    now_ms: int,
) -> Outgoing:
    """Return a record, if Kinesis accepts such a record.

    Raises:
        KinesisError: The record, its key or its hash key is not allowed.
    """
    if not 1 <= len(partition_key) <= MAX_KEY_CHARACTERS:
        raise KinesisError(
            f"the partition key {partition_key[:40]!r} has {len(partition_key)} characters; 1 to {MAX_KEY_CHARACTERS} "
            "are allowed. Use a hash of long keys"
        )
    hash_key = hash_key_of(partition_key)
    if explicit_hash_key is not None:
        explicit_hash_key = str(explicit_hash_key)
        if not _HASH_KEY.fullmatch(explicit_hash_key) or int(explicit_hash_key) >= HASH_KEYS:
            raise KinesisError(
                f"explicit_hash_key={explicit_hash_key[:60]!r} is not allowed: use an integer from 0 to 2**128 - 1"
            )
        hash_key = int(explicit_hash_key)
    size = len(data) + len(partition_key.encode())
    if size > record_bytes:
        raise KinesisError(
            f"the record of key {partition_key[:40]!r} has {size} bytes with its key, more than "
            f"record_bytes={record_bytes}. Kinesis accepts 1 MiB, and up to 10 MiB if the stream's MaxRecordSize is "
            "raised. Then raise record_bytes, too"
        )
    return Outgoing(
        partition_key=partition_key,
        explicit_hash_key=explicit_hash_key,
        hash_key=hash_key,
        data=data,
        size=size,
        added_ms=now_ms,
    )
