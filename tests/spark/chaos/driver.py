"""A driver program: `driver.py source|sink BOOTSTRAP DIRECTORY`. It streams until it is told to end (SIGTERM)."""

from __future__ import annotations

import signal
import sys
import threading
from pathlib import Path
from typing import Any

from headrace.spark.session import local_session, stop_session
from tests.spark.chaos.kills import INPUT, MASTER


def to_files(stream: Any, directory: Path, _: str) -> Any:
    """The source is on trial: Spark's own files have each batch once."""
    return (
        stream.select("value").writeStream.format("parquet").option("path", str(directory / "out"))
    )


def to_topic(stream: Any, _: Path, bootstrap: str) -> Any:
    """The sink is on trial."""
    return (
        stream.select("key", "value", "partition")
        .writeStream.format("headrace")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("topic", "output")
    )


WRITERS = {"source": to_files, "sink": to_topic}


def main() -> None:
    """Run one query until the end."""
    subject, bootstrap, place = sys.argv[1:]
    directory = Path(place)
    over = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: over.set())
    spark = local_session(
        subject, {"spark.sql.warehouse.dir": str(directory / "warehouse")}, master=MASTER
    )
    stream = (
        spark.readStream.format("headrace")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("subscribe", INPUT)
        .option("startingOffsets", "earliest")
        .load()
    )
    query = (
        WRITERS[subject](stream, directory, bootstrap)
        .option("checkpointLocation", str(directory / "checkpoint"))
        .trigger(processingTime="200 milliseconds")
        .start()
    )
    while query.isActive and not over.wait(0.1):
        pass
    query.stop()
    if query.exception() is not None:
        print(query.exception(), file=sys.stderr, flush=True)
        sys.exit(1)
    stop_session(spark)


if __name__ == "__main__":
    main()
