"""A member of a group, on an event loop: it does what `LeaseCore` decides, and decides nothing."""

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
"""Of very many shards not all are written at the same moment: with a connection for each, none would be in time."""
LOOK_S: Final = 0.01
"""How long it takes until it is found out when the core has something to do: it looks at every lease for that."""

_log: Final = logging.getLogger("headrace.kinesis")


class Lister(Protocol):
    """Where a member learns of the shards of a stream."""

    async def list_shards(self) -> Sequence[ListedShard]:
        """Return every shard that still has records."""


class LeaseListener(Protocol):
    """Who reads the shards. Calls for one shard come one after another, for several at once."""

    async def assigned(self, lease: Lease) -> None:
        """Begin to read a shard, behind the checkpoint of its lease."""

    async def drain(self, key: LeaseKey, why: Why, deadline_ms: int | None) -> None:
        """Begin nothing new in a shard; call `LeaseMember.drained` when what was begun is finished.

        Args:
            key: The shard.
            why: Why it goes.
            deadline_ms: When it goes in any case, by the member's clock; None: it is waited for.
        """

    async def restart(self, key: LeaseKey) -> None:
        """Restart the reader of a shard, which has fetched nothing for too long."""

    async def revoked(self, key: LeaseKey, why: Why) -> None:
        """Stop whatever still runs in a shard."""

    async def failed(self, error: HeadraceError) -> None:
        """Take what makes it pointless to go on: access was taken away, the stream was deleted."""


def monotonic_ms() -> int:
    """Return milliseconds of a clock that never goes back, and goes on while the machine is suspended."""
    return boot_ns() // 1_000_000


def wall_ms() -> int:
    """Return milliseconds since 1970."""
    return time.time_ns() // 1_000_000


