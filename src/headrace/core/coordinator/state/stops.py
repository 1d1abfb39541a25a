"""Members that an administrator stops: pending stops with deadlines, and outcomes. Soft state of one shard.

The log has no record of stops. After the coordinator is loaded again, the administrator's client repeats its request.
"""

from __future__ import annotations

from collections.abc import Collection
from enum import IntEnum
from hashlib import blake2b
from typing import Final

ENDS_LIMIT: Final = 1_000
"""The most outcomes of stops that a partition remembers; the oldest are dropped first."""


class StopState(IntEnum):
    """The state of a stop, as in a tagged field of the LeaveGroup response."""

    STOPPING = 1
    """The member has not left yet."""
    STOPPED = 2
    """The member has left by itself."""
    REMOVED = 3
    """The member has not left in time, and was removed by force. It may join again."""


class Stop:
    """The stop of one member.

    Attributes:
        deadline_ms: When the member is removed by force.
        notified: Whether a heartbeat response has asked the member to stop.
        end: How the stop ends when the member is out of the group. None if the member goes for another reason.
    """

    __slots__ = ("deadline_ms", "end", "notified")

    def __init__(self, deadline_ms: int) -> None:
        self.deadline_ms = deadline_ms
        self.notified = False
        self.end: StopState | None = None


class Stops:
    """The pending stops of a shard's members, and the outcomes of the last stops."""

    def __init__(self) -> None:
        self._pending: dict[tuple[str, str], Stop] = {}
        """Pending stops by group and member. They are bounded by the number of members."""
        self._ends: dict[bytes, StopState] = {}

    @property
    def pending(self) -> Collection[tuple[str, str]]:
        """The groups and members with a pending stop."""
        return self._pending.keys()

    def find(self, group_id: str, member_id: str) -> Stop | None:
        """Return the pending stop of a member, or None."""
        return self._pending.get((group_id, member_id)) if self._pending else None

    def begin(self, group_id: str, member_id: str, deadline_ms: int) -> Stop:
        """Begin the stop of a member. If it has several deadlines, the earliest counts."""
        stop = self._pending.get((group_id, member_id))
        if stop is None:
            self._ends.pop(_digest(group_id, member_id), None)
            stop = self._pending[group_id, member_id] = Stop(deadline_ms)
        stop.deadline_ms = min(stop.deadline_ms, deadline_ms)
        return stop

    def must_stop(self, group_id: str, member_id: str) -> bool:
        """Return whether the member has a pending stop, and mark the stop as sent to the member."""
        stop = self.find(group_id, member_id)
        if stop is None:
            return False
        stop.notified = True
        return True

    def ends(self, group_id: str, member_id: str, how: StopState) -> None:
        """Set the outcome of a stop. The stop ends when the member has left the group (`gone`)."""
        stop = self.find(group_id, member_id)
        if stop is not None and stop.end is None:
            stop.end = how

    def gone(self, group_id: str, member_id: str) -> None:
        """Note that a member has left its group."""
        stop = self._pending.pop((group_id, member_id), None) if self._pending else None
        if stop is None or stop.end is None:
            return
        if len(self._ends) >= ENDS_LIMIT:
            del self._ends[next(iter(self._ends))]
        self._ends[_digest(group_id, member_id)] = stop.end

    def end_of(self, group_id: str, member_id: str) -> StopState | None:
        """Return the outcome of the last stop of a member; None if it is unknown."""
        return self._ends.get(_digest(group_id, member_id))

    def clear(self) -> None:
        """Drop all stops and outcomes."""
        self._pending.clear()
        self._ends.clear()


def _digest(group_id: str, member_id: str) -> bytes:
    """Return a digest of 16 bytes, because clients choose the length of their ids."""
    group = group_id.encode()
    return blake2b(b"%d:%b%b" % (len(group), group, member_id.encode()), digest_size=16).digest()
