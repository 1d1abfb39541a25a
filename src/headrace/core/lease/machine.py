"""The rules by which a member of a group shares the shards of streams. Time is an argument."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

from headrace.core.lease.actions import (
    UNKNOWN,
    Action,
    Ask,
    Create,
    Delete,
    Drain,
    Give,
    ListedShard,
    ListShards,
    Outcome,
    Renew,
    Request,
    Scan,
    Take,
    Why,
    Write,
)
from headrace.core.lease.checkpoint import Checkpoint
from headrace.core.lease.deciding import Decider
from headrace.core.lease.holding import HeldLease, Phase
from headrace.core.lease.holdings import Holdings
from headrace.core.lease.lease import Lease, LeaseKey
from headrace.core.lease.pace import Pace
from headrace.core.lease.settings import LeaseSettings
from headrace.core.lease.view import StreamView
from headrace.ports import Chance

SPREAD: Final = 0.25
"""The largest random change of a scan interval, as a part of it, so that members do not decide at the same time."""


class _Reply(NamedTuple):
    outcome: Any
    sent_ms: int
    now_ms: int
    wall_ms: int


class LeaseCore:
    """One member of a group.

    Every method takes the time in milliseconds, and returns the actions that are to be executed now. The clock never
    goes back; its zero does not matter. `tick` is to be called at `next_deadline_ms`.
    """

    def __init__(
        self,
        group: str,
        streams: Sequence[str],
        owner: str,
        settings: LeaseSettings,
        chance: Chance,
    ) -> None:
        """Prepare a member; nothing happens before the first `tick`.

        Args:
            group: The name of the group.
            streams: The streams, as `<name>@<creation time>`.
            owner: The member's name. No other member has it, and this member did not have it before a restart.
            settings: The settings of the group.
            chance: The source of random numbers.
        """
        self._owner = owner
        self._settings = settings
        self._chance = chance
        self._views = {stream: StreamView(group, stream, settings) for stream in streams}
        self._scans = {stream: Pace() for stream in streams}
        self._lists = {stream: Pace() for stream in streams}
        self._holdings = Holdings(settings, self._retry_ms)
        self._in_flight: dict[LeaseKey, Write] = {}
        """Requests in flight for leases that this member does not own; at most one for each lease."""
        self._decider = Decider(
            owner,
            settings,
            chance,
            views=self._views,
            holdings=self._holdings,
            in_flight=self._in_flight,
        )
        self._answers: dict[type[Request], Callable[[Any, _Reply], list[Action]]] = {
            Scan: self._on_leases,
            ListShards: self._on_shards,
            Create: self._on_created,
            Take: self._on_taken,
            Renew: self._on_renewed,
            Ask: self._on_asked,
            Give: self._on_given,
            Delete: self._on_deleted,
        }
        self._is_begun = False
        self._is_closing = False

    @property
    def next_deadline_ms(self) -> int | None:
        """The time at which `tick` has something to do. None: before the first `tick`, and after the end."""
        paces = [] if self.is_closed else [*self._lists.values()]
        if not self._is_closing:
            paces += self._scans.values()
        dues = [pace.due_ms for pace in paces]
        dues.append(self._holdings.due_ms())
        return min((due for due in dues if due is not None), default=None)

    @property
    def held(self) -> Iterable[Lease]:
        """The leases that this member owns, as they were last seen."""
        return [held.lease for held in self._holdings]

    @property
    def is_closed(self) -> bool:
        """Whether `close` was called and nothing is left to do."""
        return self._is_closing and not self._holdings and not self._in_flight

    def valid(self, key: LeaseKey, now_ms: int) -> bool:
        """Whether a record of a shard may be handled now."""
        held = self._holdings.get(key)
        return held is not None and held.is_valid(now_ms)

    def written(self, key: LeaseKey) -> Checkpoint | None:
        """Return the last stored checkpoint of an owned lease, or None if this member does not own the lease."""
        held = self._holdings.get(key)
        return None if held is None else held.lease.checkpoint

    def tick(self, now_ms: int) -> list[Action]:
        """Return the actions that are due."""
        if not self._is_begun:
            self._is_begun = True
            for pace in (*self._lists.values(), *self._scans.values()):
                pace.wait(now_ms, 0)
        actions: list[Action] = []
        for stream, view in self._views.items():
            if not self._is_closing and self._scans[stream].starts(now_ms):
                # A member that owns all shards learns from its renewals which member asks for a lease. A scan shows
                # nothing more until the shards are listed again.
                if self._decider.has_all(view):
                    self._scans[stream].wait(now_ms, self._scan_ms())
                else:
                    actions.append(Scan(stream))
            if not self.is_closed and self._lists[stream].starts(now_ms):
                actions.append(ListShards(stream))
        for held in self._holdings:
            actions += self._step(held, now_ms)
        return actions

    def close(self, now_ms: int) -> list[Action]:
        """Drain all shards and release their leases. `is_closed` becomes true at the end."""
        self._is_closing = True
        return self._holdings.drain(now_ms)

    # Reports of readers

    def advance(
        self, key: LeaseKey, checkpoint: Checkpoint, now_ms: int, *, in_flight: bool = False
    ) -> list[Action]:
        """Accept a checkpoint: all records up to it are finished. One before an earlier checkpoint is ignored.

        Args:
            key: The shard.
            checkpoint: The position of the last finished record.
            now_ms: The time in milliseconds.
            in_flight: Whether records behind the checkpoint are being handled. If not, it is a good moment to store it.
        """
        if checkpoint.is_end:
            raise ValueError(
                "SHARD_END is set by on_ended only: the leases of the children have to exist first"
            )
        return self._holdings.advance(key, checkpoint, now_ms, in_flight=in_flight)

    def progressed(self, key: LeaseKey, now_ms: int, size_bytes: int = 0) -> None:
        """Note a completed fetch. To be called, too, while the reader waits for space."""
        self._holdings.progressed(key, now_ms, size_bytes)

    def on_drained(
        self, key: LeaseKey, now_ms: int, checkpoint: Checkpoint | None = None
    ) -> list[Action]:
        """Process that a shard has finished its begun records, after `Drain`, with the final checkpoint."""
        return self._holdings.on_drained(key, now_ms, checkpoint)

    def on_ended(self, key: LeaseKey, children: Sequence[ListedShard], now_ms: int) -> list[Action]:
        """Process that the last record of a closed shard is finished.

        Args:
            key: The shard.
            children: The shards that follow it, as far as they are known.
            now_ms: The time in milliseconds.
        """
        held = self._holdings.get(key)
        if held is None or not self._holdings.on_ended(key, children, now_ms):
            return []
        return self._step(held, now_ms)

    def _step(self, held: HeldLease, now_ms: int) -> list[Action]:
        actions = self._give_way(held, now_ms) if held.phase is Phase.ENDING else []
        return actions + self._holdings.step(held, now_ms)

    def _give_way(self, held: HeldLease, now_ms: int) -> list[Action]:
        """Create the leases of the children. Only when they exist, mark the shard as finished.

        In the other order a range of records could be lost: (1) The member marks the shard. (2) The member dies. (3)
        The shard expires from the stream. Then no member knows that the children have to be read from their first
        record.
        """
        if held.retry_ms is not None and now_ms < held.retry_ms:
            return []
        held.retry_ms = None
        key = held.lease.key
        view = self._views[key.stream]
        children = {info.shard: info for info in held.children}
        children.update((info.shard, info) for info in view.children_of(key.shard))
        if not children and not view.is_listed_after(held.ended_ms):
            self._lists[key.stream].hurry(now_ms)  # a list of shards names the children
            return []
        missing = [info for shard, info in children.items() if not view.is_there(shard)]
        if not missing:
            self._holdings.finish(held)
            return []
        return self._create(view, missing)

    # Answers

    def on_reply(
        self, request: Request, sent_ms: int, now_ms: int, outcome: Outcome, wall_ms: int
    ) -> list[Action]:
        """Process the response to a request.

        Args:
            request: The request.
            sent_ms: The time before the request was sent, in milliseconds.
            now_ms: The time in milliseconds.
            outcome: The response, or `UNKNOWN`.
            wall_ms: The time at which the request was sent, in ms since 1970. It only decides where a group begins that
                starts at LATEST.
        """
        if isinstance(request, Create | Take | Ask | Delete):
            del self._in_flight[request.key]
        return self._answers[type(request)](request, _Reply(outcome, sent_ms, now_ms, wall_ms))

    def _on_leases(self, request: Scan, reply: _Reply) -> list[Action]:
        stream, now_ms, leases = request.stream, reply.now_ms, reply.outcome
        if leases is UNKNOWN:
            self._scans[stream].wait(now_ms, self._retry_ms())
            return []
        self._scans[stream].wait(now_ms, self._scan_ms())
        view = self._views[stream]
        view.on_leases(leases, reply.sent_ms, now_ms, reply.wall_ms)
        actions: list[Action] = []
        for lease in leases:
            actions += self._holdings.on_seen(lease, now_ms)
        if self._is_closing:
            return actions
        if view.wants_list():
            self._lists[stream].hurry(now_ms)
        actions += self._create(view, view.creatable())
        actions += self._delete(view)
        actions += self._send(self._decider.divide(now_ms))
        if self._decider.asks_on(stream):
            self._scans[stream].want(now_ms + self._settings.asking_ms)
        if (silent_ms := self._decider.next_silent_ms(view, now_ms)) is not None:
            self._scans[stream].want(silent_ms)
        return actions

    def _on_shards(self, request: ListShards, reply: _Reply) -> list[Action]:
        if reply.outcome is UNKNOWN:
            self._lists[request.stream].wait(reply.now_ms, self._retry_ms())
            return []
        self._lists[request.stream].wait(reply.now_ms, self._settings.list_ms)
        view = self._views[request.stream]
        view.on_shards(reply.outcome, reply.sent_ms, reply.now_ms)
        self._scans[request.stream].want(reply.now_ms)
        return self._grow(view, view.creatable(), reply.now_ms)

    def _on_created(self, request: Create, reply: _Reply) -> list[Action]:
        lease, now_ms = request.lease, reply.now_ms
        view = self._views[lease.key.stream]
        if reply.outcome is UNKNOWN:
            again_ms = now_ms + self._retry_ms()
            self._scans[view.stream].want(again_ms)
            for held in self._ending(view):
                held.retry_ms = again_ms
            return []
        if reply.outcome:
            view.on_lease(lease, now_ms)
        else:
            view.on_refused(lease.key.shard)
        if view.is_complete():
            self._scans[view.stream].want(now_ms)
        return self._grow(view, view.creatable_behind(lease), now_ms)

    def _grow(
        self, view: StreamView, creatable: Iterable[ListedShard], now_ms: int
    ) -> list[Action]:
        """Continue what has waited for a list of shards, or for leases of parents."""
        actions: list[Action] = []
        for held in self._ending(view):
            actions += self._step(held, now_ms)
        return actions if self._is_closing else actions + self._create(view, creatable)

    def _ending(self, view: StreamView) -> list[HeldLease]:
        return [
            held
            for held in self._holdings
            if held.phase is Phase.ENDING and held.lease.key.stream == view.stream
        ]

    def _on_taken(self, request: Take, reply: _Reply) -> list[Action]:
        lease = reply.outcome
        if lease is UNKNOWN or lease is None:
            return []  # the next scan shows the owner; if it is this member, the lease is taken again
        self._views[request.key.stream].on_lease(lease, reply.now_ms)
        if request.seen.next_owner == self._owner:  # transferred: perhaps there are more to ask for
            self._scans[request.key.stream].want(reply.now_ms + self._settings.asking_ms)
        return self._holdings.take(lease, reply.sent_ms, reply.now_ms, closing=self._is_closing)

    def _on_renewed(self, request: Renew, reply: _Reply) -> list[Action]:
        actions = self._holdings.on_renewed(request, reply.sent_ms, reply.now_ms, reply.outcome)
        if any(isinstance(action, Drain) for action in actions):  # a member may ask for more
            self._scans[request.key.stream].want(reply.now_ms)
        return actions

    def _on_asked(self, request: Ask, reply: _Reply) -> list[Action]:
        if reply.outcome is True:
            asked = replace(request.seen, next_owner=self._owner)
            self._views[request.key.stream].on_lease(asked, reply.now_ms)
        return []

    def _on_given(self, request: Give, reply: _Reply) -> list[Action]:
        held = self._holdings.get(request.key)
        actions, given = self._holdings.on_given(request, reply.now_ms, reply.outcome)
        if held is None or given is None:
            return actions
        self._views[request.key.stream].on_lease(given, reply.now_ms)
        if held.why is Why.STALLED:
            self._decider.shun(request.key, reply.now_ms)
        wait_ms = 0 if held.why is Why.ENDED else self._settings.reserved_ms
        self._scans[request.key.stream].want(reply.now_ms + wait_ms)
        return actions

    def _on_deleted(self, request: Delete, reply: _Reply) -> list[Action]:
        if reply.outcome is True:
            self._views[request.key.stream].on_deleted(request.key.shard)
        return []

    # Requests for leases that this member does not own

    def _create(self, view: StreamView, infos: Iterable[ListedShard]) -> list[Action]:
        wanted = [info for info in infos if view.key(info.shard) not in self._in_flight]
        return self._send(Create(view.first_lease(info)) for info in wanted)

    def _delete(self, view: StreamView) -> list[Action]:
        return self._send(Delete(lease) for lease in view.deletable())

    def _send(self, requests: Iterable[Write]) -> list[Action]:
        """Return the requests for leases without a request in flight."""
        actions: list[Action] = []
        for request in requests:
            if request.key not in self._in_flight:
                self._in_flight[request.key] = request
                actions.append(request)
        return actions

    def _scan_ms(self) -> int:
        spread = 1 + SPREAD * (2 * self._chance.random() - 1)
        return int(self._settings.scan_ms * spread)

    def _retry_ms(self) -> int:
        return int(self._settings.retry_ms * (0.5 + self._chance.random()))
