"""A driver program: `kinesis_copies.py WHY ENDPOINT DIRECTORY MASTER`. It delays a task until a copy of it runs."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
from pyspark import TaskContext

from headrace.spark.session import local_session, stop_session
from tests.integration.spark.chaos.driver import stream

PATIENCE_S = 60
SETTINGS = {
    "spark.speculation.interval": "50ms",
    "spark.speculation.multiplier": "1.01",
    "spark.speculation.quantile": "0.1",
    "spark.speculation.minTaskRuntime": "1ms",
    "spark.speculation.efficiency.enabled": "false",
    "spark.executor.memory": "512m",
    "spark.cores.max": "2",
}
"""Spark's settings for a copy of every task that takes longer than the first finished task."""


def host() -> str:
    """Return the host name under which the cluster knows this task's worker."""
    parents = psutil.Process().parents()
    words = next(each.cmdline() for each in parents if "--hostname" in each.cmdline())
    return str(words[words.index("--hostname") + 1])


def main() -> None:
    """Run one query over the present records, and print the number of rows that each action on its batch had."""
    why, endpoint, place, master = sys.argv[1:]
    directory = Path(place)

    def hold(batches: Iterator[Any]) -> Iterator[Any]:
        context = TaskContext.get()
        assert context is not None
        started = f"task-{context.partitionId()}-"
        for number, batch in enumerate(batches):
            (directory / f"{started}{context.attemptNumber()}").write_text(host())
            deadline = time.monotonic() + PATIENCE_S
            while context.partitionId() == 0 and number == 0 and time.monotonic() < deadline:
                if len(list(directory.glob(f"{started}*"))) > 1:
                    break
                time.sleep(0.02)
            yield batch

    counts: list[int] = []

    def take(batch: Any, _: int) -> None:
        counts.append(batch.mapInArrow(hold, batch.schema).count())
        counts.append(batch.count())

    settings = {**SETTINGS, "spark.speculation": str(why == "speculation").lower()}
    spark = local_session("copies", settings, master=master)
    query = (
        stream(spark, endpoint, directory)
        .writeStream.foreachBatch(take)
        .option("checkpointLocation", str(directory / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    print(json.dumps(counts), flush=True)
    stop_session(spark)


if __name__ == "__main__":
    main()
