"""A driver program: `driver.py SUBJECT ADDRESS DIRECTORY`. It streams until SIGTERM."""

from __future__ import annotations

import signal
import sys
import threading
from pathlib import Path
from typing import Any

from headrace.spark.session import local_session, stop_session
from tests.integration.spark.chaos.kills import COPIES, INPUT, MASTER


def topic(spark: Any, bootstrap: str) -> Any:
    """Return the topic as a streaming DataFrame."""
    return (
        spark.readStream.format("headrace")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("subscribe", INPUT)
        .option("startingOffsets", "earliest")
        .option("minPartitions", 2)  # small batches would be one task
        .load()
    )


def fake_aws(endpoint: str) -> dict[str, str]:
    """Return the options with the endpoint and credentials of the AWS fake."""
    keys = dict.fromkeys(("accessKeyId", "secretAccessKey"), "fake")
    return {"endpointUrl": endpoint, "region": "us-east-1", **keys}


def stream(spark: Any, endpoint: str, directory: Path) -> Any:
    """Return the Kinesis stream as a streaming DataFrame."""
    return (
        spark.readStream.format("headrace-kinesis")
        .options(**fake_aws(endpoint))
        .option("stream", INPUT)
        .option("store", f"sqlite:///{directory}/rounds.db")
        .option("startingPosition", "earliest")
        .option("maxRecordsPerShard", 1000)
        .option("maxTasks", 4)
        .load()
    )


def to_files(rows: Any, directory: Path) -> Any:
    """Test the source: Spark's own file sink has each batch once."""
    return rows.select("value").writeStream.format("parquet").option("path", str(directory / "out"))


def source(spark: Any, bootstrap: str, directory: Path) -> list[Any]:
    """Copy a topic to files with Spark's file sink."""
    return [to_files(topic(spark, bootstrap), directory)]


def sink(spark: Any, bootstrap: str, _: Path) -> list[Any]:
    """Test the sink: copy a topic to a topic."""
    rows = topic(spark, bootstrap).select("key", "value", "partition").writeStream
    rows = rows.format("headrace").option("kafka.bootstrap.servers", bootstrap)
    return [rows.option("topic", "output")]


def kinesis(spark: Any, endpoint: str, directory: Path) -> list[Any]:
    """Copy a stream to files and, with another query, to a stream: source and sink of Kinesis are killed together."""
    rows = stream(spark, endpoint, directory)
    copies = rows.select("partitionKey", "data").writeStream.format("headrace-kinesis")
    return [
        to_files(rows.selectExpr("data AS value"), directory),
        copies.options(**fake_aws(endpoint)).option("stream", COPIES),
    ]


SUBJECTS = {each.__name__: each for each in (source, sink, kinesis)}


def main() -> None:
    """Run the queries of one subject until SIGTERM."""
    subject, address, place = sys.argv[1:]
    directory = Path(place)
    over = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: over.set())
    spark = local_session(
        subject, {"spark.sql.warehouse.dir": str(directory / "warehouse")}, master=MASTER
    )
    queries = [
        writer.option("checkpointLocation", str(directory / f"checkpoint-{number}"))
        .trigger(processingTime="200 milliseconds")
        .start()
        for number, writer in enumerate(SUBJECTS[subject](spark, address, directory))
    ]
    while all(each.isActive for each in queries) and not over.wait(0.1):
        pass
    for each in queries:
        each.stop()
    if failures := [each.exception() for each in queries if each.exception() is not None]:
        print(*failures, file=sys.stderr, flush=True)
        sys.exit(1)
    stop_session(spark)


if __name__ == "__main__":
    main()
