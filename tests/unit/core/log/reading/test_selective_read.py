from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from headrace.core.log import LogConfig, Marker, PartitionLog, SelectiveReading
from headrace.core.log.index.expiry_index import EXPIRY_INDEX
from headrace.core.log.segments.replacement import finish_replacements
from headrace.errors import InvalidRecordError
from headrace.records.batch import (
    BatchHeader,
    TimestampType,
    batch_crc,
    check_batch,
    iterate_headers,
)
from headrace.records.builder import build_batch
from headrace.records.compression import Compression
from headrace.records.expiry import Expiry
from headrace.records.raw import records_of
from headrace.records.reader import read_batch, read_records
from headrace.records.refusal import LOOK_BYTES, InvalidRecordsError
from headrace.records.rewriting import placeholder
from headrace.records.tags import TagFilter
from headrace.storage.memory_files import MemoryFileSystem
from headrace.types import Buffer, FileRange, Payload
from tests.fixtures.logs import NOW_MS, append, open_log

EXPIRING = LogConfig(expires=True, retention_ms=-1)
FILTERED = LogConfig(filters=True, retention_ms=-1)


def expiry_of(log: PartitionLog) -> Expiry:
    """Return the expiry times of the active segment's records, as far as the log knows them."""
    segment = log.segments.active
    return segment.expiries.summary(segment.size)


def batch(
    ttls: Sequence[int | None], *, tags: Sequence[str] = (), timestamp: int = NOW_MS, **options
) -> bytes:
    """Return records with these times to live, and with one tag each if tags are given."""
    records = []
    for number, ttl in enumerate(ttls):
        headers = [] if ttl is None else [("headrace.ttl-ms", b"%d" % ttl)]
        if tags:
            headers.append(("headrace.tag", tags[number].encode()))
        records.append((b"k", b"%d" % number, headers, timestamp))
    return build_batch(records, **options)


def read(
    log: PartitionLog,
    offset: int = 0,
    *,
    now_ms: int = NOW_MS,
    tags: Sequence[str] | None = None,
    max_bytes: int = 1 << 20,
    effort: int = 1 << 20,
):
    wanted = None if tags is None else TagFilter.of(tags)
    reading = SelectiveReading(now_ms, wanted, effort)
    end = log.log_end_offset
    return reading.select(log, offset, max_bytes=max_bytes, up_to=end, minimum_one=True)


def offsets(records: Payload) -> list[int]:
    data = records.read() if isinstance(records, FileRange) else records
    return [record.offset for record in read_records(data)]


def everything(log: PartitionLog, offset: int = 0, **options) -> tuple[list[int], int]:
    """Read to the end as a client does; return offsets, and how many reads gave no record."""
    seen: list[int] = []
    without = 0
    while offset < log.log_end_offset:
        found = read(log, offset, **options)
        assert found is not None
        data = found.records.read() if isinstance(found.records, FileRange) else found.records
        mine = [each for each in offsets(data) if each >= offset]
        without += not mine
        seen += mine
        for position, header in iterate_headers(data):
            check_batch(data, position)
            assert header.next_offset > offset
            offset = header.next_offset
    return seen, without


def test_unexpired_records_are_sent_from_their_file() -> None:
    log = open_log(MemoryFileSystem(), EXPIRING)
    append(log, batch([1000, None]))
    found = read(log, now_ms=NOW_MS + 999)
    assert isinstance(found.records, FileRange)
    assert isinstance(read(log, now_ms=NOW_MS + 1000).records, bytes)


@pytest.mark.parametrize("codec", list(Compression))
def test_expired_records_are_left_out_and_offsets_stay(codec: Compression) -> None:
    log = open_log(MemoryFileSystem(), EXPIRING)
    append(
        log,
        batch([10, None, 30], compression=codec, producer_id=7, producer_epoch=1, base_sequence=0),
    )
    found = read(log, now_ms=NOW_MS + 10)
    assert offsets(found.records) == [1, 2]
    header = check_batch(found.records)
    assert (header.base_offset, header.last_offset, header.records_count) == (0, 2, 2)
    assert (header.producer_id, header.base_sequence, header.compression) == (7, 0, codec)
    assert offsets(read(log, now_ms=NOW_MS + 30).records) == [1]


