"""CreateTopics, DeleteTopics, DescribeConfigs, DescribeCluster: changing and describing a cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TypeVar

from headrace.clients.flows import metadata
from headrace.clients.flows.cluster import BrokerAddress
from headrace.clients.flows.effects import ANY_NODE, Call, ClientState, Flow, ask
from headrace.config.options import Value, render_value
from headrace.config.resources import ConfigResourceType
from headrace.config.units import plain_number
from headrace.errors import ApiError, ErrorCode, TransportError
from headrace.protocol.codec import Message
from headrace.protocol.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from headrace.protocol.messages.delete_topics import (
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)
from headrace.protocol.messages.describe_cluster import (
    DescribeClusterRequest,
    DescribeClusterResponse,
)
from headrace.protocol.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
)

R = TypeVar("R", bound=Message)


class ConfigSource(IntEnum):
    """The source of a configuration value."""

    UNKNOWN = 0
    DYNAMIC_TOPIC = 1
    DYNAMIC_BROKER = 2
    DYNAMIC_DEFAULT_BROKER = 3
    STATIC_BROKER = 4
    DEFAULT = 5
    GROUP = 8


@dataclass(frozen=True, slots=True)
class NewTopic:
    """A topic to create. A number of -1 is the broker's default."""

    name: str
    partitions: int = -1
    replication_factor: int = -1
    configs: Mapping[str, Value] = field(default_factory=dict)


def source_of(number: int) -> ConfigSource:
    """Return the source of a value; UNKNOWN for a number that Kafka has added later."""
    try:
        return ConfigSource(number)
    except ValueError:
        return ConfigSource.UNKNOWN


@dataclass(frozen=True, slots=True)
class ConfigSynonym:
    """One possible source of a configuration value."""

    name: str
    value: str | None
    source: ConfigSource


@dataclass(frozen=True, slots=True)
class ConfigEntry:
    """One value of a configuration."""

    name: str
    value: str | None
    """The value; None if the broker does not return it, because it is a secret."""
    is_default: bool
    source: int
    """A `ConfigSource`, or a number that Kafka added later."""
    read_only: bool = False
    is_sensitive: bool = False
    synonyms: tuple[ConfigSynonym, ...] = ()
    """All sources of the value by precedence; the first one applies."""


@dataclass(frozen=True, slots=True)
class ClusterDescription:
    """The cluster's name, controller and brokers."""

    cluster_id: str | None
    controller_id: int
    brokers: tuple[BrokerAddress, ...]


def ask_controller(
    state: ClientState,
    request: Message,
    response_type: type[R],
    error_of: Callable[[R], int],
    timeout_ms: int,
) -> Flow[R]:
    """Send a request to the controller. If the controller has changed, look it up and retry."""
    backoff = state.backoff()
    while True:
        if state.metadata.controller_id not in state.metadata.brokers:
            yield from metadata.refresh(state, ())
        node = state.metadata.controller_id
        call = Call(
            request=request,
            node=node if node in state.metadata.brokers else ANY_NODE,
            timeout_ms=timeout_ms + 5_000,
        )
        cause: ApiError | TransportError
        try:
            response = yield from ask(call, response_type)
        except TransportError as error:
            cause = error
        else:
            code = error_of(response)
            if code not in {ErrorCode.NOT_CONTROLLER, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS}:
                return response
            cause = ApiError.for_code(code)
        state.metadata.controller_id = -1
        yield backoff.after(cause)


def create_topics(
    state: ClientState,
    topics: Sequence[NewTopic],
    timeout_ms: int = 30_000,
    *,
    validate_only: bool = False,
) -> Flow[dict[str, ApiError | None]]:
    """Create topics.

    Returns:
        One entry for each topic: None, or the reason why it was not created.
    """
    request = CreateTopicsRequest(
        topics=[
            CreatableTopic(
                name=topic.name,
                num_partitions=topic.partitions,
                replication_factor=topic.replication_factor,
                configs=[
                    CreatableTopicConfig(name=name, value=plain_number(name, render_value(value)))
                    for name, value in topic.configs.items()
                ],
            )
            for topic in topics
        ],
        timeout_ms=timeout_ms,
        validate_only=validate_only,
    )
    response = yield from ask_controller(
        state,
        request,
        CreateTopicsResponse,
        lambda response: _not_controller(topic.error_code for topic in response.topics),
        timeout_ms,
    )
    outcomes = {
        topic.name: _outcome(topic.name, topic.error_code, topic.error_message)
        for topic in response.topics
    }
    if not validate_only:
        state.stale_topics.update(name for name, error in outcomes.items() if error is None)
    return outcomes


