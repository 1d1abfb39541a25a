"""A standalone cluster of two workers on loopback: a stream is written once, whatever becomes of executors and tasks.

Each worker has an address of its own, for Spark starts the copy of a slow task on another host only.
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pyspark
import pytest

import headrace
from headrace.spark.session import local_session, stop_session
from tests.fixtures.processes import ServerProcess

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(
        "HEADRACE_SPARK_ROUNDS" not in os.environ, reason="part of make chaos-spark"
    ),
]

PATIENCE_S = 240.0
HOME = Path(pyspark.__file__).parent
WORKERS = ("127.0.0.2", "127.0.0.3")
PARTITIONS = 4
RECORDS = 250
"""Of each partition."""
EXECUTOR = "CoarseGrainedExecutorBackend"


@pytest.fixture(scope="module")
def master(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a cluster's master."""
    directory = tmp_path_factory.mktemp("standalone")
    environment = {
        **os.environ,
        "SPARK_HOME": str(HOME),
        "SPARK_DAEMON_MEMORY": "256m",
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONWARNINGS": "ignore",
    }
    processes: list[subprocess.Popen[bytes]] = []

    def start(name: str, *arguments: str) -> Path:
        log = directory / f"{name}.log"
        kind = "master.Master" if name == "master" else "worker.Worker"
        with log.open("wb") as output:
            command = [
                str(HOME / "bin" / "spark-class"),
                f"org.apache.spark.deploy.{kind}",
                *arguments,
                "--webui-port",
                "0",
            ]
            processes.append(
                subprocess.Popen(command, stdout=output, stderr=output, env=environment)
            )
        return log

    try:
        log = start("master", "--host", "127.0.0.1", "--port", "0")
        found = until(lambda: re.search(r"at (spark://127\.0\.0\.1:\d+)", log.read_text()))
        for host in WORKERS:
            options = ["--host", host, "--cores", "2", "--memory", "600m"]
            work = str(directory / host)
            start(host, found[1], *options, "--work-dir", work)
        until(lambda: log.read_text().count("Registering worker") == len(WORKERS))
        yield found[1]
    finally:
        for process in processes:
            for each in psutil.Process(process.pid).children(recursive=True):
                each.kill()
            process.kill()
            process.wait()


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


def until(condition: Any) -> Any:
    deadline = time.monotonic() + PATIENCE_S
    while not (found := condition()):
        assert time.monotonic() < deadline, "it does not come about"
        time.sleep(0.05)
    return found


class Copy:
    """A stream from topic to topic, and what has come out of it."""

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
            .option("maxTasks", PARTITIONS)
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
        """Run it to its end, as often as that takes; return how often it failed."""
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


def executors() -> dict[str, psutil.Process]:
    """Executors by the host that they are on."""
    found = {}
    for each in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):  # it has just ended
            words = each.cmdline()
            if any(EXECUTOR in word for word in words) and "--hostname" in words:
                found[words[words.index("--hostname") + 1]] = each
    return found


def test_a_stream_on_a_cluster_is_written_once(copy: Copy) -> None:
    assert copy.finish() == 0

    assert copy.rows() == copy.expected
    assert set(executors()) == set(WORKERS)


def test_an_executor_is_lost(copy: Copy) -> None:
    query = copy.start()
    until(lambda: copy.rows() or not query.isActive)
    (lost,) = [each for host, each in executors().items() if host == WORKERS[0]]
    lost.kill()
    query.awaitTermination(PATIENCE_S)

    copy.finish()

    assert copy.rows() == copy.expected


def test_a_slow_task_is_overtaken_by_its_copy(copy: Copy) -> None:
    flag = copy.directory / "overtaken"

    def slow(batches: Iterator[Any]) -> Iterator[Any]:
        import time  # noqa: PLC0415 - runs in Spark's workers

        from pyspark import TaskContext  # noqa: PLC0415 - as above

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
