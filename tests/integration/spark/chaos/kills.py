"""Kill the driver, the Python workers and the broker of streams on Spark. The output must have each input record once.

A run has one topic to which records are sent all the time, one driver process that reads the topic, and an output that
can be read. The victims are killed (SIGKILL) at random moments while rows are written. A killed driver is started again
with its checkpoint. In the end the output is compared with the records that the broker has acknowledged.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import psutil

import headrace
from tests.fixtures.processes import ServerProcess

ROOT = Path(__file__).resolve().parents[4]
MASTER = os.environ.get("HEADRACE_SPARK_MASTER", "local[2,4]")
"""Spark's master URL. `local-cluster[2,1,1024]` has two executors, each in its own process."""
PARTITIONS = 3
INPUT, COPIES = "input", "copies"
PATIENCE_S = 240.0
LOOK_S = 0.2
Row = tuple[int, int]
"""The partition and the number in a record's value."""


class Subject(Protocol):
    """The system under test: a driver, and a function that reads the committed output."""

    repeats: bool
    """Whether the subject is at least once, so that the output may have duplicates."""

    def prepare(self, bootstrap: str, directory: Path) -> None:
        """Create the topics or streams that the driver needs."""

    def command(self) -> list[str]:
        """Return the driver's command line, the same at each start."""

    def rows(self) -> list[Row]:
        """Return all rows that are committed so far, in any order."""


