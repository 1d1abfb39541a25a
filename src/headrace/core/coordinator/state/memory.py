"""Estimated memory use of groups, and its bounds.

A member adds metadata: of each protocol that it supports, or its subscribed topics. The leader of a classic group
receives the metadata of all members in one response, and the coordinator writes them in one record. Therefore both the
memory of one group and the memory of all groups are bounded. At a bound, requests that would add data are refused.
Existing members stay, and may replace their metadata with smaller metadata.
"""

from __future__ import annotations

from typing import Final, Protocol

from headrace.errors import ErrorCode

GROUP_BYTES: Final = 1_500
"""Bytes of a group without its members."""
MEMBER_BYTES: Final = 2_500
"""Bytes of a member without its metadata."""
TEXT_BYTES: Final = 60
"""Bytes of a text without its characters."""
PENDING_BYTES: Final = 1_000
"""Bytes of a pending member id."""
OFFSET_BYTES: Final = 500
"""Bytes of a committed offset without its metadata, including its share of the topic's entry."""
OFFSETS_GROUP_BYTES: Final = 800
"""Bytes that a group needs in addition if it has offsets."""
GROUP_LIMIT: Final = 4 << 20
GROUPS_LIMIT: Final = 256 << 20
OFFSETS_LIMIT: Final = 512 << 20
PENDING_LIMIT: Final = 25_000
"""The most offsets in one transaction. Applying them at the marker takes some twenty milliseconds."""


class Held(Protocol):
    """A group of either protocol, as far as its memory is counted."""

    counted_bytes: int
    """The value of `held_bytes` when the group was last counted."""

    @property
    def held_bytes(self) -> int:
        """The memory that the group uses now, in bytes."""


class GroupMemory:
    """The memory of all groups and of their committed offsets, with bounds."""

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
        """Create the counts for no groups.

        Args:
            group_limit: The most bytes of one group.
            groups_limit: The most bytes of all groups.
            offsets_limit: The most bytes of all committed offsets.
        """
        self.group_limit = group_limit
        self.groups_limit = groups_limit
        self.offsets_limit = offsets_limit
        self.groups_bytes = 0
        self.offsets_bytes = 0
        self._pending: dict[int, int] = {}
        """The number of pending offsets by producer id."""

    def count(self, group: Held) -> None:
        """Update the count of a group to its present memory."""
        held_bytes = group.held_bytes
        self.groups_bytes += held_bytes - group.counted_bytes
        group.counted_bytes = held_bytes

    def forget(self, group: Held) -> None:
        """Remove a group from the counts."""
        self.groups_bytes -= group.counted_bytes
        group.counted_bytes = 0

    def refusal(self, group: Held, added_bytes: int) -> ErrorCode:
        """Return NONE if a group may add so many bytes, else the error for the request."""
        if added_bytes <= 0:
            return ErrorCode.NONE
        if group.counted_bytes + added_bytes > self.group_limit:
            return ErrorCode.GROUP_MAX_SIZE_REACHED
        if self.groups_bytes + added_bytes > self.groups_limit:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        return ErrorCode.NONE

    def has_space_for_offsets(self, added_bytes: int) -> bool:
        """Return whether committed offsets may add so many bytes."""
        return added_bytes <= 0 or self.offsets_bytes + added_bytes <= self.offsets_limit

    def pending_changed(self, producer_id: int, more: int) -> None:
        """Add `more`, which may be negative, to the number of pending offsets of a producer."""
        count = self._pending.pop(producer_id, 0) + more
        if count:
            self._pending[producer_id] = count

    def has_space_for_pending(self, producer_id: int, more: int) -> bool:
        """Return whether a transaction may add so many pending offsets."""
        return more <= 0 or self._pending.get(producer_id, 0) + more <= PENDING_LIMIT
