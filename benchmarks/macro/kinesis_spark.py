"""Measure `format("headrace-kinesis")` as source and as sink, on a fake of AWS.

    python -m benchmarks.macro.kinesis_spark [--quick] [--rounds N] [--rows TEXT] [--page]

The fake runs in its own process, without AWS's limits on writes. It shares the cores with Spark. Its CPU is left out.
Reads keep to AWS's limit of 2 MiB per second and shard. Before a part is measured, its first load runs once with less
data. The result is a table of medians with minimum and maximum, and a JSON file. `--page` also writes the section of
docs/guides/spark-kinesis.md.
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from itertools import count, islice
from pathlib import Path
from typing import Any, Final

from benchmarks.macro.kinesis_bench import KEYS, REGION, Aws
from benchmarks.macro.marked_page import RESULTS, ROOT, Measured
from benchmarks.macro.report import HEADRACE, Results, Row, cell, load_text, machine_text, table
from benchmarks.macro.runs import Run
from benchmarks.macro.spark_inputs import texts
from benchmarks.macro.spark_loads import FAILURES, run_stream
from benchmarks.macro.spark_session import Meter, session
from headrace.kinesis import Producer
from headrace.kinesis.client.settings import AwsSettings

SHARDS: Final = 16
FILES: Final = 8
BATCHES: Final = 4
KEYS_AT_ALL: Final = 1_000
AGGREGATE_BYTES: Final = 51_200
STREAM_FILES: Final = FILES // BATCHES


@dataclass(frozen=True)
class Kind:
    """The size, number and format of the records of a load."""

    name: str
    size: int
    rows: int
    aggregated: bool = False

    def smaller(self) -> Kind:
        """Return the same kind with fewer records, for a warm-up or a quick run."""
        return Kind(self.name, self.size, self.rows // 10, self.aggregated)


KINDS: Final = (
    Kind("100 B", 100, 400_000),
    Kind("100 B, aggregated", 100, 400_000, aggregated=True),
    Kind("1 KiB", 1024, 100_000),
)


class Loads:
    """All loads in one Spark session; each stores its cost."""

    def __init__(self, spark: Any, meter: Meter, aws: Aws, scratch: Path) -> None:
        self._spark, self._meter, self._aws, self._scratch = spark, meter, aws, scratch
        self._names = count()
        self._streams: dict[Kind, str] = {}
        self._files: dict[Kind, Path] = {}
        self.all: Mapping[str, Callable[[Kind], dict[str, float]]] = {
            "batch read": self._batch_read,
            "stream read": self._stream_read,
            "batch write": self._batch_write,
            "stream write": self._stream_write,
        }

    def _with(self, builder: Any, stream: str) -> Any:
        key, secret = KEYS.values()
        where = {"endpointUrl": self._aws.endpoint, "region": REGION, "stream": stream}
        return builder.format("headrace-kinesis").options(
            **where, accessKeyId=key, secretAccessKey=secret
        )

    def _cost(self, rows: int) -> dict[str, float]:
        wall_s, cpu_s = self._meter.wall_s(), self._meter.cpu_s()
        return {"rows/s": rows / wall_s, "CPU us/row": cpu_s * 1e6 / rows}

    # Reads

    def _filled(self, kind: Kind) -> str:
        """Return a stream with records of a kind; it is created once."""
        if kind not in self._streams:
            self._streams[kind] = self._aws.create(f"input-{next(self._names)}", SHARDS)
            asyncio.run(fill(self._aws.endpoint, self._streams[kind], kind))
        return self._streams[kind]

    def _batch_read(self, kind: Kind) -> dict[str, float]:
        stream = self._filled(kind)
        self._meter.reset()
        rows = self._with(self._spark.read, stream).load()
        rows.write.format("noop").mode("overwrite").save()
        return self._cost(kind.rows)

    def _stream_read(self, kind: Kind) -> dict[str, float]:
        stream = self._filled(kind)
        bounds = {
            "store": f"sqlite:///{self._scratch}/rounds-{next(self._names)}.db",
            "startingPosition": "earliest",
            "maxRecordsPerShard": -(-kind.rows // SHARDS // BATCHES),
        }
        self._meter.reset()
        rows = self._with(self._spark.readStream, stream).options(**bounds).load()
        found = run_stream(self._checkpointed(rows.writeStream.format("noop")), kind.rows)
        return self._cost(kind.rows) | found

    # Writes

    def _table(self, kind: Kind) -> str:
        """Return files with rows of a kind; they are written once."""
        if kind not in self._files:
            path = self._scratch / f"files-{next(self._names)}"
            keys = f"CONCAT('key-', id % {KEYS_AT_ALL}) AS partitionKey"
            data = f"CAST(LPAD(CAST(id AS STRING), {kind.size}, 'flight ') AS BINARY) AS data"
            rows = self._spark.range(0, kind.rows, numPartitions=FILES).selectExpr(keys, data)
            rows.write.option("compression", "none").parquet(str(path))
            self._files[kind] = path
        return str(self._files[kind])

    @contextmanager
    def _output(self, kind: Kind) -> Iterator[Callable[[Any], Any]]:
        """Yield a function that directs a writer to a new stream, and check at the end that the stream has all rows."""
        stream = self._aws.create(f"output-{next(self._names)}", SHARDS)
        yield lambda writer: self._with(writer, stream).option(
            "aggregate", str(kind.aggregated).lower()
        )
        found = self._with(self._spark.read, stream).load().count()
        self._aws.kinesis.delete_stream(StreamName=stream)
        if found < kind.rows:
            raise RuntimeError(f"{found:,} of {kind.rows:,} rows were written")

    def _batch_write(self, kind: Kind) -> dict[str, float]:
        files = self._table(kind)
        with self._output(kind) as told:
            self._meter.reset()
            told(self._spark.read.parquet(files).write).mode("append").save()
            return self._cost(kind.rows)

    def _stream_write(self, kind: Kind) -> dict[str, float]:
        files = self._table(kind)
        with self._output(kind) as told:
            self._meter.reset()
            rows = self._spark.readStream.schema("partitionKey string, data binary")
            rows = rows.option("maxFilesPerTrigger", STREAM_FILES).parquet(files)
            found = run_stream(self._checkpointed(told(rows.writeStream)), kind.rows)
            return self._cost(kind.rows) | found

    def _checkpointed(self, writer: Any) -> Any:
        path = self._scratch / f"checkpoint-{next(self._names)}"
        return writer.option("checkpointLocation", str(path))


async def fill(endpoint: str, stream: str, kind: Kind) -> None:
    """Put records of a kind into all shards of a stream."""
    key, secret = KEYS.values()
    aws = AwsSettings(
        region=REGION, endpoint_url=endpoint, access_key_id=key, secret_access_key=secret
    )
    aggregate_bytes = AGGREGATE_BYTES if kind.aggregated else 0
    async with Producer(aws, aggregate_bytes=aggregate_bytes) as producer:
        for number, value in enumerate(islice(texts(kind.size), kind.rows)):
            key = f"key-{number % KEYS_AT_ALL}"
            _ = await producer.send(stream, value, partition_key=key)


def measure(arguments: argparse.Namespace) -> Results:
    """Run all rounds, each with its own fake and session."""
    results = Results()
    kinds = [kind.smaller() if arguments.quick else kind for kind in KINDS]
    for _ in range(arguments.rounds):
        scratch = Path(tempfile.mkdtemp(prefix="headrace-bench-"))
        aws = Aws(limits=False)
        try:
            with session(scratch, (), {}, accelerated=True) as spark, Meter(spark) as meter:
                _round(Loads(spark, meter, aws, scratch), kinds, arguments.rows, results)
        finally:
            aws.close()
            shutil.rmtree(scratch, ignore_errors=True)
    return results


def _round(loads: Loads, kinds: list[Kind], wanted: str, results: Results) -> None:
    for part, load in loads.all.items():
        for number, kind in enumerate(kinds if wanted in part else ()):
            try:
                if not number:
                    load(kind.smaller())
                found = load(kind)
            except FAILURES as error:
                results.fail(f"{part}, {kind.name}: {error}"[:300])
                continue
            for metric, value in found.items():
                results.note(Row(part, kind.name, metric), HEADRACE, value)
            print(f"{part}, {kind.name}: {found}", file=sys.stderr, flush=True)


def main() -> int:
    """Run the loads and write their results."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one small round, for a first look")
    parser.add_argument("--rounds", type=int, help="rounds instead of three, or one if quick")
    parser.add_argument("--rows", default="", help="only parts with this text in their name")
    parser.add_argument("--output", type=Path, default=RESULTS, help="where the results go")
    parser.add_argument("--page", action="store_true", help="write the page's tables too")
    arguments = parser.parse_args()
    arguments.rounds = arguments.rounds or (1 if arguments.quick else 3)
    scale = "quick" if arguments.quick else "full"
    run = Run.begin(arguments.rounds, spark=version("pyspark"), scale=scale)
    name = "kinesis-spark-quick" if arguments.quick else "kinesis-spark"
    run.end(name, measure(arguments), SHOWN, arguments.output, PAGE if arguments.page else None)
    return 0


def _where(facts: Mapping[str, Any]) -> list[str]:
    how = f"{facts['scale'].capitalize()} loads, {facts['rounds']} round(s) in {facts['minutes']} minutes"
    return [
        f"Headrace {facts['commit']}, Spark {facts['spark']}, {facts['date']}; {machine_text(facts)}.",
        f"{how}; load average before: {load_text(facts)}.",
    ]


def _rows(results: Results, _: str, extremes: bool) -> list[str]:  # noqa: FBT001 - as `Measured` calls it
    metrics = list(dict.fromkeys(row.metric for row in results.rows))
    shown: dict[tuple[str, str], dict[str, str]] = {}
    for row, found in results.rows.items():
        shown.setdefault((row.preset, row.case), {})[row.metric] = cell(
            found.get(HEADRACE, ()), extremes=extremes
        )
    rows = [[*case, *(cells.get(each, "-") for each in metrics)] for case, cells in shown.items()]
    return table(["load", "records", *metrics], rows)


SHOWN: Final = Measured("Spark over Kinesis", _where, _rows)
PAGE: Final = SHOWN.page(ROOT / "docs" / "guides" / "spark-kinesis.md")


if __name__ == "__main__":
    sys.exit(main())
