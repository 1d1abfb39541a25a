"""Retention deletes records before a query reads them. The server restarts, because it then deletes old segments."""

from __future__ import annotations

import os
import random
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException, StreamingQueryException

from headrace.clients.blocking import EARLIEST, BlockingClient
from headrace.records.builder import build_batch
from headrace.types import TopicPartition
from tests.fixtures.kafka import TEST_SETTINGS, KafkaServer
from tests.fixtures.targets import HEADRACE_TEST_SETTINGS, HeadraceServer, Target
from tests.integration.spark.conftest import Reader, Topics, produce_values, run_available

QUICK_RETENTION = {"log.retention.check.interval.ms": "100"}
WAIT_S = 60


@pytest.fixture
def quick_server(tmp_path: Path) -> Iterator[Target]:
    server: Target
    if os.environ.get("CONFORMANCE_TARGET") == "kafka":
        settings = {**TEST_SETTINGS, **QUICK_RETENTION, "log.initial.task.delay.ms": "100"}
        server = KafkaServer(tmp_path / "server", settings=settings)
    else:
        settings = {**HEADRACE_TEST_SETTINGS, **QUICK_RETENTION}
        server = HeadraceServer(tmp_path / "server", settings=settings)
    server.start()
    yield server
    server.stop()


def overtake(server: Target, client: BlockingClient, topic: str) -> int:
    """Append more than retention keeps, wait until the first records are deleted, and return the log start offset."""
    value = random.Random(1).randbytes(700_000)
    partition = TopicPartition(topic, 0)
    deadline = time.monotonic() + WAIT_S
    for _ in range(6):
        client.produce(partition, build_batch([(None, value, (), int(time.time() * 1000))]))
    server.restart()
    while True:
        start = client.list_offsets({partition: EARLIEST})[partition].offset
        if start > 4:
            return start
        assert time.monotonic() < deadline, "retention did nothing"
        time.sleep(0.05)


def test_a_query_behind_retention_fails_with_the_lost_offsets_or_continues(
    spark: Any, quick_server: Target, tmp_path: Path
) -> None:
    read = Reader(spark, quick_server.bootstrap)
    with BlockingClient(quick_server.bootstrap) as client:
        topic = Topics(client, quick_server.bootstrap).create(
            segment_bytes="1048576", retention_bytes="1500000"
        )
        produce_values(client, topic, 0, range(4))
        run_available(
            read.stream(topic, startingOffsets="earliest"),
            tmp_path / "checkpoint",
            tmp_path / "sink",
        )
        shutil.copytree(tmp_path / "checkpoint", tmp_path / "lenient")
        start = overtake(quick_server, client, topic)

        lost = rf"offsets 4 to {start - 1} of {topic}-0 were removed .*failOnDataLoss"
        with pytest.raises(StreamingQueryException, match=lost):
            run_available(read.stream(topic), tmp_path / "checkpoint", tmp_path / "sink")
        found: list[int] = []
        query = (
            read.stream(topic, failOnDataLoss="false")
            .writeStream.foreachBatch(
                lambda frame, _id: found.extend(
                    row["offset"] for row in frame.select("offset").collect()
                )
            )
            .option("checkpointLocation", str(tmp_path / "lenient"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination(WAIT_S)
        assert sorted(found) == list(range(start, 10))

        given = f'{{"{topic}": {{"0": 1}}}}'
        with pytest.raises(
            PySparkException, match=rf"offsets 1 to {start - 1} of {topic}-0 were removed"
        ):
            read.batch(topic, startingOffsets=given).count()
        assert (
            read.batch(topic, startingOffsets=given, failOnDataLoss="false").count() == 10 - start
        )
        assert read.batch(topic).count() == 10 - start
