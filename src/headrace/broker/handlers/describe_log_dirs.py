"""DescribeLogDirs (API key 35), versions 1-4.

Behaviour: the one log directory of this broker with the size of every partition, or of those that were asked for;
what does not exist is left out. A directory that has failed is KAFKA_STORAGE_ERROR and lists nothing. A broker in
memory has a directory of this name too, whose total and usable bytes are not known (-1).
Versions: v2 flexible; v3 error code of the whole; v4 total and usable bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from headrace.broker.context import RequestContext, VersionRange
from headrace.broker.topics import Topic
from headrace.errors import ErrorCode
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.messages.describe_log_dirs import (
    DescribeLogDirsPartition,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
)

if TYPE_CHECKING:
    from headrace.broker.broker import Broker

API_KEY: Final = ApiKey.DESCRIBE_LOG_DIRS
VERSIONS: Final = VersionRange(1, 4)


def handle(
    broker: Broker,
    context: RequestContext,  # noqa: ARG001 - every handler has the same three arguments
    request: DescribeLogDirsRequest,
) -> DescribeLogDirsResponse:
    """Describe the log directory."""
    directory = broker.replicas.log_directory
    result = DescribeLogDirsResult(log_dir=directory.name)
    if broker.failed:
        result.error_code = ErrorCode.KAFKA_STORAGE_ERROR
    else:
        result.total_bytes, result.usable_bytes = directory.total_bytes, directory.usable_bytes
        result.topics = list(_topics(broker, request))
    return DescribeLogDirsResponse(results=[result])


def _topics(broker: Broker, request: DescribeLogDirsRequest) -> Iterator[DescribeLogDirsTopic]:
    if request.topics is None:
        for topic in broker.topics:
            yield _described(topic, range(len(topic.partitions)))
        return
    wanted: dict[str, dict[int, None]] = {}
    for asked in request.topics:
        wanted.setdefault(asked.topic, {}).update(dict.fromkeys(asked.partitions))
    for name, indexes in wanted.items():
        found = broker.topics.get(name)
        if found is not None:
            count = len(found.partitions)
            yield _described(found, [index for index in indexes if 0 <= index < count])


def _described(topic: Topic, indexes: range | list[int]) -> DescribeLogDirsTopic:
    return DescribeLogDirsTopic(
        name=topic.name,
        partitions=[
            DescribeLogDirsPartition(partition_index=index, partition_size=partition.log.size_bytes)
            for index in indexes
            if (partition := topic.partitions[index]) is not None
        ],
    )
