"""An archive as an Iceberg table, with `pyiceberg` and, by default, a catalog in SQLite in the table's directory.

Batch number and positions are properties of the table, which are set in the commit that adds the files. A commit is
based on one snapshot of the table. The catalog refuses the commit if the table has a newer snapshot.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cached_property
from typing import Any, Final, ParamSpec, TypeVar

import pyarrow as pa
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import (
    CommitFailedException,
    NoSuchTableError,
    TableAlreadyExistsError,
    ValidationException,
)
from pyiceberg.io.pyarrow import parquet_file_to_data_file
from pyiceberg.manifest import DataFileContent
from sqlalchemy.exc import IntegrityError, OperationalError, SQLAlchemyError

from headrace.errors import ConfigError, HeadraceError
from headrace.spark.archive.directory import Directory
from headrace.spark.archive.files import (
    DATA,
    ArchivedFile,
    ArchivedPartition,
    WrittenFile,
    parse_path,
)
from headrace.spark.archive.orphans import delete_unknown
from headrace.spark.archive.table_format import BatchCommit, ConflictError, TableSnapshot, file_gone
from headrace.spark.archive.table_location import TableLocation

P = ParamSpec("P")
T = TypeVar("T")

CATALOG: Final = "catalog.db"
NAMESPACE: Final = "headrace"
TABLE: Final = (NAMESPACE, "archive")
"""The table's name in its own catalog. In a shared catalog a table has the last part of its address as its name."""
_NAME: Final = "headrace.archive.name"
_BATCH: Final = "headrace.archive.batch"
_POSITIONS: Final = "headrace.archive.positions"
_ATTEMPTS: Final = 20
_PLAIN: Final = {pa.large_string(): pa.string(), pa.large_binary(): pa.binary()}


# Only the columns that reads search have statistics. The library would log a warning for each other column and file.
logging.getLogger("pyiceberg.io.pyarrow").addFilter(
    lambda record: "statistics missing" not in str(record.msg)
)


def _transient_errors(method: Callable[P, T]) -> Callable[P, T]:
    """Raise transient errors, such as an unavailable store, as `HeadraceError`, which the caller retries."""

    @functools.wraps(method)
    def call(*arguments: P.args, **given: P.kwargs) -> T:
        try:
            return method(*arguments, **given)
        except OSError as error:
            raise HeadraceError(f"the Iceberg table: {error}") from error

    return call


