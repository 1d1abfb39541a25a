"""The requests of a member in the group protocol `consumer` (KIP-848): ConsumerGroupHeartbeat is the only one.

The coordinator computes the assignment. A member sends its subscription and the partitions that it owns; a response may
contain its assignment. Assignments name topics by id; `clients/consumer/kip848.py` finds the names.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple

from headrace import __version__
from headrace.clients.flows.coordinator import ask_coordinator
from headrace.clients.flows.effects import Call, ClientState, Flow, ask
from headrace.errors import TransportError
from headrace.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from headrace.protocol.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from headrace.protocol.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequestTopicPartitions as OwnedTopic,
)

FEATURE: Final = "group.version"
JOIN_EPOCH: Final = 0
LEAVE_EPOCH: Final = -1
LEAVE_FOR_A_WHILE_EPOCH: Final = -2
"""The epoch with which a static member leaves: the next member with its instance id gets its partitions."""


class TopicIdPartition(NamedTuple):
    """A partition of a topic that is named by its id."""

    topic_id: bytes
    partition: int


TopicIdPartitions = frozenset[TopicIdPartition]


class MemberTopics(NamedTuple):
    """The subscription of a member: names, or a regular expression that the coordinator applies."""

    names: frozenset[str]
    regex: str | None = None
    """The regular expression; "" removes an earlier one, None is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerProtocolSettings:
    """The settings that a member sends when it joins."""

    group_id: str
    member_id: str
    rebalance_timeout_ms: int = 300_000
    group_instance_id: str | None = None
    rack_id: str | None = None
    server_assignor: str | None = None


def heartbeat(
    state: ClientState,
    settings: ConsumerProtocolSettings,
    epoch: int,
    *,
    wanted: MemberTopics | None,
    owned: TopicIdPartitions | None,
    timeout_ms: int,
) -> Flow[ConsumerGroupHeartbeatResponse]:
    """Send a heartbeat, without a retry.

    It is not retried unchanged. (1) The coordinator answers with a newer epoch. (2) The response is lost. (3) A retry
    would have an older epoch, which the coordinator accepts only with all fields of the member.

    Args:
        state: The client's state.
        settings: The group and the member.
        epoch: The member's epoch; JOIN_EPOCH to join the group.
        wanted: The subscription, which is sent together with the settings. None if the coordinator has them already.
        owned: The partitions that the member owns. None if they are the same as in the last heartbeat with partitions.
        timeout_ms: Milliseconds that the coordinator may take.
    """
    request = ConsumerGroupHeartbeatRequest(
        group_id=settings.group_id,
        member_id=settings.member_id,
        member_epoch=epoch,
        instance_id=settings.group_instance_id,
        topic_partitions=None if owned is None else _by_topic(owned),
    )
    if wanted is not None:
        request.rack_id = settings.rack_id
        request.rebalance_timeout_ms = settings.rebalance_timeout_ms
        request.subscribed_topic_names = sorted(wanted.names)
        request.subscribed_topic_regex = wanted.regex
        request.server_assignor = settings.server_assignor
    return (yield from _ask(state, settings, request, timeout_ms))


def leave(
    state: ClientState, settings: ConsumerProtocolSettings, *, for_good: bool = False
) -> Flow[None]:
    """Leave the group. The request is not retried, because the end of the session has the same effect.

    Args:
        state: The client's state.
        settings: The group and the member.
        for_good: Whether a static member will not come back. Then its partitions are assigned to other members at once.
    """
    static = settings.group_instance_id is not None and not for_good
    request = ConsumerGroupHeartbeatRequest(
        group_id=settings.group_id,
        member_id=settings.member_id,
        member_epoch=LEAVE_FOR_A_WHILE_EPOCH if static else LEAVE_EPOCH,
        instance_id=settings.group_instance_id,
    )
    yield from _ask(state, settings, request, None)


def is_offered(state: ClientState) -> Flow[bool]:
    """Return whether the cluster supports this protocol: brokers serve its API, and its feature is enabled."""
    request = ApiVersionsRequest(
        client_software_name="headrace", client_software_version=__version__
    )
    backoff = state.backoff()
    while True:
        try:
            response = yield from ask(Call(request=request), ApiVersionsResponse)
        except TransportError as error:
            yield backoff.after(error)
            continue
        served = any(
            api.api_key == ConsumerGroupHeartbeatRequest.API_KEY for api in response.api_keys
        )
        features = response.finalized_features
        return served and any(
            feature.name == FEATURE and feature.max_version_level >= 1 for feature in features
        )


def assigned(response: ConsumerGroupHeartbeatResponse) -> TopicIdPartitions | None:
    """Return the assignment of the member; None if it has not changed."""
    if response.assignment is None:
        return None
    return frozenset(
        TopicIdPartition(bytes(topic.topic_id), number)
        for topic in response.assignment.topic_partitions
        for number in topic.partitions
    )


def _ask(
    state: ClientState,
    settings: ConsumerProtocolSettings,
    request: ConsumerGroupHeartbeatRequest,
    timeout_ms: int | None,
) -> Flow[ConsumerGroupHeartbeatResponse]:
    return (
        yield from ask_coordinator(
            state,
            settings.group_id,
            request,
            ConsumerGroupHeartbeatResponse,
            lambda response: response.error_code,
            timeout_ms=timeout_ms,
            attempts=1,
        )
    )


def _by_topic(partitions: Iterable[TopicIdPartition]) -> list[OwnedTopic]:
    topics: dict[bytes, list[int]] = {}
    for topic_id, number in sorted(partitions):
        topics.setdefault(topic_id, []).append(number)
    return [OwnedTopic(topic_id=topic, partitions=numbers) for topic, numbers in topics.items()]
