"""Finds positions: committed offsets, `auto.offset.reset` without one, and a check after a change of leaders."""

from __future__ import annotations

from collections.abc import Mapping

from headrace.clients.config import ConsumerConfig
from headrace.clients.consumer.assigned_partition import AssignedPartition
from headrace.clients.consumer.background import Background
from headrace.clients.consumer.commits import Commits
from headrace.clients.consumer.reports import Reports
from headrace.clients.engine import Engine
from headrace.clients.flows.effects import Flow
from headrace.clients.flows.leader_epochs import EpochEnd, epoch_ends
from headrace.clients.flows.list_offsets import EARLIEST, LATEST, list_offsets
from headrace.errors import (
    ApiError,
    ErrorCode,
    HeadraceError,
    LogTruncatedError,
    NoOffsetError,
    TransportError,
    UnknownMemberIdError,
)
from headrace.types import TopicPartition


class PositionFinder:
    """Finds the positions of one consumer beside the calls of the program."""

    def __init__(
        self,
        engine: Engine,
        config: ConsumerConfig,
        assigned: Mapping[TopicPartition, AssignedPartition],
        isolation_level: int,
        reports: Reports,
        *,
        commits: Commits,
    ) -> None:
        self._engine = engine
        self._config = config
        self._assigned = assigned
        self._commits = commits
        self._isolation_level = isolation_level
        self._reports = reports
        self._finding = Background(engine)
        self._checking = Background(engine)
        self._epochs_known = True
        """Whether brokers support OffsetForLeaderEpoch; False after one did not."""
        self._again_at_ms = 0
        """The end of the backoff after a failure."""

    def stop(self) -> None:
        """Stop the running requests."""
        self._finding.stop()
        self._checking.stop()

    def work(self) -> None:
        """Start to find the positions that are missing or in doubt."""
        if self._engine.now_ms < self._again_at_ms:
            return
        if not self._finding.running:
            unknown = [c for c in self._assigned.values() if c.offset is None or c.out_of_range]
            if unknown:
                limit_ms = self._config.request_timeout_ms
                self._finding.start(self._find(unknown), self._found, limit_ms)
        if not self._checking.running and self._epochs_known:
            doubtful = [c for c in self._assigned.values() if self._doubtful(c)]
            if doubtful:
                limit_ms = self._config.request_timeout_ms
                self._checking.start(self._check(doubtful), self._found, limit_ms)

    def usable(self, partition: AssignedPartition) -> bool:
        """Return whether a fetch may use the position; if not, the position is being checked."""
        return not self._doubtful(partition)

    def _doubtful(self, partition: AssignedPartition) -> bool:
        """Return whether a new leader's log may lack the records before the position (KIP-320)."""
        if partition.epoch < 0 or partition.offset is None or not self._epochs_known:
            return False
        leader_epoch = self._engine.state.metadata.leader_epoch(partition.name)
        return leader_epoch > max(partition.checked_epoch, partition.epoch)

    def _found(self, outcome: object) -> None:
        if isinstance(outcome, HeadraceError):
            self._again_at_ms = self._engine.now_ms + self._config.retry_backoff_ms
            self._engine.at(self._again_at_ms, self._engine.notify)
        if isinstance(outcome, TransportError):
            self._reports.unreachable(outcome)
        elif isinstance(outcome, ApiError) and (
            outcome.retriable or outcome.code == ErrorCode.STALE_MEMBER_EPOCH
        ):
            self._reports.warn(f"positions cannot be found yet: {outcome}")
        elif isinstance(outcome, UnknownMemberIdError):
            pass  # the partitions are lost with the membership
        elif isinstance(outcome, HeadraceError):
            self._reports.failed(outcome)

    def _current(self, partition: AssignedPartition) -> bool:
        """Return whether this object is still assigned; the partition may have been revoked and assigned again."""
        return self._assigned.get(partition.name) is partition

    # Unknown positions

    def _find(self, assigned: list[AssignedPartition]) -> Flow[None]:
        lost = {
            partition.name: partition.offset for partition in assigned if partition.out_of_range
        }
        fresh = [partition for partition in assigned if partition.name not in lost]
        if fresh and self._config.group_id is not None:
            yield from self._find_committed(fresh)
        unknown = [partition for partition in assigned if self._unknown(partition, lost)]
        if not unknown:
            return
        if self._config.auto_offset_reset == "none":
            partition = unknown[0]
            text = f"offset {partition.offset} of {partition.name} does not exist (any more)"
            if partition.offset is None and partition.out_of_range:
                text = f"the topic of {partition.name} was deleted and created again"
            elif partition.offset is None:
                text = f"nothing is committed for {partition.name}"
            raise NoOffsetError(
                f"{text}, and auto.offset.reset is none: seek, commit an offset, or set earliest or latest"
            )
        spec = EARLIEST if self._config.auto_offset_reset == "earliest" else LATEST
        names = dict.fromkeys((partition.name for partition in unknown), spec)
        found = yield from list_offsets(self._engine.state, names, self._isolation_level)
        for partition in unknown:
            if self._unknown(partition, lost):
                self._reset(partition, found[partition.name].offset)

    def _find_committed(self, assigned: list[AssignedPartition]) -> Flow[None]:
        found = yield from self._commits.committed(partition.name for partition in assigned)
        for partition in assigned:
            committed = found.get(partition.name)
            if committed is not None and self._unknown(partition, {}):
                partition.move(committed.offset, committed.leader_epoch)
                partition.committed = committed.offset

    def _unknown(
        self, partition: AssignedPartition, lost: Mapping[TopicPartition, int | None]
    ) -> bool:
        # (1) A position is requested. (2) The program seeks. (3) The response must not replace the program's position.
        if not self._current(partition):
            return False
        if partition.name in lost:
            return partition.out_of_range and partition.offset == lost[partition.name]
        return partition.offset is None and not partition.out_of_range

    def _reset(self, partition: AssignedPartition, offset: int) -> None:
        what = f"offset {partition.offset} does not exist (any more)"
        if partition.offset is None:
            what = "the topic was deleted and created again"
        if partition.out_of_range:
            self._reports.warn(
                f"{partition.name}: {what}; reading goes on at {offset} "
                f"(auto.offset.reset={self._config.auto_offset_reset})"
            )
        partition.move(offset)

    # Positions that a new leader may lack

    def _check(self, assigned: list[AssignedPartition]) -> Flow[None]:
        asked = {
            partition: (partition.offset, self._engine.state.metadata.leader_epoch(partition.name))
            for partition in assigned
        }
        try:
            ends = yield from epoch_ends(
                self._engine.state, {partition.name: partition.epoch for partition in assigned}
            )
        except ApiError as error:
            if error.code != ErrorCode.UNSUPPORTED_VERSION:
                raise
            self._epochs_known = False
            return
        for partition, (offset, leader_epoch) in asked.items():
            if self._current(partition) and partition.offset == offset:
                partition.checked_epoch = leader_epoch
                self._compare(partition, ends[partition.name])

    def _compare(self, partition: AssignedPartition, end: EpochEnd) -> None:
        assert partition.offset is not None, "checked by the caller"
        if end.leader_epoch >= 0 and end.offset >= partition.offset:
            return
        if self._config.auto_offset_reset == "none":
            raise LogTruncatedError(
                f"{partition.name}: a new leader does not have the records before offset {partition.offset}, "
                f"its log parts at {max(end.offset, 0)}, and auto.offset.reset is none: seek to go on"
            )
        if end.leader_epoch < 0:
            partition.out_of_range = (
                True  # the leader has no records of that epoch: auto.offset.reset decides
            )
            return
        self._reports.warn(
            f"{partition.name}: a new leader does not have the records before offset {partition.offset}; "
            f"reading goes on at {end.offset}, where its log parts from what was read"
        )
        checked = partition.checked_epoch
        partition.move(end.offset, end.leader_epoch)
        partition.checked_epoch = checked
