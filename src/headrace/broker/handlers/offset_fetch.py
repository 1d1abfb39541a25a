"""OffsetFetch (API key 9), versions 1-9.

Behaviour:
* Without a committed offset, or without such a group, the offset is -1 and there is no error. While the group is being
  loaded the response is an error, never -1.
* Only durable offsets are returned. With require_stable a partition for which an open transaction has a pending offset
  is UNSTABLE_OFFSET_COMMIT.
* Null topics (from v2 on) mean all topics. A group, a topic or a partition that occurs twice is returned once.
* When the groups of a response have 100,000 offsets or 16 MiB together, further groups are
  COORDINATOR_LOAD_IN_PROGRESS, and clients retry.
Not implemented: Topic ids (v10).
Versions: v2 top-level error code in place of errors by partition; v5 leader epochs; v6 flexible; v7 require_stable; v8
several groups; v9 members of consumer groups (KIP-848), with their epochs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from headrace.broker.bounds.response_bounds import ANSWER_ENTRIES, within_bounds
from headrace.broker.context import RequestContext
from headrace.broker.services import Services
from headrace.broker.waiting.steps import ENTRY_COST, GROUP_COST, Work, value_of
from headrace.core.coordinator.runtime import Reply, gather
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
from headrace.protocol.versions import VersionRange
from headrace.security.acls import Operation, ResourceType

API_KEY: Final = ApiKey.OFFSET_FETCH
VERSIONS: Final = VersionRange(1, 9)

_GROUP_LIST_VERSION: Final = 8
_TOP_LEVEL_ERROR_VERSION: Final = 2
_OFFSET_COST: Final = ENTRY_COST // 5
_OFFSETS_A_PIECE: Final = 5_000
"""The number of offsets that one piece asks the coordinator for."""
_OFFSET_BYTES: Final = 30
"""The size of an offset in the response without its metadata, in bytes."""


def handle(
    services: Services, context: RequestContext, request: OffsetFetchRequest
) -> Work[OffsetFetchResponse]:
    """Return the committed offsets of groups."""
    version = context.header.api_version
    several = version >= _GROUP_LIST_VERSION
    groups = request.groups if several else [_only_group(request)]
    asked: list[_Asked] = []
    entries = 0
    for wanted in _each_once(groups):
        group = _Asked(services, context, wanted)
        asked.append(group)
        if entries >= ANSWER_ENTRIES:
            group.error = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        else:
            entries += yield from group.ask(require_stable=request.require_stable)
        yield GROUP_COST
    fetched: list[OffsetFetchResponseGroup] = []
    for group in asked:
        answer = yield from group.answer()
        fetched.append(answer)
    if several:
        return OffsetFetchResponse(groups=list(within_bounds(fetched, _size, _put_off)))
    return _of_one_group(version, groups[0], fetched[0])


def _each_once(groups: Iterable[OffsetFetchRequestGroup]) -> Iterable[OffsetFetchRequestGroup]:
    once: dict[str, OffsetFetchRequestGroup] = {}
    for group in groups:
        once.setdefault(group.group_id, group)
    return once.values()


class _Asked:
    """A group of the request: the offsets that the client may see, and the errors for the others."""

    __slots__ = ("_context", "_denied", "_replies", "_services", "_wanted", "error")

    def __init__(
        self, services: Services, context: RequestContext, wanted: OffsetFetchRequestGroup
    ) -> None:
        self._services = services
        self._context = context
        self._wanted = wanted
        self._denied: dict[str, dict[int, None]] = {}
        self._replies: list[Reply[list[OffsetFetchResponseGroup]]] = []
        self.error = ErrorCode.NONE
        """The error for the group as a whole; NONE if there is no such error."""

    def ask(self, *, require_stable: bool) -> Work[int]:
        """Ask the coordinator for the offsets that the client may see. Return how many they are."""
        wanted = self._wanted
        if not self._sees(ResourceType.GROUP, wanted.group_id, quietly=False):
            self.error = ErrorCode.GROUP_AUTHORIZATION_FAILED
            return 0
        if wanted.topics is None:
            count = self._services.groups.offsets_count(wanted.group_id)
            yield self._fetch(None, require_stable=require_stable)
            yield count * _OFFSET_COST
            return count
        allowed: dict[str, dict[int, None]] = {}
        for topic in wanted.topics:
            if topic.name in allowed or self._sees(ResourceType.TOPIC, topic.name, quietly=False):
                indexes = dict.fromkeys(topic.partition_indexes)
                allowed.setdefault(topic.name, {}).update(indexes)
            else:
                indexes = dict.fromkeys(topic.partition_indexes)
                self._denied.setdefault(topic.name, {}).update(indexes)
            yield ENTRY_COST
        for some in _in_pieces(allowed):
            yield self._fetch(some, require_stable=require_stable)
        return sum(map(len, allowed.values()))

    def _fetch(self, topics: list[OffsetFetchRequestTopics] | None, *, require_stable: bool) -> int:
        """Ask for some topics, or for all. Return the cost."""
        wanted = self._wanted
        some = OffsetFetchRequestGroup(
            group_id=wanted.group_id,
            member_id=wanted.member_id,
            member_epoch=wanted.member_epoch,
            topics=topics,
        )
        reply = self._services.groups.fetch_offsets(
            [some], self._context.now_ms, require_stable=require_stable
        )
        self._replies.append(reply)
        count = sum(len(topic.partition_indexes) for topic in topics or [])
        return count * _OFFSET_COST

    def _sees(self, resource_type: ResourceType, name: str, *, quietly: bool) -> bool:
        return self._services.permissions.allows(
            self._context, Operation.DESCRIBE, resource_type, name, quietly=quietly
        )

    def answer(self) -> Work[OffsetFetchResponseGroup]:
        """Return the group's part of the response, from the results of the coordinator."""
        group = OffsetFetchResponseGroup(group_id=self._wanted.group_id, error_code=self.error)
        for (fetched,) in (yield from value_of(gather(self._replies))):
            if fetched.error_code:
                return fetched
            if group.topics and fetched.topics and group.topics[-1].name == fetched.topics[0].name:
                group.topics[-1].partitions += fetched.topics.pop(0).partitions
            group.topics += fetched.topics
        if self._wanted.topics is None:
            found, group.topics = group.topics, []
            for topic in found:
                yield ENTRY_COST
                if self._sees(ResourceType.TOPIC, topic.name, quietly=True):
                    group.topics.append(topic)
        for name, indexes in self._denied.items():
            group.topics.append(_denied(name, indexes))
            yield ENTRY_COST + len(indexes) * _OFFSET_COST
        return group


