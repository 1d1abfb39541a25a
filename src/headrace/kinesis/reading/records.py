"""A record of a stream as readers return it."""

from __future__ import annotations

from typing import NamedTuple

from headrace.core.lease.checkpoint import Checkpoint


class KinesisRecord(NamedTuple):
    """A record that a producer put, or a user record of an aggregate of the Kinesis Producer Library."""

    stream: str
    """The name of the stream."""
    shard: str
    sequence_number: str
    """The number of the stored record. All user records of an aggregate share it."""
    sub_sequence: int | None
    """The index of the user record in its aggregate, from 0; None if the record is not part of an aggregate."""
    is_last_sub: bool
    """Whether no further user record of the same stored record follows."""
    partition_key: str
    explicit_hash_key: str | None
    """The explicit hash key of a user record in an aggregate. None: it has none, or Kinesis does not return it."""
    data: bytes
    timestamp_ms: int
    """The approximate time at which Kinesis stored the record, in milliseconds since 1970."""
    encryption_type: str | None = None

    @property
    def checkpoint(self) -> Checkpoint:
        """The checkpoint of a group that has finished everything up to this record."""
        return Checkpoint(self.sequence_number, None if self.is_last_sub else self.sub_sequence)
