"""The records of consumer groups in `__consumer_offsets`: values of the coordinator, and their encoding.

Each record has one key of the log. A record with the content None deletes its key.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from enum import IntEnum
from typing import Any, Final, NamedTuple

from headrace.core.coordinator.state.subscription import Protocol
from headrace.protocol.codec import Message
from headrace.protocol.messages.consumer_group_current_record import (
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupCurrentMemberAssignmentValue,
    TopicPartitions,
)
from headrace.protocol.messages.consumer_group_member_record import (
    ClassicMemberMetadata,
    ClassicProtocol,
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupMemberMetadataValue,
)
from headrace.protocol.messages.consumer_group_metadata_record import (
    ConsumerGroupMetadataKey,
    ConsumerGroupMetadataValue,
)
from headrace.protocol.messages.consumer_group_regex_record import (
    ConsumerGroupRegularExpressionKey,
    ConsumerGroupRegularExpressionValue,
)
from headrace.protocol.messages.consumer_group_target_member_record import (
    ConsumerGroupTargetAssignmentMemberKey,
    ConsumerGroupTargetAssignmentMemberValue,
    TopicPartition,
)
from headrace.protocol.messages.consumer_group_target_record import (
    ConsumerGroupTargetAssignmentMetadataKey,
    ConsumerGroupTargetAssignmentMetadataValue,
)
from headrace.types import Buffer, FileRange

Partition = tuple[bytes, int]
"""A topic's id and the number of a partition."""
Partitions = frozenset[Partition]

VALUE_VERSION: Final = 0


class MemberState(IntEnum):
    """The progress of a member towards its target assignment, under Kafka's numbers."""

    STABLE = 0
    """The member owns the whole assignment of its member epoch."""
    UNREVOKED = 1
    """The member must revoke partitions, and has not confirmed that yet."""
    UNRELEASED = 2
    """The member has revoked its partitions, and waits for partitions that others still own."""


class GroupEpoch(NamedTuple):
    """Record: the epoch of a group, and a hash of the subscribed topics; None deletes the group."""

    group_id: str
    epoch: int | None
    metadata_hash: int = 0


class ClassicMemberFields(NamedTuple):
    """The fields that only a member of the classic protocol has."""

    session_timeout_ms: int
    protocols: tuple[Protocol, ...]
    """The assignors that the member supports. The group needs them if it becomes a classic group."""

    @property
    def names(self) -> frozenset[str]:
        """The names of its protocols."""
        return frozenset(protocol.name for protocol in self.protocols)


class MemberMetadata(NamedTuple):
    """The metadata that a member sent about itself."""

    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    topics: tuple[str, ...] = ()
    """The names of the subscribed topics, sorted."""
    regex: str | None = None
    rebalance_timeout_ms: int = -1
    assignor: str | None = None
    classic: ClassicMemberFields | None = None
    """The further fields of a member of the classic protocol; None for other members."""


class MemberRecord(NamedTuple):
    """Record: the metadata of a member; None deletes the member."""

    group_id: str
    member_id: str
    member: MemberMetadata | None


class TargetEpoch(NamedTuple):
    """Record: the group epoch that the target was computed for."""

    group_id: str
    epoch: int | None
    timestamp_ms: int = 0


class TargetMember(NamedTuple):
    """Record: the target assignment of one member; None deletes it."""

    group_id: str
    member_id: str
    partitions: Partitions | None


class Current(NamedTuple):
    """The current assignment and the member epoch of a member."""

    epoch: int = 0
    previous_epoch: int = 0
    state: MemberState = MemberState.STABLE
    assigned: Partitions = frozenset()
    revoking: Partitions = frozenset()
    """Partitions that the member must revoke. Other members get them only after the member has confirmed."""


class CurrentMember(NamedTuple):
    """Record: the current assignment of a member; None deletes it."""

    group_id: str
    member_id: str
    current: Current | None


class ResolvedRegex(NamedTuple):
    """Record: the topics that a regular expression matches; None deletes the record."""

    group_id: str
    regex: str
    topics: tuple[str, ...] | None
    timestamp_ms: int = 0


ConsumerRecord = (
    GroupEpoch | MemberRecord | TargetEpoch | TargetMember | CurrentMember | ResolvedRegex
)


class _Kind(NamedTuple):
    """One kind of record: its number, the classes of record, key and value, and the conversions of the content."""

    number: int
    record: Callable[..., ConsumerRecord]
    key: type[Message]
    value: type[Message]
    to_value: Callable[[Any], Message]
    from_value: Callable[[Any], tuple[Any, ...]]

    @property
    def keys(self) -> tuple[str, ...]:
        """The names of the key's fields, which are also the first fields of the record."""
        return tuple(self.key.__slots__)


# --- kinds ---


def _grouped(partitions: Partitions) -> Iterable[tuple[bytes, list[int]]]:
    topics: dict[bytes, list[int]] = {}
    for topic_id, index in sorted(partitions):
        topics.setdefault(topic_id, []).append(index)
    return topics.items()


def _flat(topics: Iterable[Any]) -> Partitions:
    return frozenset(
        (bytes(topic.topic_id), index) for topic in topics for index in topic.partitions
    )


def _member_value(record: MemberRecord) -> Message:
    member = record.member or MemberMetadata()
    return ConsumerGroupMemberMetadataValue(
        instance_id=member.instance_id,
        rack_id=member.rack_id,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=list(member.topics),
        subscribed_topic_regex=member.regex,
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        server_assignor=member.assignor,
        classic_member_metadata=_classic_value(member.classic),
    )


