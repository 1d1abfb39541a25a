"""OffsetFetch (API key 9), versions 1-9.

Behaviour: where nothing is committed, for the group or for the partition, the offset is -1 without an error; while the
group is being loaded the answer is an error, never -1. Only durable offsets are shown; with require_stable a partition
for which a transaction holds an offset pending is UNSTABLE_OFFSET_COMMIT. Null topics (v2+) mean all.
Not implemented: topic ids (v10).
Versions: v2 error code of the whole, before that it is per partition; v5 leader epochs; v6 flexible; v7 require_stable;
v8 several groups; v9 members of consumer groups (KIP-848), with their epochs.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Final

from headrace.broker.access.authorizer import allows
from headrace.broker.context import RequestContext, VersionRange
from headrace.core.deferred import Deferred
from headrace.errors import ErrorCode
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopic,
    OffsetFetchResponseTopics,
)
from headrace.security.acls import Operation, ResourceType

if TYPE_CHECKING:
    from headrace.broker.broker import Broker

API_KEY: Final = ApiKey.OFFSET_FETCH
VERSIONS: Final = VersionRange(1, 9)

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

    guarded = [_Guarded(broker, context, group) for group in groups]
    allowed = [guard.allowed for guard in guarded if guard.allowed is not None]

    def complete(fetched: list[OffsetFetchResponseGroup]) -> OffsetFetchResponse:
        answers = iter(fetched)
        return shape([guard.complete(answers) for guard in guarded])

    reply = broker.groups.fetch_offsets(
        allowed, context.now_ms, require_stable=request.require_stable
    )
    return reply.map(complete) if isinstance(reply, Deferred) else complete(reply)


class _Guarded:
    """A group that was asked for: what the client may see of it, and what it is told of the rest."""

    __slots__ = ("_denied", "_group_id", "_sees", "allowed")

    def __init__(
        self, broker: Broker, context: RequestContext, wanted: OffsetFetchRequestGroup
    ) -> None:
        self._group_id = wanted.group_id
        self._denied: list[OffsetFetchRequestTopics] = []
        self._sees = partial(
            allows, broker, context, Operation.DESCRIBE, ResourceType.TOPIC, quietly=True
        )
        self.allowed: OffsetFetchRequestGroup | None = None
        """What is to be fetched, if anything may be."""
        if not allows(broker, context, Operation.DESCRIBE, ResourceType.GROUP, wanted.group_id):
            return
        self.allowed = wanted
        if wanted.topics is not None:
            named, wanted.topics = wanted.topics, []
            may = partial(allows, broker, context, Operation.DESCRIBE, ResourceType.TOPIC)
            for topic in named:
                (wanted.topics if may(topic.name) else self._denied).append(topic)

    def complete(self, answers: Iterator[OffsetFetchResponseGroup]) -> OffsetFetchResponseGroup:
        """Take the group's answer, if it was asked for one, and add what is missing."""
        if self.allowed is None:
            return OffsetFetchResponseGroup(
                group_id=self._group_id, error_code=ErrorCode.GROUP_AUTHORIZATION_FAILED
            )
        answer = next(answers)
        if answer.error_code:
            return answer
        if self.allowed.topics is None:
            answer.topics = [topic for topic in answer.topics if self._sees(name=topic.name)]
        answer.topics += [
            OffsetFetchResponseTopics(
                name=topic.name,
                partitions=[
                    OffsetFetchResponsePartitions(
                        partition_index=index,
                        committed_offset=-1,
                        metadata="",
                        error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED,
                    )
                    for index in topic.partition_indexes
                ],
            )
            for topic in self._denied
        ]
        return answer


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