def _in_pieces(topics: dict[str, dict[int, None]]) -> Iterator[list[OffsetFetchRequestTopics]]:
    """Divide the requested topics into pieces of a few milliseconds of work. There is at least one piece."""
    piece: list[OffsetFetchRequestTopics] = []
    room = _OFFSETS_A_PIECE
    for name, numbers in topics.items():
        indexes = list(numbers)
        for start in range(0, len(indexes) or 1, _OFFSETS_A_PIECE):
            some = indexes[start : start + _OFFSETS_A_PIECE]
            piece.append(OffsetFetchRequestTopics(name=name, partition_indexes=some))
            room -= len(some) + 1
            if room <= 0:
                yield piece
                piece, room = [], _OFFSETS_A_PIECE
    yield piece


def _denied(name: str, indexes: Iterable[int]) -> OffsetFetchResponseTopics:
    return OffsetFetchResponseTopics(
        name=name,
        partitions=[
            OffsetFetchResponsePartitions(
                partition_index=index,
                committed_offset=-1,
                metadata="",
                error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED,
            )
            for index in indexes
        ],
    )


def _size(group: OffsetFetchResponseGroup) -> int:
    return sum(
        len(partition.metadata or "") + _OFFSET_BYTES
        for topic in group.topics
        for partition in topic.partitions
    )


def _put_off(group: OffsetFetchResponseGroup) -> OffsetFetchResponseGroup:
    return OffsetFetchResponseGroup(
        group_id=group.group_id, error_code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    )


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