def _classic_value(classic: ClassicMemberFields | None) -> ClassicMemberMetadata | None:
    if classic is None:
        return None
    return ClassicMemberMetadata(
        session_timeout_ms=classic.session_timeout_ms,
        supported_protocols=[
            ClassicProtocol(name=protocol.name, metadata=protocol.metadata)
            for protocol in classic.protocols
        ],
    )


def _member(value: ConsumerGroupMemberMetadataValue) -> tuple[MemberMetadata]:
    classic = value.classic_member_metadata
    member = MemberMetadata(
        value.instance_id,
        value.rack_id,
        value.client_id,
        value.client_host,
        tuple(value.subscribed_topic_names),
        value.subscribed_topic_regex or None,
        value.rebalance_timeout_ms,
        value.server_assignor,
        None
        if classic is None
        else ClassicMemberFields(
            classic.session_timeout_ms,
            tuple(Protocol(p.name, bytes(p.metadata)) for p in classic.supported_protocols),
        ),
    )
    return (member,)


def _current_value(record: CurrentMember) -> Message:
    current = record.current or Current()

    def stored(partitions: Partitions) -> list[TopicPartitions]:
        return [
            TopicPartitions(topic_id=topic_id, partitions=indexes, assignment_epochs=None)
            for topic_id, indexes in _grouped(partitions)
        ]

    return ConsumerGroupCurrentMemberAssignmentValue(
        member_epoch=current.epoch,
        previous_member_epoch=current.previous_epoch,
        state=current.state,
        assigned_partitions=stored(current.assigned),
        partitions_pending_revocation=stored(current.revoking),
    )


def _current(value: ConsumerGroupCurrentMemberAssignmentValue) -> tuple[Current]:
    current = Current(
        value.member_epoch,
        value.previous_member_epoch,
        MemberState(value.state),
        _flat(value.assigned_partitions),
        _flat(value.partitions_pending_revocation),
    )
    return (current,)


def _target_value(record: TargetMember) -> Message:
    return ConsumerGroupTargetAssignmentMemberValue(
        topic_partitions=[
            TopicPartition(topic_id=topic_id, partitions=indexes)
            for topic_id, indexes in _grouped(record.partitions or frozenset())
        ]
    )


_KINDS: Final = (
    _Kind(
        3,
        GroupEpoch,
        ConsumerGroupMetadataKey,
        ConsumerGroupMetadataValue,
        lambda r: ConsumerGroupMetadataValue(epoch=r.epoch, metadata_hash=r.metadata_hash),
        lambda v: (v.epoch, v.metadata_hash),
    ),
    _Kind(
        5,
        MemberRecord,
        ConsumerGroupMemberMetadataKey,
        ConsumerGroupMemberMetadataValue,
        _member_value,
        _member,
    ),
    _Kind(
        6,
        TargetEpoch,
        ConsumerGroupTargetAssignmentMetadataKey,
        ConsumerGroupTargetAssignmentMetadataValue,
        lambda r: ConsumerGroupTargetAssignmentMetadataValue(
            assignment_epoch=r.epoch, assignment_timestamp=r.timestamp_ms
        ),
        lambda v: (v.assignment_epoch, v.assignment_timestamp),
    ),
    _Kind(
        7,
        TargetMember,
        ConsumerGroupTargetAssignmentMemberKey,
        ConsumerGroupTargetAssignmentMemberValue,
        _target_value,
        lambda v: (_flat(v.topic_partitions),),
    ),
    _Kind(
        8,
        CurrentMember,
        ConsumerGroupCurrentMemberAssignmentKey,
        ConsumerGroupCurrentMemberAssignmentValue,
        _current_value,
        _current,
    ),
    _Kind(
        16,
        ResolvedRegex,
        ConsumerGroupRegularExpressionKey,
        ConsumerGroupRegularExpressionValue,
        lambda r: ConsumerGroupRegularExpressionValue(
            topics=list(r.topics), timestamp=r.timestamp_ms
        ),
        lambda v: (tuple(v.topics), v.timestamp),
    ),
)
_BY_NUMBER: Final[Mapping[int, _Kind]] = {kind.number: kind for kind in _KINDS}
_BY_RECORD: Final[Mapping[Any, _Kind]] = {kind.record: kind for kind in _KINDS}


def encode_consumer_record(record: ConsumerRecord) -> tuple[bytes, bytes | None]:
    """Return the key and the value of a record."""
    kind = _BY_RECORD[type(record)]
    key = kind.key(**dict(zip(kind.keys, record, strict=False)))
    content = record[len(kind.keys)]
    value = None if content is None else _bytes(VALUE_VERSION, kind.to_value(record))
    return _bytes(kind.number, key), value


def decode_consumer_record(
    number: int, key: memoryview, value: Buffer | None
) -> ConsumerRecord | None:
    """Return a record, or None for an unknown kind.

    Args:
        number: The number of the kind.
        key: The key, including the number.
        value: The value, including its version; None for a tombstone.

    Raises:
        HeadraceError: The key or the value does not have the layout of its version.
    """
    kind = _BY_NUMBER.get(number)
    if kind is None:
        return None
    decoded, _ = kind.key.decode(key, 2, 0)
    keys = [getattr(decoded, name) for name in kind.keys]
    if value is None:
        return kind.record(*keys, None)
    version = int.from_bytes(value[:2], "big")
    if version != VALUE_VERSION or len(value) < 2:
        raise ValueError(f"value version {version} of kind {number} is not known")
    message, _ = kind.value.decode(memoryview(value), 2, version)
    return kind.record(*keys, *kind.from_value(message))


def _bytes(prefix: int, message: Message) -> bytes:
    payloads = message.encode(0, prefix.to_bytes(2, "big"))
    return b"".join(payload for payload in payloads if not isinstance(payload, FileRange))
