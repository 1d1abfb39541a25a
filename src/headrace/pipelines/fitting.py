"""Whether what a pipeline's function makes fits its sink, found out before a stream starts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from headrace.pipelines.declaration import ForEachBatch, Table, Topic
from headrace.pipelines.frames import spark_schema
from headrace.pipelines.plan import Plan

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

RECORD_COLUMNS: Final = ("key", "value", "topic", "partition", "timestamp", "headers")


def problems(spark: SparkSession, frame: DataFrame, plan: Plan) -> Iterator[str]:
    """Yield what keeps the sink from taking a frame."""
    sink, types = plan.sink, dict(frame.dtypes)
    if isinstance(sink, ForEachBatch):
        return
    if isinstance(sink, Topic):
        yield from _unlike_records(sink, types)
        types.pop(sink.tombstone or "", None)
    else:
        yield from _without_partitions(sink, types)
    if sink.schema is not None:
        wanted = spark.createDataFrame([], spark_schema(sink.schema)).dtypes
        yield from _unlike(dict(wanted), types)


def _unlike_records(topic: Topic, types: Mapping[str, str]) -> Iterator[str]:
    if topic.format != "json":
        unknown = [name for name in types if name not in RECORD_COLUMNS]
        if "value" not in types:
            yield f"a {topic.format} topic needs a column value; the frame has {', '.join(types)}"
        if unknown:
            yield f"{', '.join(unknown)}: records have only {', '.join(RECORD_COLUMNS)}"
    wanted = {"key": topic.key, "timestamp": topic.timestamp, "tombstone": topic.tombstone}
    for what, name in wanted.items():
        if name is not None and name not in types:
            yield f"{what}={name!r}: the frame has no such column, it has {', '.join(types)}"


def _without_partitions(table: Table, types: Mapping[str, str]) -> Iterator[str]:
    for name in table.partition_by:
        if name not in types:
            yield f"partition_by: the frame has no column {name}, it has {', '.join(types)}"


def _unlike(wanted: Mapping[str, str], given: Mapping[str, str]) -> Iterator[str]:
    for name, kind in wanted.items():
        if name not in given:
            yield f"the sink's schema has a column {name} {kind}, and the frame has not"
        elif given[name] != kind:
            yield f"column {name} is {kind} in the sink's schema, and {given[name]} in the frame"
    for name in given:
        if name not in wanted:
            yield f"the frame has a column {name}, and the sink's schema has not: select what is wanted"


def unsupported(frame: DataFrame, plan: Plan) -> Iterator[str]:
    """Yield what Spark would refuse at the start, an aggregation without watermark in append mode for example."""
    jvm: Any = frame.sparkSession._jvm  # noqa: SLF001 - PySpark has no name for this check
    checker = jvm.org.apache.spark.sql.catalyst.analysis.UnsupportedOperationChecker
    mode = getattr(jvm.org.apache.spark.sql.streaming.OutputMode, plan.pipeline.output_mode.title())
    analyzed = frame._jdf.queryExecution().analyzed()  # noqa: SLF001 - as above
    try:
        checker.checkForStreaming(analyzed, mode())
    except Exception as error:  # noqa: BLE001 - py4j has its own kinds; a Spark without this check refuses later
        if type(error).__name__ == "AnalysisException":
            yield str(error).partition("\n")[0]
