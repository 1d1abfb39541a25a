"""The classic group protocol, from a member's side: join, sync, heartbeat, leave.

The member that the coordinator makes leader computes the assignment for all (KIP-62); the coordinator only hands it
out. Subscriptions and assignments travel as the blobs of Kafka's ConsumerProtocol, behind a version number.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from headrace.clients.flows.coordinator import ask_coordinator, raise_for
from headrace.clients.flows.effects import ClientState, Flow
from headrace.errors import ErrorCode, ProtocolError
from headrace.protocol.messages.consumer_protocol import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
)
from headrace.protocol.messages.consumer_protocol import (
    ConsumerProtocolAssignmentTopicPartition as AssignedTopic,
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
BLOB_VERSION: Final = 1
REBALANCE_SLACK_MS: Final = 5_000
"""A join waits for the slowest member up to the rebalance timeout; the answer may take a little longer to arrive."""

Assignor = Callable[
    [Mapping[str, frozenset[str]], Mapping[str, int]], dict[str, list[TopicPartition]]
]
"""From the members' topics and the topics' partition counts to each member's partitions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSettings:
    """What a member tells the coordinator about itself."""

    group_id: str
    session_timeout_ms: int = 45_000
    rebalance_timeout_ms: int = 300_000
    group_instance_id: str | None = None
    assignor_name: str = "range"


@dataclass(frozen=True, slots=True)
class Membership:
    """A member's place in one generation of its group."""

    member_id: str
    generation_id: int
    assignment: tuple[TopicPartition, ...]


def join(
    state: ClientState,
    settings: GroupSettings,
    member_id: str,
    topics: frozenset[str],
    *,
    partition_counts: Callable[[frozenset[str]], Flow[Mapping[str, int]]],
    assignor: Assignor,
) -> Flow[Membership]:
    """Join the group and receive an assignment, however many rebalances that takes.

    Args:
        state: The client's state.
        settings: The group and this member's timeouts.
        member_id: The id from an earlier generation, or "".
        topics: The topics subscribed to.
        partition_counts: Flow that looks up how many partitions topics have; run when this member leads.
        assignor: Computes the assignment when this member leads.

    Raises:
        ApiError: The group does not take this member: INCONSISTENT_GROUP_PROTOCOL, INVALID_SESSION_TIMEOUT,
            GROUP_AUTHORIZATION_FAILED, FENCED_INSTANCE_ID ...
    """
    backoff = state.backoff()
    while True:
        joined = yield from _join_once(state, settings, member_id, topics)
        member_id = joined.member_id or member_id
        if joined.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            continue
        if joined.error_code == ErrorCode.UNKNOWN_MEMBER_ID:
            member_id = ""
            continue
        raise_for(joined.error_code, f"cannot join group {settings.group_id!r}")
        assignments: list[SyncGroupRequestAssignment] = []
        if joined.leader == joined.member_id and not joined.skip_assignment:
            assignments = yield from _assign(joined, partition_counts, assignor)
        synced = yield from _sync(state, settings, joined, assignments)
        code = ErrorCode(synced.error_code)
        if code in {ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.ILLEGAL_GENERATION}:
            continue
        if code == ErrorCode.UNKNOWN_MEMBER_ID:
            member_id = ""
            yield backoff.after(ProtocolError("the coordinator forgot this member"))
            continue
        raise_for(code, f"cannot sync with group {settings.group_id!r}")
        assignment = tuple(decode_assignment(synced.assignment))
        return Membership(joined.member_id, joined.generation_id, assignment)


def _join_once(
    state: ClientState, settings: GroupSettings, member_id: str, topics: frozenset[str]
) -> Flow[JoinGroupResponse]:
    request = JoinGroupRequest(
        group_id=settings.group_id,
        session_timeout_ms=settings.session_timeout_ms,
        rebalance_timeout_ms=settings.rebalance_timeout_ms,
        member_id=member_id,
        group_instance_id=settings.group_instance_id,
        protocol_type=CONSUMER_PROTOCOL_TYPE,
        protocols=[
            JoinGroupRequestProtocol(
                name=settings.assignor_name, metadata=encode_subscription(topics)
            )
        ],
    )
    return (
        yield from ask_coordinator(
            state,
            settings.group_id,
            request,
            JoinGroupResponse,
            lambda response: response.error_code,
            timeout_ms=settings.rebalance_timeout_ms + REBALANCE_SLACK_MS,
        )
    )


