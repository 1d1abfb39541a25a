"""How shards are divided among the members of a group: by number first, by load where that is uneven.

Each member decides for itself, from the leases alone: who owns one that is renewed is there, so is who asks for one.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from headrace.core.lease.lease import Lease

IDLE_SHARE: Final = 0.1
"""A shard weighs this part of the mean load of a shard at least: also one without records has to be polled."""
WORTH: Final = 0.1
"""What a move for the sake of load has to bring; see `Division.wish`."""


def target(readable: int, members: int) -> int:
    """Return how many shards a member may have: the whole, divided, rounded up."""
    return -(-readable // members)


@dataclass(slots=True)
class Division:
    """Which member has, or is about to have, which leases; only those that are renewed."""

    me: str
    leases: dict[str, list[Lease]] = field(default_factory=dict)
    free: list[Lease] = field(default_factory=list)
    """Those that nobody has, in the order in which they should be taken."""

    def __post_init__(self) -> None:
        self.leases.setdefault(self.me, [])

    def add(self, lease: Lease) -> None:
        """Count a lease for who asks for it, or for its owner."""
        assert lease.owner is not None
        self.leases.setdefault(lease.owner, [])
        self.leases.setdefault(lease.next_owner or lease.owner, []).append(lease)

    @property
    def target(self) -> int:
        """How many shards a member may have."""
        readable = len(self.free) + sum(len(leases) for leases in self.leases.values())
        return target(readable, len(self.leases))

    def takes(self) -> list[Lease]:
        """Return the free leases that this member should take."""
        return self.free[: max(0, self.target - len(self.leases[self.me]))]

    def wish(self) -> Lease | None:
        """Return the lease that this member should ask for: none as long as there are free ones.

        By number: a member that has fewer than its target asks one that has more; or just as many, if two are missing
        here. By load: the member with the least asks the one with the most, if they differ by more than a tenth of the
        mean, and by a tenth less (of the difference, or of what moves) afterwards. Both only where whoever gets the
        lease does not end up with more load than its owner had: so nothing goes back and forth.
        """
        if self.free:
            return None
        weights = _Weights(self.leases)
        mine = weights.load(self.me)
        others = sorted(member for member in self.leases if member != self.me)
        return self._by_number(weights, mine, others) or self._by_load(weights, mine, others)

    def _by_number(self, weights: _Weights, mine: float, others: list[str]) -> Lease | None:
        missing = self.target - len(self.leases[self.me])
        if missing <= 0:
            return None
        enough = self.target + 1 if missing == 1 else self.target
        rich = [member for member in others if len(self.leases[member]) >= enough]
        rich.sort(key=lambda member: (-len(self.leases[member]), -weights.load(member)))
        for member in rich:
            lease = weights.best(self._askable(member), weights.load(member) - mine)
            if lease is not None:
                return lease
        return None

    def _by_load(self, weights: _Weights, mine: float, others: list[str]) -> Lease | None:
        if not others or mine > min(map(weights.load, others)):
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

    def _askable(self, member: str) -> Iterable[Lease]:
        return (lease for lease in self.leases[member] if lease.next_owner is None)


class _Weights:
    """How heavy leases are."""

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

    def best(self, leases: Iterable[Lease], spread: float) -> Lease | None:
        """Return the lease that brings two members closest together, if one does."""
        light = [lease for lease in leases if self.of(lease) < spread]
        return min(light, key=lambda lease: abs(spread - 2 * self.of(lease)), default=None)
