"""The settings of a member of a group that reads streams."""

from __future__ import annotations

from dataclasses import dataclass, field

from headrace.core.lease.checkpoint import Checkpoint
from headrace.core.lease.settings import LeaseSettings
from headrace.errors import ConfigError
from headrace.kinesis.client.settings import AwsSettings
from headrace.kinesis.group.owners import check_owner
from headrace.kinesis.leases.store import LeaseStore
from headrace.kinesis.reading.settings import ReadSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamGroupSettings:
    """The streams that a group reads, and the settings of reading and of leases."""

    names: tuple[str, ...]
    """Names or ARNs of the streams."""
    aws: AwsSettings
    start: Checkpoint | None
    """The position at which a group without leases begins. None: the end of the stream when the group first reads it.

    A sequence number belongs to one shard; all other shards are then read from their beginning."""
    leases: str | LeaseStore
    """The URL of the lease store, or the store."""
    lease: LeaseSettings
    reading: ReadSettings = field(default_factory=ReadSettings)
    fan_out: bool | str = False
    """Whether to read by enhanced fan-out; a text is the name of the registered consumer."""
    owner: str | None = None
    """The name of this process in the leases. None: the program's name with host and process id."""

    def __post_init__(self) -> None:
        if not self.names or not all(self.names):
            raise ConfigError('kinesis() needs the name or the ARN of a stream: kinesis("orders")')
        if len(set(self.names)) < len(self.names):
            raise ConfigError(f"kinesis({', '.join(map(repr, self.names))}) names a stream twice")
        if self.owner is not None:
            check_owner(self.owner)
