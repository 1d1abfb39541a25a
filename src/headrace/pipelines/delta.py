"""Batches appended to a Delta table on this machine's disks, each exactly once."""

from __future__ import annotations

import json
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from headrace.pipelines.declaration import Table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

TIMESTAMPS: Final = ("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
"""Delta knows no other."""


def append(batch: DataFrame, table: Table, app_id: str, batch_id: int) -> None:
    """Append a batch, unless the table's log has it: Spark's tasks write files, and one commit makes them rows.

    The commit holds the batch's number under the query's id, so a batch that comes again is known. Each attempt has a
    directory of its own, for the one before may not have ended; files that no commit names are no rows, and a vacuum
    removes them.
    """
    import pyarrow.parquet as pq  # noqa: PLC0415 - an extra
    from deltalake import CommitProperties, DeltaTable, Schema, Transaction  # noqa: PLC0415 - an extra
    from deltalake.transaction import AddAction  # noqa: PLC0415 - an extra

    root = Path(urlsplit(table.path).path)
    schema = Schema.from_json(batch.schema.json())
    delta: Any = DeltaTable.create(str(root), schema=schema, mode="ignore")
    done = delta.transaction_version(app_id)
    if done is not None and done >= batch_id:
        return
    directory = Path("data", app_id, f"{batch_id:010}-{uuid.uuid4().hex[:8]}")
    batch.sparkSession.conf.set(*TIMESTAMPS)
    batch.write.options(**table.options).parquet(str(root / directory))
    actions = []
    for path in sorted((root / directory).glob("part-*.parquet")):
        found = path.stat()
        actions.append(
            AddAction(
                path=str(directory / path.name),
                size=found.st_size,
                partition_values={},
                modification_time=int(found.st_mtime * 1000),
                data_change=True,
                stats=json.dumps({"numRecords": pq.read_metadata(path).num_rows}),
            )
        )
    delta.create_write_transaction(
        actions,
        mode="append",
        schema=schema,
        commit_properties=CommitProperties(app_transactions=[Transaction(app_id, batch_id)]),
    )
