"""Files of a table: sizes, order and layout; compaction; orphans; concurrent writers."""

from __future__ import annotations

import os
import sqlite3
import time
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from sqlalchemy.exc import OperationalError

from headrace.errors import HeadraceError
from headrace.spark.archive import delta, iceberg
from headrace.spark.archive.addresses import open_location
from headrace.spark.archive.compaction import compact, file_batches, plan_compaction
from headrace.spark.archive.files import ArchivedFile, ArchivedPartition, WrittenFile, file_path
from headrace.spark.archive.table import open_table
from headrace.spark.archive.table_format import ArchiveTable, ConflictError
from headrace.spark.archive.writing import FileTarget, write_range
from tests.unit.spark.archive.archive_harness import SCHEMA, ArchiveHarness, rows

pytestmark = pytest.mark.slow  # not in `make check`

SOURCE = ArchivedPartition("flights", "id", 0)
KINDS = ["delta", "iceberg"]
DESCRIPTORS = Path("/proc/self/fd")


def archived(tmp_path: Path, kind: str, batches: int = 2) -> ArchiveHarness:
    harness = ArchiveHarness(tmp_path, kind)
    for _ in range(batches):
        harness.cluster.grow("flights", 0, 3)
        harness.cluster.grow("flights", 1, 2)
        harness.archiver().run_batch()
    return harness


def written(path: Path, **target: Any) -> list[WrittenFile]:
    batches = [rows(SOURCE, list(range(first, first + 50))) for first in range(0, 1000, 50)]
    return list(
        write_range(FileTarget(open_location(path), SCHEMA, **target), SOURCE, 0, 1005, batches)
    )