class IcebergArchive:
    """An archive in an Iceberg table; see `ArchiveTable`."""

    kind = "iceberg"

    def __init__(self, root: TableLocation, catalog: str | None = None) -> None:
        self.root = root
        own = root.local and (catalog is None or root.find(CATALOG) is not None)
        self._name = TABLE if own else (NAMESPACE, root.name)
        self._address = f"sqlite:///{root / CATALOG}" if own else catalog

    @cached_property
    def _catalog(self) -> Any:
        if self._address is None:
            raise ConfigError(
                f"{self.root}: an Iceberg table in a store needs a catalog, a database that all writers can reach: "
                "--catalog-uri sqlite:////PATH/catalog.db or postgresql+psycopg://USER@HOST/NAME "
                "(HEADRACE_ARCHIVE_CATALOG; for reads the option archiveCatalog)"
            )
        return _catalog(self._address, self.root)

    @_transient_errors
    def exists(self) -> bool:
        """Return whether there is a table of this format."""
        if self._name == TABLE and self.root.find(CATALOG) is None:
            return False
        return _patiently(lambda: bool(self._catalog.table_exists(self._name)))

    def check_commits(self) -> None:
        """Do nothing: the catalog's database refuses the second of two concurrent commits."""

    @_transient_errors
    def create(self, name: str, schema: Any) -> None:
        """Create an empty table, unless another process creates it first."""
        if isinstance(self.root, Directory):
            self.root.path.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(IntegrityError):  # another process created it
            self._catalog.create_namespace_if_not_exists(NAMESPACE)
        try:
            self._catalog.create_table(
                self._name,
                schema=schema,
                location=self.root.uri,
                properties={
                    _NAME: name,
                    _BATCH: "0",
                    _POSITIONS: "{}",
                    "commit.manifest-merge.enabled": "true",
                    "commit.manifest.min-count-to-merge": "20",
                    "write.metadata.delete-after-commit.enabled": "true",
                    "write.metadata.previous-versions-max": "20",
                    # A retry of the library would commit on top of a snapshot that this archiver has not read.
                    "commit.retry.num-retries": "0",
                },
            )
        except TableAlreadyExistsError:
            return

    def open(self) -> IcebergArchive:
        """Open the table, or raise a `ConfigError`."""
        if not self.exists():
            raise ConfigError(f"there is no archive of format iceberg in {self.root}")
        self._load()
        return self

    @_transient_errors
    def _load(self) -> Any:
        try:
            table = _patiently(lambda: self._catalog.load_table(self._name))
        except NoSuchTableError:
            raise ConfigError(f"there is no table {TABLE} in {self.root / CATALOG}") from None
        if table.location() != self.root.uri:
            raise ConfigError(
                f"the catalog's table {'.'.join(self._name)} is in {table.location()}, not in {self.root.uri}: "
                "give one of them another last name, or a catalog of its own"
            )
        if _NAME not in table.properties:
            raise ConfigError(
                f"the Iceberg table in {self.root} was not created by `headrace archive`"
            )
        return table

    @_transient_errors
    def snapshot(self, candidates: Collection[ArchivedPartition] = ()) -> TableSnapshot:  # noqa: ARG002 - all recorded
        """Return the present state of the table."""
        return self._snapshot(self._load())

    def schema(self) -> Any:
        """Return the columns as an Arrow schema."""
        return _plain(self._load().schema().as_arrow())

    @_transient_errors
    def append(self, commit: BatchCommit) -> None:
        """Add a batch's files and positions in one commit; see `ArchiveTable`."""
        paths = {written.file.path for written in commit.files}
        for attempt in range(_ATTEMPTS):
            table = self._load()
            snapshot = self._snapshot(table)
            if snapshot.batch >= commit.batch:
                if paths <= {file.path for file in snapshot.files}:
                    return
                raise ConflictError(
                    f"batch {commit.batch} of the archive {snapshot.name} is in the table already: "
                    "is another archiver at work?"
                )
            self._check_there(commit.files)
            positions = _positions_text({**snapshot.recorded, **commit.positions})
            properties = {_BATCH: str(commit.batch), _POSITIONS: positions}
            try:
                with table.transaction() as transaction:
                    transaction.set_properties(properties)
                    transaction.add_files(
                        [self._uri(written.file.path) for written in commit.files],
                        snapshot_properties=properties,
                        check_duplicate_files=False,
                    )
            except CommitFailedException:
                _pause(attempt)
                continue
            except (
                OperationalError
            ) as error:  # the commit may have succeeded, which the next attempt finds out
                _check_locked(error)
                _pause(attempt)
                continue
            self._sync(table)
            return
        raise ConflictError(
            f"{self.root}: no commit in {_ATTEMPTS} attempts, because other commits came first"
        )

    @_transient_errors
    def replace(self, removed: Sequence[ArchivedFile], added: Sequence[WrittenFile]) -> None:
        """Replace files by others with the same records, in one commit; see `ArchiveTable`."""
        names = {self._uri(file.path) for file in removed}
        own = {self._uri(each.file.path) for each in added}
        for attempt in range(_ATTEMPTS):
            table = self._load()
            there = _data_files(table)
            if added and own <= {each.file_path for each in there}:
                return  # an earlier attempt succeeded, but its response was lost
            files = [each for each in there if each.file_path in names]
            if len(files) != len(names):
                raise ConflictError(
                    f"{len(names) - len(files)} files were replaced by another process"
                )
            try:
                with (
                    table.transaction() as transaction,
                    transaction.update_snapshot().overwrite() as overwrite,
                ):
                    for file in files:
                        overwrite.delete_data_file(file)
                    for written in added:
                        overwrite.append_data_file(
                            parquet_file_to_data_file(
                                table.io, table.metadata, self._uri(written.file.path)
                            )
                        )
            except (CommitFailedException, ValidationException):
                _pause(attempt)
                continue
            except OperationalError as error:
                _check_locked(error)
                _pause(attempt)
                continue
            self._sync(table)
            return
        raise ConflictError(
            f"{self.root}: no commit in {_ATTEMPTS} attempts, because other commits came first"
        )

    @_transient_errors
    def delete_orphans(self, age_ms: int, *, dry_run: bool) -> list[str]:
        """See `ArchiveTable`. Snapshots that were replaced before that time are expired."""
        table = self._load()
        before_ms = int(time.time() * 1000) - age_ms
        snapshots = sorted(table.snapshots(), key=lambda each: each.sequence_number)
        replaced = [
            earlier.snapshot_id
            for earlier, later in itertools.pairwise(snapshots)
            if later.timestamp_ms <= before_ms
        ]
        kept = [each for each in snapshots if each.snapshot_id not in replaced]
        data = {file.file_path for each in kept for file in _data_files(table, each.snapshot_id)}
        lists = {each.manifest_list for each in kept}
        lists |= {one.manifest_path for each in kept for one in each.manifests(table.io)}
        if replaced and not dry_run:
            try:
                table.maintenance.expire_snapshots().by_ids(replaced).commit()
            except CommitFailedException as error:
                raise ConflictError(f"the table was changed by another process: {error}") from None
        found: list[str] = []
        for folder, suffix, known in ((DATA, "", data), ("metadata", ".avro", lists)):
            paths = {self._relative(each) for each in known}
            found += delete_unknown(self.root, folder, suffix, paths, age_ms, dry_run=dry_run)
        return found

    def _sync(self, table: Any) -> None:
        snapshot = table.current_snapshot()
        written = [table.metadata_location, snapshot.manifest_list]
        written += [
            each.manifest_path
            for each in snapshot.manifests(table.io)
            if each.added_snapshot_id == snapshot.snapshot_id
        ]
        self.root.sync([self._relative(each) for each in written])

    def _check_there(self, files: Sequence[WrittenFile]) -> None:
        for written in files:
            if self.root.find(written.file.path) is None:
                raise file_gone(written.file)

    def _snapshot(self, table: Any) -> TableSnapshot:
        column = table.schema().find_field("timestamp").field_id
        found = [
            (
                path,
                parse_path(
                    path, each.file_size_in_bytes, each.record_count, _latest_ms(each, column)
                ),
            )
            for each in _data_files(table)
            for path in (self._relative(each.file_path),)
        ]
        return TableSnapshot(
            table.properties[_NAME],
            int(table.properties[_BATCH]),
            tuple(sorted((file for _, file in found if file), key=lambda each: each.order)),
            tuple(sorted(path for path, file in found if file is None)),
            _positions(table.properties[_POSITIONS]),
        )

    def _uri(self, path: str) -> str:
        return f"{self.root.uri}/{path}"

    def _relative(self, uri: str) -> str:
        return uri.removeprefix(f"{self.root.uri}/")


