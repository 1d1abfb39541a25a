"""A member of a group on an event loop: it executes what `LeaseCore` decides, and decides nothing itself."""

from __future__ import annotations

import asyncio
import logging
import random
import secrets
import time
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import Any, Final, Protocol

from headrace.clock import boot_ns
from headrace.core.lease.actions import (
    UNKNOWN,
    Action,
    Ask,
    Assigned,
    Create,
    Delete,
    Drain,
    Give,
    ListedShard,
    ListShards,
    News,
    Outcome,
    Renew,
    Request,
    Restart,
    Revoked,
    Scan,
    Take,
    Why,
)
from headrace.core.lease.checkpoint import Checkpoint
from headrace.core.lease.lease import Lease, LeaseKey
from headrace.core.lease.machine import LeaseCore
from headrace.core.lease.names import named
from headrace.core.lease.settings import LeaseSettings
from headrace.errors import (
    ConfigError,
    HeadraceError,
    LeaseLostError,
    LeaseStoreError,
    StreamNotFoundError,
)
from headrace.kinesis.client.errors import FailureKind, failure_kind
from headrace.kinesis.leases.store import LeaseStore
from headrace.ports import Chance

WRITES_AT_ONCE: Final = 64
"""The most requests to the lease store in flight. With a connection for each of many shards, no request would be in
time."""
LOOK_S: Final = 0.01
"""The delay in seconds until the next deadline of the core is computed. The computation visits every lease."""

_log: Final = logging.getLogger("headrace.kinesis")


class Lister(Protocol):
    """The source of a stream's list of shards."""

    async def list_shards(self) -> Sequence[ListedShard]:
        """Return every shard that still has records."""


class LeaseListener(Protocol):
    """The reader of the shards. Calls for one shard run in sequence, calls for several shards at the same time."""

    async def assigned(self, lease: Lease) -> None:
        """Start to read a shard behind the checkpoint of its lease."""

    async def drain(self, key: LeaseKey, why: Why, deadline_ms: int | None) -> None:
        """Begin no further record of a shard; call `LeaseMember.drained` when the begun records are finished.

        Args:
            key: The shard.
            why: The reason for which the lease ends.
            deadline_ms: The time, by the member's clock, at which the lease ends anyway. None: the member waits.
        """

    async def restart(self, key: LeaseKey) -> None:
        """Restart the reader of a shard that has not completed a fetch for too long."""

    async def revoked(self, key: LeaseKey, why: Why) -> None:
        """Stop all processing of a shard."""

    async def failed(self, error: HeadraceError) -> None:
        """Process an error that ends the member: access was revoked, or the stream was deleted."""


def monotonic_ms() -> int:
    """Return milliseconds of a clock that never goes back and that includes the time of a suspended machine."""
    return boot_ns() // 1_000_000


def wall_ms() -> int:
    """Return milliseconds since 1970."""
    return time.time_ns() // 1_000_000