def test_files_reach_their_size_and_cover_the_range_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.spark.archive.writing.ROW_GROUP_ROWS", 100)
    (whole,) = written(tmp_path / "one")
    parts = written(tmp_path / "many", file_bytes=whole.file.size // 4)
    assert len(parts) > 1
    ends = [0, *(part.file.end for part in parts)]
    assert [part.file.start for part in parts] == ends[:-1]
    assert ends[-1] == 1005
    assert sum(part.file.records for part in parts) == whole.file.records == 1000
    assert (whole.first_offset, whole.last_offset) == (0, 999)
    assert whole.min_timestamp_ms == 1_700_000_000_000
    assert whole.max_timestamp_ms == 1_700_000_000_999
    assert WrittenFile.from_json(whole.to_json()) == whole


def test_a_file_is_zstd_with_statistics_by_which_row_groups_are_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.spark.archive.writing.ROW_GROUP_ROWS", 100)
    (whole,) = written(tmp_path)
    path = tmp_path / whole.file.path
    metadata = pq.read_metadata(path)
    assert metadata.num_row_groups == 10
    assert metadata.row_group(0).column(1).compression == "ZSTD"
    read: list[int] = []
    original = pq.ParquetFile.iter_batches

    def noted(self: Any, *arguments: Any, **given: Any) -> Any:
        read.extend(given["row_groups"])
        return original(self, *arguments, **given)

    monkeypatch.setattr(pq.ParquetFile, "iter_batches", noted)
    list(file_batches(open_location(tmp_path), whole.file.path, ["offset"], 250, 300))
    assert read == [2]


def test_groups_to_compact_are_neighbours_that_fit_together() -> None:
    def file(start: int, end: int, size: int, source: ArchivedPartition = SOURCE) -> ArchivedFile:
        return ArchivedFile(source, start, end, file_path(source, start, end), size, end - start)

    other = ArchivedPartition("flights", "id", 1)
    small = [file(0, 5, 10), file(5, 9, 10), file(9, 20, 95), file(20, 21, 10), file(21, 30, 10)]
    gap = [file(40, 50, 10), file(50, 60, 10)]
    lonely = [file(30, 35, 10, other)]
    groups = plan_compaction([*gap, *lonely, *reversed(small)], 100)
    assert [[each.start for each in group] for group in groups] == [[0, 5], [20, 21], [40, 50]]


@pytest.mark.parametrize("kind", KINDS)
def test_compaction_keeps_rows_order_and_statistics(kind: str, tmp_path: Path) -> None:
    harness = archived(tmp_path, kind)
    table = open_table(kind, harness.root)
    assert len(table.snapshot().files) == 4
    before = harness.archived()
    assert [done.removed for done in compact(table, 1 << 20)] == [2, 2]
    assert harness.archived() == before == harness.expected()
    files = table.snapshot().files
    assert [(file.start, file.end, file.records) for file in files] == [(0, 6, 6), (0, 4, 4)]
    assert list(compact(table, 1 << 20)) == []
    harness.cluster.grow("flights", 1, 2)
    result = harness.archiver().run_batch()
    assert result is not None
    assert (result.batch, result.records) == (3, 2)
    assert harness.archived() == harness.expected()


@pytest.mark.parametrize("kind", KINDS)
def test_a_concurrent_compaction_is_refused_and_leaves_no_file(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness = archived(tmp_path, kind)
    table, other = open_table(kind, harness.root), open_table(kind, harness.root)
    replace = table.replace

    def overtaken(*arguments: Any) -> None:
        list(compact(other, 1 << 20))
        replace(*arguments)

    monkeypatch.setattr(table, "replace", overtaken)
    with pytest.raises(ConflictError, match="replaced by another process"):
        list(compact(table, 1 << 20))
    assert harness.archived() == harness.expected()
    on_disk = {
        path.relative_to(harness.root).as_posix() for path in harness.root.rglob("*.parquet")
    }
    assert len(on_disk) == 6  # two and two from batches, one for each partition from `other`


@pytest.mark.parametrize("kind", KINDS)
def test_a_commit_whose_answer_is_lost_is_found_in_the_table(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness = archived(tmp_path, kind)
    commit, commit_table = delta._commit, SqlCatalog.commit_table

    def unheard(*arguments: Any) -> bool:
        commit(*arguments)
        return False

    def unheard_by_catalog(*arguments: Any) -> None:
        commit_table(*arguments)
        raise locked()

    monkeypatch.setattr(delta, "_commit", unheard)
    monkeypatch.setattr(SqlCatalog, "commit_table", unheard_by_catalog)
    table = open_table(kind, harness.root)
    assert [done.removed for done in compact(table, 1 << 20)] == [2, 2]
    harness.cluster.grow("flights", 0, 2)
    assert harness.archiver().run_batch() is not None
    assert harness.archived() == harness.expected()


@pytest.mark.parametrize("kind", KINDS)
def test_a_batch_and_a_concurrent_compaction_are_both_committed(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness = archived(tmp_path, kind)
    table = open_table(kind, harness.root)
    replace = table.replace

    def meanwhile(*arguments: Any) -> None:
        harness.cluster.grow("flights", 0, 2)
        harness.archiver().run_batch()
        replace(*arguments)

    monkeypatch.setattr(table, "replace", meanwhile)
    list(compact(table, 1 << 20))
    assert harness.archived() == harness.expected()

    archiver = harness.archiver()
    append = archiver.table.append

    def after_compaction(commit: Any) -> None:
        list(compact(open_table(kind, harness.root), 1 << 20))
        append(commit)

    harness.cluster.grow("flights", 1, 2)
    monkeypatch.setattr(archiver.table, "append", after_compaction)
    archiver.run_batch()
    assert harness.archived() == harness.expected()


def make_old(table: ArchiveTable, hours: float) -> None:
    moment = time.time() - hours * 3600
    for path in (table.root / "data").rglob("*"):
        os.utime(path, (moment, moment))


@pytest.mark.parametrize("kind", KINDS)
def test_only_old_orphan_files_are_deleted(kind: str, tmp_path: Path) -> None:
    harness = archived(tmp_path, kind)
    table = open_table(kind, harness.root)
    (orphan,) = harness.write(
        ArchivedPartition("flights", "id-flights", 0), 6, 9
    )  # a task's, never committed
    partial = (harness.root / orphan.file.path).parent / ".partial-0123"
    partial.write_bytes(b"PAR1")
    make_old(table, 3)
    (young,) = harness.write(ArchivedPartition("flights", "id-flights", 0), 6, 9)
    found = [orphan.file.path, partial.relative_to(harness.root).as_posix()]
    assert sorted(table.delete_orphans(2 * 3_600_000, dry_run=True)) == sorted(found)
    assert partial.exists()
    assert sorted(table.delete_orphans(2 * 3_600_000, dry_run=False)) == sorted(found)
    assert not partial.exists()
    assert not (harness.root / orphan.file.path).exists()
    assert (harness.root / young.file.path).exists()
    assert harness.archived() == harness.expected()


@pytest.mark.parametrize("kind", KINDS)
def test_files_committed_during_a_search_for_orphans_are_kept(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness = archived(tmp_path, kind)
    table: Any = open_table(kind, harness.root)
    load = table._load

    def overtaken() -> Any:
        found = load()
        harness.cluster.grow("flights", 0, 3)
        harness.archiver().run_batch()
        return found

    monkeypatch.setattr(table, "_load", overtaken)
    table.delete_orphans(0, dry_run=False)
    assert harness.archived() == harness.expected()


@pytest.mark.parametrize("kind", KINDS)
def test_files_replaced_by_compaction_are_deleted_only_after_the_minimum_age(
    kind: str, tmp_path: Path
) -> None:
    harness = archived(tmp_path, kind)
    table = open_table(kind, harness.root)
    make_old(table, 30)  # written long ago, replaced just now
    list(compact(table, 1 << 20))
    assert table.delete_orphans(3_600_000, dry_run=False) == []
    deleted = table.delete_orphans(0, dry_run=False)
    assert len([path for path in deleted if path.endswith(".parquet")]) == 4
    assert all(path.endswith((".parquet", ".avro")) for path in deleted)  # Iceberg's lists of files
    assert harness.archived() == harness.expected()
    harness.cluster.grow("flights", 0, 1)
    harness.archiver().run_batch()
    assert harness.archived() == harness.expected()


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_that_is_deleted_before_its_commit_is_an_error_and_the_batch_is_written_again(
    kind: str, tmp_path: Path
) -> None:
    harness = archived(tmp_path, kind, batches=1)
    harness.cluster.grow("flights", 0, 3)
    archiver = harness.archiver()
    execute = archiver.execute

    def deleted(*arguments: Any) -> list[WrittenFile]:
        files = list(execute(*arguments))
        (harness.root / files[0].file.path).unlink()
        return files

    archiver.execute = deleted
    with pytest.raises(HeadraceError, match=r"deleted before it was committed.*clean"):
        archiver.run_batch()
    harness.archiver().run_batch()
    assert harness.archived() == harness.expected()


@pytest.mark.skipif(not DESCRIPTORS.exists(), reason="the system does not list open files")
@pytest.mark.parametrize("kind", KINDS)
def test_a_commit_is_durable_when_it_returns(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness = archived(tmp_path, kind, batches=1)
    known = {path for path in harness.root.rglob("*") if path.is_file()}
    synced: set[Path] = set()
    fsync = os.fsync

    def noted(descriptor: int) -> None:
        fsync(descriptor)
        # A new file is synced through its descriptor, under its temporary name.
        synced.add((DESCRIPTORS / str(descriptor)).resolve())

    monkeypatch.setattr(os, "fsync", noted)
    harness.cluster.grow("flights", 0, 1)
    harness.archiver().run_batch()
    new = {path for path in harness.root.rglob("*") if path.is_file()} - known
    assert {path for path in new if path.suffix != ".parquet"} <= synced
    assert {path.parent for path in new} <= synced
    assert any(path.name.startswith(".partial-") for path in synced)


def locked() -> OperationalError:
    return OperationalError("BEGIN", None, sqlite3.OperationalError("database is locked"))


def test_a_locked_catalog_is_called_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    harness = archived(tmp_path, "iceberg", batches=1)
    harness.cluster.grow("flights", 0, 1)
    archiver = harness.archiver()
    for name in ("load_table", "commit_table"):
        original = getattr(SqlCatalog, name)
        failures = [locked(), locked()]

        def call(
            self: Any, *arguments: Any, original: Any = original, failures: Any = failures
        ) -> Any:
            if failures:
                raise failures.pop()
            return original(self, *arguments)

        monkeypatch.setattr(SqlCatalog, name, call)

    assert archiver.run_batch() is not None

    assert harness.archived() == harness.expected()


def test_a_catalog_that_stays_locked_is_a_retriable_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness = archived(tmp_path, "iceberg", batches=1)
    table = open_table("iceberg", harness.root)
    monkeypatch.setattr(iceberg, "_pause", lambda _: None)

    def never(*_: Any) -> Any:
        raise locked()

    monkeypatch.setattr(SqlCatalog, "load_table", never)

    with pytest.raises(HeadraceError, match="keeps the catalog of the archive locked: database"):
        table.snapshot()
