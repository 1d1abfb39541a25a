"""Reads that begin in an archive and end at the brokers have the same rows, wherever the records are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from headrace.errors import ConfigError
from headrace.spark.archive import history as histories
from headrace.spark.archive.compaction import compact, file_batches
from headrace.spark.archive.files import file_path
from headrace.spark.archive.history import History, HistoryClient, read_history
from headrace.spark.archive.table import create_table, open_table
from headrace.spark.options.history import HistoryOptions
from headrace.spark.options.positions import EARLIEST
from headrace.spark.options.source import SourceOptions, source_options
from headrace.spark.readers.batch import batch_ranges
from headrace.spark.readers.origin import pieces
from headrace.spark.source.offsets import DataLossError, OffsetRange
from headrace.spark.source.planner import StreamPlanner
from headrace.spark.source.schema import arrow_schema
from headrace.spark.source.tasks import ReadTask
from headrace.types import TopicPartition
from tests.unit.spark.archive.archive_harness import SCHEMA, ArchiveHarness

pytestmark = pytest.mark.slow  # not in `make check`

FLIGHTS = TopicPartition("flights", 0)


def options(harness: ArchiveHarness, **given: str) -> SourceOptions:
    return source_options(
        {
            "kafka.bootstrap.servers": "localhost:1",
            "subscribe": "flights",
            "archive": str(harness.root),
            "archiveFormat": harness.kind,
            **given,
        },
        streaming=None,
    )


def history(harness: ArchiveHarness) -> History:
    return History(HistoryOptions(str(harness.root), harness.kind))  # type: ignore[arg-type]  # one of the two


def archive(harness: ArchiveHarness) -> None:
    archiver = harness.archiver()
    while archiver.run_batch() is not None:
        pass


def batch_read(harness: ArchiveHarness, seen: History | None = None, **given: str) -> list[int]:
    """Return the offsets of a batch read in the order of its rows."""
    chosen, known = options(harness, **given), seen or history(harness)
    ranges = batch_ranges(HistoryClient(harness.cluster, known), chosen)
    batches = list(read_history(harness.cluster, known, ReadTask(ranges), chosen))
    assert all(batch.schema.equals(arrow_schema(chosen)) for batch in batches)
    return [offset for batch in batches for offset in batch.column("offset").to_pylist()]


@pytest.fixture(params=["delta", "iceberg"])
def harness(request: Any, tmp_path: Path) -> ArchiveHarness:
    harness = ArchiveHarness(tmp_path, request.param, max_offsets=5)
    harness.cluster.grow("flights", 0, 12)
    archive(harness)  # files of 5, 5 and 2
    harness.cluster.grow("flights", 0, 6)
    return harness


@pytest.fixture
def delta_harness(tmp_path: Path) -> ArchiveHarness:
    harness = ArchiveHarness(tmp_path, max_offsets=5)
    harness.cluster.grow("flights", 0, 12)
    archive(harness)
    harness.cluster.grow("flights", 0, 6)
    return harness


def keep_from(harness: ArchiveHarness, offset: int) -> None:
    """Remove older records at the brokers."""
    harness.cluster.logs[FLIGHTS] = (offset, harness.cluster.logs[FLIGHTS][1])


def test_a_read_from_earliest_does_not_fetch_archived_records(
    harness: ArchiveHarness,
) -> None:
    keep_from(harness, 9)
    assert batch_read(harness) == list(range(18))
    assert min(offset for _, offset in harness.cluster.fetches) == 12
    assert batch_read(harness, columns="offset,value") == list(range(18))
    assert batch_read(harness, includeHeaders="true") == list(range(18))


def test_rows_from_files_are_those_that_brokers_would_give(delta_harness: ArchiveHarness) -> None:
    harness = delta_harness
    chosen = options(harness, columns="value,offset,key")
    ranges = batch_ranges(HistoryClient(harness.cluster, history(harness)), chosen)
    rows = [
        row
        for batch in read_history(harness.cluster, history(harness), ReadTask(ranges), chosen)
        for row in batch.to_pylist()
    ]
    assert [row["value"] for row in rows] == [b"flights-0-%d" % offset for offset in range(18)]
    assert list(rows[0]) == ["value", "offset", "key"]


def test_values_from_files_are_decoded_as_those_from_brokers(delta_harness: ArchiveHarness) -> None:
    chosen = options(
        delta_harness,
        format="json",
        schema="carrier string",
        onError="null",
        columns="offset,value",
    )
    ranges = batch_ranges(HistoryClient(delta_harness.cluster, history(delta_harness)), chosen)
    task = ReadTask(ranges)
    found = list(read_history(delta_harness.cluster, history(delta_harness), task, chosen))
    assert all(batch.schema.equals(arrow_schema(chosen)) for batch in found)
    rows = [row for batch in found for row in batch.to_pylist()]
    assert [row["offset"] for row in rows] == list(range(18))
    assert all(row["value"] is None and row["_error"] for row in rows)  # none is JSON


def test_a_batch_read_is_cut_where_files_end(
    delta_harness: ArchiveHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.spark.archive.history.PIECE_OFFSETS", 5)
    client = HistoryClient(delta_harness.cluster, history(delta_harness))
    ranges = batch_ranges(client, options(delta_harness))
    spans = [(piece.start, piece.end) for piece in client.cut(ranges)]
    assert spans == [(0, 5), (5, 10), (10, 18)]  # the file from 10 to 12 is not worth a task
    assert client.cut([OffsetRange(FLIGHTS, 7, 10)]) == [OffsetRange(FLIGHTS, 7, 10)]


@pytest.mark.parametrize(("start", "end"), [(3, 7), (5, 10), (11, 14), (0, 1), (12, 18)])
def test_ranges_that_begin_and_end_anywhere(
    delta_harness: ArchiveHarness, start: int, end: int
) -> None:
    keep_from(delta_harness, 12)
    assert batch_read(
        delta_harness,
        startingOffsets=f'{{"flights": {{"0": {start}}}}}',
        endingOffsets=f'{{"flights": {{"0": {end}}}}}',
    ) == list(range(start, end))


def test_a_stream_begins_in_the_archive_too(delta_harness: ArchiveHarness) -> None:
    keep_from(delta_harness, 12)
    chosen = options(delta_harness, startingOffsets="earliest", maxOffsetsPerTrigger="8")
    planner = StreamPlanner(HistoryClient(delta_harness.cluster, history(delta_harness)), chosen)
    place, found = planner.initial(), []
    for _ in range(3):
        end = planner.latest(place)
        for task in planner.tasks(place, end):
            for batch in read_history(delta_harness.cluster, history(delta_harness), task, chosen):
                found += batch.column("offset").to_pylist()
        place = end
    assert sorted(found) == list(range(18))


def test_a_compaction_between_planning_and_reading_does_not_change_the_rows(
    harness: ArchiveHarness,
) -> None:
    keep_from(harness, 12)
    known = history(harness)
    table = open_table(harness.kind, harness.root)
    before = [file.path for file in table.snapshot().files]
    (done,) = compact(table, 1 << 20)
    assert (done.removed, done.added) == (3, 1)
    assert batch_read(harness, known) == list(range(18))  # replaced files are still there
    for path in before:
        (harness.root / path).unlink()
    assert batch_read(harness, known) == list(range(18))


def test_files_that_are_deleted_under_a_reader_are_looked_up_again(
    delta_harness: ArchiveHarness,
) -> None:
    keep_from(delta_harness, 12)
    stale = history(delta_harness)
    chosen = options(delta_harness)
    ranges = batch_ranges(HistoryClient(delta_harness.cluster, stale), chosen)
    rows = read_history(delta_harness.cluster, stale, ReadTask(ranges), chosen)
    first = next(rows).column("offset").to_pylist()
    table = open_table("delta", delta_harness.root)
    old = table.snapshot().files
    list(compact(table, 1 << 20))
    for file in old[1:]:
        (delta_harness.root / file.path).unlink()
    rest = [offset for batch in rows for offset in batch.column("offset").to_pylist()]
    assert [*first, *rest] == list(range(18))


def test_a_gap_between_archive_and_brokers_is_lost_data(delta_harness: ArchiveHarness) -> None:
    keep_from(delta_harness, 15)
    with pytest.raises(DataLossError, match="offsets 12 to 14 of flights-0 were removed"):
        batch_read(delta_harness)
    client = HistoryClient(delta_harness.cluster, history(delta_harness))
    chosen = options(delta_harness)
    with pytest.raises(DataLossError, match=r"offsets 12 to 14 .* the archive .* does not have"):
        pieces(client, batch_ranges(client, chosen), chosen)  # before a job starts
    lenient = options(delta_harness, failOnDataLoss="false")
    assert len(pieces(client, batch_ranges(client, lenient), lenient)) == 1
    assert batch_read(delta_harness, failOnDataLoss="false") == [*range(12), 15, 16, 17]
    # A gap before the read's start is no error.
    assert batch_read(delta_harness, startingOffsets='{"flights": {"0": 15}}') == [15, 16, 17]


def test_an_archive_gap_is_read_from_brokers_or_fails_the_read(
    delta_harness: ArchiveHarness,
) -> None:
    table = open_table("delta", delta_harness.root)
    middle = table.snapshot().files[1]
    table.replace([middle], [])
    assert batch_read(delta_harness) == list(range(18))
    keep_from(delta_harness, 12)
    with pytest.raises(DataLossError, match="offsets 5 to 9"):
        batch_read(delta_harness)


def test_a_recreated_topic_is_read_without_the_old_records(
    delta_harness: ArchiveHarness,
) -> None:
    delta_harness.cluster.logs[FLIGHTS] = (0, 4)
    delta_harness.cluster.ids["flights"] = "another-id"
    assert batch_read(delta_harness) == [0, 1, 2, 3]


def test_the_archive_is_searched_by_time(delta_harness: ArchiveHarness) -> None:
    keep_from(delta_harness, 14)
    client = HistoryClient(delta_harness.cluster, history(delta_harness))
    archived_ms = 1_700_000_000_000  # in the archive a record's time is this and its offset
    assert client.offsets_at({FLIGHTS: archived_ms + 7}) == {FLIGHTS: 7}
    assert client.offsets_at({FLIGHTS: archived_ms + 12}) == {FLIGHTS: -1}  # the brokers' answer
    assert client.offsets([FLIGHTS], EARLIEST) == {FLIGHTS: 0}


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_a_time_is_looked_up_in_one_file(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness = ArchiveHarness(tmp_path, kind)
    for _ in range(4):
        harness.cluster.grow("flights", 0, 5)
        harness.archiver().run_batch()
    opened: list[str] = []

    def noted(root: Any, path: str, *rest: Any) -> Any:
        opened.append(path)
        return file_batches(root, path, *rest)

    monkeypatch.setattr(histories, "file_batches", noted)
    client = HistoryClient(harness.cluster, history(harness))

    assert client.offsets_at({FLIGHTS: 1_700_000_000_012}) == {FLIGHTS: 12}
    assert len(opened) == 1
    client.offsets_at({FLIGHTS: 1_700_000_000_020})
    assert len(opened) == 1


def test_a_time_is_found_although_its_file_was_replaced_and_deleted(
    delta_harness: ArchiveHarness,
) -> None:
    client = HistoryClient(delta_harness.cluster, history(delta_harness))
    table = open_table("delta", delta_harness.root)
    old = table.snapshot().files
    list(compact(table, 1 << 20))
    for file in old:
        (delta_harness.root / file.path).unlink()
    assert client.offsets_at({FLIGHTS: 1_700_000_000_007}) == {FLIGHTS: 7}


def test_archives_that_cannot_be_history_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no archive of format delta"):
        History(HistoryOptions(str(tmp_path / "none")))
    create_table("delta", tmp_path / "decoded", None, SCHEMA.remove(1))
    with pytest.raises(ConfigError, match="has decoded values"):
        History(HistoryOptions(str(tmp_path / "decoded")))


def test_tables_that_another_program_rewrites_are_refused(delta_harness: ArchiveHarness) -> None:
    from deltalake import DeltaTable

    DeltaTable(str(delta_harness.root)).optimize.compact()
    with pytest.raises(ConfigError, match="files of another program"):
        history(delta_harness)


def test_paths_sort_by_offset() -> None:
    from headrace.spark.archive.files import ArchivedPartition, parse_path

    source = ArchivedPartition("_flights.of-2013", "", 3)
    path = file_path(source, 7, 1_000_000_000_000)
    file = parse_path(path, 1, 2)
    assert file is not None
    assert (file.source, file.start, file.end) == (source, 7, 1_000_000_000_000)
    assert not any(part.startswith(("_", ".")) for part in path.split("/"))  # readers skip those
    assert parse_path("part-0001.parquet", 1, 2) is None


def test_a_file_deleted_during_a_read_is_continued_after_the_last_row(
    delta_harness: ArchiveHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An object store has no open files: a read of a deleted object fails in the middle."""
    keep_from(delta_harness, 12)
    known = history(delta_harness)
    failed: list[str] = []

    def cut_off(root: Any, path: str, *rest: Any) -> Any:
        for number, batch in enumerate(file_batches(root, path, *rest)):
            if number == 0 and not failed:
                yield batch.slice(0, 2)
                failed.append(path)
                list(compact(open_table("delta", delta_harness.root), 1 << 20))
                (delta_harness.root / path).unlink()
                raise OSError("the object is gone")
            yield batch

    monkeypatch.setattr(histories, "file_batches", cut_off)
    assert batch_read(delta_harness, known) == list(range(18))
    assert failed


@pytest.mark.parametrize("fail_on_data_loss", ["true", "false"])
def test_records_archived_since_the_last_refresh_are_found(
    delta_harness: ArchiveHarness, fail_on_data_loss: str
) -> None:
    known = history(delta_harness)  # has offsets up to 11
    chosen = options(delta_harness, failOnDataLoss=fail_on_data_loss)
    ranges = batch_ranges(HistoryClient(delta_harness.cluster, known), chosen)
    archive(delta_harness)
    keep_from(delta_harness, 17)
    batches = read_history(delta_harness.cluster, known, ReadTask(ranges), chosen)
    found = [offset for batch in batches for offset in batch.column("offset").to_pylist()]
    assert found == list(range(18))
