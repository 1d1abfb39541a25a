"""ListOffsets (API key 2), versions 1-11.

Behaviour:
* A timestamp from 0 on finds the first record with at least that timestamp.
* Negative timestamps have special meanings: -1 is the high watermark or, with read_committed, the last stable offset;
  -2 is the log start offset; -3 is the record with the largest timestamp; -4 is the start of the local log, which
  equals the log start offset; -5 is the last offset in tiered storage, and -6 the first one that has to be copied
  there. Tiered storage does not exist: both are offset -1. Other negative timestamps are UNSUPPORTED_VERSION.
* In a batch with more than 131,072 records, or with more than 8 MiB after decompression, the lookup returns the first
  offset of the batch.
* If no record is found, offset and timestamp are -1 without an error. Offsets at or above the high watermark are never
  returned.
* While the high watermark of a new leader is below the start of its leader epoch, -1 is OFFSET_NOT_AVAILABLE, up to v4
  LEADER_NOT_AVAILABLE (KIP-207). So is a timestamp without a record below the high watermark.
* The leader epoch is the epoch of the record, so that a consumer that starts there can detect truncations (KIP-320).
* In a request whose tagged field 26738 is true, each partition that schedules records also gets, in that field, the
  number of scheduled records and the first delivery time. While the broker counts them after a start, the error is
  COORDINATOR_LOAD_IN_PROGRESS.
Not implemented: Tiered storage.
Versions: v2 isolation level; v4 leader epochs; v5 OFFSET_NOT_AVAILABLE; v6 flexible; v7 largest timestamp
(KIP-734); v8 -4 (KIP-405); v9 -5 (KIP-1005); v10 a timeout for reads of tiered storage (KIP-1075); v11 -6 (KIP-1023).
"""

from __future__ import annotations

from typing import Final

from headrace.broker.context import RequestContext
from headrace.broker.replication.partition import Partition
from headrace.broker.services import Services
from headrace.broker.waiting.steps import ENTRY_COST, Work
from headrace.core.log import lookup_newest, lookup_timestamp
from headrace.errors import ApiError, ErrorCode, StorageError
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.messages.list_offsets import (
    HeadraceDelayed,
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from headrace.protocol.versions import VersionRange
from headrace.security.acls import Operation, ResourceType

API_KEY: Final = ApiKey.LIST_OFFSETS
VERSIONS: Final = VersionRange(1, 11)

LATEST: Final = -1
EARLIEST: Final = -2
MAX_TIMESTAMP: Final = -3
MAX_TIMESTAMP_VERSION: Final = 7
OFFSET_NOT_AVAILABLE_VERSION: Final = 5
EARLIEST_LOCAL: Final = -4
EARLIEST_LOCAL_VERSION: Final = 8
LATEST_TIERED: Final = -5
EARLIEST_PENDING_UPLOAD: Final = -6
_TIERED: Final = {LATEST_TIERED: 9, EARLIEST_PENDING_UPLOAD: 11}
"""The timestamps that stand for offsets in tiered storage, and the first version that has each."""
_PARTITION_COST: Final = 8 << 10
"""The cost of a partition without its batches: some thirty microseconds."""


def handle(
    services: Services, context: RequestContext, request: ListOffsetsRequest
) -> Work[ListOffsetsResponse]:
    """Find an offset in every partition."""
    seen: set[tuple[str, int]] = set()
    response = ListOffsetsResponse()
    for topic in request.topics:
        found = ListOffsetsTopicResponse(name=topic.name)
        response.topics.append(found)
        yield ENTRY_COST
        if not services.permissions.allows(
            context, Operation.DESCRIBE, ResourceType.TOPIC, topic.name
        ):
            found.partitions = [
                _failed(wanted, ErrorCode.TOPIC_AUTHORIZATION_FAILED) for wanted in topic.partitions
            ]
            yield len(topic.partitions) * _PARTITION_COST // 4
            continue
        for wanted in topic.partitions:
            if _is_new(seen, topic.name, wanted.partition_index):
                answer = yield from _partition(services, context, request, topic.name, wanted)
            else:
                answer = _failed(wanted, ErrorCode.INVALID_REQUEST)
            found.partitions.append(answer)
            yield _PARTITION_COST
    return response


def _is_new(seen: set[tuple[str, int]], topic: str, index: int) -> bool:
    """Refuse a partition that occurs twice, so that the work of a request is bounded."""
    key = (topic, index)
    if key in seen:
        return False
    seen.add(key)
    return True


def _partition(
    services: Services,
    context: RequestContext,
    request: ListOffsetsRequest,
    topic: str,
    wanted: ListOffsetsPartition,
) -> Work[ListOffsetsPartitionResponse]:
    try:
        partition = services.partitions.require(topic, wanted.partition_index)
        partition.check_leader_epoch(wanted.current_leader_epoch)
        offset, timestamp, leader_epoch = yield from _find(
            partition, wanted.timestamp, request.isolation_level, context.header.api_version
        )
        waiting = services.deliveries.waiting(partition) if request.headrace_delayed else None
    except ApiError as error:
        return _failed(wanted, error.code)
    except (StorageError, OSError) as error:
        services.journal.error(
            "read_failed", partition=f"{topic}-{wanted.partition_index}", error=str(error)
        )
        return _failed(wanted, ErrorCode.KAFKA_STORAGE_ERROR)
    return ListOffsetsPartitionResponse(
        partition_index=wanted.partition_index,
        offset=offset,
        timestamp=timestamp,
        leader_epoch=leader_epoch,
        headrace_delayed=None
        if waiting is None
        else HeadraceDelayed(pending=waiting[0], earliest_due_ms=waiting[1]),
    )


def _failed(wanted: ListOffsetsPartition, error: ErrorCode) -> ListOffsetsPartitionResponse:
    return ListOffsetsPartitionResponse(partition_index=wanted.partition_index, error_code=error)


def _find(
    partition: Partition, timestamp: int, isolation_level: int, version: int
) -> Work[tuple[int, int, int]]:
    """Return offset, timestamp and leader epoch; -1 for a value that does not exist."""
    end = partition.visible_end(isolation_level)
    is_behind = partition.high_watermark < partition.epoch_start_offset
    if timestamp == LATEST:
        if is_behind:
            raise _not_available(partition, version)
        return end, -1, partition.leader_epoch
    if timestamp == EARLIEST or (timestamp == EARLIEST_LOCAL and version >= EARLIEST_LOCAL_VERSION):
        start = partition.log_start_offset
        return start, -1, partition.log.epoch_at(start)
    log = partition.log
    if timestamp == MAX_TIMESTAMP and version >= MAX_TIMESTAMP_VERSION:
        found = yield from lookup_newest(log.segments, log.log_start_offset)
    elif timestamp in _TIERED and version >= _TIERED[timestamp]:
        found = None
    elif timestamp >= 0:
        found = yield from lookup_timestamp(log.segments, timestamp, log.log_start_offset)
    else:
        raise ApiError(ErrorCode.UNSUPPORTED_VERSION, f"timestamp {timestamp}")
    if partition.refusal:  # since the lookup began
        raise partition.refused()
    if found is None or found.offset >= end:
        if is_behind:
            raise _not_available(partition, version)
        return -1, -1, -1
    return found


def _not_available(partition: Partition, version: int) -> ApiError:
    return ApiError(
        ErrorCode.OFFSET_NOT_AVAILABLE
        if version >= OFFSET_NOT_AVAILABLE_VERSION
        else ErrorCode.LEADER_NOT_AVAILABLE,
        f"the high watermark of {partition.topic_partition} is below the start of its leader epoch",
    )