def delete_topics(
    state: ClientState, names: Sequence[str], timeout_ms: int = 30_000
) -> Flow[dict[str, ApiError | None]]:
    """Delete topics by name.

    Returns:
        One entry for each topic: None, or the reason why it was not deleted.
    """
    # Versions up to 5 send `topic_names`, versions from 6 on send `topics`. Both are set.
    request = DeleteTopicsRequest(
        topics=[DeleteTopicState(name=name) for name in names],
        topic_names=list(names),
        timeout_ms=timeout_ms,
    )
    response = yield from ask_controller(
        state,
        request,
        DeleteTopicsResponse,
        lambda response: _not_controller(topic.error_code for topic in response.responses),
        timeout_ms,
    )
    for name in names:
        state.metadata.topics.pop(name, None)
    return {
        topic.name or "": _outcome(topic.name or "", topic.error_code, topic.error_message)
        for topic in response.responses
    }


def _not_controller(codes: Iterable[int]) -> int:
    return ErrorCode.NOT_CONTROLLER if ErrorCode.NOT_CONTROLLER in set(codes) else 0


def _outcome(name: str, error_code: int, message: str | None) -> ApiError | None:
    if not error_code:
        return None
    text = message or ErrorCode(error_code).description
    return ApiError.for_code(error_code, text if name in text else f"topic {name!r}: {text}")


def describe_configs(
    state: ClientState, resource_type: ConfigResourceType, names: Sequence[str]
) -> Flow[dict[str, list[ConfigEntry]]]:
    """Return all configuration values of topics, or of brokers (named by node id).

    Raises:
        ApiError: The error of the first resource that cannot be described.
    """
    described: dict[str, list[ConfigEntry]] = {}
    for name in names:
        request = DescribeConfigsRequest(
            resources=[
                DescribeConfigsResource(
                    resource_type=resource_type, resource_name=name, configuration_keys=None
                )
            ],
            include_synonyms=True,
            include_documentation=False,
        )
        # Only the broker itself can describe its settings.
        node = (
            int(name) if resource_type == ConfigResourceType.BROKER and name.isdigit() else ANY_NODE
        )
        if node != ANY_NODE and node not in state.metadata.brokers:
            yield from metadata.refresh(state, ())
        response = yield from ask(Call(request=request, node=node), DescribeConfigsResponse)
        for result in response.results:
            if result.error_code:
                raise ApiError.for_code(result.error_code, result.error_message or f"{name!r}")
            described[result.resource_name] = [
                ConfigEntry(
                    entry.name,
                    entry.value,
                    entry.config_source == ConfigSource.DEFAULT,
                    entry.config_source,
                    entry.read_only,
                    entry.is_sensitive,
                    tuple(
                        ConfigSynonym(synonym.name, synonym.value, source_of(synonym.source))
                        for synonym in entry.synonyms
                    ),
                )
                for entry in result.configs
            ]
    return described


def describe_cluster(state: ClientState) -> Flow[ClusterDescription]:
    """Describe the cluster with DescribeCluster, or with Metadata for brokers before Kafka 2.8."""
    try:
        response = yield from ask(Call(request=DescribeClusterRequest()), DescribeClusterResponse)
    except ApiError as error:
        if error.code != ErrorCode.UNSUPPORTED_VERSION:
            raise
        known = yield from metadata.refresh(state, ())
        brokers = tuple(known.brokers[node] for node in sorted(known.brokers))
        return ClusterDescription(known.cluster_id, known.controller_id, brokers)
    if response.error_code:
        raise ApiError.for_code(response.error_code, response.error_message or "")
    return ClusterDescription(
        response.cluster_id,
        response.controller_id,
        tuple(
            BrokerAddress(broker.broker_id, broker.host, broker.port, broker.rack)
            for broker in sorted(response.brokers, key=lambda broker: broker.broker_id)
        ),
    )