def _assign(
    joined: JoinGroupResponse,
    partition_counts: Callable[[frozenset[str]], Flow[Mapping[str, int]]],
    assignor: Assignor,
) -> Flow[list[SyncGroupRequestAssignment]]:
    subscriptions = {
        member.member_id: decode_subscription(member.metadata) for member in joined.members
    }
    every_topic: frozenset[str] = frozenset().union(*subscriptions.values())
    counts = yield from partition_counts(every_topic)
    assigned = assignor(subscriptions, counts)
    return [
        SyncGroupRequestAssignment(member_id=member, assignment=encode_assignment(partitions))
        for member, partitions in assigned.items()
    ]


def _sync(
    state: ClientState,
    settings: GroupSettings,
    joined: JoinGroupResponse,
    assignments: list[SyncGroupRequestAssignment],
) -> Flow[SyncGroupResponse]:
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
            timeout_ms=settings.rebalance_timeout_ms + REBALANCE_SLACK_MS,
        )
    )


def heartbeat(state: ClientState, settings: GroupSettings, member: Membership) -> Flow[ErrorCode]:
    """Tell the coordinator that the member lives; return its verdict.

    NONE is a good one; REBALANCE_IN_PROGRESS asks to join again; UNKNOWN_MEMBER_ID, ILLEGAL_GENERATION and
    FENCED_INSTANCE_ID say that the partitions are lost.
    """
    request = HeartbeatRequest(
        group_id=settings.group_id,
        generation_id=member.generation_id,
        member_id=member.member_id,
        group_instance_id=settings.group_instance_id,
    )
    response = yield from ask_coordinator(
        state,
        settings.group_id,
        request,
        HeartbeatResponse,
        lambda answer: answer.error_code,
        timeout_ms=settings.session_timeout_ms,
    )
    return ErrorCode(response.error_code)


def leave(state: ClientState, settings: GroupSettings, member: Membership) -> Flow[None]:
    """Leave the group at once; one attempt, for the session timeout does the same a little later."""
    # The single member of versions 0-2 and the list of versions 3 on: the version decides which is sent.
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


def encode_subscription(topics: frozenset[str]) -> bytes:
    """Encode a member's topics as Kafka's ConsumerProtocolSubscription."""
    return _encode(ConsumerProtocolSubscription(topics=sorted(topics), user_data=None))


def decode_subscription(blob: Buffer) -> frozenset[str]:
    """Return the topics of a member's subscription, of whatever version."""
    view, version = _open(blob, ConsumerProtocolSubscription.MAX_VERSION)
    return frozenset(ConsumerProtocolSubscription.decode(view, 2, version)[0].topics)


def encode_assignment(partitions: list[TopicPartition]) -> bytes:
    """Encode a member's partitions as Kafka's ConsumerProtocolAssignment."""
    topics: dict[str, list[int]] = {}
    for topic, partition in partitions:
        topics.setdefault(topic, []).append(partition)
    assigned = [AssignedTopic(topic=topic, partitions=numbers) for topic, numbers in topics.items()]
    return _encode(ConsumerProtocolAssignment(assigned_partitions=assigned, user_data=None))


def decode_assignment(blob: Buffer) -> list[TopicPartition]:
    """Return the partitions of an assignment; an empty blob assigns nothing."""
    if not len(blob):
        return []
    view, version = _open(blob, ConsumerProtocolAssignment.MAX_VERSION)
    assignment, _ = ConsumerProtocolAssignment.decode(view, 2, version)
    return [
        TopicPartition(topic.topic, partition)
        for topic in assignment.assigned_partitions
        for partition in topic.partitions
    ]


def _encode(message: ConsumerProtocolSubscription | ConsumerProtocolAssignment) -> bytes:
    parts = [part for part in message.encode(BLOB_VERSION) if not isinstance(part, FileRange)]
    return BLOB_VERSION.to_bytes(2, "big") + b"".join(parts)


def _open(blob: Buffer, newest: int) -> tuple[memoryview, int]:
    """Return a blob with its version; a newer one is read as the newest known, whose fields it begins with."""
    view = memoryview(blob)
    if len(view) < 2:
        raise ProtocolError("a subscription or assignment is cut off")
    return view, min(int.from_bytes(view[:2], "big", signed=True), newest)
