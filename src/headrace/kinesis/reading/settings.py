"""How a shard is read: settings for every kind of reader."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.errors import ConfigError

MAX_RECORDS = 10_000  # of one GetRecords


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadSettings:
    """How a shard is read.

    Attributes:
        poll_ms: How long to wait between reads of a shard that has nothing new; 200 to 5,000.
        groups_sharing: Groups that read the stream without fan-out: they share 5 reads and 2 MiB a second and shard.
        max_records: Records of one read, aggregates counted as one; 1 to 10,000.
        deaggregate: Whether records that the Kinesis Producer Library put together are taken apart.
        shard_bytes: Data read ahead of one shard at most; one read may go beyond it.
        worker_bytes: Data read ahead of all shards of a worker together at most.
        stall_ms: When no fetch of a shard succeeded for so long, reading begins again; after as long again the lease is
            given up.
    """

    poll_ms: int = 1_000
    groups_sharing: int = 1
    max_records: int = MAX_RECORDS
    deaggregate: bool = True
    shard_bytes: int = 8 << 20
    worker_bytes: int = 64 << 20
    stall_ms: int = 60_000

    def __post_init__(self) -> None:
        """Refuse what cannot work.

        Raises:
            ConfigError: It says which setting, and its limits.
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
                raise ConfigError(f"{name}={getattr(self, name)}: it is {low} to {high}")