class LeaseMember:
    """One member of a group that reads one or several streams."""

    def __init__(
        self,
        store: LeaseStore,
        group: str,
        streams: Mapping[str, Lister],
        listener: LeaseListener,
        settings: LeaseSettings | None = None,
        *,
        owner: str = "",
        clock: Callable[[], int] = monotonic_ms,
        wall_clock: Callable[[], int] = wall_ms,
        chance: Chance | None = None,
    ) -> None:
        """Prepare a member; nothing is sent before `start`.

        Args:
            store: The lease store. The caller opens and closes it.
            group: The group's name.
            streams: The shard listers, by stream (`<name>@<creation time>`).
            listener: The reader of the shards.
            settings: The settings of leases, with the position at which the group begins.
            owner: The program's name for this process, which tools show.
            clock: A function that returns milliseconds that never go back.
            wall_clock: A function that returns milliseconds since 1970, for a group that begins at LATEST.
            chance: The source of random numbers.
        """
        self._settings = settings or LeaseSettings()
        self.owner = named(owner, secrets.token_hex(8), self._settings.max_shards)
        """The unique name of this member. After a restart the member has another name."""
        self._group = group
        self._store = store
        self._listers = dict(streams)
        self._listener = listener
        self._clock = clock
        self._wall_clock = wall_clock
        self._core = LeaseCore(
            group,
            list(streams),
            self.owner,
            self._settings,
            chance or random.Random(),  # noqa: S311 - it spreads scans, and protects nothing
        )
        self._timer: asyncio.TimerHandle | None = None
        self._looking: asyncio.TimerHandle | None = None
        """The timer of the next computation of `_timer`; None if no computation is due."""
        self._requests: set[asyncio.Task[None]] = set()
        self._at_once = asyncio.Semaphore(WRITES_AT_ONCE)
        self._news: dict[LeaseKey, deque[News]] = {}
        """News that the listener has not processed, by shard. A task processes the news of each shard."""
        self._notifiers: set[asyncio.Task[None]] = set()
        self._written: list[tuple[LeaseKey, Checkpoint, asyncio.Future[None]]] = []
        """The checkpoints that callers wait for."""
        self._closed = asyncio.Event()
        self._is_over = False
        self._failing: dict[str, Exception] = {}
        """The errors of requests that are not answered at present, by kind of request."""
        self._has_failed = False

    @property
    def held(self) -> list[Lease]:
        """The leases that this member owns, as they were last seen."""
        return list(self._core.held)

    @property
    def trouble(self) -> str | None:
        """The kind of request that is not answered at present, with its error; None if all are answered."""
        for what, error in self._failing.items():
            return f"{what} was not answered: {error!r}"
        return None

    async def start(self) -> None:
        """Start to share the shards with the other members."""
        self._wake()

    def advance(self, key: LeaseKey, checkpoint: Checkpoint, *, in_flight: bool = False) -> None:
        """Accept a checkpoint: all records up to it are finished. It is stored within about a second.

        Args:
            key: The shard.
            checkpoint: The position of the last finished record.
            in_flight: Whether records behind the checkpoint are being handled. If not, it is stored soon.
        """
        self._perform(self._core.advance(key, checkpoint, self._clock(), in_flight=in_flight))

    async def checkpoint(self, key: LeaseKey, checkpoint: Checkpoint) -> None:
        """Accept a checkpoint as `advance` does, and wait until it is stored.

        Raises:
            LeaseLostError: This member does not own the lease, or has lost it meanwhile.
        """
        future = asyncio.get_running_loop().create_future()
        self._written.append((key, checkpoint, future))
        self.advance(key, checkpoint)
        await future

    def progressed(self, key: LeaseKey, size_bytes: int = 0) -> None:
        """Note a completed fetch. To be called, too, while a reader waits for space."""
        self._core.progressed(key, self._clock(), size_bytes)

    def valid(self, key: LeaseKey) -> bool:
        """Whether a record of a shard may be handled now. To be called before each record."""
        return self._core.valid(key, self._clock())

    def drained(self, key: LeaseKey, checkpoint: Checkpoint | None = None) -> None:
        """Process that a shard has finished its begun records, after `LeaseListener.drain`."""
        self._perform(self._core.on_drained(key, self._clock(), checkpoint))

    def ended(self, key: LeaseKey, children: Sequence[ListedShard] = ()) -> None:
        """Process that the last record of a closed shard is finished, with the shards that follow it."""
        self._perform(self._core.on_ended(key, children, self._clock()))

    async def close(self) -> None:
        """Drain all shards, release their leases with the last checkpoints, and end, within `drain_timeout_ms`.

        If the call is cancelled, the member ends at once, and the remaining leases expire.
        """
        try:
            self._perform(self._core.close(self._clock()))
            await self._closed.wait()
            while self._notifiers:
                await asyncio.wait(self._notifiers)
        finally:
            self._is_over = True
            for timer in (self._timer, self._looking):
                if timer is not None:
                    timer.cancel()
            left = [*self._requests, *self._notifiers]
            for task in left:
                task.cancel()
            await asyncio.gather(*left, return_exceptions=True)
            self._resolve_written()

    def disown(self) -> None:
        """Send nothing any more, in a forked child: the leases belong to the parent."""
        self._is_over = True

    # Actions of the core

    def _wake(self) -> None:
        self._perform(self._core.tick(self._clock()))

    def _perform(self, actions: list[Action]) -> None:
        if self._is_over:
            self._resolve_written()
            return  # the listener gets no further news, and nothing would wait for a response
        for action in actions:
            if isinstance(action, News):
                self._notify(action)
            else:
                task = asyncio.create_task(self._request(action))
                self._requests.add(task)
                task.add_done_callback(self._requests.discard)
        self._resolve_written()
        if self._core.is_closed:
            self._closed.set()
        if self._looking is None:
            self._looking = asyncio.get_running_loop().call_later(LOOK_S, self._set_timer)

    def _set_timer(self) -> None:
        self._looking = None
        if self._timer is not None:
            self._timer.cancel()
        due_ms = self._core.next_deadline_ms
        if due_ms is None:
            self._timer = None
            return
        wait_ms = max(0, due_ms - self._clock())
        self._timer = asyncio.get_running_loop().call_later(wait_ms / 1000, self._wake)

    async def _request(self, request: Request) -> None:
        """Send a request, and report its outcome to the core in every case."""
        if isinstance(request, Scan | ListShards):
            await self._send(request)
            return
        async with self._at_once:
            await self._send(request)

    async def _send(self, request: Request) -> None:
        sent_ms, sent_wall_ms = self._clock(), self._wall_clock()  # after the semaphore
        is_list = isinstance(request, ListShards)
        limit_ms = self._settings.list_ms if is_list else self._settings.call_timeout_ms
        outcome: Outcome = UNKNOWN
        try:
            async with asyncio.timeout(limit_ms / 1000):
                outcome = await self._answer(request)
            self._is_answered(request)
        except TimeoutError:
            whom = "Kinesis" if is_list else "the lease store"
            text = (
                f"{whom} did not answer within {limit_ms / 1000:g} s: check the network connection"
            )
            self._is_unanswered(request, LeaseStoreError(text))
        except Exception as error:  # noqa: BLE001 - the core waits for ever for a request without an outcome
            self._is_unanswered(request, error)
        if isinstance(request, Give) and outcome is True:
            self._resolve_given(request)
        now_ms = self._clock()
        self._perform(self._core.on_reply(request, sent_ms, now_ms, outcome, sent_wall_ms))

    def _is_answered(self, request: Request) -> None:
        if self._failing.pop(type(request).__name__, None) is not None:
            _log.info("%s of group %s is answered again", type(request).__name__, self._group)

    def _is_unanswered(self, request: Request, error: Exception) -> None:
        """Log a failure once until the request is answered again. The core decides what it means for leases."""
        what = type(request).__name__
        if what not in self._failing:
            _log.warning("%s of group %s was not answered: %r", what, self._group, error)
        self._failing[what] = error
        if not self._has_failed and isinstance(error, HeadraceError) and _is_fatal(error):
            self._has_failed = True
            self._start_notifying(self._listener.failed(error))

    async def _answer(self, request: Request) -> Outcome:
        match request:
            case Scan(stream):
                return await self._store.leases(self._group, stream)
            case ListShards(stream):
                return await self._listers[stream].list_shards()
            case _:
                return await self._write(request)

    async def _write(self, request: Create | Take | Renew | Ask | Give | Delete) -> Outcome:
        store, me = self._store, self.owner
        call: Awaitable[Outcome]
        match request:
            case Create(lease):
                call = store.create(lease)
            case Take(seen):
                call = store.take(seen, me)
            case Renew(key, epoch, beat, checkpoint, rate):
                call = store.renew(key, me, epoch, beat, checkpoint=checkpoint, bytes_per_s=rate)
            case Ask(seen):
                call = store.ask(seen, me)
            case Give(key, epoch, to, checkpoint):
                call = store.give(key, me, epoch, to=to, checkpoint=checkpoint)
            case Delete(seen):
                call = store.delete(seen)
        return await call

    # Notifications of the listener

    def _notify(self, news: News) -> None:
        key = news.lease.key if isinstance(news, Assigned) else news.key
        waiting = self._news.get(key)
        if waiting is not None:
            waiting.append(news)
            return
        self._news[key] = deque([news])
        self._start_notifying(self._notify_all(key))

    async def _notify_all(self, key: LeaseKey) -> None:
        waiting = self._news[key]
        while waiting:
            news = waiting.popleft()
            try:
                await self._deliver(news)
            except Exception as error:  # noqa: BLE001 - an error of the listener; the next news are delivered
                asyncio.get_running_loop().call_exception_handler(
                    {"message": f"the listener failed to process {news}", "exception": error}
                )
        del self._news[key]

    async def _deliver(self, news: News) -> None:
        match news:
            case Assigned(lease):
                await self._listener.assigned(lease)
            case Drain(key, why, deadline_ms):
                await self._listener.drain(key, why, deadline_ms)
            case Restart(key):
                await self._listener.restart(key)
            case Revoked(key, why):
                await self._listener.revoked(key, why)

    def _start_notifying(self, notifying: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(notifying)
        self._notifiers.add(task)
        task.add_done_callback(self._notifiers.discard)

    def _resolve_written(self) -> None:
        """Resolve the futures of checkpoints that are stored, or that never will be."""
        left = []
        for key, checkpoint, future in self._written:
            written = None if self._is_over else self._core.written(key)
            if future.done():
                continue
            if written is None:
                future.set_exception(LeaseLostError(f"this member has lost the lease of {key}"))
            elif written.is_before(checkpoint):
                left.append((key, checkpoint, future))
            else:
                future.set_result(None)
        self._written = left

    def _resolve_given(self, give: Give) -> None:
        for key, checkpoint, future in self._written:
            last = give.checkpoint
            is_waiting = key == give.key and not future.done()
            if is_waiting and last is not None and not last.is_before(checkpoint):
                future.set_result(None)


def _is_fatal(error: HeadraceError) -> bool:
    """Whether a retry cannot help: access was revoked, or the stream does not exist any more."""
    if isinstance(error, LeaseStoreError):
        return False
    if isinstance(error, ConfigError | StreamNotFoundError):
        return True
    return error.__cause__ is not None and failure_kind(error.__cause__) is FailureKind.FATAL
