"""Records on their way to a stream, and what became of them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from headrace.errors import KinesisError
from headrace.kinesis.hash_keys import HASH_KEYS, hash_key_of
from headrace.kinesis.producing.settings import MAX_KEY_CHARACTERS

_HASH_KEY: Final = re.compile(r"0|[1-9][0-9]{0,38}", re.ASCII)


class SentRecord(NamedTuple):
    """Where a record is."""

    shard: str
    sequence_number: str
    sub_sequence: int | None = None
    """Its number within an aggregated record; None: it is a record of its own."""


@dataclass(slots=True, eq=False, kw_only=True)
class Outgoing:
    """A record that the program gave, until its fate is known.

    Attributes:
        partition_key: The key.
        explicit_hash_key: Chooses the shard in place of the key.
        hash_key: What chooses the shard, as a number.
        data: The content.
        size: Bytes of data and key.
        added_ms: When it came.
        waiting: Whether it stands in a lane, and is not under way.
        in_doubt: Whether it may be written already, by a request without an answer.
        done: Whether its fate is known.
        reason: Why the last attempt failed.
        ticket: Whatever the caller knows it by.
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
    """Return a record, if Kinesis takes one like it.

    Raises:
        KinesisError: It says what is wrong with it.
    """
    if not 1 <= len(partition_key) <= MAX_KEY_CHARACTERS:
        raise KinesisError(
            f"a partition key has 1 to {MAX_KEY_CHARACTERS} characters, and this one {len(partition_key)}: "
            f"{partition_key[:40]!r}; use a hash of long keys"
        )
    hash_key = hash_key_of(partition_key)
    if explicit_hash_key is not None:
        explicit_hash_key = str(explicit_hash_key)
        if not _HASH_KEY.fullmatch(explicit_hash_key) or int(explicit_hash_key) >= HASH_KEYS:
            raise KinesisError(
                f"explicit_hash_key={explicit_hash_key[:60]!r}: it is an integer from 0 to 2**128 - 1"
            )
        hash_key = int(explicit_hash_key)
    size = len(data) + len(partition_key.encode())
    if size > record_bytes:
        raise KinesisError(
            f"the record of key {partition_key[:40]!r} has {size} bytes with its key, more than "
            f"record_bytes={record_bytes}: Kinesis takes 1 MiB, and up to 10 MiB where the stream's MaxRecordSize was "
            "raised; then raise record_bytes, too"
        )
    return Outgoing(
        partition_key=partition_key,
        explicit_hash_key=explicit_hash_key,
        hash_key=hash_key,
        data=data,
        size=size,
        added_ms=now_ms,
    )
