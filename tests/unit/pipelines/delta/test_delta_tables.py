"""Delta tables are read and written only if all features in their logs are supported."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

from headrace.errors import ConfigError
from headrace.pipelines.delta.tables import (
    files,
    local_root,
    open_table,
    path_problem,
    read_problems,
    write_problems,
)

COLUMN = {"name": "id", "type": "long", "nullable": True, "metadata": {}}
VECTOR = {
    "storageType": "i",
    "pathOrInlineDv": "wi5b=000010000siXQKl0rr91000f55c8Xg0@@D72lkbi5=-{L",
    "sizeInBytes": 40,
    "cardinality": 6,
}


def made(directory: Path, protocol: dict[str, Any], column: dict[str, Any], **settings: str) -> Any:
    """Write the log of a table with one file, as another program would."""
    log = directory / "_delta_log"
    log.mkdir(parents=True)
    pq.write_table(pa.table({"id": pa.array(range(40), pa.int64())}), directory / "p.parquet")
    add: dict[str, Any] = {
        "path": "p.parquet",
        "partitionValues": {},
        "size": (directory / "p.parquet").stat().st_size,
        "modificationTime": 1,
        "dataChange": True,
    }
    if "deletionVectors" in protocol.get("readerFeatures", ()):
        add["deletionVector"] = VECTOR
    metadata = {
        "id": "x",
        "format": {"provider": "parquet", "options": {}},
        "schemaString": json.dumps({"type": "struct", "fields": [{**COLUMN, **column}]}),
        "partitionColumns": [],
        "configuration": settings,
        "createdTime": 1,
    }
    actions = [{"protocol": protocol}, {"metaData": metadata}, {"add": add}]
    first = log / "00000000000000000000.json"
    first.write_text("".join(json.dumps(each) + "\n" for each in actions))
    return open_table(str(directory))


def features(*names: str) -> dict[str, Any]:
    return {
        "minReaderVersion": 3,
        "minWriterVersion": 7,
        "readerFeatures": list(names),
        "writerFeatures": list(names),
    }


OLD = {"minReaderVersion": 1, "minWriterVersion": 2}
MAPPED = {
    "metadata": {"delta.columnMapping.id": 1, "delta.columnMapping.physicalName": "col-1"},
}


Case = tuple[dict[str, Any], dict[str, Any], dict[str, str], str | None, str | None]
"""Protocol, column and settings of a table; the problem for readers, and the problem for writers."""
CASES: list[Case] = [
    (OLD, {}, {}, None, None),
    (features("timestampNtz"), {}, {}, None, None),
    (features("deletionVectors"), {}, {}, "deletion vectors", None),
    (
        {"minReaderVersion": 2, "minWriterVersion": 5},
        MAPPED,
        {"delta.columnMapping.mode": "name"},
        "other names in its files",
        "other names in its files",
    ),
    ({"minReaderVersion": 2, "minWriterVersion": 5}, {}, {}, None, None),
    (
        {"minReaderVersion": 1, "minWriterVersion": 3},
        {},
        {"delta.constraints.positive": "id > 0"},
        None,
        "constraints, which are not checked here: delta.constraints.positive",
    ),
    (
        OLD,
        {"metadata": {"delta.invariants": '{"expression": {"expression": "id > 0"}}'}},
        {},
        None,
        "a column with an invariant",
    ),
    (
        {"minReaderVersion": 1, "minWriterVersion": 4},
        {"metadata": {"delta.generationExpression": "1"}},
        {},
        None,
        "a generated column",
    ),
]


@pytest.mark.parametrize("case", CASES)
def test_unsupported_features_of_a_delta_table_are_reported(tmp_path: Path, case: Case) -> None:
    protocol, column, settings, read, written = case
    table = made(tmp_path / "t", protocol, column, **settings)
    for found, wanted in ((read_problems(table), read), (write_problems(table), written)):
        texts = list(found)
        assert len(texts) == (0 if wanted is None else 1), texts
        assert wanted is None or wanted in texts[0]


def test_a_partitioned_table_is_read_and_not_written(tmp_path: Path) -> None:
    path = str(tmp_path / "a table")
    write_deltalake(path, pa.table({"id": [1, 2], "p": ["x y/z%", "b"]}), partition_by=["p"])
    table = open_table(path)

    assert list(read_problems(table)) == []
    assert all(Path(each).is_file() for each in files(table, path))
    assert "it is partitioned by p" in next(iter(write_problems(table)))


def test_values_of_partitions_that_only_the_log_has_are_not_guessed(tmp_path: Path) -> None:
    path = tmp_path / "t"
    write_deltalake(path, pa.table({"id": [1], "p": ["x"]}), partition_by=["p"])
    (log,) = (path / "_delta_log").glob("*.json")
    actions = [json.loads(line) for line in log.read_text().splitlines()]
    for each in actions:
        if "add" in each:
            (path / "other").mkdir()
            (path / each["add"]["path"]).rename(path / "other" / "f.parquet")
            each["add"]["path"] = "other/f.parquet"
    log.write_text("".join(json.dumps(each) + "\n" for each in actions))

    (text,) = read_problems(DeltaTable(path))
    assert "does not name its partition, p" in text


@pytest.mark.parametrize("name", ["a#b", "e?f", "c%20d", "g[1]", "h{x}", "i*"])
def test_paths_that_libraries_read_as_others_are_refused(tmp_path: Path, name: str) -> None:
    path = str(tmp_path / name)
    assert "the path of a delta table cannot have" in str(path_problem(path))
    with pytest.raises(ConfigError, match="the path of a delta table cannot have"):
        open_table(path)


def test_paths_and_uris_of_this_machine() -> None:
    assert local_root("/a b/c") == Path("/a b/c")
    assert local_root("file:///a%20b/c") == Path("/a b/c")
    assert local_root("s3://bucket/c") is None
    assert path_problem("s3://bucket/c%20d") is None
    assert path_problem("file:///a%20b") is None


def test_a_directory_without_delta_table_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no Delta table in"):
        open_table(str(tmp_path))
