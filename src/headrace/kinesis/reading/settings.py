"""The settings of reading a shard, for every kind of reader."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.errors import ConfigError

MAX_RECORDS = 10_000
"""The most records that one GetRecords returns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadSettings:
    """The settings of reading a shard.

    Attributes:
        poll_ms: The time between reads of a shard without new records, in milliseconds; 200 to 5,000.
        groups_sharing: The number of groups that read the stream without fan-out. They share 5 reads and 2 MiB per
            second and shard.
        max_records: The most records of one read; an aggregate counts as one. 1 to 10,000.
        deaggregate: Whether aggregates of the Kinesis Producer Library are divided into their user records.
        shard_bytes: The most bytes that are read ahead of one shard. One read may exceed it.
        worker_bytes: The most bytes that are read ahead of all shards of a worker together.
        stall_ms: The time in milliseconds without a successful fetch of a shard after which reading restarts; after the
            same time again the lease is given up.
    """

    poll_ms: int = 1_000
    groups_sharing: int = 1
    max_records: int = MAX_RECORDS
    deaggregate: bool = True
    shard_bytes: int = 8 << 20
    worker_bytes: int = 64 << 20
    stall_ms: int = 60_000

    def __post_init__(self) -> None:
        """Check the limits of the settings.

        Raises:
            ConfigError: A setting is outside its limits.
        """
        for name, low, high in (
            ("poll_ms", 200, 5_000),
            ("groups_sharing", 1, 20),
            ("max_records", 1, MAX_RECORDS),
            ("shard_bytes", 1, 1 << 40),
            ("worker_bytes", 1, 1 << 40),
            ("stall_ms", 10, 3_600_000),
        ):
            if not low <= getattr(self, name) <= high:
                raise ConfigError(
                    f"{name}={getattr(self, name)} is not allowed: use {low} to {high}"
                )