class LeaseMember:
    """One member of a group, on one or several streams."""

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
        """Take what it needs; nothing is sent yet.

        Args:
            store: Where leases are; opened and closed by who made it.
            group: The group.
            streams: By stream (`<name>@<creation time>`), who lists its shards.
            listener: Who is told of shards.
            settings: How long leases last, and where the group begins.
            owner: What the program calls this process, for people who look at the leases.
            clock: Milliseconds that never go back.
            wall_clock: Milliseconds since 1970, for a group that begins at LATEST.
            chance: Where randomness comes from.
        """
        self._settings = settings or LeaseSettings()
        self.owner = named(owner, secrets.token_hex(8), self._settings.max_shards)
        """The name of this member: no other has it, nor will this one when it is started again."""
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
            chance or random.Random(),  # noqa: S311 - it spreads scans, and guards nothing
        )
        self._timer: asyncio.TimerHandle | None = None
        self._looking: asyncio.TimerHandle | None = None
        """When it is found out for when the timer is to be set."""
        self._requests: set[asyncio.Task[None]] = set()
        self._at_once = asyncio.Semaphore(WRITES_AT_ONCE)
        self._news: dict[LeaseKey, deque[News]] = {}
        """What the listener was not told yet; there is a task for each key."""
        self._tellers: set[asyncio.Task[None]] = set()
        self._written: list[tuple[LeaseKey, Checkpoint, asyncio.Future[None]]] = []
        self._closed = asyncio.Event()
        self._is_over = False
        self._failing: dict[str, Exception] = {}
        """By kind of request, why it is not answered at present."""
        self._has_failed = False

    @property
    def held(self) -> list[Lease]:
        """The leases that this member holds, as they were last seen."""
        return list(self._core.held)

    @property
    def trouble(self) -> str | None:
        """Which kind of request is not answered at present, and why; None where all are."""
        for what, error in self._failing.items():
            return f"{what} was not answered: {error!r}"
        return None

    async def start(self) -> None:
        """Begin to share the shards."""
        self._wake()

    def advance(self, key: LeaseKey, checkpoint: Checkpoint, *, in_flight: bool = False) -> None:
        """Take how far a shard is finished, with all before it; it is written within a second or so.

        Args:
            key: The shard.
            checkpoint: How far.
            in_flight: Whether something behind it has been begun; if not, it is written soon.
        """
        self._perform(self._core.advance(key, checkpoint, self._clock(), in_flight=in_flight))

    async def checkpoint(self, key: LeaseKey, checkpoint: Checkpoint) -> None:
        """As `advance`, and wait until it is written.

        Raises:
            LeaseLostError: The lease is not this member's (any more).
        """
        future = asyncio.get_running_loop().create_future()
        self._written.append((key, checkpoint, future))
        self.advance(key, checkpoint)
        await future

    def progressed(self, key: LeaseKey, size_bytes: int = 0) -> None:
        """Take note of a completed fetch; also to be called while fetching waits on purpose."""
        self._core.progressed(key, self._clock(), size_bytes)

    def valid(self, key: LeaseKey) -> bool:
        """Whether a record of a shard may be handled now; to be asked before each."""
        return self._core.valid(key, self._clock())

    def drained(self, key: LeaseKey, checkpoint: Checkpoint | None = None) -> None:
        """Take that a shard has finished what it had begun, and how far it is; after `LeaseListener.drain`."""
        self._perform(self._core.on_drained(key, self._clock(), checkpoint))

    def ended(self, key: LeaseKey, children: Sequence[ListedShard] = ()) -> None:
        """Take that the last record of a closed shard is finished, and which shards follow it."""
        self._perform(self._core.on_ended(key, children, self._clock()))

    async def close(self) -> None:
        """Drain all shards, give them away with their last checkpoints, and end; within `drain_timeout_ms`.

        Cancelled, it ends at once: leases that are left run out.
        """
        try:
            self._perform(self._core.close(self._clock()))
            await self._closed.wait()
            while self._tellers:
                await asyncio.wait(self._tellers)
        finally:
            self._is_over = True
            for timer in (self._timer, self._looking):
                if timer is not None:
                    timer.cancel()
            left = [*self._requests, *self._tellers]
            for task in left:
                task.cancel()
            await asyncio.gather(*left, return_exceptions=True)
            self._tell_written()

    def disown(self) -> None:
        """Send nothing any more, in a forked child: the leases are the parent's."""
        self._is_over = True

    # What the core decides is done

    def _wake(self) -> None:
        self._perform(self._core.tick(self._clock()))

    def _perform(self, actions: list[Action]) -> None:
        if self._is_over:
            self._tell_written()
            return  # who reads is told no more, and nobody would wait for what is sent
        for action in actions:
            if isinstance(action, News):
                self._tell(action)
            else:
                task = asyncio.create_task(self._request(action))
                self._requests.add(task)
                task.add_done_callback(self._requests.discard)
        self._tell_written()
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
        """Send a request; whatever comes of it, the core is told."""
        if isinstance(request, Scan | ListShards):
            await self._send(request)
            return
        async with self._at_once:
            await self._send(request)

    async def _send(self, request: Request) -> None:
        sent_ms, sent_wall_ms = self._clock(), self._wall_clock()  # not when it began to wait
        is_list = isinstance(request, ListShards)
        limit_ms = self._settings.list_ms if is_list else self._settings.call_timeout_ms
        outcome: Outcome = UNKNOWN
        try:
            async with asyncio.timeout(limit_ms / 1000):
                outcome = await self._answer(request)
            self._is_answered(request)
        except TimeoutError:
            whom = "Kinesis" if is_list else "the store of leases"
            text = f"no answer within {limit_ms / 1000:g} s: see whether {whom} can be reached"
            self._is_unanswered(request, LeaseStoreError(text))
        except Exception as error:  # noqa: BLE001 - without an answer of some kind the core would wait for ever
            self._is_unanswered(request, error)
        if isinstance(request, Give) and outcome is True:
            self._tell_given(request)
        now_ms = self._clock()
        self._perform(self._core.on_reply(request, sent_ms, now_ms, outcome, sent_wall_ms))

    def _is_answered(self, request: Request) -> None:
        if self._failing.pop(type(request).__name__, None) is not None:
            _log.info("%s of group %s works again", type(request).__name__, self._group)

    def _is_unanswered(self, request: Request, error: Exception) -> None:
        """Report a failure, once until it works again; what it means for leases is the core's to say."""
        what = type(request).__name__
        if what not in self._failing:
            _log.warning("%s of group %s was not answered: %r", what, self._group, error)
        self._failing[what] = error
        if not self._has_failed and isinstance(error, HeadraceError) and _is_fatal(error):
            self._has_failed = True
            self._start_telling(self._listener.failed(error))

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

    # What is told

    def _tell(self, news: News) -> None:
        key = news.lease.key if isinstance(news, Assigned) else news.key
        waiting = self._news.get(key)
        if waiting is not None:
            waiting.append(news)
            return
        self._news[key] = deque([news])
        self._start_telling(self._tell_all(key))

    async def _tell_all(self, key: LeaseKey) -> None:
        waiting = self._news[key]
        while waiting:
            news = waiting.popleft()
            try:
                await self._told(news)
            except Exception as error:  # noqa: BLE001 - the listener's own; what follows is told all the same
                asyncio.get_running_loop().call_exception_handler(
                    {"message": f"{news} was not taken", "exception": error}
                )
        del self._news[key]

    async def _told(self, news: News) -> None:
        match news:
            case Assigned(lease):
                await self._listener.assigned(lease)
            case Drain(key, why, deadline_ms):
                await self._listener.drain(key, why, deadline_ms)
            case Restart(key):
                await self._listener.restart(key)
            case Revoked(key, why):
                await self._listener.revoked(key, why)

    def _start_telling(self, telling: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(telling)
        self._tellers.add(task)
        task.add_done_callback(self._tellers.discard)

    def _tell_written(self) -> None:
        """Let those go on who wait for a checkpoint that is written, or never will be."""
        left = []
        for key, checkpoint, future in self._written:
            written = None if self._is_over else self._core.written(key)
            if future.done():
                continue
            if written is None:
                future.set_exception(LeaseLostError(f"the lease of {key} is another's by now"))
            elif written.is_before(checkpoint):
                left.append((key, checkpoint, future))
            else:
                future.set_result(None)
        self._written = left

    def _tell_given(self, give: Give) -> None:
        for key, checkpoint, future in self._written:
            last = give.checkpoint
            is_waiting = key == give.key and not future.done()
            if is_waiting and last is not None and not last.is_before(checkpoint):
                future.set_result(None)


def _is_fatal(error: HeadraceError) -> bool:
    """Return whether it is pointless to try again: access was taken away, the stream is gone."""
    if isinstance(error, LeaseStoreError):
        return False
    if isinstance(error, ConfigError | StreamNotFoundError):
        return True
    return error.__cause__ is not None and failure_kind(error.__cause__) is FailureKind.FATAL
