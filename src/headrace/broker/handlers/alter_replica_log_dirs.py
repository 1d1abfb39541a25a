"""AlterReplicaLogDirs (API key 34), versions 1-2.

Behaviour: The response says for each partition whether its replica can be in the named log directory of this broker.
The request succeeds for a replica that is there already. The errors are LOG_DIR_NOT_FOUND for a path that is no log
directory of this broker, KAFKA_STORAGE_ERROR for a directory that has failed or is missing, and
UNKNOWN_TOPIC_OR_PARTITION. If a request names a partition with several paths, the last path counts, as in Kafka.
Not implemented: Moving a replica to another directory (INVALID_REQUEST). An administrator can move the files while the
broker is stopped, or create the topic again.
Versions: v2 flexible.
"""

from __future__ import annotations

from typing import Final

from headrace.broker.context import RequestContext
from headrace.broker.log_dirs.log_dir import LogDir
from headrace.broker.services import Services
from headrace.broker.waiting.steps import ENTRY_COST, Work
from headrace.errors import ApiError, ErrorCode
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.messages.alter_replica_log_dirs import (
    AlterReplicaLogDirPartitionResult,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    AlterReplicaLogDirTopicResult,
)
from headrace.protocol.versions import VersionRange
from headrace.security.acls import Operation, ResourceType

API_KEY: Final = ApiKey.ALTER_REPLICA_LOG_DIRS
VERSIONS: Final = VersionRange(1, 2)

_PARTITION_COST: Final = ENTRY_COST // 2


def handle(
    services: Services, context: RequestContext, request: AlterReplicaLogDirsRequest
) -> Work[AlterReplicaLogDirsResponse]:
    """Return for each partition whether it is in the requested log directory."""
    is_allowed = services.permissions.allows(context, Operation.ALTER, ResourceType.CLUSTER)
    wanted: dict[str, dict[int, str]] = {}
    for directory in request.dirs:
        for topic in directory.topics:
            paths = dict.fromkeys(topic.partitions, directory.path)
            if paths:
                wanted.setdefault(topic.name, {}).update(paths)
            yield (1 + len(topic.partitions)) * _PARTITION_COST
    directories = dict(services.log_store.dirs.named)
    results = []
    for name, paths in wanted.items():
        partitions = []
        for index, path in paths.items():
            code = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
            if is_allowed:
                code = _outcome(services, name, index, path, directories)
            partitions.append(
                AlterReplicaLogDirPartitionResult(partition_index=index, error_code=code)
            )
            yield _PARTITION_COST
        results.append(AlterReplicaLogDirTopicResult(topic_name=name, partitions=partitions))
    return AlterReplicaLogDirsResponse(results=results)


def _outcome(
    services: Services, name: str, index: int, path: str, directories: dict[str, LogDir | None]
) -> ErrorCode:
    if path not in directories:
        return ErrorCode.LOG_DIR_NOT_FOUND
    log_dir = directories[path]
    if log_dir is None or log_dir.failure is not None:
        return ErrorCode.KAFKA_STORAGE_ERROR
    try:
        partition = services.partitions.require(name, index)
    except ApiError as error:
        return error.code
    return ErrorCode.NONE if partition.log_dir is log_dir else ErrorCode.INVALID_REQUEST
