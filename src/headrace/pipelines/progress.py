"""What Spark tells of a batch, as the few numbers that people and monitors watch."""

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
"""How finely a lag is divided: the more, the more is kept of it."""


@dataclass(frozen=True)
class BatchProgress:
    """A batch of a pipeline.

    Attributes:
        at_ms: When it began.
        input_rows: Records that it read; a source that a query uses twice counts twice.
        input_rate: Records that came, per second since the batch before.
        processed_rate: Records per second that the batch handled.
        duration_ms: How long it took.
        lag_records: Records that were there and not read when it ended; None where no source is a topic.
        lag_seconds: How long the oldest of those has been there, as far as this run has seen it come.
        state_rows: Keys that are kept between batches.
        state_bytes: Memory that they take.
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
    """Knows since when there have been records that are not read yet.

    It keeps, for moments of looking, the end offsets of then. The oldest unread record came no later than the first
    moment whose ends are beyond what has been read. The longer it waits, the farther apart are the moments that are
    kept: else they would fill the memory while a pipeline of many partitions is behind for days.
    """

    def __init__(self) -> None:
        self._seen: deque[tuple[int, Ends]] = deque()

    def seconds(self, now_ms: int, read: Ends, ends: Ends) -> float:
        """Return for how long something has been unread, 0 if nothing is."""
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
    """Return the numbers of a `StreamingQueryProgress`, given as what its JSON says."""
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
    """Return a rate; Spark has none, or no number, for the first batch and for empty ones."""
    rate = float(value or 0)
    return round(rate, 1) if 0 <= rate < float("inf") else 0.0


def _offsets(text: Any) -> dict[tuple[str, str], int]:
    """Return the offsets of a source of topics; nothing of others, whose offsets are of other kinds."""
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
