"""The rows of the simulated world; whatever is written to them is told to a judge."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.core.lease import actions
from headrace.core.lease.lease import Lease, LeaseKey
from headrace.kinesis.leases import writes

if TYPE_CHECKING:
    from tests.simulation.leases.judge import Judge


class Rows:
    """What a store does, by the rules that all stores share."""

    def __init__(self, judge: Judge) -> None:
        self._judge = judge
        self.leases: dict[LeaseKey, Lease] = {}

    def apply(self, request: actions.Request, owner: str, *, is_ghost: bool) -> object:
        """Do what a request asks for, and return the answer.

        Args:
            request: The request.
            owner: Who sent it.
            is_ghost: Whether it comes after its time, or again.
        """
        match request:
            case actions.Scan(stream):
                return [row for row in self.leases.values() if row.key.stream == stream]
            case actions.Create(lease):
                if lease.key in self.leases:
                    return False
                self.leases[lease.key] = lease
                self._judge.created(lease, is_ghost=is_ghost)
                return True
            case actions.Take(seen):
                row = self._row(seen.key)
                return self._write(row, row and writes.taken(row, seen, owner), is_ghost)
            case actions.Renew(key, epoch, checkpoint, rate):
                row = self._row(key)
                changed = row and writes.renewed(
                    row, owner, epoch, bytes_per_s=rate, checkpoint=checkpoint
                )
                return self._write(row, changed, is_ghost)
            case actions.Ask(seen):
                row = self._row(seen.key)
                return (
                    self._write(row, row and writes.asked(row, seen, owner), is_ghost) is not None
                )
            case actions.Give(key, epoch, to, checkpoint):
                row = self._row(key)
                changed = row and writes.given(row, owner, epoch, to=to, checkpoint=checkpoint)
                return self._write(row, changed, is_ghost) is not None
            case actions.Delete(seen):
                row = self._row(seen.key)
                if row is not None and row.epoch != seen.epoch:
                    return False
                self.leases.pop(seen.key, None)
                return True
        raise AssertionError(request)

    def _row(self, key: LeaseKey) -> Lease | None:
        return self.leases.get(key)

    def _write(self, before: Lease | None, after: Lease | None, is_ghost: bool) -> Lease | None:
        if before is None or after is None:
            return None
        self.leases[after.key] = after
        if after is not before:
            self._judge.written(before, after, is_ghost=is_ghost)
        return after
