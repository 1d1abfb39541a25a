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
    """Limits and times. Attributes are Kafka's broker properties with dots as underscores."""

    group_min_session_timeout_ms: int = 6_000
    """Shortest session timeout a member may ask for."""

    group_max_session_timeout_ms: int = 1_800_000
    """Longest session timeout a member may ask for."""

    group_initial_rebalance_delay_ms: int = 3_000
    """How long the first rebalance of an empty group waits for more members; 0 completes it with the first one."""

    group_max_size: int = 2_147_483_647
    """How many members a group may have."""

    group_consumer_session_timeout_ms: int = 45_000
    """How long a member of a consumer group may be silent."""

    group_consumer_heartbeat_interval_ms: int = 5_000
    """The heartbeat interval of members of consumer groups, in milliseconds."""

    group_consumer_assignment_interval_ms: int = 0
    """The least time in milliseconds between two target assignments of a consumer group."""

    group_consumer_max_size: int = 2_147_483_647
    """How many members a consumer group may have."""

    group_consumer_migration_policy: str = "bidirectional"
    """Whether a group that has members may change its protocol: "upgrade", "downgrade", "bidirectional", "disabled"."""

    offsets_retention_minutes: int = 10_080
    """How long offsets are kept once nobody uses them (KIP-211)."""

    offsets_retention_check_interval_ms: int = 600_000
    """How often expired offsets and empty groups are looked for."""

    offset_metadata_max_bytes: int = 4_096
    """Longest metadata text of a committed offset."""

    group_max_bytes: int = GROUP_LIMIT
    """The most memory for the metadata of all members of one group, in bytes. Kafka's bound is the largest record of
    its internal topic, a megabyte."""

    groups_max_bytes: int = GROUPS_LIMIT
    """The most memory for all groups together, in bytes."""

    offsets_max_bytes: int = OFFSETS_LIMIT
    """The most memory for the committed offsets of all groups together, in bytes."""

    offsets_commit_timeout_ms: int = 5_000
    """How long a response waits for the high watermark before it is answered with an error."""

    new_member_join_timeout_ms: int = 300_000
    """How long a new member may wait in its first JoinGroup; it has no session yet. Kafka's constant."""

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
        """Take every setting that `config` has an attribute for; the rest keep their defaults."""
        names = [field.name for field in fields(cls)]
        return cls(**{name: getattr(config, name) for name in names if hasattr(config, name)})