def _catalog(address: str, root: TableLocation) -> Any:
    if address.startswith(("http://", "https://")):
        raise ConfigError("catalogs are databases, such as sqlite:////PATH/catalog.db: not REST")
    settings = {"uri": address, "warehouse": root.uri, **root.iceberg_options}
    try:
        return _patiently(lambda: SqlCatalog(NAMESPACE, **settings))
    except (SQLAlchemyError, ImportError, HeadraceError) as error:
        shown = address.partition("://")[0]
        raise ConfigError(f"the catalog {shown}://... cannot be opened: {error}") from error


def _patiently(ask: Callable[[], T]) -> T:
    """Call the catalog, with retries while other processes have it locked.

    Raises:
        HeadraceError: The catalog was locked at all attempts.
    """
    for attempt in itertools.count():
        try:
            return ask()
        except OperationalError as error:
            _check_locked(error)
            if attempt >= _ATTEMPTS:
                raise HeadraceError(
                    f"another process keeps the catalog of the archive locked: {error.orig}"
                ) from error
        _pause(attempt)
    raise AssertionError("counting does not end")


def _check_locked(error: OperationalError) -> None:
    if "locked" not in str(error.orig):
        raise HeadraceError(f"the catalog of the archive: {error.orig}") from error


def _data_files(table: Any, snapshot_id: int | None = None) -> list[Any]:
    """Return all files of a snapshot. A scan of the table would leave out files without rows, which cover offsets."""
    snapshot = (
        table.current_snapshot() if snapshot_id is None else table.snapshot_by_id(snapshot_id)
    )
    if snapshot is None:
        return []
    files = [
        entry.data_file
        for manifest in snapshot.manifests(table.io)
        for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True)
    ]
    if any(file.content != DataFileContent.DATA for file in files):
        raise ConfigError(
            f"another program has deleted rows of {table.location()} with delete files, which an archive cannot have"
        )
    return files


def _latest_ms(file: Any, column: int) -> int | None:
    """Return the upper bound of a column of times in milliseconds. The file has microseconds in eight bytes."""
    bound = (file.upper_bounds or {}).get(column)
    return None if bound is None else int.from_bytes(bound, "little", signed=True) // 1000


def _plain(kind: Any) -> Any:
    """Replace the large variants of types, which the library uses when it reads a schema, by the usual ones."""
    if isinstance(kind, pa.Schema):
        return pa.schema([(each.name, _plain(each.type)) for each in kind])
    if pa.types.is_struct(kind):
        return pa.struct([(each.name, _plain(each.type)) for each in kind])
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return pa.list_(pa.field(kind.value_field.name, _plain(kind.value_type)))
    if pa.types.is_map(kind):
        return pa.map_(_plain(kind.key_type), _plain(kind.item_type))
    return _PLAIN.get(kind, kind)


def _positions_text(positions: Mapping[ArchivedPartition, int]) -> str:
    return json.dumps([[*source, end] for source, end in sorted(positions.items())])


def _positions(text: str) -> dict[ArchivedPartition, int]:
    return {ArchivedPartition(*source): end for *source, end in json.loads(text)}


def _pause(attempt: int) -> None:
    time.sleep(min(0.01 * 2**attempt, 1))
