"""A lane: commits to the metadata store, one at a time, even if the store does not report the outcome.

A store over a network may accept a commit and lose the response (`Unknown`). The commit may even arrive later. So every
commit of a lane also increments the entry of the lane, and checks the version that the entry got from the last commit.
The entry shows which commits were applied. A further increment makes a commit void that has not arrived:

1. The broker sends commit 7, and the connection breaks. The entry says 6.
2. The broker sends commit 8, which changes nothing else. The store applies it, and the entry has another version.
3. Commit 7 arrives. It checks the version that the entry had at 6, and the store refuses it.

If the store refuses commit 8, another commit was applied before. The image then shows which: it receives the entry.

A commit is complete when it is stored and the image has it. The next commit of the lane is sent then, and other commits
wait. If the outcome cannot be found out at once, or takes too long, the request gets the error REQUEST_TIMED_OUT. Until
the outcome is known, the lane commits nothing else. Lanes do not wait for each other: the requests of clients have one,
the leaders of partitions and the controller have others. A lane has no entry before its first commit.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

import msgspec

from headrace.broker.metadata.store_client import TAKEN_OVER, StoreClient
from headrace.deferred import Deferred, resolved
from headrace.errors import ApiError, RequestTimedOutError, StorageError, StorageUnavailableError
from headrace.ports import Check, CommitOutcome, Conflict, Delete, Put, SessionLost, Unknown

WAITING_LIMIT: Final = 1_000
"""The greatest number of commits of a lane that wait for an earlier one."""
COMMIT_TIMEOUT_MS: Final = 10_000
"""The time after which a request does not wait for its commit any longer, in milliseconds."""
MERGE_ATTEMPTS: Final = 10
"""The number of attempts to change an entry while other brokers change the same entry."""
RETRY_INTERVAL_MS: Final = 1_000
_UNKNOWN: Final = (
    "whether a change of the metadata is stored is not known yet; look before you repeat it"
)
_OTHERS_WERE_FASTER: Final = (
    f"{MERGE_ATTEMPTS} changes of other brokers were faster; nothing was changed, try again"
)

CommitError = Conflict | ApiError | None
"""The result of a commit: the error, None if the commit is stored and the image has it.

Conflict: a check does not hold. KAFKA_STORAGE_ERROR: nothing was changed, because the store does not respond or another
process of this broker has begun. REQUEST_TIMED_OUT: the outcome is unknown. The commit takes effect once or never."""


Change = tuple[Sequence[Check], Sequence[Put | Delete]]
"""Checks and operations of one commit."""
Merge = Callable[[], Change | None]
"""Returns a change of what the image has, or None if there is nothing to change. It may raise ApiError or StorageError.

The change has checks of all entries that it was computed from."""


class _Count(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The value of the entry of a lane: the number of the last commit, and the process that made it."""

    number: int
    process: str
    format: int = 1


_DECODER: Final = msgspec.json.Decoder(_Count)


class _Commit:
    """A commit that is in flight, or waits for an earlier one."""

    __slots__ = ("attempts", "checks", "deadline_ms", "merge", "operations", "result")

    def __init__(
        self,
        checks: Sequence[Check],
        operations: Sequence[Put | Delete],
        merge: Merge | None = None,
    ) -> None:
        self.checks = checks
        self.operations = operations
        self.merge = merge
        """Returns other checks and operations before each attempt; None if they do not change."""
        self.attempts = 0
        """The number of attempts to send what `merge` returns."""
        self.result: Deferred[CommitError] = Deferred()
        self.deadline_ms: int | None = None
        """The time at which the request times out; None before the first tick."""


