"""What groups hold in memory, as estimated, and what they may hold.

A member brings what it says about itself: the metadata of each protocol that it supports, or the topics that it wants.
The leader of a classic group is sent the metadata of all members in one answer, and the coordinator writes them in one
record, so what a group holds is bounded, and what all groups hold together. At either bound who would add something is
refused; who is there stays, and may send less.
"""

from __future__ import annotations

from typing import Final, Protocol

from headrace.errors import ErrorCode

GROUP_BYTES: Final = 1_500
"""What a group holds without its members."""
MEMBER_BYTES: Final = 2_500
"""What a member holds beside what it says about itself."""
TEXT_BYTES: Final = 60
"""What a text holds beside its characters."""
PENDING_BYTES: Final = 1_000
"""What a member id holds that was handed out."""
OFFSET_BYTES: Final = 500
"""What a committed offset holds beside its metadata, with its share of what is kept for the topic."""
OFFSETS_GROUP_BYTES: Final = 800
"""What a group that has offsets holds for that."""
GROUP_LIMIT: Final = 4 << 20
GROUPS_LIMIT: Final = 256 << 20
OFFSETS_LIMIT: Final = 512 << 20
PENDING_LIMIT: Final = 25_000
"""Offsets that one transaction commits: its markers make them count, some thirty milliseconds together."""


class Held(Protocol):
    """A group, of either protocol."""

    counted_bytes: int
    """What it held when it was last counted."""

    @property
    def held_bytes(self) -> int:
        """What it holds."""


class GroupMemory:
    """What all groups hold, and what offsets hold that groups have committed."""

    __slots__ = (
        "_pending",
        "group_limit",
        "groups_bytes",
        "groups_limit",
        "offsets_bytes",
        "offsets_limit",
    )

    def __init__(
        self,
        group_limit: int = GROUP_LIMIT,
        groups_limit: int = GROUPS_LIMIT,
        offsets_limit: int = OFFSETS_LIMIT,
    ) -> None:
        """Begin without any groups.

        Args:
            group_limit: What the members of one group may hold.
            groups_limit: What all groups may hold.
            offsets_limit: What the offsets of all groups may hold.
        """
        self.group_limit = group_limit
        self.groups_limit = groups_limit
        self.offsets_limit = offsets_limit
        self.groups_bytes = 0
        self.offsets_bytes = 0
        self._pending: dict[int, int] = {}
        """How many offsets each producer has pending in its transaction."""

    def count(self, group: Held) -> None:
        """Take note of what a group holds now."""
        held_bytes = group.held_bytes
        self.groups_bytes += held_bytes - group.counted_bytes
        group.counted_bytes = held_bytes

    def forget(self, group: Held) -> None:
        """Take note that a group has gone."""
        self.groups_bytes -= group.counted_bytes
        group.counted_bytes = 0

    def refusal(self, group: Held, added_bytes: int) -> ErrorCode:
        """Return why a group may not hold so much more, or NONE."""
        if added_bytes <= 0:
            return ErrorCode.NONE
        if group.counted_bytes + added_bytes > self.group_limit:
            return ErrorCode.GROUP_MAX_SIZE_REACHED
        if self.groups_bytes + added_bytes > self.groups_limit:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        return ErrorCode.NONE

    def has_room_for_offsets(self, added_bytes: int) -> bool:
        """Whether offsets may hold so much more."""
        return added_bytes <= 0 or self.offsets_bytes + added_bytes <= self.offsets_limit

    def pending_changed(self, producer_id: int, more: int) -> None:
        """Take note that a producer has so many more offsets pending, or fewer if `more` is negative."""
        count = self._pending.pop(producer_id, 0) + more
        if count:
            self._pending[producer_id] = count

    def has_room_for_pending(self, producer_id: int, more: int) -> bool:
        """Whether a transaction may commit so many more offsets."""
        return more <= 0 or self._pending.get(producer_id, 0) + more <= PENDING_LIMIT
