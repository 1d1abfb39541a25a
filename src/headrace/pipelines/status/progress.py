"""The progress of a pipeline: the important numbers of Spark's report on a batch."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

Ends = Mapping[tuple[str, str], int]
"""The next offset of each partition."""
STEPS: Final = 100
"""The resolution of a lag: the number of samples that are kept for it."""


@dataclass(frozen=True)
class BatchProgress:
    """The numbers of one batch.

    Attributes:
        at_ms: The start of the batch, in milliseconds since 1970.
        input_rows: The records that the batch read. A source that a query uses twice counts twice.
        input_rate: The records per second that arrived since the batch before.
        processed_rate: The records per second that the batch processed.
        duration_ms: The duration of the batch.
        lag_records: The records that were not read when the batch ended; None if no source is a topic.
        lag_seconds: The age of the oldest of these records, as far as this run has seen it arrive; None if no source
            is a topic.
        state_rows: The rows of state that are kept between batches.
        state_bytes: The memory of the state.
        watermark: The event time before which rows are too late; None without a watermark.
    """

    batch_id: int
    at_ms: int
    input_rows: int
    input_rate: float
    processed_rate: float
    duration_ms: int
    lag_records: int | None
    lag_seconds: float | None
    state_rows: int
    state_bytes: int
    watermark: str | None


class LagClock:
    """Measures for how long there have been unread records.

    The clock keeps samples of the end offsets with their times. The oldest unread record arrived no later than the
    first sample whose end offsets exceed what has been read. The distance between samples grows with the lag.
    Otherwise the samples of a pipeline with many partitions that is behind for days would fill the memory.
    """

    def __init__(self) -> None:
        self._seen: deque[tuple[int, Ends]] = deque()

    def seconds(self, now_ms: int, read: Ends, ends: Ends) -> float:
        """Return for how many seconds there have been unread records, 0 if there are none."""
        seen = self._seen
        if seen and STEPS * (now_ms - seen[-1][0]) >= now_ms - seen[0][0]:
            seen.append((now_ms, ends))
        while seen and not _beyond(seen[0][1], read):
            seen.popleft()
        if not seen and _beyond(ends, read):
            seen.append((now_ms, ends))
        return (now_ms - seen[0][0]) / 1000 if seen else 0.0


def _beyond(ends: Ends, read: Ends) -> bool:
    return any(end > read.get(partition, 0) for partition, end in ends.items())


def read_progress(report: Mapping[str, Any], clock: LagClock) -> BatchProgress:
    """Extract the numbers of a `StreamingQueryProgress`, given as its parsed JSON."""
    at_ms = int(datetime.fromisoformat(report["timestamp"]).timestamp() * 1000)
    duration_ms = int(report.get("batchDuration") or 0)
    read: dict[tuple[str, str], int] = {}
    ends: dict[tuple[str, str], int] = {}
    for source in report.get("sources", ()):
        latest = _offsets(source.get("latestOffset"))
        done = _offsets(source.get("endOffset"))
        read.update(done)
        ends.update(latest or done)
    states = report.get("stateOperators", ())
    watermark = report.get("eventTime", {}).get("watermark")
    return BatchProgress(
        batch_id=int(report["batchId"]),
        at_ms=at_ms,
        input_rows=int(report.get("numInputRows") or 0),
        input_rate=_rate(report.get("inputRowsPerSecond")),
        processed_rate=_rate(report.get("processedRowsPerSecond")),
        duration_ms=duration_ms,
        lag_records=sum(max(0, end - read.get(each, 0)) for each, end in ends.items())
        if ends
        else None,
        lag_seconds=clock.seconds(at_ms + duration_ms, read, ends) if ends else None,
        state_rows=sum(int(each.get("numRowsTotal") or 0) for each in states),
        state_bytes=sum(int(each.get("memoryUsedBytes") or 0) for each in states),
        watermark=None if watermark is None or watermark.startswith("1970-") else watermark,
    )


def _rate(value: Any) -> float:
    """Return a rate; 0 if Spark reports none or NaN, as it does for the first batch and for empty batches."""
    rate = float(value or 0)
    return round(rate, 1) if 0 <= rate < float("inf") else 0.0


def _offsets(text: Any) -> dict[tuple[str, str], int]:
    """Parse the offsets of a source of topics; {} for other sources, whose offsets have other forms."""
    try:
        parsed = json.loads(text) if isinstance(text, str) else text
    except ValueError:
        return {}
    if not isinstance(parsed, dict):
        return {}
    return {
        (topic, partition): offset
        for topic, positions in parsed.items()
        if isinstance(positions, dict)
        for partition, offset in positions.items()
        if partition.isdigit() and isinstance(offset, int)
    }
