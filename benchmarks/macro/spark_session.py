"""Start Spark for the loads of `benchmarks.macro.spark`, and measure the cost of its processes."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Self

import psutil

from headrace.spark.session import open_session, stop_session

MASTER = "local[2]"
ACCELERATOR = "HEADRACE_ACCEL"
LOOK_S = 0.2
# Usual settings for one machine; none makes reads or writes faster.
SETTINGS: Mapping[str, str] = {
    "spark.driver.memory": "2g",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.session.timeZone": "UTC",
}


@contextlib.contextmanager
def session(
    scratch: Path, jars: Iterable[Path], settings: Mapping[str, str], *, accelerated: bool
) -> Iterator[Any]:
    """Yield a Spark session with both sources, whose Python workers have or do not have the accelerator.

    Raises:
        RuntimeError: The accelerator is not installed, or the workers do not use it as requested.
    """
    flag = "1" if accelerated else "0"
    before = os.environ.get(ACCELERATOR)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    os.environ[ACCELERATOR] = flag  # the workers of a local JVM inherit its environment
    try:
        spark = open_session(
            "headrace-bench",
            {
                **SETTINGS,
                "spark.jars": ",".join(map(str, jars)),
                "spark.executorEnv.HEADRACE_ACCEL": flag,
                "spark.local.dir": str(scratch / "local"),
                "spark.sql.warehouse.dir": str(scratch / "warehouse"),
                **settings,
            },
            master=MASTER,
            log_path=scratch / "spark.log",
        )
    finally:
        os.environ.pop(ACCELERATOR)
        if before is not None:
            os.environ[ACCELERATOR] = before
    try:
        _check(spark, accelerated=accelerated)
        yield spark
    finally:
        stop_session(spark)


def _check(spark: Any, *, accelerated: bool) -> None:
    found = spark.sparkContext.parallelize([0], 1).map(_has_accelerator).first()
    if found is not accelerated:
        has = "have no accelerator (pip install ./accel)" if accelerated else "have the accelerator"
        raise RuntimeError(f"Spark's Python workers {has}")


def _has_accelerator(_: object) -> bool:
    from headrace.records.accel import kernels

    return kernels is not None


class Meter:
    """A meter of the CPU of this program (the driver's Python), the JVM and its children; brokers do not count.

    Spark's Python processes start and end, and their parents do not wait for all of them. So a thread reads their CPU
    often. The CPU of a process that has ended is the last value that the thread read.
    """

    def __init__(self, spark: Any) -> None:
        self._jvm = psutil.Process(spark.sparkContext._gateway.proc.pid)  # noqa: SLF001 - the only way
        self._seen: dict[psutil.Process, float] = {}
        self._lock = threading.Lock()
        self._looking_s = 0.0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._look_often, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        self.reset()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def reset(self) -> None:
        """Begin a new measurement."""
        self._driver_s, self._below_s, self._wall = *self._cpu_s(), time.monotonic()

    def wall_s(self) -> float:
        """Return the seconds since the last reset."""
        return time.monotonic() - self._wall

    def cpu_s(self, *, driver: bool = True) -> float:
        """Return the CPU seconds since the last reset, with or without this process."""
        driver_s, below_s = self._cpu_s()
        return below_s - self._below_s + (driver_s - self._driver_s if driver else 0.0)

    def _cpu_s(self) -> tuple[float, float]:
        with self._lock:
            self._look()
            return time.process_time() - self._looking_s, sum(self._seen.values())

    def _look(self) -> None:
        begun = time.thread_time()
        with contextlib.suppress(psutil.NoSuchProcess):
            for each in (self._jvm, *self._jvm.children(recursive=True)):
                with contextlib.suppress(psutil.NoSuchProcess):
                    times = each.cpu_times()
                    self._seen[each] = float(times.user + times.system)
        self._looking_s += time.thread_time() - begun

    def _look_often(self) -> None:
        while not self._ended.wait(LOOK_S):
            with self._lock:
                self._look()
