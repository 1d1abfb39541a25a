"""CreatePartitions, IncrementalAlterConfigs, DeleteRecords, DeleteGroups, OffsetDelete: changes by an administrator."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, cast

from headrace.clients.flows import metadata
from headrace.clients.flows.admin import ask_controller
from headrace.clients.flows.coordinator import ask_coordinator, raise_for
from headrace.clients.flows.effects import ANY_NODE, Call, ClientState, Flow, ask
from headrace.clients.flows.routing import Answer, ask_leaders, by_topic
from headrace.config.resources import ConfigResourceType
from headrace.errors import ApiError, ErrorCode, ProtocolError
from headrace.protocol.codec import Message
from headrace.protocol.config_operation import ConfigOperation
from headrace.protocol.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
)
from headrace.protocol.messages.delete_groups import DeleteGroupsRequest, DeleteGroupsResponse
from headrace.protocol.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopic,
)
from headrace.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from headrace.protocol.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
    OffsetDeleteResponse,
)
from headrace.types import TopicPartition

HIGH_WATERMARK: Final = -1
"""The value of an offset that deletes all records below the high watermark."""


@dataclass(frozen=True, slots=True)
class ConfigAlteration:
    """A change of one setting."""

    name: str
    value: str | None
    """The new value, or the list entries to append or subtract; None for DELETE."""
    operation: ConfigOperation = ConfigOperation.SET


def create_partitions(
    state: ClientState,
    counts: Mapping[str, int],
    timeout_ms: int = 30_000,
    *,
    validate_only: bool = False,
) -> Flow[dict[str, ApiError | None]]:
    """Add partitions to topics.

    Args:
        state: The client's state.
        counts: The new number of partitions of each topic.
        timeout_ms: Milliseconds that the broker may take.
        validate_only: The broker checks the request and changes nothing.

    Returns:
        One entry for each topic: None, or the reason why it was not changed.
    """
    request = CreatePartitionsRequest(
        topics=[
            CreatePartitionsTopic(name=name, count=count, assignments=None)
            for name, count in counts.items()
        ],
        timeout_ms=timeout_ms,
        validate_only=validate_only,
    )
    response = yield from ask_controller(
        state,
        request,
        CreatePartitionsResponse,
        lambda response: _not_controller(result.error_code for result in response.results),
        timeout_ms,
    )
    state.stale_topics.update(counts)
    return {
        result.name: _outcome("topic", result.name, result.error_code, result.error_message)
        for result in response.results
    }


def _not_controller(codes: Iterable[int]) -> int:
    return ErrorCode.NOT_CONTROLLER if ErrorCode.NOT_CONTROLLER in set(codes) else 0


def alter_configs(
    state: ClientState,
    resource_type: ConfigResourceType,
    changes: Mapping[str, Sequence[ConfigAlteration]],
    *,
    validate_only: bool = False,
) -> Flow[dict[str, ApiError | None]]:
    """Change configurations of topics, or of brokers. A broker is named by its node id; "" is all brokers.

    Returns:
        One entry for each resource: None, or the reason why it was not changed.
    """
    outcomes: dict[str, ApiError | None] = {}
    for name, wanted in changes.items():
        request = IncrementalAlterConfigsRequest(
            resources=[
                AlterConfigsResource(
                    resource_type=resource_type,
                    resource_name=name,
                    configs=[
                        AlterableConfig(
                            name=change.name, value=change.value, config_operation=change.operation
                        )
                        for change in wanted
                    ],
                )
            ],
            validate_only=validate_only,
        )
        # Only the broker itself can change its settings.
        node = (
            int(name) if resource_type == ConfigResourceType.BROKER and name.isdigit() else ANY_NODE
        )
        if node != ANY_NODE and node not in state.metadata.brokers:
            yield from metadata.refresh(state, ())
        call = Call(request=request, node=node)
        response = yield from ask(call, IncrementalAlterConfigsResponse)
        for result in response.responses:
            outcomes[result.resource_name] = _outcome(
                resource_type.name.lower(),
                result.resource_name,
                result.error_code,
                result.error_message,
            )
    return outcomes


def _outcome(kind: str, name: str, error_code: int, message: str | None) -> ApiError | None:
    if not error_code:
        return None
    text = message or ErrorCode(error_code).description
    return ApiError.for_code(error_code, text if name in text else f"{kind} {name!r}: {text}")


def delete_records(
    state: ClientState, offsets: Mapping[TopicPartition, int], timeout_ms: int = 30_000
) -> Flow[dict[TopicPartition, int]]:
    """Delete the records below an offset in each partition. The offset may be HIGH_WATERMARK.

    Returns:
        The new log start offset of each partition.

    Raises:
        ApiError: The error of the first partition that refuses. Records of other partitions may have been deleted.
    """

    def build(part: Mapping[TopicPartition, int]) -> Message:
        return DeleteRecordsRequest(
            topics=[
                DeleteRecordsTopic(
                    name=name,
                    partitions=[
                        DeleteRecordsPartition(partition_index=number, offset=offset)
                        for number, offset in partitions.items()
                    ],
                )
                for name, partitions in by_topic(part).items()
            ],
            timeout_ms=timeout_ms,
        )

    return cast(
        "dict[TopicPartition, int]", (yield from ask_leaders(state, offsets, build, _deleted))
    )


def _deleted(response: Message) -> list[Answer]:
    assert isinstance(response, DeleteRecordsResponse)
    return [
        Answer(
            TopicPartition(topic.name, partition.partition_index),
            partition.error_code,
            partition.low_watermark,
        )
        for topic in response.topics
        for partition in topic.partitions
    ]


def delete_groups(state: ClientState, groups: Iterable[str]) -> Flow[dict[str, ApiError | None]]:
    """Delete groups without members, with their committed offsets.

    Returns:
        One entry for each group: None, or the reason why it was not deleted.
    """
    outcomes: dict[str, ApiError | None] = {}
    for group in groups:
        response = yield from ask_coordinator(
            state,
            group,
            DeleteGroupsRequest(groups_names=[group]),
            DeleteGroupsResponse,
            lambda response: response.results[0].error_code if response.results else 0,
        )
        if not response.results:
            raise ProtocolError(f"the coordinator's response has no result for group {group!r}")
        outcomes[group] = _outcome("group", group, response.results[0].error_code, None)
    return outcomes


def delete_offsets(
    state: ClientState, group: str, partitions: Iterable[TopicPartition]
) -> Flow[dict[TopicPartition, ApiError | None]]:
    """Delete committed offsets of a group, for topics to which its members are not subscribed.

    Returns:
        One entry for each partition: None, or the reason why its offset was not deleted.

    Raises:
        ApiError: The group does not exist, or the coordinator refuses the whole request.
    """
    wanted = by_topic(dict.fromkeys(partitions))
    request = OffsetDeleteRequest(
        group_id=group,
        topics=[
            OffsetDeleteRequestTopic(
                name=name,
                partitions=[OffsetDeleteRequestPartition(partition_index=n) for n in numbers],
            )
            for name, numbers in wanted.items()
        ],
    )
    response = yield from ask_coordinator(
        state, group, request, OffsetDeleteResponse, lambda response: response.error_code
    )
    raise_for(response.error_code, f"group {group!r}")
    return {
        TopicPartition(topic.name, part.partition_index): _outcome(
            "partition", f"{topic.name}-{part.partition_index}", part.error_code, None
        )
        for topic in response.topics
        for part in topic.partitions
    }
