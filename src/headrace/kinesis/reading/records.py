"""A record of a stream, as readers give it."""

from __future__ import annotations

from typing import NamedTuple

from headrace.core.lease.checkpoint import Checkpoint


class KinesisRecord(NamedTuple):
    """A record that somebody put, or one of those that the Kinesis Producer Library put together into one."""

    stream: str
    """The stream's name."""
    shard: str
    sequence_number: str
    """Of the record that Kinesis stores; all user records of an aggregate share it."""
    sub_sequence: int | None
    """Which user record of an aggregate, from 0; None if it is not one of several."""
    is_last_sub: bool
    """Whether no further user record of the same stored record follows."""
    partition_key: str
    explicit_hash_key: str | None
    """Known of user records of an aggregate alone: Kinesis does not tell it of others."""
    data: bytes
    timestamp_ms: int
    """When Kinesis stored it, approximately, in milliseconds since 1970."""
    encryption_type: str | None = None

    @property
    def checkpoint(self) -> Checkpoint:
        """The checkpoint of a group that has finished everything up to this record."""
        return Checkpoint(self.sequence_number, None if self.is_last_sub else self.sub_sequence)