class Feeder:
    """A thread that sends `partition:number`, in order in each partition, until it is stopped."""

    def __init__(self, bootstrap: str, seed: int) -> None:
        self.sent = [0] * PARTITIONS
        self.trouble: BaseException | None = None
        self._bootstrap = bootstrap
        self._random = random.Random(seed)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._guarded, name="feeder")

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread, after all sent records are acknowledged."""
        self._over.set()
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive(), "the feeder does not end"
        if self.trouble is not None:
            raise self.trouble

    def _guarded(self) -> None:
        try:
            self._run()
        except BaseException as error:  # noqa: BLE001 - raised by stop
            self.trouble = error

    def _run(self) -> None:
        patience_ms = round(PATIENCE_S * 1000)
        with headrace.Producer(
            self._bootstrap, delivery_timeout_ms=patience_ms, max_block_ms=patience_ms
        ) as producer:
            fates = []
            while not self._over.wait(0.02):
                for _ in range(self._random.randrange(8)):
                    number = self._random.randrange(PARTITIONS)
                    value = f"{number}:{self.sent[number]}".encode()
                    fates.append(producer.send(INPUT, value, partition=number))
                    self.sent[number] += 1
            for fate in fates:
                fate.result(PATIENCE_S)


class KillRun:
    """A run of one subject with one seed."""

    def __init__(self, directory: Path, subject: Subject, seed: int) -> None:
        self.counts: Counter[str] = Counter()
        self._directory = directory
        self._subject = subject
        self._random = random.Random(seed)
        self._driver: subprocess.Popen[bytes] | None = None
        self._processes: set[psutil.Process] = set()
        self._log = directory / "driver.log"
        self._server = ServerProcess(
            directory / "data",
            log_path=directory / "server.log",
            arguments=[
                "--config",
                "durability=os",
                "--config",
                "offsets.topic.num.partitions=1",
            ],
        )

    def run(self, victims: list[str]) -> None:
        """Kill each victim, wait for the output, and check it.

        Raises:
            AssertionError: Rows are missing, are duplicates or were never sent, or no more rows are written.
        """
        kill: dict[str, Callable[[], None]] = {
            "driver": self._kill_driver,
            "worker": self._kill_worker,
            "broker": self._kill_broker,
        }
        with self._server:
            with headrace.Admin(self._server.bootstrap) as admin:
                admin.create_topic(INPUT, PARTITIONS)
            self._subject.prepare(self._server.bootstrap, self._directory)
            feeder = Feeder(self._server.bootstrap, self._random.randrange(1 << 32))
            feeder.start()
            try:
                self._start_driver()
                for victim in victims:
                    self._wait_for_rows()
                    time.sleep(self._random.uniform(0, 2))  # any moment of a batch
                    kill[victim]()
                    self.counts[victim] += 1
                self._wait_for_rows()
                feeder.stop()
                self._settle(feeder.sent)
                self._stop_driver()
                self._check(feeder.sent)
            finally:
                self._end_all()
                feeder.stop()

    # What happens

    def _start_driver(self) -> None:
        self.counts["starts"] += 1
        with self._log.open("ab") as log:
            self._driver = subprocess.Popen(
                self._subject.command(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self._directory,
                start_new_session=True,
                env={**os.environ, "PYTHONWARNINGS": "ignore", "PYTHONPATH": str(ROOT)},
            )

    def _kill_driver(self) -> None:
        """Kill the program and its JVM. Remaining Python workers end by themselves."""
        assert self._driver is not None
        self._descendants()
        os.killpg(self._driver.pid, signal.SIGKILL)
        self._driver.wait(PATIENCE_S)

    def _kill_worker(self) -> None:
        """Kill one of the JVM's Python processes: of a task, or of the planner. On a busy machine it may start late."""
        end = time.monotonic() + PATIENCE_S
        while not (workers := self._python_workers()):
            assert time.monotonic() < end, "there is no Python worker to kill"
            time.sleep(LOOK_S)
        self._random.choice(workers).kill()

    def _python_workers(self) -> list[psutil.Process]:
        return [each for each in self._descendants() if "pyspark" in " ".join(_words(each))]

    def _kill_broker(self) -> None:
        self._server.kill()
        time.sleep(self._random.choice([0.0, 0.5, 2.0]))  # away for no time, or for a while
        self._server.start()

    def _descendants(self) -> list[psutil.Process]:
        """Return the driver's descendants. The run remembers them, to end those that are left."""
        assert self._driver is not None
        try:
            found: list[psutil.Process] = psutil.Process(self._driver.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            found = []
        self._processes |= set(found)
        return sorted(found, key=lambda each: each.pid)

    def _tend(self) -> None:
        """Start the driver again if it has ended, as an operator would."""
        assert self._driver is not None
        if self._driver.poll() is not None:
            assert self.counts["starts"] < 20, f"the driver does not stay: {self._tail()}"
            self._start_driver()

    def _wait_for_rows(self) -> None:
        """Wait until the output has more rows than at the call."""
        before = len(self._subject.rows())
        self._until(lambda: len(self._subject.rows()) > before, "no rows come out")

    def _settle(self, sent: list[int]) -> None:
        """Wait until the output has as many rows as were sent. The check follows later."""
        self._until(lambda: len(set(self._subject.rows())) >= sum(sent), "some rows never come out")

    def _until(self, condition: Callable[[], bool], problem: str) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not condition():
            assert time.monotonic() < deadline, f"{problem}: {self._tail()}"
            self._tend()
            time.sleep(LOOK_S)

    def _check(self, sent: list[int]) -> None:
        rows = Counter(self._subject.rows())
        wanted = {(number, each) for number in range(PARTITIONS) for each in range(sent[number])}
        lost = sorted(wanted - rows.keys())
        foreign = sorted(rows.keys() - wanted)
        twice = sorted(row for row, count in rows.items() if count > 1)
        self.counts["rows"] = len(rows)
        self.counts["repeated"] = len(twice)
        assert not lost, f"{len(lost)} of {len(wanted)} rows are lost: {lost[:20]}"
        assert not foreign, f"rows that were never sent: {foreign[:20]}"
        assert self._subject.repeats or not twice, f"{len(twice)} rows came twice: {twice[:20]}"

    # The end

    def _stop_driver(self) -> None:
        assert self._driver is not None
        self._descendants()
        if self._driver.poll() is None:
            self._driver.send_signal(signal.SIGTERM)
            self._driver.wait(PATIENCE_S)

    def _end_all(self) -> None:
        if self._driver is not None and self._driver.poll() is None:
            self._descendants()
            os.killpg(self._driver.pid, signal.SIGKILL)
            self._driver.wait(PATIENCE_S)
        for each in self._processes:
            if each.is_running():
                each.kill()
        psutil.wait_procs(list(self._processes), 15)

    def _tail(self) -> str:
        return self._log.read_text(errors="replace")[-4000:] if self._log.exists() else ""


def _words(process: psutil.Process) -> list[str]:
    try:
        words: list[str] = process.cmdline()
    except psutil.Error:
        return []
    return words


def parse_row(value: bytes) -> Row:
    """Parse a value that the feeder wrote."""
    number, _, each = value.partition(b":")
    return int(number), int(each)
