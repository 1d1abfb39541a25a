"""Append batches to a Delta table on this machine's disks, each batch exactly once."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from headrace.errors import ConfigError
from headrace.pipelines.declaration import Table
from headrace.pipelines.delta.tables import (
    local_root,
    open_table,
    path_problem,
    schema_of,
    write_problems,
)
from headrace.pipelines.encoding import children
from headrace.pipelines.schemas import alike, differences

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

TIMESTAMPS: Final = ("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
"""The setting with the only type of timestamps in Parquet files that Delta supports."""
_TYPES: Final = frozenset(
    {"boolean", "tinyint", "smallint", "int", "bigint", "float", "double", "string", "binary"}
    | {"date", "timestamp", "timestamp_ntz"}
)


def problems(table: Table, schema: Any) -> Iterator[str]:
    """Yield the reasons why rows of a schema cannot be appended to a table. The table need not exist yet."""
    yield from alike(schema, case_sensitive=False)
    yield from _unknown_types(schema)
    wrong, root = path_problem(table.path), _root(table)
    if wrong is not None:
        yield wrong
        return
    if (root / "_delta_log").is_dir():
        yield from _of_existing(open_table(table.path), table, schema)


def _of_existing(delta: Any, table: Table, schema: Any) -> Iterator[str]:
    yield from (f"{table}: {each}" for each in write_problems(delta))
    yield from differences(schema_of(delta), schema, str(table))


def _unknown_types(schema: Any, path: str = "") -> Iterator[str]:
    found = list(children(schema, path))
    if not found:
        yield f"column {path.lstrip('.')} is a struct without fields, which Delta does not support: drop it"
    for kind, name in found:
        text = kind.simpleString()
        if any(True for _ in children(kind, name)) or text == "struct<>":
            yield from _unknown_types(kind, name)
        elif text not in _TYPES and not text.startswith("decimal("):
            yield f"column {name.lstrip('.')} is {text}, which Delta does not support: cast it"


def _root(table: Table) -> Path:
    root = local_root(table.path)
    assert root is not None, "the check of the pipeline rejects other paths"
    return root


def append(batch: DataFrame, table: Table, app_id: str, batch_id: int) -> None:
    """Append a batch, unless the table's log has it. Spark's tasks write files, and one commit adds them to the table.

    The commit has the batch's number under the query's id, so that a repeated batch is recognised. Each attempt writes
    to a directory of its own, because an earlier attempt may still be running. Files without a commit are not part of
    the table, and a vacuum deletes them.

    Raises:
        ConfigError: The batch does not fit the table. No row is written.
    """
    import pyarrow.parquet as pq
    from deltalake import CommitProperties, DeltaTable, Schema, Transaction
    from deltalake.transaction import AddAction

    root = _root(table)
    # A batch that the table has needs no check. The table may have been altered since.
    if (root / "_delta_log").is_dir() and _has(open_table(table.path), app_id, batch_id):
        return
    found = list(problems(table, batch.schema))
    if found:
        raise ConfigError("; ".join(found))
    schema = Schema.from_json(_nullable(batch.schema))
    delta: Any = DeltaTable.create(str(root), schema=schema, mode="ignore")
    if _has(delta, app_id, batch_id):
        return
    directory = Path("data", app_id, f"{batch_id:010}-{uuid.uuid4().hex[:8]}")
    batch.sparkSession.conf.set(*TIMESTAMPS)
    batch.write.options(**table.options).parquet(str(root / directory))
    actions = []
    for path in sorted((root / directory).glob("part-*.parquet")):
        found_file = path.stat()
        actions.append(
            AddAction(
                path=str(directory / path.name),
                size=found_file.st_size,
                partition_values={},
                modification_time=int(found_file.st_mtime * 1000),
                data_change=True,
                stats=json.dumps({"numRecords": pq.read_metadata(path).num_rows}),
            )
        )
    delta.create_write_transaction(
        actions,
        mode="append",
        schema=delta.schema(),
        commit_properties=CommitProperties(app_transactions=[Transaction(app_id, batch_id)]),
    )


def _has(delta: Any, app_id: str, batch_id: int) -> bool:
    """Return whether a table's log has a batch of a query."""
    done = delta.transaction_version(app_id)
    return done is not None and done >= batch_id


def _nullable(schema: Any) -> str:
    """Return the schema of a new table as JSON. Every column is nullable, as in all tables that Spark creates."""
    described = json.loads(schema.json())
    for field in described["fields"]:
        field["nullable"], field["metadata"] = True, {}
    return json.dumps(described)
