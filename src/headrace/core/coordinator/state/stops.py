"""Members that an administrator stops: whom to tell, until when, and how it ended. Soft state of one shard.

Nothing of it is in the log. After the coordinator is loaded again, the administrator's client asks again.
"""

from __future__ import annotations

from collections.abc import Collection
from enum import IntEnum
from hashlib import blake2b
from typing import Final

ENDS_LIMIT: Final = 1_000
"""Of how many members that were stopped a partition remembers how that ended; the oldest are forgotten first."""


class StopState(IntEnum):
    """How far a stop is, as the tagged field of LeaveGroup's answer says it."""

    STOPPING = 1
    """The member has not left yet."""
    STOPPED = 2
    """The member has left by itself."""
    REMOVED = 3
    """The member has not left in time, and was removed by force. It may join again."""


class Stop:
    """A member that has to stop.

    Attributes:
        deadline_ms: When the member is removed by force.
        told: Whether an answer to the member's heartbeat has said that it has to stop.
        end: How the stop ends when the member is out of the group. None if the member goes for another reason.
    """

    __slots__ = ("deadline_ms", "end", "told")

    def __init__(self, deadline_ms: int) -> None:
        self.deadline_ms = deadline_ms
        self.told = False
        self.end: StopState | None = None


class Stops:
    """The members of a shard's groups that have to stop, and how the last stops ended."""

    def __init__(self) -> None:
        self._pending: dict[tuple[str, str], Stop] = {}
        """By group and member. Only members of groups are in it, so their number bounds it."""
        self._ends: dict[bytes, StopState] = {}

    @property
    def pending(self) -> Collection[tuple[str, str]]:
        """The groups and members that have to stop."""
        return self._pending.keys()

    def find(self, group_id: str, member_id: str) -> Stop | None:
        """Return what a member has to do, or None if it does not have to stop."""
        return self._pending.get((group_id, member_id)) if self._pending else None

    def begin(self, group_id: str, member_id: str, deadline_ms: int) -> Stop:
        """Have a member stop. Of several deadlines the earliest holds."""
        stop = self._pending.get((group_id, member_id))
        if stop is None:
            self._ends.pop(_digest(group_id, member_id), None)
            stop = self._pending[group_id, member_id] = Stop(deadline_ms)
        stop.deadline_ms = min(stop.deadline_ms, deadline_ms)
        return stop

    def tell(self, group_id: str, member_id: str) -> bool:
        """Return whether a member that has sent a heartbeat has to stop, and note that it is told so."""
        stop = self.find(group_id, member_id)
        if stop is None:
            return False
        stop.told = True
        return True

    def ends(self, group_id: str, member_id: str, how: StopState) -> None:
        """Note how a stop ends. It has ended when the member is out of the group (`gone`)."""
        stop = self.find(group_id, member_id)
        if stop is not None and stop.end is None:
            stop.end = how

    def gone(self, group_id: str, member_id: str) -> None:
        """Take note that a member is out of its group."""
        stop = self._pending.pop((group_id, member_id), None) if self._pending else None
        if stop is None or stop.end is None:
            return
        if len(self._ends) >= ENDS_LIMIT:
            del self._ends[next(iter(self._ends))]
        self._ends[_digest(group_id, member_id)] = stop.end

    def end_of(self, group_id: str, member_id: str) -> StopState | None:
        """Return how the last stop of a member ended, or None if that is not known."""
        return self._ends.get(_digest(group_id, member_id))

    def clear(self) -> None:
        """Forget everything."""
        self._pending.clear()
        self._ends.clear()


def _digest(group_id: str, member_id: str) -> bytes:
    """Return a name of 16 bytes: clients choose how long their ids are."""
    group = group_id.encode()
    return blake2b(b"%d:%b%b" % (len(group), group, member_id.encode()), digest_size=16).digest()
