"""DescribeLogDirs (API key 35), versions 1-5.

Behaviour: The response lists every log directory of this broker with the sizes of its partitions: all partitions, or
those that the request names. Partitions that do not exist are left out. A directory that has failed, or was missing at
the start, is KAFKA_STORAGE_ERROR and lists no partitions. A broker in memory has one directory, whose total and usable
bytes are unknown (-1).
Versions: v2 flexible; v3 top-level error code; v4 total and usable bytes; v5 whether a directory is cordoned, which is
never the case.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from headrace.broker.context import RequestContext
from headrace.broker.log_dirs.log_dir import LogDir
from headrace.broker.replication.partition import Partition
from headrace.broker.services import Services
from headrace.broker.waiting.steps import ENTRY_COST, Work
from headrace.errors import ErrorCode
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.messages.describe_log_dirs import (
    DescribeLogDirsPartition,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
)
from headrace.protocol.versions import VersionRange
from headrace.security.acls import Operation, ResourceType

API_KEY: Final = ApiKey.DESCRIBE_LOG_DIRS
VERSIONS: Final = VersionRange(1, 5)


def handle(
    services: Services,
    context: RequestContext,
    request: DescribeLogDirsRequest,
) -> Work[DescribeLogDirsResponse]:
    """Describe the log directories."""
    if not services.permissions.allows(context, Operation.DESCRIBE, ResourceType.CLUSTER):
        return DescribeLogDirsResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    partitions: list[Partition] = []
    for partition in _wanted(services, request):
        partitions.append(partition)
        yield ENTRY_COST // 2
    results = []
    for name, log_dir in services.log_store.dirs.named:
        described = yield from _describe(name, log_dir, partitions)
        results.append(described)
    return DescribeLogDirsResponse(results=results)


def _wanted(services: Services, request: DescribeLogDirsRequest) -> Iterator[Partition]:
    """Yield the requested partitions that are in service, each once."""
    if request.topics is None:
        for topic in services.topics:
            yield from filter(None, services.partitions.of(topic))
        return
    wanted: dict[str, dict[int, None]] = {}
    for asked in request.topics:
        wanted.setdefault(asked.topic, {}).update(dict.fromkeys(asked.partitions))
    for name, indexes in wanted.items():
        found = services.topics.get(name)
        served = () if found is None else services.partitions.of(found)
        yield from filter(None, (served[index] for index in indexes if 0 <= index < len(served)))


def _describe(
    name: str, log_dir: LogDir | None, partitions: Iterable[Partition]
) -> Work[DescribeLogDirsResult]:
    if log_dir is None or log_dir.failure is not None:
        return DescribeLogDirsResult(log_dir=name, error_code=ErrorCode.KAFKA_STORAGE_ERROR)
    topics: dict[str, DescribeLogDirsTopic] = {}
    for partition in partitions:
        yield ENTRY_COST // 2
        if partition.log_dir is log_dir:
            topic, index = partition.topic_partition
            described = topics.setdefault(topic, DescribeLogDirsTopic(name=topic))
            described.partitions.append(
                DescribeLogDirsPartition(
                    partition_index=index, partition_size=partition.log.size_bytes
                )
            )
    directory = log_dir.describe()
    return DescribeLogDirsResult(
        log_dir=name,
        topics=list(topics.values()),
        total_bytes=directory.total_bytes,
        usable_bytes=directory.usable_bytes,
    )
