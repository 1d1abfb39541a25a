"""Run the loads of `benchmarks.macro.spark`, each for Headrace's source or sink and for Spark's own connector."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from confluent_kafka import KafkaException
from py4j.protocol import Py4JError  # type: ignore[import-untyped]  # it has no types
from pyspark.errors import PySparkException

from benchmarks.macro import workloads
from benchmarks.macro.report import HEADRACE, Results, Row
from benchmarks.macro.spark_inputs import LAYOUTS, MIDDLE, SIZES, WRITTEN_SIZES, Inputs, Topic
from benchmarks.macro.spark_latency import RECORDS_PER_S, PacedProducer, end_to_end
from benchmarks.macro.spark_page import CONNECTOR, ONCE, PYTHON
from benchmarks.macro.spark_session import Meter
from headrace.clients.blocking import BlockingClient
from headrace.clients.flows.list_offsets import LATEST
from headrace.errors import HeadraceError
from headrace.spark.archive.running import ArchiveSettings, archiver, run
from headrace.types import TopicPartition

FAILURES = (RuntimeError, OSError, HeadraceError, KafkaException, Py4JError, PySparkException)
BATCHES = 5
"""The number of batches of a stream that is read."""
FILES_PER_BATCH = 2
"""The number of files in a batch of a stream that is written: one task for each core."""
STREAM_TIMEOUT_S = 600


@dataclass(frozen=True)
class Side:
    """A source and sink, with the name and the options that Spark needs."""

    target: str
    format: str
    options: Mapping[str, str]
    """The options of the sink."""


OURS = Side(HEADRACE, "headrace", {"delivery": "at_least_once"})
OURS_ONCE = Side(ONCE, "headrace", {"delivery": "exactly_once"})
OURS_PYTHON = Side(PYTHON, "headrace", {})
THEIRS = Side(CONNECTOR, "kafka", {})


@dataclass
class Loads:
    """All loads in one Spark session."""

    spark: Any
    meter: Meter
    bootstrap: str
    scratch: Path
    inputs: Inputs
    results: Results
    latency_s: float
    """The length of a latency measurement, in seconds."""
    accelerated: bool
    backwards: bool
    """Whether the connector is measured before Headrace."""

    def run(self, part: str) -> None:
        """Run one part; record a load that fails, and continue."""
        loads: dict[str, Callable[[], None]] = {
            "batch read": self._batch_reads,
            "stream read": self._stream_reads,
            "batch write": self._batch_writes,
            "stream write": self._stream_writes,
            "archive": self._archives,
            "latency": self._latencies,
        }
        loads[part]()

    def _each(
        self, part: str, case: str, sides: tuple[Side, ...], load: Callable[[Side], Any]
    ) -> None:
        """Run a load for each side, and store its results."""
        for side in sides[::-1] if self.backwards else sides:
            try:
                found = load(side)
            except FAILURES as error:
                what = str(error).splitlines()[0] if str(error) else type(error).__name__
                self.results.fail(f"{part}, {case}, {side.target}: {what}"[:300])
                print(f"  {part}, {case}, {side.target}: {what}", file=sys.stderr, flush=True)
                continue
            for metric, value in found.items():
                self.results.note(Row(part, case, metric), side.target, value)

    def _readers(self) -> tuple[Side, ...]:
        return (OURS, THEIRS) if self.accelerated else (OURS_PYTHON,)

    def _cost(self, rows: int) -> dict[str, float]:
        """Return the cost of the load that has just ended."""
        wall_s, cpu_s = self.meter.wall_s(), self.meter.cpu_s()
        return {"rows/s": rows / wall_s, "CPU us/row": cpu_s * 1e6 / rows}

    def _with(self, builder: Any, **options: Any) -> Any:
        builder = builder.option("kafka.bootstrap.servers", self.bootstrap)
        for name, value in options.items():
            builder = builder.option(name.replace("__", "."), value)
        return builder

    # Reads.

    def _batch_reads(self) -> None:
        for size, partitions in LAYOUTS:
            topic = self.inputs.topics[size, partitions]
            case = f"{_bytes(size)}, {partitions} partition{'s' if partitions > 1 else ''}"
            self._each("batch read", case, self._readers(), partial(self._batch_read, topic))

    def _batch_read(self, topic: Topic, side: Side) -> dict[str, float]:
        self.meter.reset()
        rows = self._with(self.spark.read.format(side.format), subscribe=topic.name).load()
        rows.write.format("noop").mode("overwrite").save()
        return self._cost(topic.rows)

    def _stream_reads(self) -> None:
        for size in SIZES:
            topic = self.inputs.topics[size, MIDDLE]
            case = f"{_bytes(size)}, {BATCHES} batches"
            self._each("stream read", case, self._readers(), partial(self._stream_read, topic))

    def _stream_read(self, topic: Topic, side: Side) -> dict[str, float]:
        self.meter.reset()
        rows = self._with(
            self.spark.readStream.format(side.format),
            subscribe=topic.name,
            startingOffsets="earliest",
            maxOffsetsPerTrigger=-(-topic.rows // BATCHES),
        ).load()
        return self._stream(rows.writeStream.format("noop"), topic.rows)

    def _stream(self, writer: Any, rows: int) -> dict[str, float]:
        """Run a stream to its end; the cost includes the declaration of the stream."""
        checkpoint = self.scratch / f"checkpoint-{time.monotonic_ns()}"
        found = run_stream(writer.option("checkpointLocation", str(checkpoint)), rows)
        return self._cost(rows) | found

    # Writes.

    @contextmanager
    def _output(self, rows: int) -> Iterator[str]:
        """Yield a topic to write to; check at the end that it has at least the given number of records."""
        name = f"output-{time.monotonic_ns()}"
        workloads.create_topic(self.bootstrap, name, MIDDLE)
        yield name
        with BlockingClient(self.bootstrap) as client:
            ends = client.list_offsets({TopicPartition(name, at): LATEST for at in range(MIDDLE)})
        written = sum(each.offset for each in ends.values())
        workloads.delete_topic(self.bootstrap, name)
        if written < rows:
            raise RuntimeError(f"{written:,} of {rows:,} rows were written")

    def _batch_writes(self) -> None:
        for size in WRITTEN_SIZES:
            load = partial(self._batch_write, size)
            self._each("batch write", _bytes(size), (OURS, OURS_ONCE, THEIRS), load)

    def _batch_write(self, size: int, side: Side) -> dict[str, float]:
        directory, rows = self.inputs.files[size]
        once = {"txnAppId": str(time.monotonic_ns()), "txnVersion": "0"}
        with self._output(rows) as topic:
            self.meter.reset()
            writer = self.spark.read.parquet(str(directory)).write.format(side.format)
            options = {**side.options, **(once if side is OURS_ONCE else {})}
            self._with(writer.mode("append"), topic=topic, **options).save()
            return self._cost(rows)

    def _stream_writes(self) -> None:
        for size in WRITTEN_SIZES:
            load = partial(self._stream_write, size)
            self._each("stream write", _bytes(size), (OURS, OURS_ONCE, THEIRS), load)

    def _stream_write(self, size: int, side: Side) -> dict[str, float]:
        directory, rows = self.inputs.files[size]
        with self._output(rows) as topic:
            self.meter.reset()
            files = (
                self.spark.readStream.schema("key binary, value binary")
                .option("maxFilesPerTrigger", FILES_PER_BATCH)
                .parquet(str(directory))
            )
            writer = self._with(files.writeStream.format(side.format), topic=topic, **side.options)
            return self._stream(writer, rows)

    # The archive.

    def _archives(self) -> None:
        for size in WRITTEN_SIZES:
            topic = self.inputs.topics[size, MIDDLE]
            load = partial(self._archive, topic)
            sides = (OURS, THEIRS) if self.accelerated else (OURS_PYTHON,)
            self._each("archive", f"{_bytes(size)}, {MIDDLE} partitions", sides, load)

    def _archive(self, topic: Topic, side: Side) -> dict[str, float]:
        table = self.scratch / f"table-{time.monotonic_ns()}"
        options = {"subscribe": topic.name, "kafka.isolation.level": "read_committed"}
        self.meter.reset()
        if side is THEIRS:
            rows = self._with(self.spark.read.format("kafka"), includeHeaders="true", **options)
            rows.load().write.option("compression", "zstd").parquet(str(table))
            return self._cost(topic.rows)
        settings = ArchiveSettings(
            {"kafka.bootstrap.servers": self.bootstrap, **options}, str(table), once=True
        )
        batches = run(archiver(settings, self.spark), settings, threading.Event())
        archived = sum(each.records for each in batches)
        if archived != topic.rows:
            raise RuntimeError(f"{archived:,} of {topic.rows:,} rows were archived")
        return self._cost(topic.rows)

    # Latency.

    def _latencies(self) -> None:
        case = f"topic to topic, every second, {RECORDS_PER_S} records/s"
        self._each("latency", case, (OURS, OURS_ONCE, THEIRS), self._latency)

    def _latency(self, side: Side) -> dict[str, float]:
        source, sink = f"source-{time.monotonic_ns()}", f"sink-{time.monotonic_ns()}"
        for topic in (source, sink):
            workloads.create_topic(self.bootstrap, topic, MIDDLE)
        rows = self._with(self.spark.readStream.format(side.format), subscribe=source).load()
        writer = self._with(
            rows.select("key", "value").writeStream.format(side.format), topic=sink, **side.options
        )
        checkpoint = self.scratch / f"checkpoint-{time.monotonic_ns()}"
        writer = writer.option("checkpointLocation", str(checkpoint))
        with PacedProducer(self.bootstrap, source) as paced:
            query = writer.trigger(processingTime="1 second").start()
            try:
                found = end_to_end(
                    self.bootstrap,
                    sink,
                    paced,
                    query,
                    seconds=self.latency_s,
                    meter=self.meter,
                )
                return found | {"median batch ms": _median_batch_ms(query)}
            finally:
                query.stop()


PARTS = ("batch read", "stream read", "batch write", "stream write", "archive", "latency")


def _bytes(size: int) -> str:
    return f"{size} B" if size < 1024 else f"{size // 1024} KiB"


def run_stream(writer: Any, rows: int) -> dict[str, float]:
    """Run a stream over all available rows; return how long its batches took."""
    query = writer.trigger(availableNow=True).start()
    if not query.awaitTermination(STREAM_TIMEOUT_S):
        query.stop()
        raise RuntimeError(f"the stream did not end in {STREAM_TIMEOUT_S} s")
    seen = sum(each["numInputRows"] for each in query.recentProgress)
    if seen != rows:
        raise RuntimeError(f"the stream read {seen:,} of {rows:,} rows")
    return {"median batch ms": _median_batch_ms(query)}


def _median_batch_ms(query: Any) -> float:
    """Return the median duration in milliseconds of the batches that had rows."""
    took = [
        each["durationMs"]["triggerExecution"]
        for each in query.recentProgress
        if each["numInputRows"]
    ]
    if not took:
        raise RuntimeError("no batch of the stream had rows")
    return float(median(took))
