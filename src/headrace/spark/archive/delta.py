"""An archive as a Delta Lake table, through the `deltalake` library; no Spark and no JVM is involved.

Batch and positions are transaction identifiers of the Delta protocol: application `NAME` has the batch's number as
its version, application `NAME/TOPIC/TOPIC ID/PARTITION` the next offset. They belong to the table's state, so they
survive checkpoints and the cleaning of the log, and two writers of the same one conflict.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.transaction import AddAction, RemoveAction

from headrace.errors import ConfigError, HeadraceError
from headrace.spark.archive.files import ArchivedFile, Source, WrittenFile, parse_path
from headrace.spark.archive.orphans import LEAST_AGE_MS, delete_partial
from headrace.spark.archive.table import BatchCommit, ConflictError, Snapshot, file_gone
from headrace.spark.archive.writing import sync_files

PROPERTY: Final = "headrace.archive"
_ATTEMPTS: Final = 20
_COMPACTION: Final = "compaction"
_MAX_MS: Final = 253_402_300_799_999
"""The end of the year 9999: no later time has a text in the log."""


class DeltaArchive:
    """See `ArchiveTable`."""

    kind = "delta"

    def __init__(self, root: Path) -> None:
        self.root = root

    @classmethod
    def exists(cls, root: Path) -> bool:
        """Whether there is a Delta table, of an archive or not."""
        return bool(DeltaTable.is_deltatable(str(root)))

    @classmethod
    def create(cls, root: Path, name: str, schema: Any) -> None:
        """Make an empty table; one that somebody else makes at the same time is as good."""
        DeltaTable.create(
            str(root),
            schema=schema,
            mode="ignore",
            name=name,
            configuration={PROPERTY: name},
            raise_if_key_not_exists=False,
        )

    @classmethod
    def open(cls, root: Path) -> DeltaArchive:
        """Open an archive.

        Raises:
            ConfigError: There is none.
        """
        table = cls(root)
        table._load()
        return table

    def _load(self) -> Any:
        try:
            table = DeltaTable(str(self.root))
        except TableNotFoundError:
            raise ConfigError(f"there is no archive of format delta in {self.root}") from None
        if PROPERTY not in table.metadata().configuration:
            raise ConfigError(f"the Delta table in {self.root} is none of `headrace archive`")
        if "deletionVectors" in (table.protocol().reader_features or ()):
            raise ConfigError(
                f"another program has given {self.root} deletion vectors, which an archive cannot have"
            )
        return table

    def snapshot(self, candidates: Collection[Source] = ()) -> Snapshot:
        """See `ArchiveTable`."""
        return _snapshot(self._load(), candidates)

    def schema(self) -> Any:
        """See `ArchiveTable`."""
        return pa.schema(self._load().schema().to_arrow())

    def append(self, commit: BatchCommit) -> None:
        """See `ArchiveTable`."""
        paths = {written.file.path for written in commit.files}
        for attempt in range(_ATTEMPTS):
            table = self._load()
            snapshot = _snapshot(table)
            if snapshot.batch >= commit.batch:
                if paths <= {file.path for file in snapshot.files}:
                    return
                raise ConflictError(
                    f"batch {commit.batch} of the archive {snapshot.name} is in the table already: "
                    "is another archiver at work?"
                )
            versions = {snapshot.name: commit.batch}
            versions |= {_app(snapshot.name, each): end for each, end in commit.positions.items()}
            summary = {
                "batch": commit.batch,
                "positions": {_app("", each): end for each, end in commit.positions.items()},
            }
            actions = [_add(self.root, each) for each in commit.files]
            if _commit(self.root, table, actions, versions, summary):
                return
            _pause(attempt)
        raise ConflictError(f"{self.root}: no commit in {_ATTEMPTS} attempts, others were faster")

    def replace(self, removed: Sequence[ArchivedFile], added: Sequence[WrittenFile]) -> None:
        """See `ArchiveTable`."""
        now_ms = int(time.time() * 1000)
        actions: list[Any] = [
            RemoveAction(
                path=file.path,
                data_change=False,
                deletion_timestamp=now_ms,
                size=file.size,
                partition_values={},
            )
            for file in removed
        ]
        actions += [_add(self.root, each, data_change=False) for each in added]
        for attempt in range(_ATTEMPTS):
            table = self._load()
            # The library does not refuse to remove what is not there; this very state is what the commit builds on.
            there = {file.path for file in _snapshot(table).files}
            if added and {each.file.path for each in added} <= there:
                return  # an attempt whose answer was lost
            gone = {file.path for file in removed} - there
            if gone:
                raise ConflictError(f"{len(gone)} files were replaced by somebody else meanwhile")
            app = f"{table.metadata().configuration[PROPERTY]}/{_COMPACTION}"
            version = (table.transaction_version(app) or 0) + 1
            if _commit(self.root, table, actions, {app: version}, {"compacted": len(removed)}):
                return
            _pause(attempt)
        raise ConflictError(f"{self.root}: no commit in {_ATTEMPTS} attempts, others were faster")

    def delete_orphans(self, age_ms: int, *, dry_run: bool) -> list[str]:
        """See `ArchiveTable`. Files that were replaced stay for as long as states with them may be read."""
        hours = math.ceil(age_ms / 3_600_000)
        age_ms = hours * 3_600_000
        found = self._load().vacuum(
            retention_hours=hours,
            dry_run=dry_run,
            enforce_retention_duration=False,
            full=age_ms >= LEAST_AGE_MS,  # else those only that the table had once
        )
        return sorted({*found, *delete_partial(self.root, age_ms, dry_run=dry_run)})


def _snapshot(table: Any, candidates: Collection[Source] = ()) -> Snapshot:
    name = table.metadata().configuration[PROPERTY]
    found = [(row[0], parse_path(*row)) for row in _rows(table)]
    files = tuple(sorted((file for _, file in found if file), key=lambda each: each.order))
    recorded = {}
    for source in {*candidates, *(file.source for file in files)}:
        version = table.transaction_version(_app(name, source))
        if version is not None:
            recorded[source] = int(version)
    foreign = tuple(sorted(path for path, file in found if file is None))
    batch = table.transaction_version(name)
    return Snapshot(name, 0 if batch is None else int(batch), files, foreign, recorded)


def _rows(table: Any) -> list[tuple[str, int, int, int | None]]:
    actions = pa.table(table.get_add_actions(flatten=True))
    columns = [actions.column(name).to_pylist() for name in ("path", "size_bytes", "num_records")]
    latest = [None] * actions.num_rows
    if "max.timestamp" in actions.column_names:  # not where no file has statistics
        latest = actions.column("max.timestamp").cast(pa.timestamp("ms", "UTC"), safe=False)
        latest = latest.cast(pa.int64()).to_pylist()
    return [
        (path, size, records or 0, latest_ms)
        for path, size, records, latest_ms in zip(*columns, latest, strict=True)
    ]


def _app(name: str, source: Source) -> str:
    return f"{name}/{source.topic}/{source.topic_id}/{source.partition}"


def _add(root: Path, written: WrittenFile, *, data_change: bool = True) -> Any:
    file = written.file
    try:
        modified_ms = int((root / file.path).stat().st_mtime * 1000)
    except FileNotFoundError:
        raise file_gone(file) from None
    return AddAction(
        path=file.path,
        size=file.size,
        partition_values={},
        modification_time=modified_ms,
        data_change=data_change,
        stats=json.dumps(_stats(written)),
    )


def _stats(written: WrittenFile) -> Mapping[str, Any]:
    source = written.file.source
    if written.first_offset is None:
        return {"numRecords": written.file.records}
    same = {"topic": source.topic, "partition": source.partition}
    low, high = {**same, "offset": written.first_offset}, {**same, "offset": written.last_offset}
    first_ms, last_ms = written.min_timestamp_ms, written.max_timestamp_ms
    if first_ms is not None and last_ms is not None and -1 <= first_ms <= last_ms <= _MAX_MS:
        low["timestamp"], high["timestamp"] = _iso(first_ms), _iso(last_ms)
    return {
        "numRecords": written.file.records,
        "minValues": low,
        "maxValues": high,
        "nullCount": dict.fromkeys(low, 0),
    }


def _iso(timestamp_ms: int) -> str:
    seconds, milliseconds = divmod(timestamp_ms, 1000)
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(seconds))}.{milliseconds:03d}Z"


def _commit(
    root: Path,
    table: Any,
    actions: list[Any],
    versions: Mapping[str, int],
    summary: Mapping[str, Any],
) -> bool:
    """Commit on top of the state that was loaded; return whether nobody was faster."""
    version = table.version() + 1
    properties = CommitProperties(
        custom_metadata={PROPERTY: json.dumps(summary)},
        max_commit_retries=0,
        app_transactions=[Transaction(app, version) for app, version in versions.items()],
    )
    try:
        table.create_write_transaction(
            actions, mode="append", schema=table.schema(), commit_properties=properties
        )
    except CommitFailedError:
        return False
    except DeltaError as error:
        raise HeadraceError(f"the table in {table.table_uri} took no commit: {error}") from error
    sync_files([root / "_delta_log" / f"{version:020d}.json"])
    return True


def _pause(attempt: int) -> None:
    time.sleep(min(0.01 * 2**attempt, 1))
