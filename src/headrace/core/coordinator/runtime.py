"""The runtime of a coordinator: one shard for each partition of its internal topic.

The contract has four points:

1. An operation reads the state and returns a `Result`: records, and a response. It may change soft state (parked
   requests, timers), which a crash may lose. It does not change durable state.
2. The runtime appends the records to the partition as one batch, and then replays them. Only replay changes durable
   state. Loading a shard replays its partition from the start. When an append fails, nothing is replayed, so nothing
   changes.
3. A response leaves when the high watermark has passed everything that was appended before, including the records of
   its own operation. This holds for responses to reads too (a *read barrier*): no client learns of a commit, a
   generation or an assignment that a crash can still undo. If all records are synced already, the response leaves at
   once.
4. When the partition is lost, or the outcome of an append is unknown, the shard is dropped with `unload`: waiting
   requests get NOT_COORDINATOR, and the next `load` starts from the log. There is no repair in place.

Loading has two phases. `replay_in_steps` reads the log. `activate_in_steps` builds soft state, and then lets requests
in. Both are generators: they pause after about a millisecond of work, and requests get COORDINATOR_LOAD_IN_PROGRESS
meanwhile. `unload` and `begin` end a load that has paused.

Deferreds are resolved only at the end of the outermost operation. A resolved response may make the server handle the
connection's next request at once, and that request must not find a half-changed state.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import partial
from typing import Generic, NamedTuple, Protocol, TypeAlias, TypeVar

from headrace.core.coordinator.parked import APPEND_ERRORS, Parked
from headrace.core.deadlines import Deadlines
from headrace.deferred import Deferred
from headrace.errors import ApiError, ErrorCode, StorageError
from headrace.ports import Journal
from headrace.types import Buffer

T = TypeVar("T")
R = TypeVar("R")

Reply: TypeAlias = T | Deferred[T]
"""A response, or a Deferred that is resolved with the response later."""


class CoordinatorLog(Protocol):
    """The internal topic as a coordinator sees it; the broker implements it over its partition logs."""

    @property
    def partitions_count(self) -> int:
        """The number of the topic's partitions, which never changes; 0 while the topic does not exist."""

    def append(self, partition: int, batch: bytes, now_ms: int) -> int:
        """Append one record batch and return the log end offset after it.

        May call back into `high_watermark_advanced` before it returns.

        Raises:
            ApiError: Nothing was appended.
        """

    def high_watermark(self, partition: int) -> int:
        """Return the end offset of the records that a crash cannot lose."""

    def is_suspect(self, partition: int) -> bool:
        """Return whether another broker may coordinate the partition by now, and may have changed its state."""

    def read_from_start(self, partition: int) -> Iterator[Buffer]:
        """Yield all record batches of the partition in order. Each buffer has whole batches.

        An empty buffer is a pause: about a millisecond of work has been done.
        """


class TimerKey(NamedTuple):
    """The key of a deadline.

    `group_id` is the group id or the transactional id, "" for a timer of the shard. `member_id` is "" for a timer that
    does not belong to a member.
    """

    kind: str
    partition: int
    group_id: str = ""
    member_id: str = ""


Timers = Deadlines[TimerKey]

PARKED = "parked"
"""The kind of timer that a shard itself sets. It expires when the oldest parked response has waited too long."""


@dataclass(frozen=True, slots=True)
class Result(Generic[R]):
    """The decision of an operation.

    Attributes:
        response: The response, or a Deferred if the response depends on a later event. Then `ShardRuntime.answer`
            resolves it.
        records: The records to append as one batch, and to replay.
        after: Called once with NONE when the records are replayed, or with the error when they could not be appended.
            It answers other parked requests.
    """

    response: R | Deferred[R]
    records: Sequence[object] = ()
    after: Callable[[ErrorCode], None] | None = None

    def with_response(self, response: Reply[T]) -> Result[T]:
        """Return the same decision with another response."""
        return replace(self, response=response)  # type: ignore[return-value, arg-type]  # replace() cannot change R


NOTHING: Result[None] = Result(None)
"""The result of an operation without records and without a response."""


