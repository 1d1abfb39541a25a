"""The segments of a log that may be deleted: by age, size, times to live, and below the log start offset."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.core.log.config import LogConfig
from headrace.core.log.segments.segment import Segment
from headrace.records.expiry import NEVER


def count_deletable(
    segments: Sequence[Segment],
    config: LogConfig,
    *,
    now_ms: int,
    log_start_offset: int,
    limit: int,
    follows: bool = False,
) -> int:
    """Return how many of the oldest segments may be deleted.

    The active segment, which is the last one, is counted too if everything in it has expired. The caller rolls it
    first.

    Args:
        segments: All segments, oldest first.
        config: The topic's retention.
        now_ms: The wall clock. Records with later timestamps do not expire.
        log_start_offset: Segments that end at or before it may be deleted.
        limit: The last stable offset. A segment that ends beyond it stays: nothing of an open transaction is deleted.
        follows: Whether only the log start offset counts, because the leader on another broker applies the retention.
    """
    total = sum(segment.size for segment in segments)
    count = 0
    for number, segment in enumerate(segments, 1):
        if segment.end_offset > limit or not segment.size:
            break
        if follows and segment.end_offset > log_start_offset:
            break
        by_size = 0 <= config.retention_bytes <= total - segment.size
        latest = segment.expiries.summary(segment.size).latest if config.expires else NEVER
        if (
            segment.end_offset <= log_start_offset
            or (by_size and segment is not segments[-1])
            or _expired(segment, config, now_ms)
            or 0 <= latest <= now_ms
        ):
            count = number
        elif latest >= 0:
            break
        # A segment with control records only is deleted together with the next one, not alone. Otherwise a reader that
        # has missed nothing would get the error that its offset is out of range.
        total -= segment.size
    return count


def _expired(segment: Segment, config: LogConfig, now_ms: int) -> bool:
    if config.retention_ms < 0:
        return False
    newest = segment.max_timestamp
    if newest < 0:  # no record has a timestamp: the age of the segment itself counts
        newest = segment.created_ms
    return now_ms - newest > config.retention_ms
