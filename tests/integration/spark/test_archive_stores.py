"""Tables in an S3 server, with and without conditional writes."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyiceberg.catalog.sql import SqlCatalog

from headrace.errors import ConfigError, HeadraceError
from headrace.spark.archive import delta, orphans
from headrace.spark.archive.addresses import open_location
from headrace.spark.archive.batches import Archiver
from headrace.spark.archive.compaction import compact
from headrace.spark.archive.files import ArchivedPartition
from headrace.spark.archive.history import History, HistoryClient, read_history
from headrace.spark.archive.table import create_table, find_table
from headrace.spark.archive.table_format import ConflictError
from headrace.spark.archive.table_location import TableLocation
from headrace.spark.options.selection import TopicSelection
from headrace.spark.options.source import source_options
from headrace.spark.readers.batch import batch_ranges
from headrace.spark.source.tasks import ReadTask
from headrace.types import TopicPartition
from tests.fixtures.s3_server import ENVIRONMENT, new_bucket, s3_server
from tests.unit.spark.archive.archive_harness import SCHEMA, ArchiveHarness

KINDS = ["delta", "iceberg"]
FLIGHTS = TopicPartition("flights", 0)


@pytest.fixture(scope="module")
def store_url() -> Iterator[str]:
    with s3_server() as url:
        yield url


@pytest.fixture
def store(store_url: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """Yield the address of a bucket. The environment has its endpoint and credentials."""
    for name, value in {**ENVIRONMENT, "AWS_ENDPOINT_URL": store_url}.items():
        monkeypatch.setenv(name, value)
    return f"s3://{new_bucket(store_url)}"


class StoreArchiveHarness(ArchiveHarness):
    """The harness of an archive with a table in an object store."""

    def __init__(self, tmp_path: Path, address: str, kind: str, **limits: Any) -> None:
        super().__init__(tmp_path, kind, **limits)
        self.address = f"{address}/lake/flights"
        self.catalog = f"sqlite:///{tmp_path / 'catalog.db'}" if kind == "iceberg" else None

    @property
    def place(self) -> TableLocation:
        return open_location(self.address)

    def archiver(self, *topics: str, **settings: Any) -> Archiver:
        return Archiver(
            self.cluster,
            create_table(self.kind, self.place, None, SCHEMA, self.catalog),
            TopicSelection(topics=topics or ("flights",)),
            self.execute,
            self.told.update,
            self.limits,
            **settings,
        )

    def table(self) -> Any:
        return find_table(self.address, self.catalog)


def read_history_of(harness: StoreArchiveHarness) -> list[int]:
    given = {
        "kafka.bootstrap.servers": "localhost:1",
        "subscribe": "flights",
        "archive": harness.address,
        "archiveFormat": harness.kind,
    }
    if harness.catalog is not None:
        given["archiveCatalog"] = harness.catalog
    chosen = source_options(given, streaming=None)
    assert chosen.history is not None
    history = History(chosen.history)
    ranges = batch_ranges(HistoryClient(harness.cluster, history), chosen)
    batches = read_history(harness.cluster, history, ReadTask(ranges), chosen)
    return [offset for batch in batches for offset in batch.column("offset").to_pylist()]


@pytest.mark.parametrize("kind", KINDS)
def test_a_table_in_a_store_is_written_read_compacted_and_cleaned(
    kind: str, store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness = StoreArchiveHarness(tmp_path, store, kind)
    for _ in range(3):
        harness.cluster.grow("flights", 0, 6)
        assert harness.archiver().run_batch() is not None
    assert harness.archived() == harness.expected()
    harness.cluster.grow("flights", 0, 2)
    harness.cluster.logs[FLIGHTS] = (18, 20)
    assert read_history_of(harness) == list(range(20))

    (orphan,) = harness.write(ArchivedPartition("flights", "id-flights", 0), 18, 20)
    assert [done.removed for done in compact(harness.table(), 1 << 20)] == [3]
    assert harness.table().delete_orphans(3_600_000, dry_run=False) == []
    assert read_history_of(harness) == list(range(20))
    monkeypatch.setattr(orphans, "LEAST_AGE_MS", 0)
    monkeypatch.setattr("headrace.spark.archive.delta.LEAST_AGE_MS", 0)
    deleted = harness.table().delete_orphans(0, dry_run=False)
    assert orphan.file.path in deleted
    assert len([path for path in deleted if path.endswith(".parquet")]) == 4
    assert read_history_of(harness) == list(range(20))
    if kind == "delta":
        known = DeltaTable(
            harness.place.uri, storage_options=dict(harness.place.delta_options or {})
        )
        assert len(known.file_uris()) == 1
    else:
        catalog = SqlCatalog("headrace", uri=harness.catalog, **harness.place.iceberg_options)
        assert catalog.load_table("headrace.flights").scan().to_arrow().num_rows == 18


@pytest.mark.parametrize("kind", KINDS)
def test_the_second_archiver_of_a_table_is_refused(kind: str, store: str, tmp_path: Path) -> None:
    harness = StoreArchiveHarness(tmp_path, store, kind)
    harness.cluster.grow("flights", 0, 12)
    harness.archiver().run_batch()
    harness.cluster.grow("flights", 0, 12)
    ready, outcomes = threading.Barrier(2), []

    def run() -> None:
        archiver = harness.archiver()
        append = archiver.table.append

        def together(commit: Any) -> None:
            ready.wait(30)
            append(commit)

        archiver.table.append = together  # type: ignore[method-assign]  # of this archiver alone
        try:
            archiver.run_batch()
            outcomes.append("done")
        except ConflictError:
            outcomes.append("refused")

    threads = [threading.Thread(target=run) for _ in range(2)]
    for each in threads:
        each.start()
    for each in threads:
        each.join(60)
    assert sorted(outcomes) == ["done", "refused"]
    assert harness.archived() == harness.expected()


def test_a_store_without_conditional_writes_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delta, "_PROBE_ROUNDS", 12)  # each may miss what it looks for
    with s3_server("careless") as url:
        for name, value in {**ENVIRONMENT, "AWS_ENDPOINT_URL": url}.items():
            monkeypatch.setenv(name, value)
        harness = StoreArchiveHarness(tmp_path, f"s3://{new_bucket(url)}", "delta")
        with pytest.raises(ConfigError, match=r"If-None-Match.*conditional writes"):
            harness.archiver()
        assert not harness.place.occupied()  # not even of the trial
        StoreArchiveHarness(
            tmp_path, f"s3://{new_bucket(url)}", "iceberg"
        ).archiver()  # its catalog decides


def test_errors_name_the_missing_bucket_table_or_catalog(
    store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigError, match=r"no bucket nowhere.*AWS_ENDPOINT_URL, AWS_REGION"):
        open_location("s3://nowhere/table")
    with pytest.raises(ConfigError, match="names no table: s3://BUCKET/TABLE"):
        open_location(store)
    with pytest.raises(ConfigError, match=r"no archive in s3://.*name its catalog"):
        find_table(f"{store}/table")
    with pytest.raises(ConfigError, match=r"needs a catalog.*HEADRACE_ARCHIVE_CATALOG"):
        create_table("iceberg", f"{store}/table", None, SCHEMA)
    with pytest.raises(ConfigError, match="unknown zone"):
        open_location(f"{store}/table?zone=1")
    with pytest.raises(ConfigError, match="cannot be opened"):
        create_table("iceberg", f"{store}/table", None, SCHEMA, "sqlite:////no/such/catalog.db")
    monkeypatch.setenv("AWS_S3_ALLOW_UNSAFE_RENAME", "true")
    with pytest.raises(ConfigError, match=r"AWS_S3_ALLOW_UNSAFE_RENAME is set.*Unset it"):
        open_location(f"{store}/table")
    monkeypatch.delenv("AWS_S3_ALLOW_UNSAFE_RENAME")
    known = open_location(f"{store}/table")
    create_table("delta", known, None, SCHEMA)
    monkeypatch.delenv("AWS_ENDPOINT_URL")
    monkeypatch.delenv("AWS_REGION")
    assert find_table(str(known)).root.uri == known.uri  # tasks get all of it


def test_two_tables_of_one_name_in_one_catalog_are_distinguished(
    store: str, tmp_path: Path
) -> None:
    catalog = f"sqlite:///{tmp_path / 'catalog.db'}"
    create_table("iceberg", f"{store}/a/flights", None, SCHEMA, catalog)
    with pytest.raises(ConfigError, match=r"headrace\.flights is in s3://.*/a/flights, not in"):
        create_table("iceberg", f"{store}/b/flights", None, SCHEMA, catalog)
    create_table("iceberg", f"{store}/b/delays", None, SCHEMA, catalog)


def test_an_unavailable_store_is_a_retriable_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    with s3_server() as url:
        for name, value in {**ENVIRONMENT, "AWS_ENDPOINT_URL": url}.items():
            monkeypatch.setenv(name, value)
        harness = StoreArchiveHarness(tmp_path, f"s3://{new_bucket(url)}", "iceberg")
        harness.cluster.grow("flights", 0, 3)
        archiver = harness.archiver()
    with pytest.raises(HeadraceError) as raised:
        archiver.run_batch()
    assert not isinstance(raised.value, (ConfigError, ConflictError))


KILLS = {"delta": [(1, 0.02), (2, 0.1)], "iceberg": [(2, 0.05)]}
"""The moments of the kills: after a number of batches, and seconds."""
ARCHIVE_AND_COMPACT = """
import sys
from pathlib import Path
from headrace.spark.archive.compaction import compact
from tests.integration.spark.test_archive_stores import StoreArchiveHarness

