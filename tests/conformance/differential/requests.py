"""Requests that several scenarios send."""

from __future__ import annotations

from headrace.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic


def wanted(
    offset: int,
    partition: int = 0,
    *,
    max_bytes: int = 1 << 24,
    current_leader_epoch: int = -1,
    last_fetched_epoch: int = -1,
) -> FetchPartition:
    """One partition of a fetch."""
    return FetchPartition(
        partition=partition,
        current_leader_epoch=current_leader_epoch,
        fetch_offset=offset,
        last_fetched_epoch=last_fetched_epoch,
        log_start_offset=-1,
        partition_max_bytes=max_bytes,
    )


def fetch(
    topic: str,
    offset: int = 0,
    *partitions: FetchPartition,
    max_bytes: int = 1 << 24,
    min_bytes: int = 0,
    max_wait_ms: int = 0,
    isolation_level: int = 0,
    replica_id: int = -1,
    session: tuple[int, int] = (0, -1),
) -> FetchRequest:
    """A fetch of partition 0, or of the given partitions."""
    return FetchRequest(
        replica_id=replica_id,
        max_wait_ms=max_wait_ms,
        min_bytes=min_bytes,
        max_bytes=max_bytes,
        isolation_level=isolation_level,
        session_id=session[0],
        session_epoch=session[1],
        topics=[FetchTopic(topic=topic, partitions=list(partitions) or [wanted(offset)])],
    )
