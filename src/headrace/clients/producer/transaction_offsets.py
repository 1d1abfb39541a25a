"""Checks of the offsets, and of the group member, that a program gives to a transaction."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

from headrace.clients.flows.offsets import OffsetAndMetadata
from headrace.clients.flows.transactions import GroupMember
from headrace.errors import (
    AbortableTransactionError,
    ApiError,
    ConfigError,
    ErrorCode,
)
from headrace.types import TopicPartition

Offsets = Mapping[TopicPartition, int | OffsetAndMetadata | None]


@runtime_checkable
class GroupConsumer(Protocol):
    """A consumer of this package, blocking or asyncio."""

    config: Any

    def group_metadata(self) -> GroupMember:
        """Return the identity of the consumer in its group."""

    def subscription(self) -> frozenset[str]:
        """Return the topics of the subscription."""


def member_of(group: GroupMember | GroupConsumer) -> GroupMember:
    """Return the identity of a consumer in its group.

    Raises:
        AbortableTransactionError: The consumer is no longer a member. Other members may own its partitions.
        ConfigError: The consumer commits automatically, so it could commit records that no transaction has finished.
    """
    if not isinstance(group, GroupConsumer):
        return group
    if group.config.enable_auto_commit:
        raise ConfigError(
            "a consumer whose offsets a transaction commits must not commit by itself: "
            "Consumer(..., enable_auto_commit=False)"
        )
    member = group.group_metadata()
    if member.generation_id < 0 and group.subscription():
        raise AbortableTransactionError(
            f"the consumer is no longer a member of the group {member.group_id!r}, and other members may own its "
            "partitions: abort the transaction, poll again, and continue with the records of that poll"
        ) from ApiError.for_code(ErrorCode.UNKNOWN_MEMBER_ID)
    return member


def check_not_rejoined(group: GroupMember | GroupConsumer, before: GroupMember) -> None:
    """Check that a consumer has not rejoined its group while the offsets of a transaction were sent.

    The coordinator cannot detect it: a member that rejoins gets its previous epoch if nothing else has changed. But the
    member may have read the committed offsets before the new ones arrived, so they must not be committed.

    Raises:
        AbortableTransactionError: The consumer has rejoined.
    """
    if isinstance(group, GroupConsumer) and _joined(group.group_metadata()) != _joined(before):
        raise AbortableTransactionError(
            f"the consumer left the group {before.group_id!r} and joined it again while the transaction's offsets were "
            "sent"
        ) from ApiError.for_code(ErrorCode.STALE_MEMBER_EPOCH)


def _joined(member: GroupMember) -> int:
    return getattr(member, "joined", 0)


def checked_offsets(offsets: Offsets) -> dict[TopicPartition, OffsetAndMetadata]:
    """Return the offsets in the form in which they are committed, without those that are None (not known yet).

    Raises:
        ConfigError: The argument is not a mapping of partitions to offsets.
    """
    if not isinstance(offsets, Mapping):
        raise ConfigError(
            f"offsets are given by partition, {{TopicPartition(...): 5}}, not {offsets!r}"
        )
    checked: dict[TopicPartition, OffsetAndMetadata] = {}
    for name, at in offsets.items():
        if isinstance(at, bool) or not isinstance(at, int | OffsetAndMetadata | None):
            raise ConfigError(f"{name}: an offset is a number from 0 on, not {at!r}")
        if at is not None:
            checked[TopicPartition(*name)] = OffsetAndMetadata(at) if isinstance(at, int) else at
    negative = [name for name, at in checked.items() if at.offset < 0]
    if negative:
        raise ConfigError(
            f"{negative[0]}: an offset is a number from 0 on, not {checked[negative[0]].offset}"
        )
    return checked
