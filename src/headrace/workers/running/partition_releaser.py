"""Releases the partitions that the group revokes, or that already belong to other members."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Collection

from headrace.errors import HeadraceError, WorkerFailedError
from headrace.types import TopicPartition
from headrace.workers.committing.committer import Committer
from headrace.workers.core.revocation import (
    AwaitHandlers,
    CancelHandlers,
    Commit,
    CommitAgain,
    Forget,
    Released,
    Revocation,
    RevocationAction,
)
from headrace.workers.core.worker_core import WorkerCore
from headrace.workers.running.handovers import Handovers
from headrace.workers.running.job_runner import JobRunner
from headrace.workers.running.processor import Processor
from headrace.workers.settings import WorkerSettings
from headrace.workers.source import RecordSource


class PartitionReleaser:
    """The `RevocationListener` of one worker."""

    def __init__(
        self,
        settings: WorkerSettings,
        core: WorkerCore,
        source: RecordSource,
        runner: JobRunner,
        *,
        processor: Processor,
        committer: Committer,
        commit: Callable[[Collection[TopicPartition]], Awaitable[HeadraceError | None]],
        handovers: Handovers,
        job_ended: asyncio.Event,
    ) -> None:
        """Prepare to release partitions.

        Args:
            settings: The worker's settings.
            core: Decides the steps.
            source: Knows whether a partition still belongs to this member.
            runner: Cancels handlers.
            processor: Forgets the keys of partitions.
            committer: Drops the results of partitions.
            commit: Commits finished records of partitions, and returns the error if the commit failed.
            handovers: Counts revocations, so that the worker does not end during one.
            job_ended: Set when a job has ended.
        """
        self._settings = settings
        self._core = core
        self._source = source
        self._runner = runner
        self._processor = processor
        self._committer = committer
        self._commit = commit
        self._handovers = handovers
        self._job_ended = job_ended

    async def on_revoked(self, partitions: list[TopicPartition]) -> None:
        """Release partitions in the steps of `Revocation`.

        Raises:
            WorkerFailedError: Finished records could not be committed. The partitions are released all the same, and
                the worker ends.
        """
        loop = asyncio.get_running_loop()
        async with self._handovers:
            revocation = self._core.revoke(
                partitions,
                loop.time(),
                drain_timeout_s=self._settings.drain_timeout_s,
                commit_timeout_s=self._source.commit_timeout_s,
            )
            while True:
                is_ours = all(map(self._source.valid, partitions))
                step = revocation.next(loop.time(), is_ours=is_ours)
                if isinstance(step, Released):
                    break
                await self._perform(step, partitions, revocation)
        if step.error is not None:
            raise self._uncommitted(partitions, step.error)

    async def _perform(
        self, step: RevocationAction, partitions: list[TopicPartition], revocation: Revocation
    ) -> None:
        loop = asyncio.get_running_loop()
        match step:
            case AwaitHandlers(timeout_s):
                self._job_ended.clear()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(timeout_s):
                        await self._job_ended.wait()
            case CancelHandlers():
                await self._runner.let_go(set(partitions))
            case Commit():
                revocation.on_commit(await self._commit(partitions), loop.time())
            case CommitAgain(pause_s, deadline_s):
                try:
                    async with asyncio.timeout_at(deadline_s):
                        await asyncio.sleep(pause_s)
                        revocation.on_commit(await self._commit(partitions), loop.time())
                except TimeoutError:
                    revocation.on_commit_timeout()
            case Forget():
                self._forget(partitions)

    def _uncommitted(
        self, partitions: Collection[TopicPartition], error: HeadraceError
    ) -> WorkerFailedError:
        failure = WorkerFailedError(
            f"the worker {self._settings.name!r} stopped: the group {self._settings.group!r} revoked "
            f"{', '.join(map(str, partitions))}, and the finished records could not be committed: {error}. They are "
            "handled again. Check the brokers, and start the worker again"
        )
        failure.__cause__ = error
        return failure

    async def on_lost(self, partitions: list[TopicPartition]) -> None:
        """Cancel the handlers of partitions that belong to other members already, and commit nothing."""
        async with self._handovers:
            self._core.lose(partitions)
            await self._runner.let_go(set(partitions))
            self._forget(partitions)

    def _forget(self, partitions: Collection[TopicPartition]) -> None:
        self._core.forget(partitions)
        self._committer.drop(partitions)
        self._processor.forget(partitions)
