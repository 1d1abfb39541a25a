"""Two copies of a task that live at the same time, as `spark.speculation` starts them. Only in `make chaos-spark`.

Spark starts no copy on the host of the original, and knows hosts by name: two workers of one machine have two names.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pyspark
import pytest

from headrace.testing.kinesis import FakeAws, Limits
from tests.spark.chaos.kills import ROOT

STREAM = "flights"
CLASS = Path(pyspark.__file__).parent / "bin" / "spark-class"
PATIENCE_S = 120


@contextmanager
def deployed(name: str, log: Path, *arguments: str) -> Iterator[None]:
    """Run a process of a standalone cluster until the block ends."""
    command = [str(CLASS), f"org.apache.spark.deploy.{name}", "--webui-port", "0", *arguments]
    environment = {**os.environ, "SPARK_DAEMON_MEMORY": "256m", "PYTHONPATH": str(ROOT)}
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, stdout=output, stderr=output, cwd=log.parent, env=environment
        )
    try:
        yield
    finally:
        process.terminate()
        process.wait(PATIENCE_S)


def found_in(log: Path, pattern: str) -> str:
    deadline = time.monotonic() + PATIENCE_S
    while (found := re.search(pattern, log.read_text(errors="replace"))) is None:
        assert time.monotonic() < deadline, log.read_text(errors="replace")[-2000:]
        time.sleep(0.1)
    return found[0]


@contextmanager
def cluster(directory: Path) -> Iterator[str]:
    """Run a master and two workers; the master's address."""
    with ExitStack() as stack:
        log = directory / "master.log"
        arguments = ("--host", "127.0.0.1", "--port", "0")
        stack.enter_context(deployed("master.Master", log, *arguments))
        master = found_in(log, r"spark://127\.0\.0\.1:[1-9][0-9]*")
        for host in ("127.0.0.1", "localhost"):
            log = directory / f"worker-{host}.log"
            small = (
                "--host",
                host,
                "--cores",
                "1",
                "--memory",
                "600m",
                "--work-dir",
                str(directory / host),
            )
            stack.enter_context(deployed("worker.Worker", log, *small, master))
            found_in(log, "Successfully registered with master")
        yield master


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.skipif("HEADRACE_SPARK_ROUNDS" not in os.environ, reason="for make chaos-spark")
def test_two_living_copies_of_a_task_have_the_same_rows(tmp_path: Path) -> None:
    with FakeAws(limits=Limits().unthrottled()) as fake, cluster(tmp_path) as master:
        fake.kinesis.create_stream(STREAM, 2)
        for number in range(60):
            fake.kinesis.put(STREAM, b"%d" % number, explicit_hash_key=number % 2 << 127)
        program = [sys.executable, "-m", "tests.spark.chaos.kinesis_copies"]
        driver = subprocess.Popen(
            [*program, fake.endpoint_url, STREAM, str(tmp_path), master],
            stdout=subprocess.PIPE,
            cwd=ROOT,
            text=True,
        )
        try:
            while driver.poll() is None and not list(tmp_path.glob("task-0-*")):
                time.sleep(0.02)
            for number in range(60, 90):  # behind the end that the first copy has written down
                fake.kinesis.put(STREAM, b"%d" % number, explicit_hash_key=number % 2 << 127)
            output, _ = driver.communicate(timeout=500)
        finally:
            driver.kill()
            driver.wait()
    assert json.loads(output.splitlines()[-1]) == [60, 60]
    assert len(list(tmp_path.glob("task-0-*"))) == 2
