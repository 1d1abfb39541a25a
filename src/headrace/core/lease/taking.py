"""The division of shards among the members of a group: by number, and then by load if the load is uneven.

Each member decides alone, from the leases only. The owners of renewed leases and the members that ask for leases are
the members of the group.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Final

from headrace.core.lease.lease import Lease
from headrace.core.lease.names import most_of

IDLE_SHARE: Final = 0.1
"""The least weight of a shard, as a part of the mean load of a shard. A shard without records has to be polled, too."""
WORTH: Final = 0.1
"""The least improvement for which a lease is moved, as a part of the mean load; see `LeaseDivision.wishes`."""


def level(readable: int, most: Iterable[int | None]) -> int:
    """Return how many shards a member without a limit may own: the shards, divided by the members, rounded up.

    Args:
        readable: The number of readable shards.
        most: The limit of each member; None: no limit. Shards beyond the limits are divided among the other members.
    """
    bounds = list(most)
    members = len(bounds)
    for bound in sorted(bound for bound in bounds if bound is not None):
        if bound * members >= readable or members == 1:
            break
        readable -= bound
        members -= 1
    return -(-readable // members)


@dataclass(slots=True)
class LeaseDivision:
    """The division of the renewed leases: each counts for the member that asks for it, or else for its owner."""

    me: str
    leases: dict[str, list[Lease]] = field(default_factory=dict)
    free: list[Lease] = field(default_factory=list)
    """Leases without an owner, in the order in which they should be taken."""

    def __post_init__(self) -> None:
        self.leases.setdefault(self.me, [])

    def add(self, lease: Lease) -> None:
        """Count a lease for the member that asks for it, or else for its owner."""
        for member in (lease.owner, lease.next_owner):
            if member is not None:
                self.leases.setdefault(member, [])
        whose = lease.next_owner or lease.owner
        assert whose is not None, "the lease is not free"
        self.leases[whose].append(lease)

    @property
    def level(self) -> int:
        """The number of shards that a member without a limit may own."""
        readable = len(self.free) + sum(len(leases) for leases in self.leases.values())
        return level(readable, map(most_of, self.leases))

    @property
    def missing(self) -> int:
        """The number of leases that this member lacks; 0 if it has enough."""
        most = most_of(self.me)
        target = self.level if most is None else min(most, self.level)
        return max(0, target - len(self.leases[self.me]))

    def takes(self) -> list[Lease]:
        """Return the free leases that this member should take."""
        return self.free[: self.missing]

    def wishes(self, limit: int) -> list[Lease]:
        """Return at most `limit` leases that this member should ask other members for; none while leases are free.

        By number: a member below its target asks members that are above theirs. If it lacks two leases, it also asks
        members that are at their target.

        By load, one lease at a time: the member with the least load asks the one with the most. Their loads must differ
        by more than a tenth of the mean. The move must improve the difference by more than a tenth of the difference or
        of the moved load, whichever is smaller.

        In both cases the new owner must not end up with more load than the old owner had, so that no lease moves back
        and forth.
        """
        wishes: list[Lease] = []
        weights = _Weights(self.leases)
        while not self.free and len(wishes) < limit:
            lease = self._by_number(weights)
            if lease is None:
                break
            wishes.append(lease)
            assert lease.owner is not None, "the lease has an owner"
            self.leases[lease.owner].remove(lease)
            self.add(replace(lease, next_owner=self.me))
            weights.move(lease, lease.owner, self.me)
        return wishes

    def wish(self) -> Lease | None:
        """Return the lease that this member should ask for because of its load, or None; see `wishes`."""
        return None if self.free else self._by_load(_Weights(self.leases))

    def _others(self) -> list[str]:
        return sorted(member for member in self.leases if member != self.me)

    def _by_number(self, weights: _Weights) -> Lease | None:
        missing = self.missing
        if not missing:
            return None
        mine = weights.load(self.me)
        enough = self.level + 1 if missing == 1 else self.level
        rich = [member for member in self._others() if len(self.leases[member]) >= enough]
        rich.sort(key=lambda member: (-len(self.leases[member]), -weights.load(member)))
        for member in rich:
            lease = weights.best(self._askable(member), weights.load(member) - mine)
            if lease is not None:
                return lease
        return None

    def _by_load(self, weights: _Weights) -> Lease | None:
        others, mine = self._others(), weights.load(self.me)
        below_limit = [member for member in others if self._has_space(member)]
        poorer = any(weights.load(member) < mine for member in below_limit)
        if not others or poorer or not self._has_space(self.me):
            return None
        richest = max(others, key=weights.load)
        spread = weights.load(richest) - mine
        if spread <= WORTH * weights.mean_of_members:
            return None
        lease = weights.best(self._askable(richest), spread)
        if lease is None:
            return None
        weight = weights.of(lease)
        gain = spread - abs(spread - 2 * weight)
        return lease if gain > WORTH * min(spread, weight) else None

    def _has_space(self, member: str) -> bool:
        most = most_of(member)
        return most is None or len(self.leases[member]) < most

    def _askable(self, member: str) -> Iterable[Lease]:
        return (lease for lease in self.leases[member] if lease.next_owner is None)


class _Weights:
    """The weights of leases, and the loads of members, in bytes per second."""

    def __init__(self, leases: dict[str, list[Lease]]) -> None:
        rates = [lease.bytes_per_s for held in leases.values() for lease in held]
        self._idle = max(1.0, IDLE_SHARE * sum(rates) / max(1, len(rates)))
        self._loads = {
            member: sum(self.of(lease) for lease in held) for member, held in leases.items()
        }
        self.mean_of_members = sum(self._loads.values()) / len(self._loads)

    def of(self, lease: Lease) -> float:
        return lease.bytes_per_s + self._idle

    def load(self, member: str) -> float:
        return self._loads[member]

    def move(self, lease: Lease, giver: str, taker: str) -> None:
        self._loads[giver] -= self.of(lease)
        self._loads[taker] += self.of(lease)

    def best(self, leases: Iterable[Lease], spread: float) -> Lease | None:
        """Return the lease whose move brings the loads of two members closest together, or None if no move helps."""
        light = [lease for lease in leases if self.of(lease) < spread]
        return min(light, key=lambda lease: abs(spread - 2 * self.of(lease)), default=None)
