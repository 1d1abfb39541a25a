"""The option `group`: a stream commits its progress to a consumer group, also after the last batch."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException

from headrace.clients.blocking import BlockingClient
from tests.integration.spark.conftest import Reader, Topics, produce_values


def lag(bootstrap: str, group: str) -> dict[int, tuple[int, int]]:
    """Return (committed offset, lag) of each partition as `headrace group describe` shows them."""
    command = [sys.executable, "-m", "headrace.cli", "group", "describe", group]
    command += ["--bootstrap", bootstrap, "--format", "json"]
    done = subprocess.run(command, capture_output=True, timeout=60, check=True)
    (described,) = json.loads(done.stdout)
    return {
        each["partition"]: (each["committed_offset"], each["lag"])
        for each in described["partitions"]
    }


def test_lag_shows_in_a_group_after_each_batch(
    topics: Topics, client: BlockingClient, read: Reader, tmp_path: Path
) -> None:
    topic = topics.create(partitions=2)
    produce_values(client, topic, 0, range(10))
    produce_values(client, topic, 1, range(4))
    group = f"lag-of-{topic}"
    stream = read.stream(
        topic,
        startingOffsets="earliest",
        maxOffsetsPerTrigger=5,
        group=group,
        columns="offset,value,topic,partition",
    )
    failing = {2}

    def fail_once(frame: Any, batch_id: int) -> None:
        assert frame.columns[:2] == ["topic", "partition"]
        if batch_id in failing:
            failing.discard(batch_id)
            raise RuntimeError("the sink fails once")

    def run() -> None:
        writer = stream.select("topic", "partition", "value").writeStream.foreachBatch(fail_once)
        writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
        writer.trigger(availableNow=True).start().awaitTermination(120)

    with pytest.raises(StreamingQueryException, match="the sink fails once"):
        run()
    done = lag(read.bootstrap, group)
    assert sum(behind for _, behind in done.values()) == 14 - 8, "two batches of four"
    run()
    assert lag(read.bootstrap, group) == {0: (10, 0), 1: (4, 0)}, "the last batch, too"

    produce_values(client, topic, 1, range(3))
    assert lag(read.bootstrap, group) == {0: (10, 0), 1: (7 - 3, 3)}
