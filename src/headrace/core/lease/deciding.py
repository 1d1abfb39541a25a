"""What a member takes and asks for, by what it sees of the leases of its streams and by its own clock."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from headrace.core.lease.actions import Ask, Take, Write
from headrace.core.lease.holding import Phase
from headrace.core.lease.holdings import Holdings
from headrace.core.lease.lease import Lease, LeaseKey
from headrace.core.lease.settings import LeaseSettings
from headrace.core.lease.taking import Division
from headrace.core.lease.view import Seen, StreamView
from headrace.ports import Chance


class Decider:
    """Decides after each scan."""

    def __init__(
        self,
        owner: str,
        settings: LeaseSettings,
        chance: Chance,
        *,
        views: Mapping[str, StreamView],
        holdings: Holdings,
        under_way: Mapping[LeaseKey, Write],
    ) -> None:
        self._owner = owner
        self._settings = settings
        self._chance = chance
        self._views = views
        self._holdings = holdings
        self._under_way = under_way
        self._asked: tuple[LeaseKey, int] | None = None
        """The lease that was asked for, and when; one at a time."""
        self._shunned: dict[LeaseKey, int] = {}
        """Leases that were given up because nothing could be fetched, and until when they are left to others."""

    def divide(self, now_ms: int) -> list[Take | Ask]:
        """Decide what to take; or, where nothing is free, what to ask for."""
        division, own = self._division(now_ms)
        takes: list[Take | Ask] = [Take(lease) for lease in (*own, *division.takes())]
        if takes or self._is_asking(now_ms):
            return takes
        wish = division.wish()
        if wish is None or wish.key in self._under_way:
            return []
        self._asked = (wish.key, now_ms)
        return [Ask(wish)]

    def asks_on(self, stream: str) -> bool:
        """Whether a lease on a stream is asked for."""
        return self._asked is not None and self._asked[0].stream == stream

    def shun(self, key: LeaseKey, now_ms: int) -> None:
        """Leave a lease to others for as long as they need to take it."""
        settings = self._settings
        wait_ms = settings.duration_ms + settings.margin_ms + 2 * settings.scan_ms
        self._shunned[key] = now_ms + wait_ms

    def _division(self, now_ms: int) -> tuple[Division, list[Lease]]:
        """Return who has what, and besides what is stored as this member's, but not held.

        That is what another has given, or an answer was lost, or the lease ran out here and nobody has it yet.
        """
        division = Division(self._owner)
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
                elif isinstance(self._under_way.get(lease.key), Take):
                    division.add(replace(lease, owner=self._owner, next_owner=None))
                elif self._is_renewed(seen, now_ms):
                    division.add(lease)
                elif not is_complete or not view.is_readable(seen):
                    continue
                elif lease.owner == self._owner:
                    own.append(lease)
                    division.add(replace(lease, next_owner=None))
                elif self._shunned.get(lease.key, now_ms) <= now_ms:
                    waiting = (now_ms - seen.changed_ms) // self._settings.duration_ms
                    free.append((-waiting, self._chance.random(), lease))
        division.free = [lease for *_, lease in sorted(free, key=lambda entry: entry[:2])]
        return division, own

    def _is_renewed(self, seen: Seen, now_ms: int) -> bool:
        """Whether a lease is another's, as far as this member's own clock can tell."""
        if seen.lease.owner is None or seen.lease.owner == self._owner:
            return False
        return now_ms < self._silent_ms(seen)

    def _silent_ms(self, seen: Seen) -> int:
        return seen.changed_ms + self._settings.duration_ms + self._settings.margin_ms

    def next_silent_ms(self, view: StreamView, now_ms: int) -> int | None:
        """Return when a lease of another member will be free next, unless it is renewed: worth a look just then."""
        times = [
            self._silent_ms(seen) for seen in view.rows.values() if self._is_renewed(seen, now_ms)
        ]
        return min(times, default=None)

    def _is_asking(self, now_ms: int) -> bool:
        """Whether an owner still has to answer; one that lets others wait for ever is not waited for alone."""
        if self._asked is None:
            return False
        key, asked_ms = self._asked
        seen = self._views[key.stream].rows.get(key.shard)
        patience_ms = self._settings.handover_timeout_ms + self._settings.duration_ms
        if (
            seen is None or seen.lease.next_owner != self._owner or now_ms >= asked_ms + patience_ms
        ) and key not in self._under_way:
            self._asked = None
        return self._asked is not None