harness = StoreArchiveHarness(Path(sys.argv[1]), sys.argv[2], sys.argv[3], max_offsets=4)
harness.cluster.grow("flights", 0, 16)
archiver = harness.archiver()
while result := archiver.run_batch():
    print(result.batch, flush=True)
    if result.batch % 2 == 0:
        list(compact(harness.table(), 1 << 20))
"""


@pytest.mark.parametrize("kind", KINDS)
def test_a_killed_archive_in_a_store_has_each_record_once(
    kind: str, store: str, tmp_path: Path
) -> None:
    harness = StoreArchiveHarness(tmp_path, store, kind, max_offsets=4)
    harness.cluster.grow("flights", 0, 16)
    command = [sys.executable, "-c", ARCHIVE_AND_COMPACT, str(tmp_path), store, kind]
    for batches, more_s in KILLS[kind]:
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            seen = [process.stdout.readline() for _ in range(batches)]
            with suppress(subprocess.TimeoutExpired):
                process.wait(more_s)  # so that it is wherever it is
            process.kill()
        assert all(seen)
        found = harness.archived()
        assert found == harness.expected()[: len(found)]
    archiver = harness.archiver()
    while archiver.run_batch() is not None:
        continue
    list(compact(harness.table(), 1 << 20))
    assert harness.archived() == harness.expected()
    assert read_history_of(harness) == list(range(16))
