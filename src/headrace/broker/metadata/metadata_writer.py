"""Commits changes to the metadata store, one at a time, even if the store does not report the outcome.

A store over a network may accept a commit and lose the response (`Unknown`). The commit may even arrive later. So every
commit also increments an entry of this broker, and checks the version that the entry got from the last commit. The
entry shows which commits were applied. A further increment makes a commit void that has not arrived:

1. The broker sends commit 7, and the connection breaks. The entry says 6.
2. The broker sends commit 8, which changes nothing else. The store applies it, and the entry has another version.
3. Commit 7 arrives. It checks the version that the entry had at 6, and the store refuses it.

If the store refuses commit 8, another commit was applied before. The image then shows which: it receives the entry.

A commit is complete when it is stored and the image has it. The next commit is sent then, and other commits wait. If
the outcome cannot be found out at once, or takes too long, the request gets the error REQUEST_TIMED_OUT. Until the
outcome is known, the broker commits nothing else. A second process of the same broker increments the entry as well.
Afterwards only that process can change anything.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Sequence
from functools import partial
from typing import Final

import msgspec

from headrace.core.cluster.image import MetadataImage
from headrace.deferred import Deferred, resolved
from headrace.errors import ApiError, RequestTimedOutError, StorageError, StorageUnavailableError
from headrace.ports import (
    Check,
    CommitOutcome,
    Conflict,
    Delete,
    Journal,
    MetadataBatch,
    MetadataStore,
    Put,
    SessionLost,
    Unknown,
    versions_of,
)

BROKER_COMMITS: Final = "brokers/commit/"
"""The prefix of the broker's own entry, before its id."""
WAITING_LIMIT: Final = 1_000
"""The greatest number of commits that wait for an earlier one."""
COMMIT_TIMEOUT_MS: Final = 10_000
"""The time after which a request does not wait for its commit any longer, in milliseconds."""
RETRY_INTERVAL_MS: Final = 1_000
_BEGIN_ATTEMPTS: Final = 10
_UNKNOWN: Final = (
    "whether a change of the metadata is stored is not known yet; look before you repeat it"
)
_TAKEN_OVER: Final = "another process of this broker has begun"

CommitError = Conflict | ApiError | None
"""The result of a commit: the error, None if the commit is stored and the image has it.

Conflict: a check does not hold. KAFKA_STORAGE_ERROR: nothing was changed, because the store does not respond or another
process of this broker has begun. REQUEST_TIMED_OUT: the outcome is unknown. The commit takes effect once or never."""


def _nothing() -> None:
    pass


