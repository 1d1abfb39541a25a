"""The Kinesis source on a cluster: a repeated task, or two copies of a task, have the same rows.

Only in `make chaos-spark`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.testing.kinesis import FakeAws, Limits
from tests.integration.spark.chaos.cluster import cluster, executors, until
from tests.integration.spark.chaos.kills import INPUT, ROOT


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.skipif("HEADRACE_SPARK_ROUNDS" not in os.environ, reason="for make chaos-spark")
@pytest.mark.parametrize("why", ["speculation", "loss"])
def test_a_task_that_is_done_twice_has_the_same_rows(why: str, tmp_path: Path) -> None:
    """Spark runs two copies of a task, as with `spark.speculation`; or an executor is lost while a task has rows."""
    with FakeAws(limits=Limits().unthrottled()) as fake, cluster(tmp_path, cores=1) as master:
        fake.kinesis.create_stream(INPUT, 2)
        for number in range(60):
            fake.kinesis.put(INPUT, b"%d" % number, explicit_hash_key=number % 2 << 127)
        program = [sys.executable, "-m", "tests.integration.spark.chaos.kinesis_copies", why]
        driver = subprocess.Popen(
            [*program, fake.endpoint_url, str(tmp_path), master],
            stdout=subprocess.PIPE,
            cwd=ROOT,
            text=True,
        )
        try:
            until(lambda: {"0", "1"} <= set(_attempts(tmp_path)) or driver.poll() is not None)
            for number in range(60, 90):  # behind the ends that both tasks have written down
                fake.kinesis.put(INPUT, b"%d" % number, explicit_hash_key=number % 2 << 127)
            if why == "loss":
                (host,) = (path.read_text() for path in tmp_path.glob("task-0-*"))
                executors()[host].kill()
            output, _ = driver.communicate(timeout=500)
        finally:
            driver.kill()
            driver.wait()
    assert json.loads(output.splitlines()[-1]) == [60, 60]
    assert _attempts(tmp_path).count("0") == 2


def _attempts(directory: Path) -> list[str]:
    """Return the tasks of the attempts that have rows."""
    return [path.name.split("-")[1] for path in directory.glob("task-*")]
