"""The committed offsets of a consumer's group, and seeking to them."""

from __future__ import annotations

from collections.abc import Iterable

from headrace.clients.consumer.commits import Commits
from headrace.clients.consumer.positions import ConsumerPositions
from headrace.clients.consumer.subscription import partition_of
from headrace.clients.engine import Engine
from headrace.clients.flows.effects import Flow
from headrace.clients.flows.offsets import OffsetAndMetadata, committed_offsets
from headrace.clients.flows.routing import ensure_partitions
from headrace.errors import ApiError, ConfigError, ErrorCode, InvalidCommittedOffsetError
from headrace.types import TopicPartition

Committed = dict[TopicPartition, OffsetAndMetadata | None]


class CommittedOffsets:
    """Reads the committed offsets of one consumer's group."""

    def __init__(
        self,
        engine: Engine,
        group_id: str | None,
        commits: Commits,
        positions: ConsumerPositions,
    ) -> None:
        self._engine = engine
        self._group_id = group_id
        self._commits = commits
        self._positions = positions

    def of(self, partitions: Iterable[TopicPartition]) -> Flow[Committed]:
        """Return the committed offset of each partition; None for a partition without one.

        Raises:
            InvalidCommittedOffsetError: There is no such partition.
        """
        names = [partition_of(name) for name in partitions]
        self.group()
        try:
            yield from ensure_partitions(self._engine.state, names)
        except ApiError as error:
            if error.code not in {
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                ErrorCode.UNKNOWN_TOPIC_ID,
            }:
                raise
            raise InvalidCommittedOffsetError(
                f"no offset can be committed there: {error.message}"
            ) from error
        return (yield from self._ask(names))

    def of_consumed(self, consumed: Iterable[TopicPartition]) -> Flow[Committed]:
        """Return the committed offsets of assigned partitions and of `consumed` ones, whose topics may be deleted."""
        names = sorted({*self._positions.assigned, *consumed})
        return (yield from self._ask(names)) if names else {}

    def _ask(self, names: list[TopicPartition]) -> Flow[Committed]:
        found = yield from committed_offsets(self._engine.state, self.group(), names)
        return {name: found.get(name) for name in names}

    def go_back(self, partitions: Iterable[TopicPartition] | None) -> Flow[None]:
        """Set the positions to the committed offsets; without one, `auto.offset.reset` decides."""
        self.group()
        assigned = self._positions.assigned_partitions(partitions)
        if not assigned:
            return
        found = yield from self._commits.committed(partition.name for partition in assigned)
        for partition in assigned:
            if self._positions.assigned.get(partition.name) is not partition:
                continue
            at = found.get(partition.name)
            if at is None:
                partition.forget()
            else:
                partition.move(at.offset, at.leader_epoch)
                partition.committed = at.offset
        self._engine.notify()

    def group(self) -> str:
        """Return the consumer's group.

        Raises:
            ConfigError: The consumer has no group.
        """
        if self._group_id is None:
            raise ConfigError("committed offsets are a group's: Consumer(..., group=NAME)")
        return self._group_id
