"""Delta tables as their logs describe them: where they lie, their files, and what of the protocol they use.

Spark reads and writes the Parquet files here, not a library that knows the whole protocol. So each feature of a table
is either known not to matter for that, or the table is refused.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from headrace.errors import ConfigError

_REFUSED: Final = frozenset('%#?*[]{}\\^|<>"`')
"""Characters of paths that `deltalake` or Spark reads as something else."""
_READABLE: Final = frozenset({"timestampNtz", "v2Checkpoint", "vacuumProtocolCheck"})
"""Features that change neither which rows a file has nor what its columns are called."""
_WRITABLE: Final = frozenset({"appendOnly", "changeDataFeed", "deletionVectors"}) | _READABLE
"""Features that ask nothing of a commit that only adds files."""
_IF_USED: Final = frozenset({"invariants", "checkConstraints", "generatedColumns"}) | {
    "identityColumns",
    "columnMapping",
}
"""Features that matter where a column or a setting of the table uses them; `_uses` looks for that."""
_OF_COLUMNS: Final[Mapping[str, str]] = {
    "delta.invariants": "a column with an invariant",
    "delta.generationExpression": "a generated column",
    "delta.identity.start": "an identity column",
}


def local_root(path: str) -> Path | None:
    """Return the directory of this machine that a path or a file URI names; None where it is elsewhere."""
    parts = urlsplit(path)
    if parts.scheme == "file":
        return Path(unquote(parts.path))
    return None if "://" in path else Path(path)


def path_problem(path: str) -> str | None:
    """Return what is wrong with the path of a table on this machine."""
    root = local_root(path)
    wrong = sorted(_REFUSED & set(str(root or "")))
    if wrong:
        return f"the path of a delta table cannot have {' '.join(wrong)}: {path}"
    return None


def open_table(path: str) -> Any:
    """Return the table.

    Raises:
        ConfigError: There is none, or its path cannot be one.
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
    """Yield what of a table Spark would not see by reading its Parquet files."""
    protocol = table.protocol()
    features = set(protocol.reader_features or ())
    if protocol.min_reader_version > 3:
        yield f"it needs reader version {protocol.min_reader_version} of the Delta protocol, and 3 is known"
    if "deletionVectors" in features and _deleted_rows(table):
        yield "it has deletion vectors, rows that are deleted but still in its files: REORG TABLE ... APPLY (PURGE)"
    if _setting(table, "delta.columnMapping.mode", "none") != "none":
        yield "its columns have other names in its files (delta.columnMapping.mode)"
    unknown = sorted(features - _READABLE - {"deletionVectors", "columnMapping"})
    if unknown:
        yield f"it has features that are not known here: {', '.join(unknown)}"
    yield from _astray(table)


def write_problems(table: Any) -> Iterator[str]:
    """Yield what of a table a commit of plain Parquet files would break."""
    protocol, metadata = table.protocol(), table.metadata()
    if metadata.partition_columns:
        yield f"it is partitioned by {', '.join(metadata.partition_columns)}, and a delta sink cannot be"
    if protocol.min_writer_version > 7:
        yield f"it needs writer version {protocol.min_writer_version} of the Delta protocol, and 7 is known"
    yield from (f"it has {what}" for what in _uses(table))
    unknown = sorted(set(protocol.writer_features or ()) - _WRITABLE - _IF_USED)
    if unknown:
        yield f"it has features that are not known here: {', '.join(unknown)}"


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
    """Return whether files of a table have deletion vectors; where that cannot be found out, they may."""
    try:
        return any(batch.num_rows for batch in table.deletion_vectors())
    except Exception:  # noqa: BLE001 - an older `deltalake` has no such method; vectors that it cannot decode are some
        return True


def _astray(table: Any) -> Iterator[str]:
    """Yield that Spark would not find partition columns in the names of directories, where the log alone has them."""
    wanted = table.metadata().partition_columns
    for path in _paths(table) if wanted else ():
        named = [part.partition("=")[0] for part in path.split("/")[:-1] if "=" in part]
        if named[-len(wanted) :] != wanted:
            yield f"the directory of its file {path} does not say its partition, {', '.join(wanted)}"
            return


def _paths(table: Any) -> list[str]:
    """Return the files, relative to the table; names in the log are encoded like those of URIs."""
    import pyarrow as pa

    return [unquote(each) for each in pa.table(table.get_add_actions())["path"].to_pylist()]


def files(table: Any, path: str) -> list[str]:
    """Return the table's files as Spark takes them.

    Raises:
        ConfigError: Its log names files of other tables, as that of a shallow clone.
    """
    root = str(local_root(path) or path).rstrip("/")
    found = _paths(table)
    for each in found:
        if "://" in each or each.startswith("/"):
            raise ConfigError(f"the Delta table in {path} has a file of another one, {each}")
    return [f"{root}/{each}" for each in found]