class CommitLane:
    """A numbered sequence of commits of one process."""

    __slots__ = (
        "_client",
        "_conflict",
        "_current",
        "_due_version",
        "_is_unknown",
        "_key",
        "_number",
        "_outcomes",
        "_retry_at_ms",
        "_ticket",
        "_version",
        "_waiting",
    )

    def __init__(self, client: StoreClient, key: str) -> None:
        """Begin without commits.

        Args:
            client: The metadata store.
            key: The key of the entry of the lane. No other broker and no other lane has the same.
        """
        self._client = client
        self._key = key
        self._outcomes: deque[tuple[int, CommitOutcome]] = deque()
        """Outcomes that have arrived since the last tick, with their tickets."""
        self._ticket = 0
        """The number of the outcome that the lane waits for. Outcomes with an earlier number are ignored."""
        self._number = 0
        """The number of the last commit that was sent."""
        self._version = -1
        """The version of the lane's entry after the last commit that is known to be applied; -1 if none is known."""
        self._current: _Commit | None = None
        """The commit in flight."""
        self._due_version: int | None = None
        """The version of the lane's entry that completes commit `_number`, which is stored; None in other states."""
        self._conflict: Conflict | None = None
        """The outcome of a change that the store has refused, and that is merged again; None in other states."""
        self._is_unknown = False
        """Whether the outcome of commit `_number` is unknown."""
        self._waiting: deque[_Commit] = deque()
        """The commits that wait for the current one."""
        self._retry_at_ms: int | None = None
        """The time of the next `_retry`; None if there is none."""

    # Commits

    def commit(
        self, checks: Sequence[Check], operations: Sequence[Put | Delete]
    ) -> Deferred[CommitError]:
        """Apply all operations if all checks hold.

        With a store in this process the result is there on return.
        """
        return self._begin(_Commit(checks, operations))

    def merge(self, merge: Merge) -> Deferred[CommitError]:
        """Apply the change that `merge` returns when all earlier commits of this lane are complete.

        If another broker was faster, `merge` is called again when the image has what that broker has stored.

        Returns:
            See `CommitError`. Conflict does not occur. KAFKA_STORAGE_ERROR also means that an entry cannot be read, or
            that other brokers were always faster.
        """
        return self._begin(_Commit((), (), merge))

    def _begin(self, commit: _Commit) -> Deferred[CommitError]:
        if self._is_blocked:
            return resolved(RequestTimedOutError(_UNKNOWN))
        if self._current is None and not self._waiting:
            self._send(commit)
        elif len(self._waiting) < WAITING_LIMIT:
            self._waiting.append(commit)
        else:
            waiting = f"{WAITING_LIMIT} changes of the metadata wait already; try again later"
            return resolved(StorageUnavailableError(waiting))
        self._client.plan()
        return commit.result

    @property
    def _is_blocked(self) -> bool:
        """Whether the outcome of a commit is unknown whose request was answered."""
        return self._current is not None and self._current.result.done

    def _send(self, commit: _Commit) -> None:
        if commit.merge is not None and not self._merge(commit, commit.merge):
            return
        if self._version < 0:  # the image has the last commit of an earlier process
            self._version = self._stored_version
        checks = [*commit.checks, *self._fences]
        outcome = self._client.store.commit(
            checks, [*commit.operations, self._count(self._number + 1)]
        )
        self._number += 1
        self._current = commit
        self._await(outcome)

    def _merge(self, commit: _Commit, merge: Merge) -> bool:
        """Compute the change of a commit; return whether there is anything to send."""
        commit.attempts += 1
        try:
            change = merge()
        except ApiError as error:
            self._answer(commit, error)
            return False
        except StorageError as error:
            self._answer(commit, StorageUnavailableError(str(error)))
            return False
        if change is None:
            self._answer(commit, None)
            return False
        commit.checks, commit.operations = change
        return True

    @property
    def _fences(self) -> tuple[Check, Check]:
        """The checks after which no other commit of this lane can be applied."""
        version = self._version
        return self._client.check, Check(self._key, "absent" if version < 0 else version)

    def _await(self, outcome: Deferred[CommitOutcome]) -> None:
        """Handle an outcome: now if it is there, in a tick after it has arrived otherwise."""
        self._ticket += 1
        if outcome.done:
            self._client.apply()
            self._handle(self._ticket, outcome.value)
        else:
            outcome.on_done(partial(self._arrived, self._ticket))

    def _arrived(self, ticket: int, outcome: CommitOutcome) -> None:
        self._outcomes.append((ticket, outcome))
        self._client.wake()

    def _handle(self, ticket: int, outcome: CommitOutcome) -> None:
        if ticket != self._ticket:  # the image was faster
            return
        if self._is_unknown:
            self._handle_void(outcome)
            return
        assert self._current is not None, "an outcome belongs to a commit"
        if isinstance(outcome, dict):
            self._due_version = outcome[self._key]
            self._complete_stored()
        elif isinstance(outcome, Unknown):
            self._client.journal.warning("metadata_commit_unknown", error=str(outcome))
            self._is_unknown = True
            self._find_out()
        elif isinstance(outcome, Conflict):
            if outcome.index < len(self._current.checks):
                self._refused(outcome)
            else:
                self._complete(self._failed(StorageError(TAKEN_OVER)))
        else:
            self._complete(self._failed(outcome))

    def _complete_stored(self) -> None:
        """Complete a stored commit if the image has it."""
        if self._due_version is None:
            return
        if self._stored_version >= self._due_version:
            self._version, self._due_version = self._due_version, None
            self._complete(None)
        elif self._retry_at_ms is None:
            self._retry_later()

    def _refused(self, conflict: Conflict) -> None:
        commit = self._current
        if commit is None or commit.merge is None or commit.result.done:
            self._complete(conflict)
        else:
            self._conflict = conflict
            self._merge_again()

    def _merge_again(self) -> None:
        """Merge a refused change again if the image shows which check does not hold."""
        if self._conflict is None or self._current is None:
            return
        check = self._current.checks[self._conflict.index]
        entry = self._client.image.get(check.key)
        if not check.holds(None if entry is None else entry.version):
            self._next_attempt(self._current)
        elif self._retry_at_ms is None:
            self._retry_later()

    def _next_attempt(self, commit: _Commit) -> None:
        if commit.attempts < MERGE_ATTEMPTS and not commit.result.done:
            self._release()
            self._send(commit)
        else:
            self._complete(StorageUnavailableError(_OTHERS_WERE_FASTER))

    def _complete(self, error: CommitError) -> None:
        commit = self._current
        assert commit is not None, "only a commit in flight completes"
        self._release()
        self._answer(commit, error)

    def _release(self) -> None:
        """Let another commit be sent."""
        self._current, self._conflict = None, None
        self._is_unknown, self._retry_at_ms = False, None
        self._ticket += 1

    def _send_waiting(self) -> None:
        while self._current is None and self._waiting:
            commit = self._waiting.popleft()
            if not commit.result.cancelled:
                self._send(commit)

    def _answer(self, commit: _Commit, error: CommitError) -> None:
        if not commit.result.done:
            commit.result.resolve(error)

    # Unknown outcomes

    def _find_out(self) -> None:
        """Settle commit `_number`: find it in the image, or make it void."""
        self._retry_at_ms = None
        if not self._find_in_image():
            # If this outcome is unknown as well, the next attempt has the same number.
            void = self._count(self._number + 1)
            self._await(self._client.store.commit(self._fences, [void]))

    def _retry(self) -> None:
        """Continue with a commit whose outcome is unknown, or whose notification has not arrived."""
        if self._is_unknown:
            self._find_out()
            return
        self._client.renew()  # a session that was lost gets no notifications
        if self._conflict is not None and self._current is not None:  # the check may hold again
            self._next_attempt(self._current)
        else:
            self._retry_later()

    def _retry_later(self) -> None:
        self._retry_at_ms = self._client.now_ms + RETRY_INTERVAL_MS

    def _handle_void(self, outcome: CommitOutcome) -> None:
        """Handle the outcome of the commit that makes commit `_number` void."""
        if isinstance(outcome, dict):
            self._settle(self._number + 1, outcome[self._key])
        elif isinstance(outcome, Conflict):
            if not self._find_in_image():  # the notification is in flight
                self._retry_later()
        else:
            if isinstance(outcome, SessionLost):
                self._client.renew()
            assert self._current is not None, "an unknown outcome belongs to a commit"
            self._answer(self._current, RequestTimedOutError(_UNKNOWN))
            self._retry_later()

    def _find_in_image(self) -> bool:
        """Settle commit `_number` if the image shows what became of it; return whether it does."""
        entry = self._client.image.get(self._key)
        if entry is not None and entry.version > self._version:
            count = _DECODER.decode(entry.value)
            if count.process == self._client.process:
                self._settle(count.number, entry.version)
            else:  # the commit may have been applied before the other process began
                self._complete(RequestTimedOutError(f"{_UNKNOWN}: {TAKEN_OVER}"))
            return True
        if self._client.is_taken_over:  # the commit was not applied before, and is void now
            self._complete(StorageUnavailableError(TAKEN_OVER))
            return True
        return False

    def _settle(self, number: int, version: int) -> None:
        """Complete commit `_number`: the last commit that was applied has a number and a version."""
        is_stored = number == self._number
        self._number, self._version = number, version
        void = StorageUnavailableError("the metadata store did not take the change")
        self._complete(None if is_stored else void)

    # Time

    @property
    def is_idle(self) -> bool:
        """Whether no commit is in flight, and none waits."""
        return self._current is None

    @property
    def next_deadline_ms(self) -> int | None:
        """The time at which `tick` has something to do next, even if nothing arrives; None if there is no such time."""
        if self._current is None:
            return None
        # The oldest commit has the first deadline. The newest may have none before the next tick.
        unanswered = [] if self._is_blocked else [self._current]
        unanswered += [self._waiting[0], self._waiting[-1]] if self._waiting else []
        times = [commit.deadline_ms or 0 for commit in unanswered]
        if self._retry_at_ms is not None:
            times.append(self._retry_at_ms)
        return min(times, default=None)

    def proceed(self) -> None:
        """Complete what has become known of commits, and send the next commit."""
        while self._outcomes:
            self._handle(*self._outcomes.popleft())
        self._complete_stored()
        self._merge_again()
        if self._is_unknown:
            self._find_in_image()
        self._send_waiting()

    def tick(self, now_ms: int) -> None:
        """Do what is due: settle a commit of unknown outcome, and answer the requests that have waited for too long."""
        if self._current is None:
            return
        if self._retry_at_ms is not None and now_ms >= self._retry_at_ms:
            self._retry()
            self._send_waiting()
        self._expire(now_ms)

    def _expire(self, now_ms: int) -> None:
        deadline_ms = now_ms + COMMIT_TIMEOUT_MS
        for commit in self._waiting:
            if commit.deadline_ms is None:
                commit.deadline_ms = deadline_ms
        current = self._current
        if current is not None:
            if current.deadline_ms is None:
                current.deadline_ms = deadline_ms
            elif current.deadline_ms <= now_ms:
                self._answer(current, RequestTimedOutError(_UNKNOWN))
        while self._waiting and (self._waiting[0].deadline_ms or 0) <= now_ms:
            unsent = StorageUnavailableError("the metadata store does not respond")
            self._answer(self._waiting.popleft(), unsent)

    # Parts

    @property
    def _stored_version(self) -> int:
        """The version of the lane's entry in the image; -1 if there is no entry."""
        entry = self._client.image.get(self._key)
        return -1 if entry is None else entry.version

    def _failed(self, error: StorageError) -> StorageUnavailableError:
        self._client.journal.error("metadata_store_failed", error=str(error))
        if isinstance(error, SessionLost):
            self._client.renew()
        return StorageUnavailableError(str(error))

    def _count(self, number: int) -> Put:
        return Put(self._key, msgspec.json.encode(_Count(number, self._client.process)))
