"""Descriptions of brokers for administrators: log directories, supported API versions, finalized features."""

from __future__ import annotations

from dataclasses import dataclass

from headrace import __version__
from headrace.clients.flows import metadata
from headrace.clients.flows.effects import ANY_NODE, Call, ClientState, Flow, ask
from headrace.errors import ApiError, ErrorCode
from headrace.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from headrace.protocol.messages.describe_log_dirs import (
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
)
from headrace.types import TopicPartition


@dataclass(frozen=True, slots=True)
class LogDirDescription:
    """A directory in which a broker keeps partitions."""

    broker: int
    """The node id of the broker."""
    path: str
    """The path on the broker's machine."""
    error: ErrorCode
    """NONE, or KAFKA_STORAGE_ERROR if the directory has failed."""
    total_bytes: int | None
    """The size of the file system in bytes; None if the broker does not return it."""
    usable_bytes: int | None
    """The free bytes of the file system; None if the broker does not return it."""
    sizes: dict[TopicPartition, int]
    """The size of each partition in the directory, in bytes."""


@dataclass(frozen=True, slots=True)
class FeatureLevel:
    """A feature with a level that all brokers of a cluster support, such as `metadata.version`."""

    name: str
    level: int
    """The finalized level of the cluster; 0 if there is none."""
    min_level: int | None
    max_level: int | None
    """The highest level that the broker supports; None if it does not return it."""


@dataclass(frozen=True, slots=True)
class BrokerFeatures:
    """The API versions and features of a broker."""

    apis: dict[int, tuple[int, int]]
    """The lowest and the highest version, by API key."""
    features: tuple[FeatureLevel, ...]
    is_headrace: bool


def describe_log_dirs(
    state: ClientState, nodes: list[int] | None = None
) -> Flow[list[LogDirDescription]]:
    """Request the log directories of brokers.

    Args:
        state: The client's state.
        nodes: The node ids of the brokers; None is all brokers.

    Raises:
        ApiError: CLUSTER_AUTHORIZATION_FAILED: the principal lacks Describe on the cluster.
    """
    yield from metadata.refresh(state, ())
    found = []
    for node in sorted(state.metadata.brokers) if nodes is None else nodes:
        call = Call(request=DescribeLogDirsRequest(topics=None), node=node)
        response = yield from ask(call, DescribeLogDirsResponse)
        if response.error_code:
            text = ErrorCode(response.error_code).description
            raise ApiError.for_code(response.error_code, f"log directories of {node}: {text}")
        found += [_directory(node, result) for result in response.results]
    return found


def _directory(node: int, result: DescribeLogDirsResult) -> LogDirDescription:
    return LogDirDescription(
        node,
        result.log_dir,
        ErrorCode(result.error_code),
        result.total_bytes if result.total_bytes >= 0 else None,
        result.usable_bytes if result.usable_bytes >= 0 else None,
        {
            TopicPartition(topic.name, partition.partition_index): partition.partition_size
            for topic in result.topics
            for partition in topic.partitions
            if not partition.is_future_key
        },
    )


def describe_features(node: int = ANY_NODE) -> Flow[BrokerFeatures]:
    """Request the API versions and features that a broker supports."""
    request = ApiVersionsRequest(
        client_software_name="headrace", client_software_version=__version__
    )
    response = yield from ask(Call(request=request, node=node), ApiVersionsResponse)
    levels = {each.name: each.max_version_level for each in response.finalized_features}
    # In this version of ApiVersions, brokers leave out features whose lowest level is 0.
    ranges = {
        each.name: (each.min_version, each.max_version) for each in response.supported_features
    }
    return BrokerFeatures(
        {each.api_key: (each.min_version, each.max_version) for each in response.api_keys},
        tuple(
            FeatureLevel(name, levels.get(name, 0), *ranges.get(name, (None, None)))
            for name in sorted(levels.keys() | ranges)
        ),
        bool(response.headrace_extensions),
    )