class StateMachine(Protocol[R]):
    """The state machine of a shard: its state, which only `replay` changes, and the encoding of its records."""

    def replay(self, record: R) -> bool | None:
        """Apply one record to the durable state, or a part that takes some milliseconds.

        Returns:
            True if a part is left. The caller replays the record again until nothing is left, before the next record.
        """

    def encode(self, records: Sequence[R], now_ms: int) -> bytes:
        """Return one record batch."""

    def decode(self, batches: Buffer) -> Iterable[tuple[int, R | None] | None]:
        """Yield (offset, record) of each record in the batches, with None in place of a record of an unknown kind.

        None in place of the pair is a pause: about a millisecond of work has been done.
        """

    def loaded(self, now_ms: int) -> Iterable[Callable[[], Result[None]] | None]:
        """Build soft state and timers after loading, and yield operations to run when the shard is active.

        None is a pause: about a millisecond of work has been done. Requests may come before the operations, which
        therefore look up again what a request may have changed.
        """

    def unloaded(self, error: ErrorCode) -> Iterator[None]:
        """Drop the state at once.

        Returns:
            The rest of the work, with a pause after about each millisecond: it answers all parked requests with
            `error`, and frees what the state has held.
        """


class ShardState(Enum):
    """The states of a shard. Only an ACTIVE shard runs operations.

    INITIAL waits until it is loaded. LOADING replays its records. REPLAYED has all of them, but no soft state yet.
    """

    INITIAL = "Initial"
    LOADING = "Loading"
    REPLAYED = "Replayed"
    ACTIVE = "Active"
    FAILED = "Failed"