def test_a_reader_advances_past_segments_that_have_expired() -> None:
    log = open_log(MemoryFileSystem(), LogConfig(expires=True, segment_bytes=5000))
    for _ in range(300):
        append(log, batch([5]))
    append(log, batch([None]))
    assert everything(log, now_ms=NOW_MS + 5) == ([300], 0)
    append(log, batch([5]))
    found = read(log, 301, now_ms=NOW_MS + 5)
    header = check_batch(found.records)
    assert (header.base_offset, header.next_offset, header.is_control) == (301, 302, True)
    assert header.partition_leader_epoch == 0
    assert read(log, 302, now_ms=NOW_MS + 5) is None


def test_control_batches_do_not_delay_the_expiry_of_a_segment() -> None:
    log = open_log(MemoryFileSystem(), EXPIRING)
    append(log, batch([5]))
    hole = placeholder(0, 1, leader_epoch=0, now_ms=NOW_MS)
    log.append(hole, leader_epoch=0, now_ms=NOW_MS, validate=False)
    log.append_marker(Marker(1, 0, 0, committed=True), leader_epoch=0, now_ms=NOW_MS)
    assert expiry_of(log) == (NOW_MS + 5, NOW_MS + 5)


def second_lives(ttl_ms: bytes | None, **options) -> bytes:
    """Return two records, of which the second has this value as its time to live."""
    records = [(None, b"v", (("headrace.ttl-ms", each),), NOW_MS) for each in (b"5", ttl_ms)]
    return build_batch(records, **options)


def test_a_batch_with_a_bad_time_to_live_is_refused_by_number() -> None:
    log = open_log(MemoryFileSystem(), EXPIRING)
    for bad in (b"", b"-1", b"1.5", b" 1", b"9" * 19, b"\xd9\xa1", None):
        with pytest.raises(InvalidRecordsError, match="decimal number") as caught:
            append(log, second_lives(bad, compression=Compression.GZIP))
        assert caught.value.numbers == [1]
    with pytest.raises(InvalidRecordsError, match="needs a timestamp"):
        append(log, batch([5], timestamp=-1))
    with pytest.raises(InvalidRecordError):
        append(log, batch([5, 6], compression=Compression.NONE)[:-3])
    assert log.log_end_offset == 0
    plain = open_log(MemoryFileSystem())
    append(plain, second_lives(b"soon"))
    assert not SelectiveReading(NOW_MS).concerns(plain.config)


def test_the_last_header_counts_and_records_from_before_are_lenient() -> None:
    files = MemoryFileSystem()
    log = open_log(files, LogConfig(retention_ms=-1))
    twice = (("headrace.ttl-ms", b"5"), ("headrace.ttl-ms", b"50"))
    append(log, build_batch([(None, b"v", twice, NOW_MS)]))
    append(log, build_batch([(None, b"v", (("headrace.ttl-ms", b"x"),), NOW_MS)]))
    append(log, batch([5]))
    log.config = EXPIRING
    assert everything(log, now_ms=NOW_MS + 5) == ([0, 1], 0)
    assert everything(log, now_ms=NOW_MS + 50) == ([1], 0)
    assert expiry_of(log).earliest == NOW_MS + 5  # learned in passing


def test_a_batch_from_while_expiry_was_disabled_does_not_expire() -> None:
    log = open_log(MemoryFileSystem(), EXPIRING)
    append(log, batch([5]))
    log.config = LogConfig(retention_ms=-1)
    append(log, batch([None]))
    log.config = EXPIRING
    append(log, batch([5]))
    assert everything(log, now_ms=NOW_MS + 5)[0] == [1]
    assert log.delete_old_segments(NOW_MS + 5) == []


