"""Check before a stream starts that the frame of a pipeline's function fits the sink."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from headrace.pipelines.declaration import ForEachBatch, Table, Topic
from headrace.pipelines.delta.tables import local_root
from headrace.pipelines.encoding import encoded, key_problems, maps_that_json_has_not
from headrace.pipelines.frames import spark_schema
from headrace.pipelines.plan import Plan
from headrace.pipelines.schemas import alike, differences
from headrace.spark.decode.ddl import spark_type, struct_type
from headrace.spark.sink.columns import COLUMNS, column_problems

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_FORMATS: Final[Mapping[str, str]] = {
    "parquet": "parquet.ParquetFileFormat",
    "json": "json.JsonFileFormat",
    "csv": "csv.CSVFileFormat",
    "orc": "orc.OrcFileFormat",
    "text": "text.TextFileFormat",
}
_TYPED: Final = frozenset({"parquet", "orc"})
"""Formats whose files have a schema. Readers use the schema of one file for all files."""
_MERGE: Final = "mergeschema"


def problems(spark: SparkSession, frame: DataFrame, plan: Plan) -> Iterator[str]:
    """Yield the reasons why a frame does not fit the sink."""
    sink, types = plan.sink, dict(frame.dtypes)
    if isinstance(sink, ForEachBatch):
        return
    doubled = list(alike(frame.schema, case_sensitive=_is_case_sensitive(spark)))
    yield from doubled
    if isinstance(sink, Topic):
        missing = list(_missing_columns(sink, types))
        yield from missing
        if not doubled and not missing:
            yield from _record_problems(spark, sink, frame)
        types.pop(sink.tombstone or "", None)
    else:
        missing = list(_missing_partitions(sink, types))
        yield from missing
        if not doubled and not missing:
            yield from _table_problems(spark, sink, frame)
    if sink.schema is not None:
        yield from _schema_differences(_wanted(spark, sink), types)


def _is_case_sensitive(spark: SparkSession) -> bool:
    return str(spark.conf.get("spark.sql.caseSensitive", "false")).lower() == "true"


def _wanted(spark: SparkSession, sink: Topic | Table) -> dict[str, str]:
    """Return the columns of a sink's schema. A topic's schema is parsed as the source parses it, in every session."""
    assert sink.schema is not None
    if isinstance(sink, Topic):
        return {each.name: spark_type(each.type, quoted=False) for each in struct_type(sink.schema)}
    return dict(spark.createDataFrame([], spark_schema(sink.schema)).dtypes)


def _missing_columns(topic: Topic, types: Mapping[str, str]) -> Iterator[str]:
    wanted = {"key": topic.key, "timestamp": topic.timestamp, "tombstone": topic.tombstone}
    for what, name in wanted.items():
        if name is not None and name not in types:
            yield f"{what}={name!r}: the frame has no such column, it has {', '.join(types)}"
    if topic.tombstone is not None and types.get(topic.tombstone, "boolean") != "boolean":
        yield f"tombstone={topic.tombstone!r} must be a boolean column, not {types[topic.tombstone]}"
    if topic.format != "json":
        unknown = [name for name in types if name not in COLUMNS]
        if "value" not in types:
            yield f"a {topic.format} topic needs a column value; the frame has {', '.join(types)}"
        if unknown:
            yield f"{', '.join(unknown)}: records have only {', '.join(COLUMNS)}"


def _record_problems(spark: SparkSession, topic: Topic, frame: DataFrame) -> Iterator[str]:
    """Yield the reasons why a frame cannot be converted to records. The check uses the expressions of a real start."""
    if topic.format == "json":
        zone = str(spark.conf.get("spark.sql.session.timeZone", "UTC"))
        yield from maps_that_json_has_not(frame.schema)
        yield from key_problems(frame.schema, topic, zone)
    try:
        made = encoded(frame, topic)
    except Exception as error:  # noqa: BLE001 - of Spark's analysis
        yield str(error).partition("\n")[0]
        return
    yield from column_problems(dict(made.dtypes), topic.name)


def _missing_partitions(table: Table, types: Mapping[str, str]) -> Iterator[str]:
    for name in table.partition_by:
        if name not in types:
            yield f"partition_by: the frame has no column {name}, it has {', '.join(types)}"


def _table_problems(spark: SparkSession, table: Table, frame: DataFrame) -> Iterator[str]:
    if table.format == "delta":
        from headrace.pipelines.delta.append import problems as delta_problems

        yield from delta_problems(table, frame.schema)
        return
    refused = list(_refused_by_format(spark, table, frame))
    yield from refused
    if table.format == "json":
        yield from maps_that_json_has_not(frame.schema)
    if table.format in _TYPED and not refused:
        yield from _file_differences(spark, table, frame)


def _refused_by_format(spark: SparkSession, table: Table, frame: DataFrame) -> Iterator[str]:
    """Yield the errors that Spark's file writer would raise for the first batch."""
    parts = [each for each in frame.schema if each.name in table.partition_by]
    data = frame.drop(*table.partition_by)
    if table.format == "text" and [kind for _, kind in data.dtypes] != ["string"]:
        yield f"a text table has one column of text, but the frame has {frame.schema.simpleString()}"
    jvm: Any = spark._jvm  # noqa: SLF001 - PySpark has no name for these checks
    files = jvm.org.apache.spark.sql.execution.datasources
    made: Any = files
    for name in _FORMATS[table.format].split("."):
        made = getattr(made, name)
    parse = jvm.org.apache.spark.sql.types.DataType.fromJson
    schema = parse(data.schema.json())
    names = jvm.org.apache.spark.api.python.PythonUtils.toSeq([each.name for each in parts])
    checks: tuple[Callable[[], Any], ...] = (
        lambda: files.DataSourceUtils.verifySchema(made(), schema, False),  # noqa: FBT003 - Scala's signature
        lambda: files.DataSourceUtils.checkFieldNames(made(), schema),
        lambda: files.PartitioningUtils.validatePartitionColumn(
            parse(frame.schema.json()), names, _is_case_sensitive(spark)
        ),
    )
    for check in checks:
        try:
            check()
        except Exception as error:  # noqa: BLE001 - py4j has its own exceptions; without these checks Spark fails later
            if type(error).__name__ == "AnalysisException":
                yield str(error).partition("\n")[0]


