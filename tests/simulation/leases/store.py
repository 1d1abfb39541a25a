"""The simulated store of leases. The checker checks every write."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.core.lease import actions
from headrace.core.lease.lease import Lease, LeaseKey
from headrace.kinesis.leases import writes

if TYPE_CHECKING:
    from tests.simulation.leases.checker import LeaseChecker


class Rows:
    """A store of leases with the rules of all stores."""

    def __init__(self, checker: LeaseChecker) -> None:
        self._checker = checker
        self.leases: dict[LeaseKey, Lease] = {}

    def apply(self, request: actions.Request, owner: str, *, is_ghost: bool) -> object:
        """Execute a request, and return the response.

        Args:
            request: The request.
            owner: The member that sent it.
            is_ghost: Whether the request is executed late, or once more.
        """
        if isinstance(request, actions.Scan):
            return [row for row in self.leases.values() if row.key.stream == request.stream]
        if isinstance(request, actions.Create):
            return self._create(request.lease, is_ghost=is_ghost)
        if isinstance(request, actions.Delete):
            return self._delete(request.seen)
        assert not isinstance(request, actions.ListShards), "shards are not in the store"
        before = self.leases.get(request.key)
        after = None if before is None else _changed(before, request, owner)
        if before is not None and after is not None:
            self.leases[request.key] = after
            if after is not before:
                self._checker.written(before, after)
        return after if isinstance(request, actions.Take | actions.Renew) else after is not None

    def _create(self, lease: Lease, *, is_ghost: bool) -> bool:
        if lease.key in self.leases:
            return False
        self.leases[lease.key] = lease
        self._checker.created(lease, is_ghost=is_ghost)
        return True

    def _delete(self, seen: Lease) -> bool:
        row = self.leases.get(seen.key)
        if row is not None and row.epoch != seen.epoch:
            return False
        self.leases.pop(seen.key, None)
        return True


def _changed(
    row: Lease, request: actions.Take | actions.Ask | actions.Renew | actions.Give, owner: str
) -> Lease | None:
    match request:
        case actions.Take(seen):
            return writes.taken(row, seen, owner)
        case actions.Ask(seen):
            return writes.asked(row, seen, owner)
        case actions.Renew(_, epoch, beat, checkpoint, rate):
            return writes.renewed(row, owner, epoch, beat, checkpoint=checkpoint, bytes_per_s=rate)
        case actions.Give(_, epoch, to, checkpoint):
            return writes.given(row, owner, epoch, to=to, checkpoint=checkpoint)
