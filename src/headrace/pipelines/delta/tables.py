"""Delta tables as their logs describe them: location, files, and used features of the Delta protocol.

Spark reads and writes the Parquet files directly, without a library that implements the whole protocol. So a table is
rejected unless each of its features is known to make no difference.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from headrace.errors import ConfigError

_REFUSED: Final = frozenset('%#?*[]{}\\^|<>"`')
"""Characters that have a special meaning for `deltalake` or Spark in a path."""
_READABLE: Final = frozenset({"timestampNtz", "v2Checkpoint", "vacuumProtocolCheck"})
"""Features that change neither the rows of a file nor the names of its columns."""
_WRITABLE: Final = frozenset({"appendOnly", "changeDataFeed", "deletionVectors"}) | _READABLE
"""Features without requirements for a commit that only adds files."""
_IF_USED: Final = frozenset({"invariants", "checkConstraints", "generatedColumns"}) | {
    "identityColumns",
    "columnMapping",
}
"""Features that matter only if a column or a setting of the table uses them; `_uses` checks that."""
_OF_COLUMNS: Final[Mapping[str, str]] = {
    "delta.invariants": "a column with an invariant",
    "delta.generationExpression": "a generated column",
    "delta.identity.start": "an identity column",
}


def local_root(path: str) -> Path | None:
    """Return the local directory that a path or file URI names; None if it is on another file system."""
    parts = urlsplit(path)
    if parts.scheme == "file":
        return Path(unquote(parts.path))
    return None if "://" in path else Path(path)


def path_problem(path: str) -> str | None:
    """Return the problem of a local table's path; None if there is none."""
    root = local_root(path)
    wrong = sorted(_REFUSED & set(str(root or "")))
    if wrong:
        return f"the path of a delta table cannot have {' '.join(wrong)}: {path}"
    return None


def open_table(path: str) -> Any:
    """Open a Delta table.

    Raises:
        ConfigError: There is no table, or its path is not allowed.
    """
    from deltalake import DeltaTable
    from deltalake.exceptions import DeltaError, TableNotFoundError

    problem = path_problem(path)
    if problem is not None:
        raise ConfigError(problem)
    try:
        return DeltaTable(str(local_root(path) or path))
    except TableNotFoundError:
        raise ConfigError(f"there is no Delta table in {path}") from None
    except DeltaError as error:
        raise ConfigError(f"the Delta table in {path} cannot be opened: {error}") from error


def schema_of(table: Any) -> Any:
    """Return the table's StructType."""
    from pyspark.sql.types import StructType

    return StructType.fromJson(json.loads(table.schema().to_json()))


def read_problems(table: Any) -> Iterator[str]:
    """Yield features of a table that Spark would miss by reading its Parquet files."""
    protocol = table.protocol()
    features = set(protocol.reader_features or ())
    if protocol.min_reader_version > 3:
        yield f"it needs reader version {protocol.min_reader_version} of the Delta protocol; at most 3 is supported"
    if "deletionVectors" in features and _deleted_rows(table):
        yield "it has deletion vectors, rows that are deleted but still in its files: REORG TABLE ... APPLY (PURGE)"
    if _setting(table, "delta.columnMapping.mode", "none") != "none":
        yield "its columns have other names in its files (delta.columnMapping.mode)"
    unknown = sorted(features - _READABLE - {"deletionVectors", "columnMapping"})
    if unknown:
        yield f"it has unsupported features: {', '.join(unknown)}"
    yield from _partitions_outside_paths(table)


def write_problems(table: Any) -> Iterator[str]:
    """Yield features of a table that a commit of plain Parquet files would violate."""
    protocol, metadata = table.protocol(), table.metadata()
    if metadata.partition_columns:
        yield f"it is partitioned by {', '.join(metadata.partition_columns)}, and a delta sink cannot be"
    if protocol.min_writer_version > 7:
        yield f"it needs writer version {protocol.min_writer_version} of the Delta protocol; at most 7 is supported"
    yield from (f"it has {what}" for what in _uses(table))
    unknown = sorted(set(protocol.writer_features or ()) - _WRITABLE - _IF_USED)
    if unknown:
        yield f"it has unsupported features: {', '.join(unknown)}"


def _uses(table: Any) -> Iterator[str]:
    if _setting(table, "delta.columnMapping.mode", "none") != "none":
        yield "columns with other names in its files (delta.columnMapping.mode)"
    constraints = [
        name for name in table.metadata().configuration if name.startswith("delta.constraints.")
    ]
    if constraints:
        yield f"constraints, which are not checked here: {', '.join(constraints)}"
    text = table.schema().to_json()
    yield from (what for name, what in _OF_COLUMNS.items() if f'"{name}"' in text)


def _setting(table: Any, name: str, default: str) -> str:
    return str(table.metadata().configuration.get(name, default)).lower()


def _deleted_rows(table: Any) -> bool:
    """Return whether files of a table have deletion vectors; true also if that cannot be found out."""
    try:
        return any(batch.num_rows for batch in table.deletion_vectors())
    except Exception:  # noqa: BLE001 - an old `deltalake` lacks the method or cannot decode the vectors
        return True


def _partitions_outside_paths(table: Any) -> Iterator[str]:
    """Yield a problem if only the log, and no directory name, has the values of the partition columns."""
    wanted = table.metadata().partition_columns
    for path in _paths(table) if wanted else ():
        named = [part.partition("=")[0] for part in path.split("/")[:-1] if "=" in part]
        if named[-len(wanted) :] != wanted:
            yield f"the directory of its file {path} does not name its partition, {', '.join(wanted)}"
            return


def _paths(table: Any) -> list[str]:
    """Return the paths of the files relative to the table. The log has them percent-encoded."""
    import pyarrow as pa

    return [unquote(each) for each in pa.table(table.get_add_actions())["path"].to_pylist()]


def files(table: Any, path: str) -> list[str]:
    """Return the paths of the table's files for Spark.

    Raises:
        ConfigError: The log names files of another table, as the log of a shallow clone does.
    """
    root = str(local_root(path) or path).rstrip("/")
    found = _paths(table)
    for each in found:
        if "://" in each or each.startswith("/"):
            raise ConfigError(f"the Delta table in {path} has a file of another table, {each}")
    return [f"{root}/{each}" for each in found]
