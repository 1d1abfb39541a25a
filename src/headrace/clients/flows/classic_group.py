"""The requests of a member in the classic group protocol: join, sync, heartbeat, leave.

The coordinator makes one member the leader. The leader computes the assignment of all members (KIP-62), and the
coordinator passes each member its part. Subscriptions and assignments are encoded as Kafka's ConsumerProtocol, after a
version number of two bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from headrace.clients.flows.coordinator import ask_coordinator
from headrace.clients.flows.effects import ClientState, Flow
from headrace.errors import ProtocolError
from headrace.protocol.messages.consumer_protocol import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
)
from headrace.protocol.messages.consumer_protocol import (
    ConsumerProtocolAssignmentTopicPartition as AssignedTopic,
)
from headrace.protocol.messages.consumer_protocol import (
    ConsumerProtocolSubscriptionTopicPartition as OwnedTopic,
)
from headrace.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from headrace.protocol.messages.join_group import (
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
)
from headrace.protocol.messages.leave_group import (
    LeaveGroupRequest,
    LeaveGroupResponse,
    MemberIdentity,
)
from headrace.protocol.messages.sync_group import (
    SyncGroupRequest,
    SyncGroupRequestAssignment,
    SyncGroupResponse,
)
from headrace.types import Buffer, FileRange, TopicPartition

CONSUMER_PROTOCOL_TYPE: Final = "consumer"
ASSIGNMENT_VERSION: Final = 1
SUBSCRIPTION_VERSION: Final = 3
"""The first version with owned partitions, their generation and the rack. Older clients read the fields they know."""
JOIN_CHANNEL: Final = "join"
"""The channel of JoinGroup and SyncGroup, which wait for the slowest member. A broker answers a connection in order, so
commits and heartbeats use another one."""
REBALANCE_SLACK_MS: Final = 5_000
"""Milliseconds beyond the timeouts that a response may take."""
ATTEMPTS_A_SESSION: Final = 3
"""The number of heartbeats without a response in a row until the session expires. A heartbeat without a response in its
part of the session closes its connection, which may be half-open."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassicMemberSettings:
    """The settings that a member sends to the coordinator."""

    group_id: str
    session_timeout_ms: int = 45_000
    rebalance_timeout_ms: int = 300_000
    group_instance_id: str | None = None

    @property
    def patience_ms(self) -> int:
        """Milliseconds after which a join or a sync without a response is sent again, on a new connection.

        A rebalance may last longer; the second request replaces the first. On a half-open connection no response would
        ever arrive.
        """
        return min(self.rebalance_timeout_ms, self.session_timeout_ms) + REBALANCE_SLACK_MS


@dataclass(frozen=True, slots=True)
class Membership:
    """The identity of a member in one generation of its group."""

    member_id: str
    generation_id: int


def join_group(
    state: ClientState,
    settings: ClassicMemberSettings,
    member_id: str,
    protocols: Sequence[tuple[str, bytes]],
    reason: str = "",
) -> Flow[JoinGroupResponse]:
    """Join a group, and wait until the next generation of the group is complete.

    Args:
        state: The client's state.
        settings: The group and this member's timeouts.
        member_id: The member id from an earlier generation; "" if there is none.
        protocols: Names of assignors, preferred first, each with this member's subscription.
        reason: The reason of the join, for the broker's log.
    """
    request = JoinGroupRequest(
        group_id=settings.group_id,
        session_timeout_ms=settings.session_timeout_ms,
        rebalance_timeout_ms=settings.rebalance_timeout_ms,
        member_id=member_id,
        group_instance_id=settings.group_instance_id,
        protocol_type=CONSUMER_PROTOCOL_TYPE,
        protocols=[
            JoinGroupRequestProtocol(name=name, metadata=metadata) for name, metadata in protocols
        ],
        reason=reason,
    )
    return (
        yield from ask_coordinator(
            state,
            settings.group_id,
            request,
            JoinGroupResponse,
            lambda response: response.error_code,
            timeout_ms=settings.patience_ms,
            channel=JOIN_CHANNEL,
        )
    )


def sync_group(
    state: ClientState,
    settings: ClassicMemberSettings,
    joined: JoinGroupResponse,
    assignments: list[SyncGroupRequestAssignment],
) -> Flow[SyncGroupResponse]:
    """Wait for this member's assignment. The leader sends the assignments of all members."""
    request = SyncGroupRequest(
        group_id=settings.group_id,
        generation_id=joined.generation_id,
        member_id=joined.member_id,
        group_instance_id=settings.group_instance_id,
        protocol_type=CONSUMER_PROTOCOL_TYPE,
        protocol_name=joined.protocol_name,
        assignments=assignments,
    )
    return (
        yield from ask_coordinator(
            state,
            settings.group_id,
            request,
            SyncGroupResponse,
            lambda response: response.error_code,
            timeout_ms=settings.patience_ms,
            channel=JOIN_CHANNEL,
        )
    )


