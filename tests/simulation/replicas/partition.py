"""A partition on one broker, with the attributes that `IsrChanges` uses of a real partition."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.core.replica.acks import AckQueues
from headrace.core.replica.following import Following
from headrace.core.replica.isr import Isr
from headrace.core.replica.role import NO_EPOCH, UNKNOWN_LEADERSHIP, Role
from headrace.types import TopicPartition
from tests.simulation.replicas.disk import Key, Record, ReplicaLog

if TYPE_CHECKING:
    from tests.simulation.replicas.replica_simulation import Settings
    from tests.simulation.replicas.surroundings import SimLogDir

Waiting = tuple[int, int, Record]
"""The acks of a produce request, the offset of its record, and the record."""


class SimPartition:
    """A partition of a broker."""

    __slots__ = (
        "acks",
        "companion",
        "following",
        "isr",
        "key",
        "leader_epoch",
        "log",
        "log_dir",
        "min_insync_replicas",
        "newest",
        "role",
        "schedules",
        "syncs_first",
        "topic_partition",
        "waiting",
    )

    def __init__(self, key: Key, log: ReplicaLog, log_dir: SimLogDir, settings: Settings) -> None:
        """Begin without a role."""
        self.key = key
        self.topic_partition = TopicPartition(key[0].hex(), key[1])
        self.log = log
        self.log_dir = log_dir
        self.role = Role.OFFLINE
        self.leader_epoch = NO_EPOCH
        self.newest = UNKNOWN_LEADERSHIP
        self.min_insync_replicas = settings.min_insync_replicas
        self.syncs_first = settings.syncs_first
        self.isr: Isr | None = None
        self.companion: SimPartition | None = None
        self.schedules: SimPartition | None = None
        self.acks: AckQueues[Waiting] | None = None
        self.waiting: list[Waiting] = []
        """The requests with `acks=all` that wait for the high watermark."""
        self.following: Following | None = None
        """The follower's side; None in other roles."""

    def __repr__(self) -> str:
        return f"{int.from_bytes(self.key[0])}-{self.key[1]}"

    @property
    def refusal(self) -> bool:
        """Whether requests are refused: the broker does not lead the partition."""
        return self.role is not Role.LEADER
