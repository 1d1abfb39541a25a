"""Leases in memory: for tests, and for groups whose members run in one process."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable

from headrace.core.lease.checkpoint import Checkpoint
from headrace.core.lease.lease import Lease, LeaseKey
from headrace.kinesis.leases import writes


class _Rows:
    """The rows that all stores of one name share. Members may run in several threads."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.leases: dict[LeaseKey, Lease] = {}
        self.values: defaultdict[str, dict[str, str]] = defaultdict(dict)


_NAMED: defaultdict[str, _Rows] = defaultdict(_Rows)


class MemoryLeaseStore:
    """A `LeaseStore` whose leases end with the process.

    Stores with the same name share their rows for the life of the process. A store without a name has rows of its own.
    """

    def __init__(self, name: str | None = None) -> None:
        self._rows = _Rows() if name is None else _NAMED[name]

    async def open(self) -> None:
        """Do nothing: the store is always open."""

    async def close(self) -> None:
        """Do nothing: other stores of the name may use the rows."""

    async def leases(self, group: str, stream: str) -> list[Lease]:
        """Return all leases of a group on a stream, sorted by shard."""
        with self._rows.lock:
            found = [row for key, row in self._rows.leases.items() if key[:2] == (group, stream)]
        return sorted(found, key=lambda lease: lease.key)

    async def streams(self) -> list[tuple[str, str]]:
        """Return every (group, stream) that has leases, sorted."""
        with self._rows.lock:
            return sorted({(key.group, key.stream) for key in self._rows.leases})

    async def create(self, lease: Lease) -> bool:
        """Write a lease unless one with its key exists; return whether it was written."""
        writes.check_key(lease.key)
        with self._rows.lock:
            if lease.key in self._rows.leases:
                return False
            self._rows.leases[lease.key] = lease
            return True

    async def take(self, seen: Lease, owner: str) -> Lease | None:
        """Make a member the owner if epoch and beat are as seen; return the lease, or None."""
        return self._write(seen.key, lambda row: writes.taken(row, seen, owner))

    async def renew(
        self,
        key: LeaseKey,
        owner: str,
        epoch: int,
        beat: int,
        *,
        checkpoint: Checkpoint | None = None,
        bytes_per_s: float | None = None,
    ) -> Lease | None:
        """Write a higher beat, and a checkpoint if there is one, if (owner, epoch) holds."""
        return self._write(
            key,
            lambda row: writes.renewed(
                row, owner, epoch, beat, checkpoint=checkpoint, bytes_per_s=bytes_per_s
            ),
        )

    async def ask(self, seen: Lease, asker: str) -> bool:
        """Write the asking member if the epoch is as seen and no other member asks."""
        return self._write(seen.key, lambda row: writes.asked(row, seen, asker)) is not None

    async def give(
        self,
        key: LeaseKey,
        owner: str,
        epoch: int,
        *,
        to: str | None,
        checkpoint: Checkpoint | None,
    ) -> bool:
        """Release the lease, or transfer it, with the checkpoint, in one write."""
        row = self._write(
            key, lambda row: writes.given(row, owner, epoch, to=to, checkpoint=checkpoint)
        )
        return row is not None

    async def reset(self, seen: Lease, checkpoint: Checkpoint) -> Lease | None:
        """Write an administrator's checkpoint if epoch and beat are as seen."""
        return self._write(seen.key, lambda row: writes.moved(row, seen, checkpoint))

    async def delete(self, seen: Lease) -> bool:
        """Remove a row if its epoch is as seen; return whether it is removed."""
        with self._rows.lock:
            row = self._rows.leases.get(seen.key)
            if row is not None and row.epoch != seen.epoch:
                return False
            self._rows.leases.pop(seen.key, None)
            return True

    async def record_once(self, scope: str, name: str, value: str) -> str:
        """Write a value under a name unless it has one; return the value that is stored now."""
        writes.check_name("scope", scope)
        with self._rows.lock:
            return self._rows.values[scope].setdefault(name, value)

    async def recorded(self, scope: str) -> dict[str, str]:
        """Return all values of a scope by name."""
        with self._rows.lock:
            return dict(self._rows.values.get(scope, {}))

    async def forget(self, scope: str, names: list[str]) -> None:
        """Remove values. Missing ones are ignored."""
        with self._rows.lock:
            values = self._rows.values.get(scope, {})
            for name in names:
                values.pop(name, None)

    def _write(self, key: LeaseKey, change: Callable[[Lease], Lease | None]) -> Lease | None:
        with self._rows.lock:
            row = self._rows.leases.get(key)
            changed = None if row is None else change(row)
            if changed is not None:
                self._rows.leases[key] = changed
            return changed
