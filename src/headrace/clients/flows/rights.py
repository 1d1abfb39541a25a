"""The permitted operations of the client on topics and groups, if brokers return them (KIP-430)."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from headrace.clients.flows.coordinator import ask_coordinator
from headrace.clients.flows.effects import Call, ClientState, Flow, ask
from headrace.errors import ApiError, ErrorCode, TransportError
from headrace.protocol.messages.describe_groups import (
    DescribeGroupsRequest,
    DescribeGroupsResponse,
)
from headrace.protocol.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
)
from headrace.security.acls import Operation


@dataclass(frozen=True, slots=True)
class Rights:
    """The permitted operations on a topic or a group."""

    error: ErrorCode = ErrorCode.NONE
    """The error of the look-up, for example that the topic does not exist; NONE if there is none."""
    operations: frozenset[Operation] | None = None
    """The operations that the client may perform; None if the broker does not return them."""

    def lacks(self, operation: Operation) -> bool:
        """Return whether an operation is known to be denied."""
        return self.operations is not None and operation not in self.operations


def rights_on_topics(state: ClientState, topics: Collection[str]) -> Flow[dict[str, Rights]]:
    """Return the permitted operations on each topic. No topic is created, and nothing is cached.

    Brokers before Kafka 2.3 do not return them.
    """
    request = MetadataRequest(
        topics=[MetadataRequestTopic(name=name) for name in sorted(topics)],
        allow_auto_topic_creation=False,
        include_topic_authorized_operations=True,
    )
    backoff = state.backoff()
    while True:
        try:
            response = yield from ask(Call(request=request), MetadataResponse)
        except TransportError as error:
            yield backoff.after(error)
            continue
        except ApiError as error:
            if error.code != ErrorCode.UNSUPPORTED_VERSION:
                raise
            return {}
        return {
            topic.name: _rights(topic.error_code, topic.topic_authorized_operations)
            for topic in response.topics
            if topic.name is not None
        }


def rights_on_group(state: ClientState, group: str) -> Flow[Rights]:
    """Return the permitted operations on a group. The group need not exist.

    Raises:
        ApiError: GROUP_AUTHORIZATION_FAILED, INVALID_GROUP_ID.
    """
    try:
        response = yield from ask_coordinator(
            state,
            group,
            DescribeGroupsRequest(groups=[group], include_authorized_operations=True),
            DescribeGroupsResponse,
            lambda response: response.groups[0].error_code if response.groups else 0,
        )
    except ApiError as error:
        if error.code != ErrorCode.UNSUPPORTED_VERSION:
            raise
        return Rights()
    if not response.groups:
        return Rights()
    [found] = response.groups
    return _rights(found.error_code, found.authorized_operations)


def _rights(error_code: int, operations: int) -> Rights:
    told = not error_code and operations > 0
    return Rights(
        ErrorCode(error_code),
        frozenset(each for each in Operation if operations >> each & 1) if told else None,
    )
