"""The order of steps in which a worker releases partitions that the group revokes.

(1) The worker waits for the running handlers, for a bounded time. (2) The worker cancels the handlers that still run.
(3) The worker commits the finished records. (4) The worker forgets the partitions. Then the consumer releases them.

If the commit in step 3 fails, the worker releases the partitions all the same, because the group would wait for them.
Then the worker stops. The next owner begins at the committed offset and handles the records behind it again.
"""

from __future__ import annotations

from collections.abc import Collection
from enum import Enum
from typing import Final, NamedTuple

from headrace.errors import (
    ApiError,
    ErrorCode,
    FatalTransactionError,
    HeadraceError,
    WorkerFailedError,
)
from headrace.types import TopicPartition
from headrace.workers.core.delivery import DeliveryMode
from headrace.workers.core.scheduler import Scheduler

LOOK_AGAIN_S: Final = 0.05
"""The pause in seconds before the worker checks again whether a partition still belongs to this member."""
COMMIT_AGAIN_S: Final = 0.2
"""The pause in seconds before a failed transaction is repeated while a partition waits for its release."""
NOT_OURS: Final = frozenset(
    {
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.GROUP_ID_NOT_FOUND,
        ErrorCode.FENCED_INSTANCE_ID,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
)
"""Harmless errors of a last commit: the group has continued without this member, or the topic was deleted."""


class AwaitHandlers(NamedTuple):
    """Wait until a handler ends, for `timeout_s` seconds at most."""

    timeout_s: float


class CancelHandlers(NamedTuple):
    """Cancel the handlers that still run in the partitions."""


class Commit(NamedTuple):
    """Commit the finished records of the partitions, and pass the result to `Revocation.on_commit`."""


class CommitAgain(NamedTuple):
    """Wait for `pause_s`, then commit again. End the attempt at `deadline_s` and call `on_commit_timeout`."""

    pause_s: float
    deadline_s: float


class Forget(NamedTuple):
    """Forget everything about the partitions."""


class Released(NamedTuple):
    """The end of the revocation."""

    error: HeadraceError | None
    """The error of the last commit, if records were finished and could not be committed. The worker must then stop."""


RevocationAction = AwaitHandlers | CancelHandlers | Commit | CommitAgain | Forget
"""The next action of the worker."""


class _Phase(Enum):
    DRAIN = "wait for handlers"
    RELEASE = "handlers were cancelled"
    COMMIT = "a commit was tried"
    FORGET = "nothing is left to commit"


class Revocation:
    """The release of some partitions. Call `next` until it returns `Released`."""

    def __init__(
        self,
        mode: DeliveryMode,
        scheduler: Scheduler,
        partitions: Collection[TopicPartition],
        *,
        drain_until_s: float,
        commit_timeout_s: float,
    ) -> None:
        self._mode = mode
        self._scheduler = scheduler
        self._partitions = partitions
        self._drain_until_s = drain_until_s
        self._commit_timeout_s = commit_timeout_s
        self._commit_until_s: float | None = None
        """The end of the repetition of the commit, in seconds. None before the first commit, or without repetition."""
        self._error: HeadraceError | None = None
        """The error of the last commit."""
        self._phase = _Phase.DRAIN
        mode.stop(scheduler, partitions)

    def next(self, now_s: float, *, is_ours: bool) -> RevocationAction | Released:
        """Return what to do next.

        Args:
            now_s: The time, in seconds of the clock of `drain_until_s`.
            is_ours: Whether all partitions still belong to this member. If not, the worker does not wait for handlers.
        """
        if self._phase is _Phase.DRAIN:
            left_s = self._drain_until_s - now_s
            drained = self._mode.is_drained(self._scheduler, self._partitions)
            if not drained and is_ours and left_s > 0:
                return AwaitHandlers(min(LOOK_AGAIN_S, left_s))
            self._phase = _Phase.RELEASE
            return CancelHandlers()
        if self._phase is _Phase.RELEASE and self._mode.commits_when_revoked:
            self._phase = _Phase.COMMIT
            return Commit()
        if self._phase is _Phase.COMMIT and self._is_worth_repeating(now_s):
            assert self._commit_until_s is not None, "it is set with the first error"
            return CommitAgain(COMMIT_AGAIN_S, self._commit_until_s)
        if self._phase is not _Phase.FORGET:
            self._phase = _Phase.FORGET
            return Forget()
        harmless = self._error is None or refusal(self._error) in NOT_OURS
        return Released(None if harmless else self._error)

    def on_commit(self, error: HeadraceError | None, now_s: float) -> None:
        """Take the result of a commit; None if it succeeded."""
        self._error = error
        if self._commit_until_s is None:
            self._commit_until_s = self._mode.repeat_commit_until_s(now_s, self._commit_timeout_s)

    def on_commit_timeout(self) -> None:
        """End the repetition of the commit, because its time is over."""
        self._commit_until_s = None

    def _is_worth_repeating(self, now_s: float) -> bool:
        if self._error is None or self._commit_until_s is None or now_s >= self._commit_until_s:
            return False
        final = isinstance(self._error, FatalTransactionError | WorkerFailedError)
        return not final and refusal(self._error) not in NOT_OURS


def refusal(error: HeadraceError) -> ErrorCode | None:
    """Return the broker's error code behind an error; None if no broker refused anything."""
    cause = error if isinstance(error, ApiError) else error.__cause__
    return cause.code if isinstance(cause, ApiError) else None
