"""The invariants of a run with several brokers. The numbers are those of `tests.simulation.checker`.

The checker copies a batch when it is committed: when it is below the high watermark of any replica. From then on the
batch must be in the log of each leader, at the same offset.
"""

from __future__ import annotations

from collections.abc import Callable

from headrace.core.log import PartitionLog
from headrace.core.replica.role import Role
from headrace.records.batch import iterate_headers
from headrace.types import TopicPartition
from tests.fixtures.cluster import SimulatedCluster
from tests.simulation.checker import Checker, Mirror
from tests.simulation.machine import ViolationError


class CommittedMirror(Mirror):
    """The checker's copy of the committed batches of a partition."""

    def look(self, log: PartitionLog) -> None:
        """Copy the batches that are committed in the log of a replica."""
        if log.high_watermark > log.log_end_offset:
            raise ViolationError(
                f"{self.name}: high watermark {log.high_watermark}, end {log.log_end_offset} (3)"
            )
        if log.high_watermark > self.end:
            self._read_on(log)
        self.exposed = self.end

    def _read_on(self, log: PartitionLog) -> None:
        limit = log.high_watermark
        while self.end < limit and (
            found := log.read(self.end, max_bytes=1 << 20, up_to=limit, minimum_one=True)
        ):
            data = found.read()
            for position, header in iterate_headers(data):
                self.add(header, data[position : position + header.size])

    def leads(self, log: PartitionLog) -> None:
        """Check the log of a new leader: it has all that was committed."""
        if log.log_end_offset < self.end:
            raise ViolationError(
                f"{self.name}: the leader ends at {log.log_end_offset}, {self.end} is committed (1)"
            )

    def compare(self, broker_id: int, data: bytes) -> None:
        """Compare all batches of a replica with the copy."""
        found = [(header.base_offset, header.crc) for _, header in iterate_headers(data)]
        own = [(batch.base, batch.header.crc) for batch in self.batches]
        if found != own:
            at = next(
                (
                    place
                    for place, (one, two) in enumerate(zip(found, own, strict=False))
                    if one != two
                ),
                min(len(found), len(own)),
            )
            raise ViolationError(
                f"{self.name}: broker {broker_id} has {found[at:][:1]}, committed is {own[at:][:1]} (6)"
            )


class ClusterChecker(Checker):
    """The history of a run, and the committed batches of all partitions."""

    def __init__(self, group: str, now_ms: Callable[[], int], cluster: SimulatedCluster) -> None:
        super().__init__(group, now_ms)
        self._cluster = cluster
        self._epochs: dict[TopicPartition, int] = {}
        """The highest leader epoch in which a broker has led each partition."""

    def look_again(self) -> None:
        for broker_id, broker in self._cluster.brokers.items():
            if broker.is_running:
                self.stepped(broker_id)

    def stepped(self, broker_id: int) -> None:
        """Check the replicas of a broker after a step of the broker."""
        partitions = self._cluster.brokers[broker_id].broker.services.partitions
        for name, mirror in self.mirrors.items():
            partition = partitions.find(name.topic, name.partition)
            if partition is None:
                continue
            if partition.role is Role.LEADER and partition.leader_epoch > self._epochs.get(
                name, -1
            ):
                self._epochs[name] = partition.leader_epoch
                mirror.leads(partition.log)  # type: ignore[attr-defined]  # all mirrors are of this module
            mirror.look(partition.log)

    def decided(self, request: object) -> None:
        """Record nothing: which brokers have a decision depends on the in-sync replicas, which other tests check."""

    def compare_replicas(self) -> None:
        """Check at the end that all replicas have exactly the committed batches."""
        for name, mirror in self.mirrors.items():
            assert isinstance(mirror, CommittedMirror)
            for broker_id in self._cluster.brokers:
                mirror.compare(
                    broker_id, self._cluster.log_of(broker_id, name.topic, name.partition)
                )
