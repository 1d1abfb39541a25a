"""A standalone cluster of two workers on loopback: a stream is written once although executors and tasks are lost.

Each worker has an address of its own, for Spark starts the copy of a slow task on another host only.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import headrace
from headrace.spark.session import local_session, stop_session
from tests.fixtures.processes import ServerProcess
from tests.integration.spark.chaos.cluster import HOSTS, PATIENCE_S, cluster, executors, until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(
        "HEADRACE_SPARK_ROUNDS" not in os.environ, reason="part of make chaos-spark"
    ),
]

PARTITIONS = 4
RECORDS = 250
"""The number of records in each partition."""


@pytest.fixture(scope="module")
def master(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Yield the address of a cluster's master."""
    with cluster(tmp_path_factory.mktemp("standalone"), cores=2) as address:
        yield address


@pytest.fixture(scope="module")
def spark(master: str) -> Iterator[Any]:
    session = local_session(
        "standalone",
        {
            "spark.executor.memory": "512m",
            "spark.executor.cores": "2",
            "spark.driver.memory": "512m",
            "spark.task.maxFailures": "4",
            "spark.speculation": "true",
            "spark.speculation.interval": "100ms",
            "spark.speculation.quantile": "0.5",
            "spark.speculation.multiplier": "1.5",
            "spark.speculation.minTaskRuntime": "3s",
        },
        master=master,
    )
    yield session
    stop_session(session)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    directory = tmp_path_factory.mktemp("server")
    with ServerProcess(directory / "data", log_path=directory / "server.log") as server:
        yield server


class Copy:
    """A stream that copies a topic to a topic, and its output."""

    def __init__(self, spark: Any, server: ServerProcess, directory: Path) -> None:
        self.spark, self.bootstrap, self.directory = spark, server.bootstrap, directory
        self.source, self.sink = f"{directory.name}-in", f"{directory.name}-out"
        with headrace.Admin(self.bootstrap) as admin:
            admin.create_topic(self.source, PARTITIONS)
            admin.create_topic(self.sink, 1)
        with headrace.Producer(self.bootstrap) as producer:
            for number in range(PARTITIONS * RECORDS):
                producer.send(self.source, b"%d" % number, partition=number % PARTITIONS)

    def start(self, between: Any = None) -> Any:
        frame = (
            self.spark.readStream.format("headrace")
            .option("kafka.bootstrap.servers", self.bootstrap)
            .option("subscribe", self.source)
            .option("startingOffsets", "earliest")
            .option("maxOffsetsPerTrigger", PARTITIONS * RECORDS // 5)
            .option("minPartitions", PARTITIONS)  # small batches would be one task
            .load()
            .select("value")
        )
        if between is not None:
            frame = frame.mapInArrow(between, "value BINARY")
        return (
            frame.writeStream.format("headrace")
            .option("kafka.bootstrap.servers", self.bootstrap)
            .option("topic", self.sink)
            .option("checkpointLocation", str(self.directory / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )

    def finish(self, between: Any = None) -> int:
        """Run the query until it ends without an error. Return the number of failures."""
        for failures in range(5):
            query = self.start(between)
            try:
                assert query.awaitTermination(PATIENCE_S), "the stream does not end"
            except Exception as error:  # noqa: BLE001 - whatever Spark says of a batch that is to be repeated
                print(f"again after: {str(error)[:300]}")
                continue
            return failures
        raise AssertionError("the stream fails again and again")

    def rows(self) -> list[int]:
        found: list[int] = []
        place = headrace.TopicPartition(self.sink, 0)
        with headrace.Consumer(
            self.bootstrap, isolation_level="read_committed", auto_offset_reset="earliest"
        ) as consumer:
            consumer.assign([place])
            while (consumer.position(place) or 0) < consumer.end_offsets([place])[place]:
                found += [int(record.value or b"-1") for record in consumer.poll(0.1)]
        return sorted(found)

    @property
    def expected(self) -> list[int]:
        return list(range(PARTITIONS * RECORDS))


@pytest.fixture
def copy(spark: Any, server: ServerProcess, tmp_path: Path) -> Copy:
    return Copy(spark, server, tmp_path)


def test_a_stream_on_a_cluster_is_written_once(copy: Copy) -> None:
    assert copy.finish() == 0

    assert copy.rows() == copy.expected
    assert set(executors()) == set(HOSTS)


def test_a_lost_executor_does_not_change_the_output(copy: Copy) -> None:
    query = copy.start()
    until(lambda: copy.rows() or not query.isActive)
    (lost,) = [each for host, each in executors().items() if host == HOSTS[0]]
    lost.kill()
    query.awaitTermination(PATIENCE_S)

    copy.finish()

    assert copy.rows() == copy.expected


def test_a_slow_task_is_overtaken_by_its_copy(copy: Copy) -> None:
    flag = copy.directory / "overtaken"

    def slow(batches: Iterator[Any]) -> Iterator[Any]:

        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        given = list(batches)
        if context.partitionId() == 0 and context.attemptNumber() == 0 and not flag.exists():
            yield from given[:1]
            for _ in range(600):  # until the copy has written its rows, and some time longer
                if flag.exists():
                    break
                time.sleep(0.1)
            time.sleep(2)
            yield from given[1:]
            return
        yield from given
        if context.attemptNumber():
            flag.touch()

    copy.finish(slow)

    assert flag.exists(), "there was a copy"
    assert copy.rows() == copy.expected
