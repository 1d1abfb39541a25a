"""Decides which leases a member takes and asks for, from its view of the leases and its own clock."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from headrace.core.lease.actions import Ask, Take, Write
from headrace.core.lease.holding import Phase
from headrace.core.lease.holdings import Holdings
from headrace.core.lease.lease import Lease, LeaseKey
from headrace.core.lease.names import most_of
from headrace.core.lease.settings import LeaseSettings
from headrace.core.lease.taking import LeaseDivision
from headrace.core.lease.view import Seen, StreamView
from headrace.ports import Chance


class Decider:
    """Decides, after each scan, which leases the member takes and which leases it asks other members for."""

    def __init__(
        self,
        owner: str,
        settings: LeaseSettings,
        chance: Chance,
        *,
        views: Mapping[str, StreamView],
        holdings: Holdings,
        in_flight: Mapping[LeaseKey, Write],
    ) -> None:
        self._owner = owner
        self._settings = settings
        self._chance = chance
        self._views = views
        self._holdings = holdings
        self._in_flight = in_flight
        self._asked: dict[LeaseKey, int] = {}
        """The times, in milliseconds, at which this member asked for leases."""
        self._shunned: dict[LeaseKey, int] = {}
        """The times, in milliseconds, until which this member leaves stalled leases to other members."""

    def divide(self, now_ms: int) -> list[Take | Ask]:
        """Return the leases to take, and, if no lease is free, the leases to ask for."""
        division, own = self._division(now_ms)
        self._forget_answered(now_ms)
        takes = [*own, *division.takes()][: self._vacancies()]
        wishes = division.wishes(self._settings.asked_at_once - len(self._asked))
        if not wishes and not takes and not self._asked:
            wishes = [lease for lease in [division.wish()] if lease is not None]
        asks = [lease for lease in wishes if lease.key not in self._in_flight]
        self._asked.update((lease.key, now_ms) for lease in asks)
        return [*map(Take, takes), *map(Ask, asks)]

    def _vacancies(self) -> int | None:
        """Return how many further leases this member may own, or None if there is no limit."""
        most = most_of(self._owner)
        if most is None:
            return None
        coming = sum(isinstance(write, Take) for write in self._in_flight.values())
        return max(0, most - len(self._holdings) - coming)

    def asks_on(self, stream: str) -> bool:
        """Whether this member has asked for a lease on a stream."""
        return any(key.stream == stream for key in self._asked)

    def has_all(self, view: StreamView) -> bool:
        """Whether this member reads every readable shard of a stream. Then another member has to ask for a lease."""
        for seen in view.rows.values():
            held = self._holdings.get(seen.lease.key)
            is_read = held is not None and held.phase is Phase.READING
            if not is_read and view.is_readable(seen):
                return False
        is_known = view.is_complete() and view.rows.keys() >= view.listed.keys()
        return is_known and not view.wants_list()

    def shun(self, key: LeaseKey, now_ms: int) -> None:
        """Leave a lease to other members for as long as they need to take it."""
        settings = self._settings
        wait_ms = settings.duration_ms + settings.margin_ms + 2 * settings.scan_ms
        self._shunned[key] = now_ms + wait_ms

    def _division(self, now_ms: int) -> tuple[LeaseDivision, list[Lease]]:
        """Return how the leases are divided, and the leases that are stored as this member's but that it does not hold.

        There are three reasons for a lease of the second kind. Another member has transferred it. Or the response to a
        request was lost. Or the lease has expired here, and no member has taken it yet.
        """
        division = LeaseDivision(self._owner)
        own: list[Lease] = []
        free: list[tuple[int, float, Lease]] = []
        for view in self._views.values():
            is_complete = view.is_complete()
            for seen in view.rows.values():
                lease = seen.lease
                held = self._holdings.get(lease.key)
                if held is not None:
                    if held.phase in {Phase.READING, Phase.DRAINING}:
                        division.add(held.lease)
                elif isinstance(self._in_flight.get(lease.key), Take):
                    division.add(replace(lease, owner=self._owner, next_owner=None))
                elif self._is_renewed(seen, now_ms):
                    division.add(lease)
                elif not is_complete or not view.is_readable(seen):
                    continue
                elif self._owner == (lease.owner or lease.next_owner):
                    own.append(lease)
                    division.add(replace(lease, owner=self._owner, next_owner=None))
                elif self._shunned.get(lease.key, now_ms) <= now_ms:
                    waiting = (now_ms - seen.changed_ms) // self._settings.duration_ms
                    free.append((-waiting, self._chance.random(), lease))
        division.free = [lease for *_, lease in sorted(free, key=lambda entry: entry[:2])]
        return division, own

    def _is_renewed(self, seen: Seen, now_ms: int) -> bool:
        """Whether another member owns a lease, or was given it, as far as this member's own clock can show."""
        whose = seen.lease.owner or seen.lease.next_owner
        return whose not in {None, self._owner} and now_ms < self._silent_ms(seen)

    def _silent_ms(self, seen: Seen) -> int:
        settings = self._settings
        if seen.lease.owner is None:
            return seen.changed_ms + settings.reserved_ms
        return seen.changed_ms + settings.duration_ms + settings.margin_ms

    def next_silent_ms(self, view: StreamView, now_ms: int) -> int | None:
        """Return when the next lease of another member expires unless it is renewed: a scan is useful just then."""
        times = [
            self._silent_ms(seen) for seen in view.rows.values() if self._is_renewed(seen, now_ms)
        ]
        return min(times, default=None)

    def _forget_answered(self, now_ms: int) -> None:
        """Forget the requests for leases that were answered, and those whose owner does not react for too long."""
        patience_ms = self._settings.handover_timeout_ms + self._settings.duration_ms
        for key, asked_ms in list(self._asked.items()):
            seen = self._views[key.stream].rows.get(key.shard)
            stands = seen is not None and seen.lease.next_owner == self._owner
            if key not in self._in_flight and not (stands and now_ms < asked_ms + patience_ms):
                del self._asked[key]