def test_segments_go_when_all_their_records_have_expired() -> None:
    files = MemoryFileSystem()
    log = open_log(files, LogConfig(expires=True, retention_ms=-1, segment_bytes=200))
    for ttl in (5, 7, None, 5):
        append(log, batch([ttl]))
        log.roll(NOW_MS)
    log.advance_high_watermark(4)
    assert log.delete_old_segments(NOW_MS + 4) == []
    assert log.delete_old_segments(NOW_MS + 7) == [0, 1]
    log.purge()
    assert [name for name in files.list("events-0") if name.endswith(".ttlindex")] == [
        "00000000000000000002.ttlindex",
        "00000000000000000003.ttlindex",
    ]
    assert everything(log, 2, now_ms=NOW_MS + 7) == ([2], 1)


def test_the_expiry_index_survives_a_restart_and_is_optional() -> None:
    files = MemoryFileSystem()
    log = open_log(files, EXPIRING)
    append(log, batch([5, None]))
    append(log, batch([5]))
    log.close(NOW_MS)
    again = open_log(files, EXPIRING, recovery_point=3)
    assert expiry_of(again).earliest == NOW_MS + 5
    path = again.segments.active.sidecar_path(EXPIRY_INDEX)
    content = files.read_file(path)
    assert content is not None
    again.close(NOW_MS)
    for damaged in (None, content[:-1], content[:20] + b"\xff" + content[21:]):
        files.remove(path)
        if damaged is not None:
            files.write_file(path, damaged)
        torn = open_log(files, EXPIRING, clean=False)
        assert expiry_of(torn).earliest == 0
        assert everything(torn, now_ms=NOW_MS + 5) == ([1], 0)
        torn.segments.unload()


def test_a_filter_passes_any_of_its_tags() -> None:
    log = open_log(MemoryFileSystem(), FILTERED)
    append(log, batch([None] * 3, tags=["a", "b", "ab"]))
    append(log, batch([None] * 2, tags=["c", "c"], compression=Compression.ZSTD))
    append(log, batch([None], tags=["b"]))
    assert everything(log, tags=["a"])[0] == [0]
    assert everything(log, tags=["a", "b"])[0] == [0, 1, 5]
    assert everything(log, tags=["c"])[0] == [3, 4]
    found = read(log, tags=["d"])
    header = check_batch(found.records)
    assert (header.base_offset, header.next_offset, header.is_control) == (0, 6, True)


def test_the_bytes_that_one_read_decodes_are_bounded() -> None:
    log = open_log(MemoryFileSystem(), FILTERED)
    one = batch([None] * 10, tags=["a"] * 10, compression=Compression.GZIP)
    for _ in range(50):
        append(log, one)
    reading = SelectiveReading(NOW_MS, TagFilter.of(["b"]), effort=1000)
    found = reading.select(log, 0, max_bytes=1 << 20, up_to=500, minimum_one=True)
    assert found is not None
    assert 0 < found.end_offset < 100
    assert len(found.records) < 80
    assert reading.effort <= 0
    assert reading.select(log, 0, max_bytes=1 << 20, up_to=500, minimum_one=True) is None
    assert everything(log, tags=["a"], effort=1000)[0] == list(range(500))
    # The size of many filtered batches together is bounded by the reader's `max_bytes`.
    found = read(log, tags=["a"], max_bytes=2000)
    assert len(found.records) <= 2080


def put(log: PartitionLog, records: bytes) -> None:
    log.append(records, leader_epoch=0, now_ms=NOW_MS, validate=False)  # as an earlier version did


