"""Rewriting segments without expired records (`headrace.ttl.enable`).

Segments at the start of the log in which everything has expired are deleted by `retention`. The others are rewritten
here. A segment of which half has expired is rewritten at the next check. A segment with any expired record is rewritten
an hour after it was cleaned last, or after half its age if that is longer. So a byte is rewritten a dozen times in a
month, however times to live are mixed. A segment whose expiry times are unknown, for example after a crash, is read
once to find them out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from headrace.core.log.cleaning.cleanable import cleanable_end
from headrace.core.log.cleaning.rewriting import Rewriting
from headrace.core.log.partition_log import PartitionLog
from headrace.core.log.segments.segment import Segment
from headrace.errors import CorruptRecordError
from headrace.ports import FileSystem
from headrace.records.batch import BatchHeader
from headrace.records.expiry import NEVER, UNKNOWN, expiries
from headrace.records.raw import records_of
from headrace.records.rewriting import with_records, without_records
from headrace.types import Buffer

PARTLY_EXPIRED_MS: Final = 3_600_000
"""The least time, in milliseconds, between two cleanings of a segment with few expired records."""


def plan_expiry(log: PartitionLog, now_ms: int) -> Sequence[Segment]:
    """Return the segments of a log that are worth rewriting."""
    limit = cleanable_end(log)
    return [
        segment
        for segment in log.segments.all[:-1]
        if segment.end_offset <= limit and _is_worth_it(segment, now_ms)
    ]


def _is_worth_it(segment: Segment, now_ms: int) -> bool:
    expiry = segment.expiries.summary(segment.size)
    if expiry.earliest > now_ms:
        return False
    if expiry == UNKNOWN or segment.expiries.half_expired_ms(segment.size) <= now_ms:
        return True
    looked_through_ms = segment.looked_through_ms
    age_ms = looked_through_ms - segment.created_ms
    return now_ms - looked_through_ms >= max(PARTLY_EXPIRED_MS, age_ms // 2)


class ExpiryCleaning(Rewriting):
    """A running round of removing expired records."""

    def __init__(
        self, files: FileSystem, log: PartitionLog, segments: Sequence[Segment], now_ms: int
    ) -> None:
        """Remove from segments what has expired at the time `now_ms`."""
        super().__init__(files, log, segments)
        self._now_ms = now_ms
        for segment in segments:
            segment.looked_through_ms = now_ms

    def work(self) -> Iterator[int]:
        """Rewrite the segments with expired records."""
        for sources in self.groups(self.segments):
            yield from self.rewrite(sources)

    def retained_part(
        self, header: BatchHeader, batch: Buffer, *, keep_empty: bool
    ) -> Buffer | None:
        """Return the remaining part of the next batch. Markers always stay."""
        if header.is_control:
            return batch
        if not header.records_count:
            return batch if keep_empty else None
        try:
            data = records_of(header, batch)
            times = expiries(header, data)
        except CorruptRecordError:
            return batch  # the producer's fault: the CRC is right, and the records were not decoded at the append
        if times is None or min(times, default=NEVER) > self._now_ms:
            return batch
        stays = [time > self._now_ms for time in times]
        if any(stays):
            return with_records(header, data, stays)
        return without_records(header) if keep_empty else None
