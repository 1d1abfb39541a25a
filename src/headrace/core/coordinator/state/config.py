"""Settings of the group coordinator, under Kafka's names."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import NamedTuple, Self

from headrace.core.coordinator.state.memory import GROUP_LIMIT, GROUPS_LIMIT, OFFSETS_LIMIT


class ConsumerTimes(NamedTuple):
    """The timeouts of one consumer group, which override those of the broker."""

    session_timeout_ms: int
    heartbeat_interval_ms: int
    assignment_interval_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupConfig:
    """Settings of the coordinator. Attributes are Kafka's broker properties, with underscores for the dots."""

    group_min_session_timeout_ms: int = 6_000
    """The shortest session timeout that a classic member may request, in milliseconds."""

    group_max_session_timeout_ms: int = 1_800_000
    """The longest session timeout that a classic member may request, in milliseconds."""

    group_initial_rebalance_delay_ms: int = 3_000
    """The time for which the first rebalance of an empty group waits for more members, in milliseconds; 0 for no
    wait."""

    group_max_size: int = 2_147_483_647
    """The largest number of members of a classic group."""

    group_consumer_session_timeout_ms: int = 45_000
    """The session timeout of members of consumer groups, in milliseconds."""

    group_consumer_heartbeat_interval_ms: int = 5_000
    """The heartbeat interval of members of consumer groups, in milliseconds."""

    group_consumer_assignment_interval_ms: int = 0
    """The least time in milliseconds between two target assignments of a consumer group."""

    group_consumer_max_size: int = 2_147_483_647
    """The largest number of members of a consumer group."""

    group_consumer_migration_policy: str = "bidirectional"
    """Whether a group that has members may change its protocol: "upgrade", "downgrade", "bidirectional", "disabled"."""

    offsets_retention_minutes: int = 10_080
    """The retention of committed offsets that no member uses, in minutes (KIP-211)."""

    offsets_retention_check_interval_ms: int = 600_000
    """The interval at which expired offsets and empty groups are deleted, in milliseconds."""

    offset_metadata_max_bytes: int = 4_096
    """The largest metadata of a committed offset, in characters."""

    group_max_bytes: int = GROUP_LIMIT
    """The most memory for the metadata of all members of one group, in bytes. Kafka's bound is the largest record of
    its internal topic, a megabyte."""

    groups_max_bytes: int = GROUPS_LIMIT
    """The most memory for all groups together, in bytes."""

    offsets_max_bytes: int = OFFSETS_LIMIT
    """The most memory for the committed offsets of all groups together, in bytes."""

    offsets_commit_timeout_ms: int = 5_000
    """The longest time that a response waits for the high watermark, in milliseconds; after it the response is an
    error."""

    new_member_join_timeout_ms: int = 300_000
    """The longest time that a new member, which has no session yet, waits in its first JoinGroup. Kafka's constant."""

    pending_members_max: int = 10_000
    """The most pending member ids of a group; the oldest is dropped first. KIP-394 has no limit."""

    @property
    def offsets_retention_ms(self) -> int:
        """The value of `offsets_retention_minutes` in milliseconds."""
        return self.offsets_retention_minutes * 60_000

    @property
    def consumer_times(self) -> ConsumerTimes:
        """The timeouts of consumer groups without their own."""
        return ConsumerTimes(
            self.group_consumer_session_timeout_ms,
            self.group_consumer_heartbeat_interval_ms,
            self.group_consumer_assignment_interval_ms,
        )

    @property
    def may_upgrade(self) -> bool:
        """Whether a classic group that has members becomes a consumer group when a consumer joins it."""
        return self.group_consumer_migration_policy in {"upgrade", "bidirectional"}

    @property
    def may_downgrade(self) -> bool:
        """Whether a consumer group becomes a classic one when only classic members are left."""
        return self.group_consumer_migration_policy in {"downgrade", "bidirectional"}

    @classmethod
    def from_broker(cls, config: object) -> Self:
        """Return the settings that `config` has as attributes, and defaults for the others."""
        names = [field.name for field in fields(cls)]
        return cls(**{name: getattr(config, name) for name in names if hasattr(config, name)})