def test_a_batch_that_is_too_large_to_be_decoded_is_sent_unfiltered() -> None:
    log = open_log(MemoryFileSystem(), LogConfig(expires=True, filters=True, retention_ms=-1))
    noise = random.Random(1).randbytes(20_000)
    for size in (LOOK_BYTES - 30_000, LOOK_BYTES):
        headers = [("headrace.tag", b"a"), ("headrace.ttl-ms", b"1")]
        records = [(noise + bytes(size - len(noise)), b"v", headers, NOW_MS)]
        put(log, build_batch(records, compression=Compression.ZSTD))
    reading = SelectiveReading(NOW_MS + 5, TagFilter.of(["b"]), effort=LOOK_BYTES // 2)
    found = reading.select(log, 1, max_bytes=1 << 20, up_to=2, minimum_one=True)
    assert found is not None
    assert offsets(found.records) == [1]
    assert reading.effort <= -LOOK_BYTES // 2  # the attempt is work, too
    assert offsets(read(log, 1, now_ms=NOW_MS + 5).records) == [1]
    assert offsets(read(log, 0, now_ms=NOW_MS + 5, tags=["b"]).records) == []


def test_a_batch_with_too_many_records_is_sent_unfiltered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.core.log.reading.selective_read.MOST_RECORDS", 3)
    log = open_log(MemoryFileSystem(), FILTERED)
    for count in (3, 4):
        append(log, batch([None] * count, tags=["a"] * count))
    assert everything(log, tags=["b"])[0] == [3, 4, 5, 6]


@pytest.mark.parametrize("codec", list(Compression))
def test_the_filtered_part_of_a_large_batch_is_sent_uncompressed(
    codec: Compression, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.core.log.reading.selective_read._MOST_COMPRESSED", 300)
    log = open_log(MemoryFileSystem(), FILTERED)
    for count in (2, 50):
        append(log, batch([None] * count, tags=["a", "b"] * (count // 2), compression=codec))
    answers = [read(log, 0, max_bytes=1, tags=["a"]), read(log, 2, tags=["a"])]
    codecs = [
        [header.compression for _, header in iterate_headers(answer.records)] for answer in answers
    ]
    assert codecs == [[codec], [Compression.NONE]]
    assert everything(log, tags=["a"])[0] == list(range(0, 52, 2))


def test_a_batch_without_known_expiry_is_decompressed_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log = open_log(MemoryFileSystem(), LogConfig(expires=True, retention_ms=-1))
    for _ in range(5):
        append(log, batch([10, None], compression=Compression.GZIP))
    log.segments.active.expiries.adopt(None)
    looked = 0

    def counted(header: BatchHeader, records: Buffer, limit: int) -> bytes:
        nonlocal looked
        looked += 1
        return records_of(header, records, limit)

    for module in ("headrace.core.log.reading.selective_read", "headrace.records.expiry"):
        monkeypatch.setattr(f"{module}.records_of", counted)
    assert everything(log, now_ms=NOW_MS + 20)[0] == [1, 3, 5, 7, 9]
    assert looked == 5


def test_the_effort_of_a_read_is_divided_among_the_remaining_logs() -> None:
    log = open_log(MemoryFileSystem(), FILTERED)
    for _ in range(50):
        append(log, batch([None], tags=["a"]))
    size = len(batch([None], tags=["a"]))
    ends: list[int] = []
    reading = SelectiveReading(NOW_MS, TagFilter.of(["b"]), effort=30 * size)
    for among, up_to in ((3, 4), (2, 50), (1, 50)):
        found = reading.select(
            log, 0, max_bytes=1 << 20, up_to=up_to, minimum_one=True, among=among
        )
        assert found is not None
        ends.append(found.end_offset)
    assert ends == [4, 13, 13]
    assert reading.effort == 0


def test_expiry_and_a_tag_filter_apply_together() -> None:
    log = open_log(MemoryFileSystem(), LogConfig(expires=True, filters=True))
    append(log, batch([5, None, 9, None], tags=["a", "a", "a", "b"]))
    assert everything(log, tags=["a"], now_ms=NOW_MS + 5)[0] == [1, 2]
    assert everything(log, tags=["a"], now_ms=NOW_MS + 9)[0] == [1]
    assert everything(log, tags=["b"], now_ms=NOW_MS + 9)[0] == [3]


def test_after_a_power_cut_only_synced_transactions_are_known() -> None:
    files = MemoryFileSystem()
    log = open_log(files, EXPIRING)
    append(log, batch([None] * 4000))  # which fills a block of the index
    size = log.size_bytes
    append(log, batch([5]))
    log._log_files.write_caches(log.segments.active)
    files.open(log.segments.active.path).truncate(size)
    again = open_log(files, LogConfig(retention_ms=-1), clean=False, recovery_point=4000)
    append(again, batch([None] * 20))
    again.config = EXPIRING
    assert everything(again, 4000, now_ms=NOW_MS + 5)[0] == list(range(4000, 4020))


def test_the_expiry_index_of_replaced_segments_is_removed() -> None:
    files = MemoryFileSystem()
    log = open_log(files, LogConfig(expires=True, retention_ms=-1, segment_bytes=200))
    for _ in range(3):
        append(log, batch([5, None]))
        log.roll(NOW_MS)
    log.close(NOW_MS)
    names = [name for name in files.list("events-0") if name.endswith(".ttlindex")]
    assert len(names) == 3
    swap = files.open("events-0/00000000000000000000.log.swap", create=True)
    for number in range(3):
        source = files.open(f"events-0/{2 * number:020d}.log")
        swap.append([source.read(0, source.size)])
    finish_replacements(files, "events-0")
    assert not [name for name in files.list("events-0") if name.endswith(".ttlindex")]


def test_a_time_to_live_begins_with_the_log_append_time() -> None:
    config = LogConfig(expires=True, message_timestamp_type=TimestampType.LOG_APPEND_TIME)
    log = open_log(MemoryFileSystem(), config)
    append(log, batch([50, None], timestamp=-1), now_ms=NOW_MS + 1000)
    assert everything(log, now_ms=NOW_MS + 1049)[0] == [0, 1]
    assert everything(log, now_ms=NOW_MS + 1050)[0] == [1]
    found = log.offset_for_timestamp(NOW_MS + 1000)
    assert found is not None
    assert found.offset == 0


def test_a_batch_that_cannot_be_decoded_is_sent_to_the_reader() -> None:
    log = open_log(MemoryFileSystem(), FILTERED)
    garbage = bytearray(batch([None], tags=["a"], compression=Compression.GZIP))
    garbage[-4:] = b"\0" * 4
    garbage[17:21] = batch_crc(garbage, 0, len(garbage)).to_bytes(4, "big")
    append(log, bytes(garbage))
    append(log, batch([None], tags=["b"]))
    assert read(log, tags=["c"]).records[21:].startswith(bytes(garbage[21:]))
    log.config = EXPIRING
    log.roll(NOW_MS)
    log.segments.all[0].expiries.cut(0)
    with pytest.raises(InvalidRecordError):
        append(log, bytes(garbage))
    assert read(log).end_offset == 2


@pytest.mark.parametrize("end_offset", [8, 100, 10_000_000])
def test_a_placeholder_has_its_record_at_the_last_offset_that_it_stands_for(
    end_offset: int,
) -> None:
    # sarama continues after the last record of a batch. With a record at the first offset it would need one fetch for
    # each offset.
    header, (record,) = read_batch(placeholder(7, end_offset, leader_epoch=3, now_ms=NOW_MS))
    assert (header.base_offset, header.next_offset) == (7, end_offset)
    assert record.offset == end_offset - 1
    assert record.timestamp == header.max_timestamp == NOW_MS


def test_blocks_that_have_expired_are_passed_over_unread() -> None:
    log = open_log(MemoryFileSystem(), LogConfig(expires=True, segment_bytes=5000))
    for _ in range(300):
        append(log, batch([5]))
    append(log, batch([None]))
    first = log.segments.active.base_offset
    # Enough for one batch: segments that have expired as a whole cost nothing.
    found = read(log, now_ms=NOW_MS + 5, effort=1)
    assert found is not None
    assert found.start_offset == first
