"""OffsetFetch (API key 9), versions 1-8.

Behaviour: where nothing is committed, for the group or for the partition, the offset is -1 without an error; while the
group is being loaded the answer is an error, never -1. Only durable offsets are shown, which is what require_stable
asks for as long as there are no transactions. Null topics (v2+) mean all.
Not implemented: members of the new group protocol (v9), topic ids (v10).
Versions: v2 error code of the whole, before that it is per partition; v5 leader epochs; v6 flexible; v7 require_stable;
v8 several groups.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from headrace.broker.context import RequestContext, VersionRange
from headrace.core.deferred import Deferred
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponseTopic,
)

if TYPE_CHECKING:
    from headrace.broker.broker import Broker

API_KEY: Final = ApiKey.OFFSET_FETCH
VERSIONS: Final = VersionRange(1, 8)

_GROUP_LIST_VERSION: Final = 8
_TOP_LEVEL_ERROR_VERSION: Final = 2


def handle(
    broker: Broker, context: RequestContext, request: OffsetFetchRequest
) -> OffsetFetchResponse | Deferred[OffsetFetchResponse]:
    """Return committed offsets."""
    version = context.header.api_version
    several = version >= _GROUP_LIST_VERSION
    groups = request.groups if several else [_only_group(request)]

    def shape(fetched: list[OffsetFetchResponseGroup]) -> OffsetFetchResponse:
        return (
            OffsetFetchResponse(groups=fetched)
            if several
            else _of_one_group(version, groups[0], fetched[0])
        )

    reply = broker.groups.fetch_offsets(groups, context.now_ms)
    return reply.map(shape) if isinstance(reply, Deferred) else shape(reply)


def _only_group(request: OffsetFetchRequest) -> OffsetFetchRequestGroup:
    topics = (
        None
        if request.topics is None
        else [
            OffsetFetchRequestTopics(name=topic.name, partition_indexes=topic.partition_indexes)
            for topic in request.topics
        ]
    )
    return OffsetFetchRequestGroup(group_id=request.group_id, topics=topics)


def _of_one_group(
    version: int, wanted: OffsetFetchRequestGroup, fetched: OffsetFetchResponseGroup
) -> OffsetFetchResponse:
    if fetched.error_code and version < _TOP_LEVEL_ERROR_VERSION:
        return OffsetFetchResponse(topics=_failed(wanted, fetched.error_code))
    return OffsetFetchResponse(
        error_code=fetched.error_code,
        topics=[
            OffsetFetchResponseTopic(
                name=topic.name,
                partitions=[
                    OffsetFetchResponsePartition(
                        partition_index=partition.partition_index,
                        committed_offset=partition.committed_offset,
                        committed_leader_epoch=partition.committed_leader_epoch,
                        metadata=partition.metadata,
                        error_code=partition.error_code,
                    )
                    for partition in topic.partitions
                ],
            )
            for topic in fetched.topics
        ],
    )


def _failed(wanted: OffsetFetchRequestGroup, error_code: int) -> list[OffsetFetchResponseTopic]:
    return [
        OffsetFetchResponseTopic(
            name=topic.name,
            partitions=[
                OffsetFetchResponsePartition(
                    partition_index=index, committed_offset=-1, metadata="", error_code=error_code
                )
                for index in topic.partition_indexes
            ],
        )
        for topic in wanted.topics or []
    ]
