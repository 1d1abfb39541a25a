"""The part of a log that may be compacted, and the decision whether a round is worth it, by Kafka's rules."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.core.log.cleaning.compaction import CompactionPlan
from headrace.core.log.partition_log import PartitionLog
from headrace.core.log.segments.segment import Segment


def plan_compaction(log: PartitionLog, clean_offset: int, now_ms: int) -> CompactionPlan | None:
    """Return a round of compaction for a log, None if there is nothing to do.

    These are never compacted: the active segment; batches that are not synced, not visible, or of an open transaction;
    batches from `keep_from` on; a segment with a record younger than `min.compaction.lag.ms`, and all segments after
    it. A round is worth it when the share of the dirty part is above `min.cleanable.dirty.ratio`, or when a record in
    it is older than `max.compaction.lag.ms`.

    Args:
        log: The log.
        clean_offset: The offset up to which earlier rounds have cleaned the log.
        now_ms: The time.

    Raises:
        StorageError: A segment cannot be read.
    """
    limit = cleanable_end(log)
    first_dirty_offset = max(clean_offset, log.log_start_offset)
    clean, dirty = _split(log.segments.all[:-1], first_dirty_offset, limit)
    dirty = _old_enough(dirty, now_ms - log.config.min_compaction_lag_ms, now_ms)
    if not dirty:
        return None
    clean_bytes = sum(segment.size for segment in clean)
    dirty_bytes = sum(segment.size for segment in dirty)
    ratio = dirty_bytes / (clean_bytes + dirty_bytes)
    overdue = _is_overdue(dirty, now_ms - log.config.max_compaction_lag_ms)
    if ratio <= log.config.min_cleanable_dirty_ratio and not overdue:
        return None
    return CompactionPlan(log, (*clean, *dirty), first_dirty_offset, ratio, overdue)


def cleanable_end(log: PartitionLog) -> int:
    """Return the offset below which segments may be rewritten: all is synced, visible, and of no open transaction."""
    limit = min(log.high_watermark, log.last_stable_offset, log.synced_offset, log.keep_from)
    # A crash may remove a marker that is not synced. Then the records that it aborted are needed again.
    aborted = log.producers.transactions.aborted.least_first_offset(log.synced_offset)
    return limit if aborted is None else min(limit, aborted)


def _split(
    sealed: Sequence[Segment], first_dirty_offset: int, limit: int
) -> tuple[list[Segment], list[Segment]]:
    clean: list[Segment] = []
    dirty: list[Segment] = []
    for segment in sealed:
        if segment.end_offset > limit:
            break
        (clean if segment.end_offset <= first_dirty_offset else dirty).append(segment)
    return clean, dirty


def _old_enough(segments: list[Segment], horizon_ms: int, now_ms: int) -> list[Segment]:
    if horizon_ms >= now_ms:
        return segments
    for number, segment in enumerate(segments):
        if segment.max_timestamp > horizon_ms:
            return segments[:number]
    return segments


def _is_overdue(segments: Sequence[Segment], horizon_ms: int) -> bool:
    if horizon_ms <= 0:
        return False
    return any(0 <= _first_timestamp(segment) < horizon_ms for segment in segments)


def _first_timestamp(segment: Segment) -> int:
    if segment.first_timestamp < 0 and not segment.loaded:
        segment.load()
        segment.unload()
    return segment.first_timestamp
