"""A standalone Spark cluster on loopback: a master and workers, each in its own process.

Spark does not start the copy of a task on the host of the original, and it identifies hosts by name. So the workers
of this machine have two host names.
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil
import pyspark

from tests.integration.spark.chaos.kills import ROOT

HOME = Path(pyspark.__file__).parent
HOSTS = ("127.0.0.2", "127.0.0.3")
PATIENCE_S = 240.0
_EXECUTOR = "CoarseGrainedExecutorBackend"


@contextlib.contextmanager
def cluster(directory: Path, *, cores: int) -> Iterator[str]:
    """Run a master, and a worker on each host; yield the master's address."""
    processes: list[subprocess.Popen[bytes]] = []
    try:
        log = _start(processes, directory / "master.log", ["--host", "127.0.0.1", "--port", "0"])
        found = until(lambda: re.search(r"at (spark://127\.0\.0\.1:\d+)", log.read_text()))
        for host in HOSTS:
            options = ["--host", host, "--cores", str(cores), "--memory", "600m"]
            work = ["--work-dir", str(directory / host)]
            _start(processes, directory / f"{host}.log", [*options, *work, found[1]])
        until(lambda: log.read_text().count("Registering worker") == len(HOSTS))
        yield found[1]
    finally:
        for process in processes:
            for each in psutil.Process(process.pid).children(recursive=True):
                each.kill()
            process.kill()
            process.wait()


def _start(processes: list[subprocess.Popen[bytes]], log: Path, arguments: Sequence[str]) -> Path:
    kind = "master.Master" if log.stem == "master" else "worker.Worker"
    environment = {
        **os.environ,
        "SPARK_HOME": str(HOME),
        "SPARK_DAEMON_MEMORY": "256m",
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": str(ROOT),
        "PYTHONWARNINGS": "ignore",
    }
    program = [str(HOME / "bin" / "spark-class"), f"org.apache.spark.deploy.{kind}"]
    with log.open("wb") as output:
        processes.append(
            subprocess.Popen(
                [*program, *arguments, "--webui-port", "0"],
                stdout=output,
                stderr=output,
                env=environment,
            )
        )
    return log


def executors() -> dict[str, psutil.Process]:
    """Return the executors among this process's descendants, by host."""
    found = {}
    for each in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):  # it has just ended
            words = each.cmdline()
            if any(_EXECUTOR in word for word in words) and "--hostname" in words:
                found[words[words.index("--hostname") + 1]] = each
    return found


def until(condition: Callable[[], Any]) -> Any:
    """Wait until a function returns something true, and return it."""
    deadline = time.monotonic() + PATIENCE_S
    while not (found := condition()):
        assert time.monotonic() < deadline, "it does not come about"
        time.sleep(0.05)
    return found