def heartbeat(
    state: ClientState, settings: ClassicMemberSettings, member: Membership
) -> Flow[HeartbeatResponse]:
    """Send a heartbeat, without a retry, and return the response.

    NONE renews the session, measured from the time at which the heartbeat was sent; REBALANCE_IN_PROGRESS asks the
    member to join again; UNKNOWN_MEMBER_ID, ILLEGAL_GENERATION and FENCED_INSTANCE_ID mean that partitions are lost.
    """
    request = HeartbeatRequest(
        group_id=settings.group_id,
        generation_id=member.generation_id,
        member_id=member.member_id,
        group_instance_id=settings.group_instance_id,
    )
    return (
        yield from ask_coordinator(
            state,
            settings.group_id,
            request,
            HeartbeatResponse,
            lambda response: response.error_code,
            timeout_ms=max(1, settings.session_timeout_ms // ATTEMPTS_A_SESSION),
            attempts=1,
        )
    )


def leave(state: ClientState, settings: ClassicMemberSettings, member: Membership) -> Flow[None]:
    """Leave the group. The request is not retried, because the end of the session has the same effect."""
    # Versions 0 to 2 send `member_id`, versions from 3 on send `members`. Both are set.
    request = LeaveGroupRequest(
        group_id=settings.group_id,
        member_id=member.member_id,
        members=[
            MemberIdentity(member_id=member.member_id, group_instance_id=settings.group_instance_id)
        ],
    )
    yield from ask_coordinator(
        state,
        settings.group_id,
        request,
        LeaveGroupResponse,
        lambda response: response.error_code,
        attempts=1,
    )


def encode_subscription(
    topics: Iterable[str],
    *,
    owned: Iterable[TopicPartition] = (),
    generation: int = -1,
    user_data: bytes | None = None,
    rack: str | None = None,
) -> bytes:
    """Encode the topics and the owned partitions of a member as Kafka's ConsumerProtocolSubscription."""
    message = ConsumerProtocolSubscription(
        topics=sorted(topics),
        user_data=user_data,
        owned_partitions=[
            OwnedTopic(topic=topic, partitions=numbers) for topic, numbers in _by_topic(owned)
        ],
        generation_id=generation,
        rack_id=rack,
    )
    return _encode(message, SUBSCRIPTION_VERSION)


def read_subscription(blob: Buffer) -> ConsumerProtocolSubscription:
    """Decode a member's subscription of any version."""
    view, version = _open(blob, ConsumerProtocolSubscription.MAX_VERSION)
    return ConsumerProtocolSubscription.decode(view, 2, version)[0]


def decode_subscription(blob: Buffer) -> frozenset[str]:
    """Return the topics of a member's subscription of any version."""
    return frozenset(read_subscription(blob).topics)


def encode_assignment(partitions: Iterable[TopicPartition]) -> bytes:
    """Encode a member's partitions as Kafka's ConsumerProtocolAssignment."""
    assigned = [
        AssignedTopic(topic=topic, partitions=numbers) for topic, numbers in _by_topic(partitions)
    ]
    message = ConsumerProtocolAssignment(assigned_partitions=assigned, user_data=None)
    return _encode(message, ASSIGNMENT_VERSION)


def decode_assignment(blob: Buffer) -> list[TopicPartition]:
    """Return the partitions of an assignment. Empty bytes assign nothing."""
    if not len(blob):
        return []
    view, version = _open(blob, ConsumerProtocolAssignment.MAX_VERSION)
    assignment, _ = ConsumerProtocolAssignment.decode(view, 2, version)
    return [
        TopicPartition(topic.topic, partition)
        for topic in assignment.assigned_partitions
        for partition in topic.partitions
    ]


def _by_topic(partitions: Iterable[TopicPartition]) -> Iterable[tuple[str, list[int]]]:
    topics: dict[str, list[int]] = {}
    for topic, partition in partitions:
        topics.setdefault(topic, []).append(partition)
    return topics.items()


def _encode(
    message: ConsumerProtocolSubscription | ConsumerProtocolAssignment, version: int
) -> bytes:
    parts = [part for part in message.encode(version) if not isinstance(part, FileRange)]
    return version.to_bytes(2, "big") + b"".join(parts)


def _open(blob: Buffer, newest: int) -> tuple[memoryview, int]:
    """Return the bytes, and the version in which to decode them.

    A version newer than `newest` begins with the fields of `newest`, so it is decoded as `newest`.
    """
    view = memoryview(blob)
    if len(view) < 2:
        raise ProtocolError(
            "a subscription or assignment of a group member is shorter than two bytes"
        )
    return view, min(int.from_bytes(view[:2], "big", signed=True), newest)