def _file_differences(spark: SparkSession, table: Table, frame: DataFrame) -> Iterator[str]:
    """Yield differences to existing files: columns that readers of the files would not see or could not read."""
    try:
        reader = spark.read.format(table.format).options(**table.options)
        there = reader.load(table.path).schema
    except Exception:  # noqa: BLE001 - there are no files yet, or none that Spark can read
        return
    evolving = {name.lower(): value.lower() for name, value in table.options.items()}.get(_MERGE)
    yield from differences(
        there,
        frame.schema,
        str(table),
        leave_out=table.partition_by,
        evolving=evolving == "true",
    )
    before = _partitions(table.path)
    if before is not None and before != list(table.partition_by):
        yield (
            f"{table} is partitioned by {', '.join(before) or 'nothing'}, but partition_by is "
            f"{', '.join(table.partition_by) or 'nothing'}: write to another table"
        )


def _partitions(path: str) -> list[str] | None:
    """Return the partition columns in the names of directories; None without files, or for other file systems."""
    directory: Path | None = local_root(path)
    found: list[str] = []
    while directory is not None and directory.is_dir():
        names = [each for each in directory.iterdir() if not each.name.startswith(("_", "."))]
        inside = [each for each in names if each.is_dir() and "=" in each.name]
        if not inside:
            return found if names else None
        found.append(inside[0].name.partition("=")[0])
        directory = inside[0]
    return None


def _schema_differences(wanted: Mapping[str, str], given: Mapping[str, str]) -> Iterator[str]:
    for name, kind in wanted.items():
        if name not in given:
            yield f"the sink's schema has a column {name} {kind}, but the frame does not"
        elif given[name] != kind:
            yield f"column {name} is {kind} in the sink's schema, but {given[name]} in the frame"
    for name in given:
        if name not in wanted:
            yield f"the frame has a column {name}, but the sink's schema does not: select the wanted columns"


def unsupported(frame: DataFrame, plan: Plan) -> Iterator[str]:
    """Yield what Spark would reject at the start, for example an aggregation without watermark in append mode."""
    jvm: Any = frame.sparkSession._jvm  # noqa: SLF001 - PySpark has no name for this check
    checker = jvm.org.apache.spark.sql.catalyst.analysis.UnsupportedOperationChecker
    mode = getattr(jvm.org.apache.spark.sql.streaming.OutputMode, plan.pipeline.output_mode.title())
    analyzed = frame._jdf.queryExecution().analyzed()  # noqa: SLF001 - PySpark has no name for this check
    try:
        checker.checkForStreaming(analyzed, mode())
    except Exception as error:  # noqa: BLE001 - py4j has its own exceptions; a Spark without this check fails later
        if type(error).__name__ == "AnalysisException":
            yield str(error).partition("\n")[0]
