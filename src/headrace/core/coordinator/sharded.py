"""The base of coordinators: one shard for each partition of an internal topic, timers, and routing to shards."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Sequence
from functools import partial
from typing import Any, Final, Generic, Protocol, TypeVar

from headrace.core.coordinator.partitioning import partition_for_key
from headrace.core.coordinator.runtime import (
    PARKED,
    CoordinatorLog,
    Reply,
    Result,
    ShardRuntime,
    ShardState,
    TimerKey,
    Timers,
    gather,
)
from headrace.core.deadlines import Deadlines
from headrace.deferred import Deferred
from headrace.errors import ErrorCode

T = TypeVar("T")

EXPIRY: Final = "expiry"
"""The kind of timer that removes expired entries from a shard."""
TIMERS_AT_ONCE: Final = 100
"""The largest number of timers that run before requests are handled again. Clients choose how many are due together."""
TOMBSTONES_PER_BATCH: Final = 1_000
LOADING_PAUSE_MS: Final = 100
"""The time after which a timer that has expired before its partition is active expires again, in milliseconds."""


class HasRuntime(Protocol):
    """The coordinator's part of a shard."""

    @property
    def runtime(self) -> ShardRuntime[Any]:
        """The runtime of the shard."""


S = TypeVar("S", bound=HasRuntime)


