"""An archive as a Delta Lake table, with the `deltalake` library and without Spark or a JVM.

Batch number and positions are transaction identifiers of the Delta protocol. Application `NAME` has the batch number as
its version, and application `NAME/TOPIC/TOPIC ID/PARTITION` the next offset. Transaction identifiers are part of the
table's state. So they survive checkpoints and the cleaning of the log, and two writers of one identifier conflict.
"""

from __future__ import annotations

import json
import math
import time
import uuid
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from threading import Barrier
from typing import Any, Final

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.transaction import AddAction, RemoveAction

from headrace.errors import ConfigError, HeadraceError
from headrace.spark.archive.files import ArchivedFile, ArchivedPartition, WrittenFile, parse_path
from headrace.spark.archive.orphans import LEAST_AGE_MS, delete_partial
from headrace.spark.archive.table_format import BatchCommit, ConflictError, TableSnapshot, file_gone
from headrace.spark.archive.table_location import TableLocation

PROPERTY: Final = "headrace.archive"
_ATTEMPTS: Final = 20
_PROBES: Final = "_headrace_probe"
"""A folder for probes. Readers of tables ignore names that begin with an underscore."""
_PROBE_ROUNDS: Final = 4
_PROBE_TIMEOUT_S: Final = 60
_PROBE_SCHEMA: Final = pa.schema([("none", pa.int32())])
_COMPACTION: Final = "compaction"
_MAX_MS: Final = 253_402_300_799_999
"""The end of the year 9999 in milliseconds since 1970. The Delta log has no text for later times."""


class DeltaArchive:
    """An archive in a Delta Lake table; see `ArchiveTable`."""

    kind = "delta"

    def __init__(self, root: TableLocation) -> None:
        self.root = root

    def exists(self) -> bool:
        """Return whether there is a table of this format."""
        with _errors_of(self.root):
            return bool(DeltaTable.is_deltatable(*_address(self.root)))

    def check_commits(self) -> None:
        """See `TableKind`.

        A store other than AWS S3 may ignore the condition of a conditional write, so it is probed.
        """
        endpoint = (self.root.delta_options or {}).get("aws_endpoint_url")
        if endpoint is None:
            return
        with _errors_of(self.root):
            if not _refuses_second(self.root):
                raise ConfigError(
                    f"{endpoint} ignores the condition If-None-Match and overwrites existing objects: of two "
                    "concurrent commits, one would undo the other. Choose a store with conditional writes"
                )

    def create(self, name: str, schema: Any) -> None:
        """Create an empty table, unless another process creates it first."""
        with _errors_of(self.root):
            _create(self.root, schema, name)

    def open(self) -> DeltaArchive:
        """Open the table, or raise a `ConfigError`."""
        self._load()
        return self

    def _load(self) -> Any:
        address, options = _address(self.root)
        try:
            with _errors_of(self.root):
                table = DeltaTable(address, storage_options=options)
        except TableNotFoundError:
            raise ConfigError(f"there is no archive of format delta in {self.root}") from None
        if PROPERTY not in table.metadata().configuration:
            raise ConfigError(
                f"the Delta table in {self.root} was not created by `headrace archive`"
            )
        if "deletionVectors" in (table.protocol().reader_features or ()):
            raise ConfigError(
                f"another program has added deletion vectors to {self.root}, which an archive cannot have"
            )
        return table

    def snapshot(self, candidates: Collection[ArchivedPartition] = ()) -> TableSnapshot:
        """Return the present state of the table."""
        return _snapshot(self._load(), candidates)

    def schema(self) -> Any:
        """Return the columns as an Arrow schema."""
        return pa.schema(self._load().schema().to_arrow())

    def append(self, commit: BatchCommit) -> None:
        """Add a batch's files and positions in one commit; see `ArchiveTable`."""
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
        raise ConflictError(
            f"{self.root}: no commit in {_ATTEMPTS} attempts, because other commits came first"
        )

    def replace(self, removed: Sequence[ArchivedFile], added: Sequence[WrittenFile]) -> None:
        """Replace files by others with the same records, in one commit; see `ArchiveTable`."""
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
            # The library does not check that removed files exist. The commit builds on exactly this state of the table.
            there = {file.path for file in _snapshot(table).files}
            if added and {each.file.path for each in added} <= there:
                return  # an earlier attempt succeeded, but its response was lost
            gone = {file.path for file in removed} - there
            if gone:
                raise ConflictError(f"{len(gone)} files were replaced by another process")
            app = f"{table.metadata().configuration[PROPERTY]}/{_COMPACTION}"
            version = (table.transaction_version(app) or 0) + 1
            if _commit(self.root, table, actions, {app: version}, {"compacted": len(removed)}):
                return
            _pause(attempt)
        raise ConflictError(
            f"{self.root}: no commit in {_ATTEMPTS} attempts, because other commits came first"
        )

    def delete_orphans(self, age_ms: int, *, dry_run: bool) -> list[str]:
        """See `ArchiveTable`. The age of a replaced file counts from its replacement."""
        hours = math.ceil(age_ms / 3_600_000)
        age_ms = hours * 3_600_000
        table = self._load()
        with _errors_of(self.root):
            found = table.vacuum(
                retention_hours=hours,
                dry_run=dry_run,
                enforce_retention_duration=False,
                full=age_ms
                >= LEAST_AGE_MS,  # a younger file without a table may belong to a pending commit
            )
        return sorted({*found, *delete_partial(self.root, age_ms, dry_run=dry_run)})


