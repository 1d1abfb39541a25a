"""Make the DataFrames and streaming queries of plans."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from headrace.errors import ConfigError
from headrace.pipelines.declaration import ForEachBatch, Source, Table, Topic
from headrace.pipelines.delta.tables import (
    files,
    local_root,
    open_table,
    read_problems,
    schema_of,
)
from headrace.pipelines.encoding import TIMES, encoded
from headrace.pipelines.options import (
    batch_sink_options_of,
    decodes,
    sink_options_of,
    source_options_of,
)
from headrace.pipelines.plan import Plan
from headrace.spark.datasource import NAME

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ERROR: Final = "_error"
"""The name of the column with the reason why a value is null, with `onError=null`."""
QUERY_ID: Final = "sql.streaming.queryId"


def session_of(spark: SparkSession, plan: Plan) -> SparkSession:
    """Create a session with the settings of a pipeline, in the same JVM.

    Raises:
        ConfigError: Spark rejects a setting.
    """
    session = spark.newSession()
    for name, value in plan.pipeline.settings.items():
        try:
            session.conf.set(name, value)
        except Exception as error:
            raise ConfigError(f"setting {name}: {error}") from error
    return session


def result(spark: SparkSession, plan: Plan) -> DataFrame:
    """Call the pipeline's function with the frames of its sources, and return its frame.

    Raises:
        ConfigError: The function returned something other than a streaming DataFrame.
    """
    frames = {parameter: read(spark, source, plan) for parameter, source in plan.sources.items()}
    made: Any = plan.pipeline.function(**frames)
    if not getattr(made, "isStreaming", False):
        what = "a frame that is no stream" if hasattr(made, "isStreaming") else repr(made)
        raise ConfigError(f"the function returned {what}, but must return a streaming DataFrame")
    frame: DataFrame = made
    return frame


def read(spark: SparkSession, source: Source, plan: Plan) -> DataFrame:
    """Return the frame of a source."""
    if isinstance(source, Topic):
        return _read_topic(spark, source, plan)
    if source.format == "delta":
        return _read_delta(spark, source.path)
    reader: Any = spark.readStream if source.stream else spark.read
    reader = reader.format(source.format).options(**source.options)
    if source.schema is not None:
        reader = reader.schema(spark_schema(source.schema))
    frame: DataFrame = reader.load(source.path)
    return frame


def spark_schema(text: str) -> Any:
    """Return a schema for Spark: DDL text as it is, or the StructType of JSON text."""
    from pyspark.sql.types import StructType

    return StructType.fromJson(json.loads(text)) if text.lstrip().startswith("{") else text


def _read_topic(spark: SparkSession, topic: Topic, plan: Plan) -> DataFrame:
    options = source_options_of(topic, plan.name, plan.connection)
    frame = spark.readStream.format(NAME).options(**options).load()
    if decodes(topic):
        errors = [name for name in frame.columns if name == ERROR]
        return frame.select(*topic.include, "value.*", *errors)
    if topic.format == "text":
        return frame.withColumn("value", frame["value"].cast("string"))
    return frame


def _read_delta(spark: SparkSession, path: str) -> DataFrame:
    """Read the present files of a Delta table. Spark alone would also read files that the table has removed."""
    found = open_table(path)
    wrong = list(read_problems(found))
    if wrong:
        raise ConfigError(f"the Delta table in {path} cannot be read here: {'; '.join(wrong)}")
    schema, names = schema_of(found), files(found, path)
    if not names:
        return spark.createDataFrame([], schema)
    root = str(local_root(path) or path)
    return spark.read.schema(schema).option("basePath", root).parquet(*names)


def start(spark: SparkSession, plan: Plan) -> Any:
    """Start the query of a plan.

    Raises:
        ConfigError: The pipeline's function or a setting is wrong.
    """
    session = session_of(spark, plan)
    frame = result(session, plan)
    trigger: dict[str, Any] = (
        {"availableNow": True}
        if plan.trigger.every is None
        else {"processingTime": plan.trigger.every}
    )
    mode = plan.pipeline.output_mode
    sink = plan.sink
    if isinstance(sink, Topic) and mode == "append":
        frame = encoded(frame, sink)
    writer: Any = frame.writeStream
    writer = writer.queryName(plan.name).outputMode(mode).trigger(**trigger)
    writer = writer.option("checkpointLocation", plan.checkpoint)
    if isinstance(sink, Table) and sink.format != "delta":
        options = file_options(sink)
        writer = writer.format(sink.format).options(**options).option("path", sink.path)
        return writer.partitionBy(*sink.partition_by).start()
    if isinstance(sink, Topic) and mode == "append":
        return writer.format(NAME).options(**sink_options_of(sink, plan.connection)).start()
    return writer.foreachBatch(_batch_writer(plan)).start()


def file_options(table: Table) -> dict[str, str]:
    """Return the options with which Spark writes the files of a table."""
    given = {name.lower() for name in table.options}
    times = TIMES if table.format in {"json", "csv"} else {}
    own = {name: value for name, value in times.items() if name.lower() not in given}
    return {**own, **table.options}


def _batch_writer(plan: Plan) -> Any:
    """Return the function that writes a batch to sinks that Spark's streaming sinks do not support."""

    def write(batch: DataFrame, batch_id: int) -> None:
        sink: Any = plan.sink
        if isinstance(sink, ForEachBatch):
            batch, sink = _made_of(batch, batch_id, sink), sink.to
        if isinstance(sink, Table):
            from headrace.pipelines.delta.append import append

            append(batch, sink, query_id(batch), batch_id)
        elif sink is not None:
            write_topic(batch, sink, plan, query_id(batch), batch_id)

    return write


def _made_of(batch: DataFrame, batch_id: int, sink: ForEachBatch) -> Any:
    made: Any = sink.function(batch, batch_id)
    if sink.to is not None and not hasattr(made, "columns"):
        raise ConfigError(f"{sink}: it returned {made!r}, but must return a DataFrame")
    return made


def write_topic(batch: DataFrame, topic: Topic, plan: Plan, app_id: str, batch_id: int) -> None:
    """Write a batch to a topic, unless an earlier attempt has written it."""
    options = batch_sink_options_of(topic, plan.connection, app_id, batch_id)
    encoded(batch, topic).write.format(NAME).mode("append").options(**options).save()


def query_id(batch: DataFrame) -> str:
    """Return the id of a batch's query. The checkpoint has the id; a new checkpoint has a new id.

    Raises:
        ConfigError: Spark does not report the id, without which the batches of two queries cannot be distinguished.
    """
    found = batch.sparkSession.sparkContext.getLocalProperty(QUERY_ID)
    if not found:
        raise ConfigError(
            "Spark does not report the query of a batch: leave PYSPARK_PIN_THREAD at its default, true"
        )
    return str(found)