class ShardRuntime(Generic[R]):
    """One partition: its state machine, its log end offset, and the responses that wait for the high watermark."""

    def __init__(
        self,
        partition: int,
        log: CoordinatorLog,
        machine: StateMachine[R],
        *,
        timers: Timers,
        commit_timeout_ms: int,
        journal: Journal,
    ) -> None:
        self.partition = partition
        self.state = ShardState.INITIAL
        self.end_offset = 0
        self.high_watermark = 0
        self._log = log
        self._machine = machine
        self._timers = timers
        self._commit_timeout_ms = commit_timeout_ms
        self._journal = journal
        self._parked: deque[Parked] = deque()
        self._lost: deque[Parked] = deque()
        """The responses that waited when the shard was unloaded. They become NOT_COORDINATOR."""
        self._postponed: deque[Callable[[int], None]] = deque()
        self._depth = 0
        self._now_ms = 0
        self._leaving = _nothing_left()
        """The rest of the last unload."""
        self._lives = 0
        """The number of calls of `begin` and `unload`. A load ends when the number has changed."""

    # --- operations ---

    def execute(
        self, operation: Callable[[], Result[T]], on_error: Callable[[ErrorCode], T], now_ms: int
    ) -> Reply[T]:
        """Run one operation: decide, append, replay, answer.

        Args:
            operation: Returns the decision. If it raises an ApiError, the error is the response, and nothing is
                written.
            on_error: Returns the response for an error code.
            now_ms: The time.
        """
        if self._depth:
            # An append can resolve a delayed request, for example a fetch of the internal topic, and the server then
            # handles the next request of that connection. The new operation runs after the current operation.
            return self._postpone(lambda at_ms: self.execute(operation, on_error, at_ms))
        if self.state is not ShardState.ACTIVE:
            return on_error(self.unavailable)
        self._depth += 1
        self._now_ms = now_ms
        try:
            reply = self._run(operation, on_error, now_ms)
        finally:
            self._depth -= 1
        self._release()
        while self._postponed and not self._depth:
            self._postponed.popleft()(now_ms)
        # If the reply is resolved already, the caller needs no Deferred.
        return reply.value if isinstance(reply, Deferred) and reply.done else reply

    def answer(
        self, deferred: Deferred[T], response: T, on_error: Callable[[ErrorCode], T]
    ) -> None:
        """Resolve `deferred` once everything appended so far is below the high watermark."""

        def resolve(error: ErrorCode) -> None:
            deferred.resolve(response if error is ErrorCode.NONE else on_error(error))

        if deferred.cancelled:
            return
        if not self._parked:
            self._timers.set(
                TimerKey(PARKED, self.partition), self._now_ms + self._commit_timeout_ms
            )
        parked = Parked(self.end_offset, self._now_ms + self._commit_timeout_ms, resolve)
        deferred.on_cancel(parked.give_up)
        self._parked.append(parked)

    def high_watermark_advanced(self, high_watermark: int) -> None:
        """Raise the high watermark, which never moves back, and send the responses that waited for it."""
        self.high_watermark = max(self.high_watermark, high_watermark)
        self._release()

    def expire_parked(self, now_ms: int) -> None:
        """Answer responses that have waited too long with an error. Their records may still become durable."""
        while self._parked and self._parked[0].deadline_ms <= now_ms:
            self._parked.popleft().resolve(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        if self._parked:
            self._timers.set(TimerKey(PARKED, self.partition), self._parked[0].deadline_ms)

    def _postpone(self, run: Callable[[int], Reply[T]]) -> Deferred[T]:
        deferred: Deferred[T] = Deferred()

        def run_now(now_ms: int) -> None:
            reply = run(now_ms)
            if isinstance(reply, Deferred):
                deferred.follow(reply)
            else:
                deferred.resolve(reply)

        self._postponed.append(run_now)
        return deferred

    @property
    def unavailable(self) -> ErrorCode:
        """The error with which the shard refuses requests now, or NONE."""
        if self.state is ShardState.ACTIVE:
            return ErrorCode.NONE
        failed = self.state is ShardState.FAILED
        return ErrorCode.NOT_COORDINATOR if failed else ErrorCode.COORDINATOR_LOAD_IN_PROGRESS

    def _run(
        self, operation: Callable[[], Result[T]], on_error: Callable[[ErrorCode], T], now_ms: int
    ) -> Reply[T]:
        try:
            result = operation()
        except ApiError as error:
            return self._park(on_error(error.code), on_error)
        life = self._lives
        code = self._append(result.records, now_ms)
        if result.after is not None:
            result.after(code)
        if isinstance(result.response, Deferred):
            return result.response
        if self._lives != life:
            return on_error(ErrorCode.NOT_COORDINATOR)
        response = result.response if code is ErrorCode.NONE else on_error(code)
        return self._park(response, on_error)

    def _append(self, records: Sequence[object], now_ms: int) -> ErrorCode:
        if not records:
            return ErrorCode.NONE
        typed: Sequence[R] = records  # type: ignore[assignment]  # a Result carries its own machine's records
        life = self._lives
        try:
            end_offset = self._log.append(
                self.partition, self._machine.encode(typed, now_ms), now_ms
            )
        except ApiError as error:
            self._journal.warning(
                "coordinator_append_failed", partition=self.partition, error=str(error)
            )
            return APPEND_ERRORS.get(error.code, error.code)
        if self._lives != life:
            return ErrorCode.NOT_COORDINATOR  # the next load replays the records
        self.end_offset = end_offset
        for record in typed:
            while self._machine.replay(record):
                pass
        self.high_watermark = max(self.high_watermark, self._log.high_watermark(self.partition))
        return ErrorCode.NONE

    def _park(self, response: T, on_error: Callable[[ErrorCode], T]) -> Reply[T]:
        if self.high_watermark >= self.end_offset:
            return response
        deferred: Deferred[T] = Deferred()
        self.answer(deferred, response, on_error)
        return deferred

    def _release(self) -> None:
        if self._depth:
            return
        while self._lost:
            self._lost.popleft().resolve(ErrorCode.NOT_COORDINATOR)
        while self._parked and self._parked[0].end_offset <= self.high_watermark:
            self._parked.popleft().resolve(ErrorCode.NONE)
        if not self._parked:
            self._timers.cancel(TimerKey(PARKED, self.partition))

    # --- life ---

    def begin(self) -> None:
        """Wait to be loaded, without state. Unloads the shard if it is loaded or being loaded."""
        if self.state not in {ShardState.INITIAL, ShardState.FAILED}:
            self.unload_in_steps()
        for _ in self._leaving:  # otherwise the rest would cancel timers of the new state
            pass
        self.state = ShardState.INITIAL
        self._lives += 1

    def load(self, now_ms: int) -> None:
        """Load the shard at once.

        Raises:
            StorageError: A record cannot be read. The shard does not become active, because it would miss a commit.
        """
        self.begin()
        for _ in self.replay_in_steps():
            pass
        for _ in self.activate_in_steps(lambda: now_ms):
            pass

    def replay_in_steps(self) -> Generator[None, None, None]:
        """Replay the partition from its start; `activate_in_steps` is next. Do nothing unless the state is INITIAL.

        Raises:
            StorageError: A record cannot be read. The shard does not become active, because it would miss a commit.
        """
        if self.state is not ShardState.INITIAL:
            return
        self.state, life = ShardState.LOADING, self._lives
        try:
            for _ in self._replay_all():
                yield
                if self._lives != life:
                    return
        except (StorageError, ApiError, OSError) as error:
            self._journal.error(
                "coordinator_load_failed", partition=self.partition, error=str(error)
            )
            self.unload()
            raise
        self.state = ShardState.REPLAYED

    def _replay_all(self) -> Generator[None, None, None]:
        """Replay the partition from its start, with a pause about every millisecond."""
        self.end_offset = unknown = 0
        for batches in self._log.read_from_start(self.partition):
            for decoded in self._machine.decode(batches):
                if decoded is None:
                    yield
                    continue
                offset, record = decoded
                self.end_offset = offset + 1
                if record is None:
                    unknown += 1
                    continue
                while self._machine.replay(record):
                    yield
            yield
        if unknown:
            self._journal.warning(
                "coordinator_unknown_records", partition=self.partition, count=unknown
            )

    def activate_in_steps(self, now_ms: Callable[[], int]) -> Generator[None, None, None]:
        """Build soft state, and become active. Do nothing unless the partition has been replayed.

        Args:
            now_ms: Returns the time, which passes during the pauses.
        """
        if self.state is not ShardState.REPLAYED:
            return
        life = self._lives
        operations: list[Callable[[], Result[None]]] = []
        for operation in self._machine.loaded(now_ms()):
            if operation is None:
                yield
                if self._lives != life:
                    return
            else:
                operations.append(operation)
        self.high_watermark = self._log.high_watermark(self.partition)
        self.state = ShardState.ACTIVE
        for operation in operations:
            self.execute(operation, lambda _: None, now_ms())
            yield
            if self._lives != life:
                return

    def unload(self) -> None:
        """Drop all state, and answer all parked requests with NOT_COORDINATOR. May be called during an append."""
        for _ in self.unload_in_steps():
            pass

    def unload_in_steps(self) -> Generator[None, None, None]:
        """Drop all state at once, and answer the requests that wait for the high watermark.

        Returns:
            The rest of the work, with a pause after about each millisecond: it answers other parked requests, and frees
            what the state has held. `begin` does what is left of the rest.
        """
        self.state = ShardState.FAILED
        self._lives += 1
        leaving = self._machine.unloaded(ErrorCode.NOT_COORDINATOR)
        self._refuse_parked()
        self._leaving = self._leave(leaving)
        return self._leaving

    def _leave(self, leaving: Iterator[None]) -> Generator[None, None, None]:
        for _ in leaving:
            self._refuse_parked()
            yield
        self._refuse_parked()

    def _refuse_parked(self) -> None:
        self._lost += self._parked
        self._parked.clear()
        self._release()


def _nothing_left() -> Generator[None, None, None]:
    yield from ()


def gather(replies: Sequence[Reply[T]]) -> list[T] | Deferred[list[T]]:
    """Return the values of all replies in order; a Deferred if some replies are not ready yet."""
    values: list[T | None] = [None] * len(replies)
    missing = 0
    gathered: Deferred[list[T]] = Deferred()

    def arrived(index: int, value: T) -> None:
        nonlocal missing
        values[index] = value
        missing -= 1
        if missing == 0:
            gathered.resolve(values)  # type: ignore[arg-type]  # none is missing any more

    pending: list[tuple[int, Deferred[T]]] = []
    for index, reply in enumerate(replies):
        if isinstance(reply, Deferred):
            pending.append((index, reply))
        else:
            values[index] = reply
    if not pending:
        return values  # type: ignore[return-value]  # every value is set
    missing = len(pending)
    for index, deferred in pending:
        deferred.on_done(partial(arrived, index))
    gathered.on_cancel(partial(_cancel_all, [deferred for _, deferred in pending]))
    return gathered


def _cancel_all(pending: Sequence[Deferred[T]]) -> None:
    for deferred in pending:
        deferred.cancel()
