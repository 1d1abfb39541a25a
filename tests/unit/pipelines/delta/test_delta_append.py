"""Batches that a Delta table has are recognised, even if the table was altered since."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from pyspark.sql.types import LongType, StringType, StructField, StructType

from headrace.errors import ConfigError
from headrace.pipelines import table
from headrace.pipelines.delta.append import append

APP = "query"


def batch(*columns: StructField) -> Any:
    return SimpleNamespace(schema=StructType(list(columns)))


def test_a_committed_batch_is_not_compared_with_the_table(tmp_path: Path) -> None:
    place = tmp_path / "orders"
    there = CommitProperties(app_transactions=[Transaction(APP, 7)])
    write_deltalake(
        str(place), pa.table({"id": pa.array([1], pa.int64())}), commit_properties=there
    )
    target = table(str(place), format="delta")
    other = batch(StructField("id", StringType()), StructField("more", LongType()))
    for number in (6, 7):
        append(other, target, APP, number)
    with pytest.raises(ConfigError, match="id"):
        append(other, target, APP, 8)
    with pytest.raises(ConfigError, match="id"):
        append(other, target, "another query", 7)
    assert DeltaTable(str(place)).version() == 0
