"""Reads over several segments."""

from __future__ import annotations

from headrace.core.log import LogConfig
from headrace.records.batch import BatchHeader
from headrace.records.rewriting import without_records
from headrace.storage.memory_files import MemoryFileSystem
from tests.fixtures.logs import NOW_MS, batch_of, open_log
from tests.fixtures.transactions import begin, end, read_committed


def test_a_reader_passes_any_number_of_segments_without_records() -> None:
    log = open_log(MemoryFileSystem(), LogConfig(compacts=True))
    for offset in range(6):
        header = BatchHeader.parse(batch_of(1))._replace(base_offset=offset)
        log.append_replicated(without_records(header), now_ms=NOW_MS)
        log.roll(NOW_MS)
    log.append_replicated(batch_of(3, base_offset=6), now_ms=NOW_MS)
    log.roll(NOW_MS)
    begin(log, 1)
    end(log, 1, committed=False)
    log.advance_high_watermark(8)  # inside the next batch with records
    assert read_committed(log) == []
    log.advance_high_watermark(11)
    assert [offset for offset, _, _ in read_committed(log)] == [6, 7, 8]
