"""A driver program: `kinesis_driver.py ENDPOINT STREAM DIRECTORY`. It streams into files until it is told to end."""

from __future__ import annotations

import signal
import sys
import threading
from pathlib import Path
from typing import Any

from headrace.spark.session import local_session, stop_session
from tests.spark.chaos.kills import MASTER


def source(spark: Any, endpoint: str, name: str, directory: Path) -> Any:
    """Return the stream as a streaming DataFrame."""
    return (
        spark.readStream.format("headrace-kinesis")
        .option("stream", name)
        .option("endpointUrl", endpoint)
        .option("region", "us-east-1")
        .option("accessKeyId", "fake")
        .option("secretAccessKey", "fake")
        .option("store", f"sqlite:///{directory}/rounds.db")
        .option("startingPosition", "earliest")
        .option("maxRecordsPerShard", 1000)
        .option("maxTasks", 4)
        .load()
    )


def main() -> None:
    """Run one query until the end."""
    endpoint, name, place = sys.argv[1:]
    directory = Path(place)
    over = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: over.set())
    spark = local_session(
        "kinesis", {"spark.sql.warehouse.dir": str(directory / "warehouse")}, master=MASTER
    )
    query = (
        source(spark, endpoint, name, directory)
        .selectExpr("data AS value")
        .writeStream.format("parquet")
        .option("path", str(directory / "out"))
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
