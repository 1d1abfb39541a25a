"""The committers that commit offsets to the group: at least once, and at most once."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Collection, Iterable
from typing import Final

from headrace.errors import HeadraceError
from headrace.types import TopicPartition
from headrace.workers.committing.committer import Check, Commit, commit_repeatedly
from headrace.workers.core.scheduler import Job
from headrace.workers.core.worker_core import WorkerCore
from headrace.workers.output.outbox import Publisher
from headrace.workers.output.outlet import Outlet
from headrace.workers.source import RecordSource

AT_REST_S: Final = 0.005
"""The wait in seconds after a partition has no unfinished records. Other partitions may be committed with it."""


class OffsetCommitter:
    """The committer for at least once. It commits offsets at intervals; handlers write their results immediately."""

    checks: Final[list[Check]] = []
    takeovers: Final[list[Check]] = []

    def __init__(
        self,
        core: WorkerCore,
        source: RecordSource,
        outlet: Outlet,
        at_rest: asyncio.Event,
        interval_s: float,
    ) -> None:
        """Prepare commits.

        Args:
            core: Decides which offsets to commit.
            source: Commits offsets.
            outlet: Writes results.
            at_rest: Set when all records of a partition are finished and a commit costs little.
            interval_s: The time between two commits, in seconds.
        """
        self._core = core
        self._scheduler = core.scheduler
        self._source = source
        self._outlet = outlet
        self._at_rest = at_rest
        self._interval_s = interval_s

    def new_out(self) -> Publisher:
        """Return the outlet, which writes immediately."""
        return self._outlet

    def finish(self, job: Job, out: Publisher) -> None:  # noqa: ARG002 - the results are written already
        """Finish a job's records."""
        self._scheduler.finish(job)

    async def run(self, commit: Commit) -> None:
        """Commit after each interval, and soon after a partition has no unfinished records."""
        await commit_repeatedly(commit, self._wait)

    async def _wait(self, error: HeadraceError | None) -> None:  # noqa: ARG002 - the interval is the same
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._interval_s):
                await self._at_rest.wait()
                await asyncio.sleep(AT_REST_S)
        self._at_rest.clear()

    async def commit(self, partitions: Collection[TopicPartition] | None) -> None:
        """Commit finished records of some partitions, or of all partitions if the argument is None.

        Raises:
            HeadraceError: The commit failed, or its result is not known.
        """
        if wanted := self._core.to_commit(partitions, self._source.positions()):
            await self._source.commit(wanted)
            self._core.on_committed(wanted)

    async def is_settled(
        self,
        error: HeadraceError | None,  # noqa: ARG002 - a failed commit is repeated later
        *,
        has_changed: bool,  # noqa: ARG002 - a further commit needs no wait
    ) -> bool:
        """Return true: the results were written before."""
        return True

    def drop(self, partitions: Iterable[TopicPartition]) -> None:
        """Do nothing: this committer keeps no results."""

    async def close(self) -> None:
        """Do nothing: the app closes the outlet."""


class EarlyOffsetCommitter(OffsetCommitter):
    """The committer for at most once. The poller commits offsets before the handlers run, so there are no intervals."""

    async def run(self, commit: Commit) -> None:
        """Return at once: no further commit is necessary."""