class ShardedCoordinator(ABC, Generic[S]):
    """The part that both coordinators have in common: shards, timers, and routing of operations to shards."""

    def __init__(self, log: CoordinatorLog, expiry_interval_ms: int) -> None:
        """Begin without loaded partitions.

        Args:
            log: The internal topic.
            expiry_interval_ms: The interval at which expired entries of each partition are removed.
        """
        self._log = log
        self._expiry_interval_ms = expiry_interval_ms
        self._timers: Timers = Deadlines()
        self._shards: dict[int, S] = {}

    # What each coordinator adds

    @abstractmethod
    def _new_shard(self, partition: int) -> S:
        """Return a shard for a partition that was never loaded."""

    @abstractmethod
    def _run_timer(self, shard: S, timer: TimerKey, now_ms: int) -> None:
        """Run the operation of an expired timer of the coordinator's own kinds."""

    @abstractmethod
    def _expired(self, shard: S, now_ms: int) -> Iterable[Sequence[object]]:
        """Return the tombstones of expired entries. Each sequence is written by itself."""

    # Partitions

    def begin(self, partition: int) -> None:
        """Begin to coordinate a partition: its requests get COORDINATOR_LOAD_IN_PROGRESS until it is loaded."""
        shard = self._shards.get(partition)
        if shard is None:
            shard = self._shards[partition] = self._new_shard(partition)
        shard.runtime.begin()

    def load(self, partition: int, now_ms: int) -> None:
        """Load a partition at once: replay its records, and begin to handle requests for it.

        Raises:
            StorageError: A record cannot be read.
        """
        self.begin(partition)
        for _ in self.replay_in_steps(partition):
            pass
        for _ in self.activate_in_steps(partition, lambda: now_ms):
            pass

    def replay_in_steps(self, partition: int) -> Generator[None, None, None]:
        """Replay the records of a partition, with a pause after about each millisecond of work.

        Does nothing unless `begin` was called. Ends when the partition is unloaded, or begun again.

        Raises:
            StorageError: A record cannot be read.
        """
        return self._shards[partition].runtime.replay_in_steps()

    def activate_in_steps(
        self, partition: int, now_ms: Callable[[], int]
    ) -> Generator[None, None, None]:
        """Begin to handle requests for a partition that was replayed, with a pause after about each millisecond.

        Args:
            partition: The partition. Nothing happens if it has been unloaded since.
            now_ms: Returns the time, which passes during the pauses.
        """
        runtime = self._shards[partition].runtime
        yield from runtime.activate_in_steps(now_ms)
        if runtime.state is ShardState.ACTIVE:
            # Each partition has another point in the interval, because checking all at once would take long.
            share = (partition + 1) / max(self._log.partitions_count, 1)
            at_ms = now_ms() + int(self._expiry_interval_ms * share)
            self._timers.set(TimerKey(EXPIRY, partition), at_ms)

    def unload(self, partition: int) -> None:
        """Stop coordinating a partition: answer waiting requests with NOT_COORDINATOR, and drop the state."""
        for _ in self.unload_in_steps(partition):
            pass

    def unload_in_steps(self, partition: int) -> Generator[None, None, None]:
        """Stop coordinating a partition at once. Return the rest of the work; see `ShardRuntime.unload_in_steps`."""
        self._timers.cancel(TimerKey(EXPIRY, partition))
        shard = self._shards.get(partition)
        return (None for _ in ()) if shard is None else shard.runtime.unload_in_steps()

    def high_watermark_advanced(self, partition: int, high_watermark: int) -> None:
        """Send the responses that waited for this high watermark. May be called during an append."""
        shard = self._shards.get(partition)
        if shard is not None:
            shard.runtime.high_watermark_advanced(high_watermark)

    def partition_for(self, key: str) -> int | None:
        """Return the partition that stores a group or a transactional id; None while the topic does not exist."""
        count = self._log.partitions_count
        return partition_for_key(key, count) if count else None

    def _shard_of(self, key: str) -> S | None:
        partition = self.partition_for(key)
        return None if partition is None else self._shards.get(partition)

    # Time

    @property
    def next_deadline_ms(self) -> int | None:
        """The time at which the next timer expires, in ms; None without a timer."""
        return self._timers.next_ms

    def expire(self, now_ms: int) -> None:
        """Run at most `TIMERS_AT_ONCE` expired timers. Each timer is an operation by itself, like a request."""
        for timer in self._timers.expire(now_ms, TIMERS_AT_ONCE):
            shard = self._shards.get(timer.partition)
            if shard is None or timer in self._timers:
                continue  # the operation of an earlier timer has set this timer again
            if timer.kind == PARKED:
                shard.runtime.expire_parked(now_ms)
            elif shard.runtime.state is ShardState.REPLAYED:
                self._timers.set(timer, now_ms + LOADING_PAUSE_MS)
            elif timer.kind == EXPIRY:
                self._timers.set(timer, now_ms + self._expiry_interval_ms)
                self._remove_expired(shard, now_ms)
            else:
                self._run_timer(shard, timer, now_ms)

    def _remove_expired(self, shard: S, now_ms: int) -> None:
        if shard.runtime.state is ShardState.ACTIVE:
            for records in list(self._expired(shard, now_ms)):
                self._write(shard, records, now_ms)

    def _write(self, shard: S, records: Sequence[object], now_ms: int) -> list[Reply[None]]:
        """Write records. The replies are ready when the records are durable, or could not be written."""
        replies: list[Reply[None]] = []
        for start in range(0, len(records), TOMBSTONES_PER_BATCH):
            batch = records[start : start + TOMBSTONES_PER_BATCH]
            replies.append(shard.runtime.execute(partial(Result, None, batch), no_response, now_ms))
        return replies

    # Operations

    def _run(
        self,
        key: str,
        operation: Callable[[S], Result[T]],
        failed: Callable[[ErrorCode], T],
        now_ms: int,
    ) -> Reply[T]:
        """Run an operation in the shard of its key."""
        partition = self.partition_for(key)
        if partition is None:
            return failed(ErrorCode.NOT_COORDINATOR)
        shard = self._shards.get(partition)
        if shard is None:
            return failed(ErrorCode.NOT_COORDINATOR)
        if self._log.is_suspect(partition):
            return failed(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        return shard.runtime.execute(lambda: operation(shard), failed, now_ms)

    def _collect(
        self,
        operation: Callable[[S], Result[Sequence[T]]],
        sort_key: Callable[[T], str],
        now_ms: int,
        *,
        ignored: ErrorCode | None = None,
    ) -> Reply[tuple[ErrorCode, list[T]]]:
        """Run an operation on all shards; return NONE and the sorted results, or the first error and no results.

        Args:
            operation: Returns the results of one shard.
            sort_key: The key by which the results are sorted.
            now_ms: The time.
            ignored: An error code that counts as no results; None without one.
        """
        failures: list[ErrorCode] = []

        def failed(error: ErrorCode) -> Sequence[T]:
            if error is not ignored:
                failures.append(error)
            return ()

        def collected(lists: list[Sequence[T]]) -> tuple[ErrorCode, list[T]]:
            if failures:
                return failures[0], []
            found = [each for listed in lists for each in listed]
            return ErrorCode.NONE, sorted(found, key=sort_key)

        gathered = gather(
            [
                shard.runtime.execute(partial(operation, shard), failed, now_ms)
                for shard in self._shards.values()
            ]
        )
        return gathered.map(collected) if isinstance(gathered, Deferred) else collected(gathered)


def no_response(_error: ErrorCode) -> None:
    """Return None: the operation has no response."""
    return
