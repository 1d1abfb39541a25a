"""The Spark side: delays per carrier and hour, as a stream with a watermark, to Parquet files and to a topic."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from headrace.demo.statistics import LATE_MINUTES, Results, WindowKey, WindowResult
from headrace.errors import HeadraceError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

EVENT_COLUMNS: Final = "carrier string, departure_delay_minutes int, cancelled boolean"
WATERMARK: Final = "1 hour"
"""The watermark of the query: the largest time between two flights of a batch that are out of order. A batch contains
several partitions, and only the flights of one partition are in order."""
RESULT_COLUMNS: Final = (
    "carrier",
    "window_start",
    "window_end",
    "flights",
    "cancelled",
    "mean_delay_minutes",
    "max_delay_minutes",
    "late_share",
)
RUN_TIMEOUT_S: Final = 600
_POLL_S: Final = 0.1


class PipelineError(HeadraceError):
    """The streaming query failed or did not end."""


@dataclass(frozen=True)
class DemoLocations:
    """The topics and directories of the pipeline: its input, its output and its state."""

    bootstrap: str
    flights: str
    results: str
    parquet: Path
    checkpoint: Path


@dataclass(frozen=True)
class Run:
    """Durations and counts of one run of the query."""

    rows: int
    batches: int
    seconds: float


def delays(events: DataFrame) -> DataFrame:
    """Return the delays per carrier and hour of a frame of flight records (columns `value` and `timestamp`)."""
    from pyspark.sql import functions as f

    event = f.from_json(f.col("value").cast("string"), EVENT_COLUMNS)
    delay = f.col("departure_delay_minutes")
    return (
        events.select("timestamp", event.alias("event"))
        .select("timestamp", "event.*")
        .withWatermark("timestamp", WATERMARK)
        .groupBy(f.window("timestamp", "1 hour").alias("hour"), "carrier")
        .agg(
            f.count("*").alias("flights"),
            f.count_if("cancelled").alias("cancelled"),
            f.avg(delay).alias("mean_delay_minutes"),
            f.max(delay).alias("max_delay_minutes"),
            f.avg((delay > LATE_MINUTES).cast("double")).alias("late_share"),
        )
        .withColumn("window_start", f.col("hour.start"))
        .withColumn("window_end", f.col("hour.end"))
        .select(*RESULT_COLUMNS)
    )


def write_results(frame: DataFrame, batch_id: int, places: DemoLocations) -> None:
    """Write a micro-batch of final windows to both places.

    Spark may run a batch again. Its files are those of its number, so they are written over; the topic gets its
    records a second time, with the same keys and values (the batch writer writes at least once).
    """
    from pyspark.sql import functions as f

    # The records that close the stream have no carrier; their own window never becomes final.
    windows = frame.where("carrier IS NOT NULL").persist()
    try:
        if windows.isEmpty():
            return
        windows.coalesce(1).write.mode("overwrite").parquet(
            str(places.parquet / f"batch={batch_id}")
        )
        windows.select(
            f.concat_ws(
                " ", "carrier", f.date_format("window_start", "yyyy-MM-dd'T'HH:mm'Z'")
            ).alias("key"),
            f.to_json(f.struct(*RESULT_COLUMNS)).alias("value"),
            f.col("window_start").alias("timestamp"),
        ).write.format("headrace").mode("append").option(
            "kafka.bootstrap.servers", places.bootstrap
        ).option("kafka.compression.type", "lz4").option("topic", places.results).save()
    finally:
        windows.unpersist()


def run_available(spark: SparkSession, places: DemoLocations) -> Run:
    """Run the query over the unprocessed records of the topic, then end it.

    One micro-batch contains all records. A limit (`maxOffsetsPerTrigger`) would take the same share of each partition.
    But carriers have more flights in some months than in others: (1) The partitions of a batch would end weeks apart.
    (2) The watermark would advance with the fastest partition. (3) The query would drop flights of the others as late.

    Raises:
        PipelineError: The query failed.
    """
    events = (
        spark.readStream.format("headrace")
        .option("kafka.bootstrap.servers", places.bootstrap)
        .option("subscribe", places.flights)
        .option("startingOffsets", "earliest")
        .load()
    )
    began = time.perf_counter()
    query: Any = (
        delays(events)
        .writeStream.outputMode("append")
        .foreachBatch(lambda frame, batch_id: write_results(frame, batch_id, places))
        .option("checkpointLocation", str(places.checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    try:
        _wait(query)
    except BaseException:
        query.stop()
        raise
    if query.exception() is not None:
        raise PipelineError(f"the pipeline failed: {query.exception()}")
    progress = query.recentProgress
    rows = sum(each["numInputRows"] for each in progress)
    return Run(rows, len(progress), time.perf_counter() - began)


def _wait(query: Any) -> None:
    """Wait until the query has ended.

    By asking again and again: Ctrl-C then comes while this process sleeps, and seldom while it waits for a response
    of the JVM, which PySpark takes for a broken connection.
    """
    deadline = time.monotonic() + RUN_TIMEOUT_S
    while query.isActive:
        if time.monotonic() > deadline:
            raise PipelineError(f"the pipeline did not end within {RUN_TIMEOUT_S} s")
        time.sleep(_POLL_S)


def read_parquet(parquet: Path) -> Results:
    """Return the windows in the files, read without Spark.

    Raises:
        PipelineError: A window is in the files twice.
    """
    import pyarrow.dataset

    names = [name for name in RESULT_COLUMNS if name != "window_end"]
    results: dict[WindowKey, WindowResult] = {}
    files = sorted(str(path) for path in parquet.glob("batch=*/*.parquet"))
    for row in pyarrow.dataset.dataset(files, format="parquet").to_table(names).to_pylist():
        key = WindowKey(row.pop("carrier"), int(row.pop("window_start").timestamp() * 1000))
        if key in results:
            raise PipelineError(f"{key} was written twice")
        results[key] = WindowResult(**row)
    return results