class _Count(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The value of the broker's own entry: the number of the last commit, and the process that made it."""

    number: int
    process: str
    format: int = 1


_DECODER: Final = msgspec.json.Decoder(_Count)


class _Commit:
    """A commit that is in flight, or waits for an earlier one."""

    __slots__ = ("checks", "deadline_ms", "operations", "result")

    def __init__(
        self,
        checks: Sequence[Check],
        operations: Sequence[Put | Delete],
    ) -> None:
        self.checks = checks
        self.operations = operations
        self.result: Deferred[CommitError] = Deferred()
        self.deadline_ms: int | None = None
        """The time at which the request times out; None before the first tick."""


class MetadataWriter:
    """The metadata store of one broker: the commits of its requests, and the image of what any broker has committed."""

    __slots__ = (
        "_arrival",
        "_batches",
        "_current",
        "_due_version",
        "_end_watch",
        "_is_unknown",
        "_journal",
        "_key",
        "_now_ms",
        "_number",
        "_outcomes",
        "_process",
        "_retry_at_ms",
        "_store",
        "_ticket",
        "_version",
        "_waiting",
        "image",
        "next_deadline_ms",
    )

    def __init__(
        self, store: MetadataStore, broker_id: int, process: bytes, journal: Journal
    ) -> None:
        """Write as one process of a broker. `process` is unique to it."""
        self._store = store
        self._process = process.hex()
        self._journal = journal
        self._key = f"{BROKER_COMMITS}{broker_id}"
        self.image = MetadataImage()
        """All entries of the store. `begin` fills the image."""
        self._batches: deque[MetadataBatch] = deque()
        """Notifications of the store that the image has not applied yet."""
        self._outcomes: deque[tuple[int, CommitOutcome]] = deque()
        """Outcomes that have arrived since the last tick, with their tickets."""
        self._ticket = 0
        """The number of the outcome that the broker waits for. Outcomes with an earlier number are ignored."""
        self._arrival: Deferred[None] | None = None
        """Resolved by the next notification or outcome; None while no call blocks."""
        self._end_watch: Callable[[], object] = _nothing
        self._number = 0
        """The number of the last commit that was sent."""
        self._version = 0
        """The version of the broker's own entry after the last commit that is known to be applied."""
        self._current: _Commit | None = None
        """The commit in flight."""
        self._due_version: int | None = None
        """The version of the own entry that completes commit `_number`, which is stored; None in other states."""
        self._is_unknown = False
        """Whether the outcome of commit `_number` is unknown."""
        self._waiting: deque[_Commit] = deque()
        """The commits that wait for the current one."""
        self._now_ms = 0
        """The time of the last tick."""
        self._retry_at_ms: int | None = None
        """The time of the next `_retry`; None if there is none."""
        self.next_deadline_ms: int | None = None
        """The time at which `tick` has something to do next; None if there is no such time."""

    # Start and end

    def begin(self) -> None:
        """Take over from earlier processes of this broker, whose commits in flight become void; fill the image.

        Raises:
            StorageError: The store does not respond, or another process was faster.
        """
        outcome = self._begin(Check(self._key, "absent"))  # also shows whether the store responds
        self._end_watch = self._store.watch(self._notified)
        self._wait_for_arrival()
        self._apply_batches()
        for _ in range(_BEGIN_ATTEMPTS):
            if not isinstance(outcome, Conflict):
                break
            outcome = self._begin(Check(self._key, self._own_version))
            if isinstance(
                outcome, Conflict
            ):  # a commit of an earlier process has arrived meanwhile
                self._wait_for_arrival()
                self._apply_batches()
        else:
            raise StorageError(f"{self._key}: {_TAKEN_OVER}")
        self._version = outcome[self._key]
        self._apply_batches()
        self._plan()

    def _begin(self, check: Check) -> dict[str, int] | Conflict:
        """Write the broker's own entry if a check holds.

        Raises:
            StorageError: The store does not respond.
        """
        outcome = self._store.wait(self._store.commit([check], [self._count(0)]))
        return outcome if isinstance(outcome, Conflict) else versions_of(outcome)

    def _wait_for_arrival(self) -> None:
        """Block until a notification or an outcome has arrived."""
        if not (self._batches or self._outcomes):
            arrival = self._arrival = Deferred()
            self._store.wait(arrival)

    def close(self) -> None:
        """End the watch of the store: the broker applies no further changes."""
        self._end_watch()

    def commit_at_start(self, checks: Sequence[Check], operations: Sequence[Put | Delete]) -> None:
        """Commit like `commit`, and block until the image has the commit: at the start, and in offline commands.

        Raises:
            Conflict: A check does not hold.
            StorageError: The commit is not stored, or its outcome is unknown.
        """
        try:
            self.commit_and_wait(checks, operations)
        except ApiError as error:
            raise StorageError(error.message) from error

    def commit_and_wait(
        self,
        checks: Sequence[Check],
        operations: Sequence[Put | Delete],
    ) -> None:
        """Commit like `commit`, and block until the result is there.

        Raises:
            Conflict: See `CommitError`.
            ApiError: See `CommitError`.
        """
        result = self.commit(checks, operations)
        while not result.done:
            self._wait_for_arrival()
            self._proceed()
        if result.value is not None:
            raise result.value

    # Commits

    def commit(
        self,
        checks: Sequence[Check],
        operations: Sequence[Put | Delete],
    ) -> Deferred[CommitError]:
        """Apply all operations if all checks hold.

        With a store in this process the result is there on return.
        """
        if self._is_blocked:
            return resolved(RequestTimedOutError(_UNKNOWN))
        commit = _Commit(checks, operations)
        if self._current is None and not self._waiting:
            self._send(commit)
        elif len(self._waiting) < WAITING_LIMIT:
            self._waiting.append(commit)
        else:
            waiting = f"{WAITING_LIMIT} changes of the metadata wait already; try again later"
            return resolved(StorageUnavailableError(waiting))
        self._plan()
        return commit.result

    def committing(
        self, checks: Sequence[Check], operations: Sequence[Put | Delete]
    ) -> Generator[Deferred[CommitError], CommitError, None]:
        """Commit like `commit`, and wait for the result; for use with `yield from` in a `Work`.

        Raises:
            Conflict: See `CommitError`.
            ApiError: See `CommitError`.
        """
        result = self.commit(checks, operations)
        error = result.value if result.done else (yield result)
        if error is not None:
            raise error

    @property
    def _is_blocked(self) -> bool:
        """Whether the outcome of a commit is unknown whose request was answered."""
        return self._current is not None and self._current.result.done

    def _send(self, commit: _Commit) -> None:
        fence = Check(self._key, self._version)
        count = self._count(self._number + 1)
        outcome = self._store.commit([*commit.checks, fence], [*commit.operations, count])
        self._number += 1
        self._current = commit
        self._await(outcome)

    def _await(self, outcome: Deferred[CommitOutcome]) -> None:
        """Handle an outcome: now if it is there, in a tick after it has arrived otherwise."""
        self._ticket += 1
        if outcome.done:
            self._apply_batches()
            self._handle(self._ticket, outcome.value)
        else:
            outcome.on_done(partial(self._arrived, self._ticket))

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
            self._journal.warning("metadata_commit_unknown", error=str(outcome))
            self._is_unknown = True
            self._find_out()
        elif isinstance(outcome, Conflict):
            is_own = outcome.index < len(self._current.checks)
            self._complete(outcome if is_own else self._failed(StorageError(_TAKEN_OVER)))
        else:
            self._complete(self._failed(outcome))

    def _complete_stored(self) -> None:
        """Complete a stored commit if the image has it."""
        if self._due_version is None:
            return
        if self._own_version >= self._due_version:
            self._version, self._due_version = self._due_version, None
            self._retry_at_ms = None
            self._complete(None)
        elif self._retry_at_ms is None:
            self._retry_at_ms = self._now_ms + RETRY_INTERVAL_MS

    def _complete(self, error: CommitError) -> None:
        commit, self._current = self._current, None
        self._ticket += 1
        assert commit is not None, "only a commit in flight completes"
        self._answer(commit, error)

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
            check = Check(self._key, self._version)
            self._await(self._store.commit([check], [self._count(self._number + 1)]))

    def _retry(self) -> None:
        """Continue with a commit whose outcome is unknown, or whose notification has not arrived."""
        if self._is_unknown:
            self._find_out()
        else:  # a session that was lost gets no notifications
            self._retry_at_ms = self._now_ms + RETRY_INTERVAL_MS
            self._renew()

    def _handle_void(self, outcome: CommitOutcome) -> None:
        """Handle the outcome of the commit that makes commit `_number` void."""
        if isinstance(outcome, dict):
            self._settle(self._number + 1, outcome[self._key])
        elif isinstance(outcome, Conflict):
            if not self._find_in_image():  # the notification is in flight
                self._retry_at_ms = self._now_ms + RETRY_INTERVAL_MS
        else:
            if isinstance(outcome, SessionLost):
                self._renew()
            assert self._current is not None, "an unknown outcome belongs to a commit"
            self._answer(self._current, RequestTimedOutError(_UNKNOWN))
            self._retry_at_ms = self._now_ms + RETRY_INTERVAL_MS

    def _find_in_image(self) -> bool:
        """Settle commit `_number` if the image has a newer entry of this broker; return whether it has."""
        entry = self.image.get(self._key)
        if entry is None or entry.version <= self._version:
            return False
        count = _DECODER.decode(entry.value)
        if count.process == self._process:
            self._settle(count.number, entry.version)
        else:  # the commit may have been applied before the other process began
            self._is_unknown = False
            self._complete(RequestTimedOutError(f"{_UNKNOWN}: {_TAKEN_OVER}"))
        return True

    def _settle(self, number: int, version: int) -> None:
        """Complete commit `_number`: the last commit that was applied has a number and a version."""
        is_stored = number == self._number
        self._number, self._version = number, version
        self._is_unknown, self._retry_at_ms = False, None
        void = StorageUnavailableError("the metadata store did not take the change")
        self._complete(None if is_stored else void)

    # Notifications and time

    def _notified(self, batch: MetadataBatch) -> None:
        self._batches.append(batch)
        self._wake()

    def _arrived(self, ticket: int, outcome: CommitOutcome) -> None:
        self._outcomes.append((ticket, outcome))
        self._wake()

    def _wake(self) -> None:
        self.next_deadline_ms = 0
        if self._arrival is not None:
            arrival, self._arrival = self._arrival, None
            arrival.resolve(None)

    def tick(self, now_ms: int) -> None:
        """Apply the changes of all brokers, and complete what has become known of commits."""
        self._now_ms = now_ms
        self._proceed()
        if self._retry_at_ms is not None and now_ms >= self._retry_at_ms:
            self._retry()
            self._send_waiting()
        self._expire()
        self._plan()

    def _proceed(self) -> None:
        self._apply_batches()
        while self._outcomes:
            self._handle(*self._outcomes.popleft())
        self._complete_stored()
        if self._is_unknown:
            self._find_in_image()
        self._send_waiting()

    def _apply_batches(self) -> None:
        """Apply the notifications of the store to the image."""
        while self._batches:
            for error in self.image.apply(self._batches.popleft()):
                self._journal.error("metadata_entry_not_applied", error=str(error))

    def _expire(self) -> None:
        """Answer the requests that have waited for too long."""
        deadline_ms = self._now_ms + COMMIT_TIMEOUT_MS
        for commit in self._waiting:
            if commit.deadline_ms is None:
                commit.deadline_ms = deadline_ms
        current = self._current
        if current is not None:
            if current.deadline_ms is None:
                current.deadline_ms = deadline_ms
            elif current.deadline_ms <= self._now_ms:
                self._answer(current, RequestTimedOutError(_UNKNOWN))
        while self._waiting and (self._waiting[0].deadline_ms or 0) <= self._now_ms:
            unsent = StorageUnavailableError("the metadata store does not respond")
            self._answer(self._waiting.popleft(), unsent)

    def _plan(self) -> None:
        """Compute `next_deadline_ms` again, after a change of state."""
        if self._batches or self._outcomes:
            self.next_deadline_ms = 0
        elif self._current is None:
            self.next_deadline_ms = None
        else:
            # The oldest commit has the first deadline. The newest may have none before the next tick.
            unanswered = [] if self._is_blocked else [self._current]
            unanswered += [self._waiting[0], self._waiting[-1]] if self._waiting else []
            times = [commit.deadline_ms or 0 for commit in unanswered]
            if self._retry_at_ms is not None:
                times.append(self._retry_at_ms)
            self.next_deadline_ms = min(times, default=None)

    # Parts

    @property
    def _own_version(self) -> int:
        """The version of the broker's own entry in the image."""
        entry = self.image.get(self._key)
        return 0 if entry is None else entry.version

    def _failed(self, error: StorageError) -> StorageUnavailableError:
        self._journal.error("metadata_store_failed", error=str(error))
        if isinstance(error, SessionLost):
            self._renew()
        return StorageUnavailableError(str(error))

    def _renew(self) -> None:
        self._store.renew().on_done(self._renewed)

    def _renewed(self, error: StorageError | None) -> None:
        if error is not None:
            self._journal.error("metadata_session_not_renewed", error=str(error))

    def _count(self, number: int) -> Put:
        return Put(self._key, msgspec.json.encode(_Count(number, self._process)))