def _snapshot(table: Any, candidates: Collection[ArchivedPartition] = ()) -> TableSnapshot:
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
    return TableSnapshot(name, 0 if batch is None else int(batch), files, foreign, recorded)


def _rows(table: Any) -> list[tuple[str, int, int, int | None]]:
    actions = pa.table(table.get_add_actions(flatten=True))
    columns = [actions.column(name).to_pylist() for name in ("path", "size_bytes", "num_records")]
    latest = [None] * actions.num_rows
    if "max.timestamp" in actions.column_names:  # missing if no file has statistics
        latest = actions.column("max.timestamp").cast(pa.timestamp("ms", "UTC"), safe=False)
        latest = latest.cast(pa.int64()).to_pylist()
    return [
        (path, size, records or 0, latest_ms)
        for path, size, records, latest_ms in zip(*columns, latest, strict=True)
    ]


def _app(name: str, source: ArchivedPartition) -> str:
    return f"{name}/{source.topic}/{source.topic_id}/{source.partition}"


def _add(root: TableLocation, written: WrittenFile, *, data_change: bool = True) -> Any:
    file = written.file
    found = root.find(file.path)
    if found is None:
        raise file_gone(file)
    return AddAction(
        path=file.path,
        size=file.size,
        partition_values={},
        modification_time=found.modified_ms,
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
    root: TableLocation,
    table: Any,
    actions: list[Any],
    versions: Mapping[str, int],
    summary: Mapping[str, Any],
) -> bool:
    """Commit on top of the loaded state. Return False if another commit came first."""
    version = table.version() + 1
    try:
        done = _attempt(table, actions, versions, summary)
    except (DeltaError, OSError) as error:
        raise HeadraceError(f"the commit to the table in {root} failed: {error}") from error
    if done:
        root.sync([f"_delta_log/{version:020d}.json"])
    return done


def _attempt(
    table: Any, actions: list[Any], versions: Mapping[str, int], summary: Mapping[str, Any]
) -> bool:
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
    return True


def _address(root: TableLocation) -> tuple[str, dict[str, str] | None]:
    options = root.delta_options
    return str(root) if root.local else root.uri, None if options is None else dict(options)


def _create(root: TableLocation, schema: Any, name: str) -> None:
    address, options = _address(root)
    DeltaTable.create(
        address,
        schema=schema,
        mode="ignore",
        name=name,
        configuration={PROPERTY: name},
        storage_options=options,
        raise_if_key_not_exists=False,
        # A retry of the library would create the table a second time, with another name.
        commit_properties=CommitProperties(max_commit_retries=0),
    )


def _refuses_second(root: TableLocation) -> bool:
    """Return whether one of two concurrent commits of the same version fails. Temporary tables are used.

    The library checks for the version before it writes, so only concurrent writes show what the store does.
    """
    options = dict(root.delta_options or {})
    folder = f"{_PROBES}/{uuid.uuid4().hex}"

    def attempt(table: Any) -> bool:
        ready.wait(_PROBE_TIMEOUT_S)
        return _attempt(table, [], {"probe": 1}, {})

    try:
        with ThreadPoolExecutor(2) as pool:
            for number in range(_PROBE_ROUNDS):
                uri = f"{root.uri}/{folder}/{number}"
                DeltaTable.create(uri, schema=_PROBE_SCHEMA, storage_options=options)
                both = [DeltaTable(uri, storage_options=options) for _ in range(2)]
                ready = Barrier(2)
                if sorted(pool.map(attempt, both)) != [False, True]:
                    return False
        return True
    finally:
        for file in list(root.walk(folder)):
            root.delete(file.path)


@contextmanager
def _errors_of(root: TableLocation) -> Iterator[None]:
    """Raise transient errors, such as an unavailable store, as `HeadraceError`, which the caller retries."""
    try:
        yield
    except TableNotFoundError:
        raise
    except (DeltaError, OSError) as error:
        raise HeadraceError(f"the table in {root}: {error}") from error


def _pause(attempt: int) -> None:
    time.sleep(min(0.01 * 2**attempt, 1))
