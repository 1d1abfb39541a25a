"""Reports of work beside the program's calls: errors, which the next poll raises, and warnings, which are logged."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from headrace.clients.consumer.assigned_partition import AssignedPartition
from headrace.clients.engine import Engine
from headrace.errors import ApiError, ErrorCode, HeadraceError, TransportError
from headrace.types import TopicPartition


class Reports:
    """Collects the reports of one consumer's background work."""

    def __init__(
        self,
        engine: Engine,
        assigned: Mapping[TopicPartition, AssignedPartition],
        warn: Callable[[str], object],
    ) -> None:
        """Prepare the reports of a consumer.

        Args:
            engine: The consumer's engine.
            assigned: The partitions that the consumer reads.
            warn: Logs a warning.
        """
        self.warn = warn
        self._engine = engine
        self._assigned = assigned
        self._failures: list[HeadraceError] = []
        """The first error since a poll last raised one; empty if there is none."""
        self._fatal: HeadraceError | None = None
        """The error that every poll raises from now on; None if there is none."""

    @property
    def owned(self) -> list[TopicPartition]:
        """The partitions that the consumer reads, sorted."""
        return sorted(self._assigned)

    def failed(self, error: HeadraceError) -> None:
        """Make the next poll raise an error."""
        if isinstance(error, ApiError) and error.code == ErrorCode.FENCED_INSTANCE_ID:
            self._fatal = error
        elif not self._failures:
            self._failures.append(error)
        self._engine.notify()

    def unreachable(self, error: TransportError) -> None:
        """Report that no broker answered in time: an error if none ever did; otherwise the request is retried."""
        if not self._engine.state.metadata.brokers:
            self.failed(error)

    def raise_failure(self) -> None:
        """Raise an error that was reported."""
        if self._fatal is not None:
            raise self._fatal
        if self._failures:
            raise self._failures.pop()

    def clear(self) -> None:
        """Forget the errors that were reported."""
        self._failures.clear()
        self._fatal = None
