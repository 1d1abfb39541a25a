"""Writing segments anew without the records that have expired (`headrace.ttl.enable`).

What has expired as a whole retention deletes from the start of the log, see `retention`. For other segments there is
this: one whose records have expired by half is written anew at the next opportunity; one with any expired records an
hour after that happened to it last, and later when it is old: after half its age. So a byte is written again a dozen
times in a month, however times to live are mixed.
A segment of which nobody knows when its records expire, after a crash say, is read once to find out.
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
"""How long a segment with a few expired records is left alone at least."""


def plan_expiry(log: PartitionLog, now_ms: int) -> Sequence[Segment]:
    """Return the segments of a log that are worth being written anew."""
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
    """A round under way."""

    def __init__(
        self, files: FileSystem, log: PartitionLog, segments: Sequence[Segment], now_ms: int
    ) -> None:
        """Leave out of segments what has expired at a time."""
        super().__init__(files, log, segments)
        self._now_ms = now_ms
        for segment in segments:
            segment.looked_through_ms = now_ms

    def work(self) -> Iterator[int]:
        """Write anew what has something to lose."""
        for sources in self.groups(self.segments):
            yield from self.rewrite(sources)

    def what_stays(self, header: BatchHeader, batch: Buffer, *, keep_empty: bool) -> Buffer | None:
        """Return what stays of the next batch; markers always do."""
        if header.is_control:
            return batch
        if not header.records_count:
            return batch if keep_empty else None
        try:
            data = records_of(header, batch)
            times = expiries(header, data)
        except CorruptRecordError:
            return batch  # the producer's doing, at a time at which nobody looked: the CRC is right
        if times is None or min(times, default=NEVER) > self._now_ms:
            return batch
        stays = [time > self._now_ms for time in times]
        if any(stays):
            return with_records(header, data, stays)
        return without_records(header) if keep_empty else None
