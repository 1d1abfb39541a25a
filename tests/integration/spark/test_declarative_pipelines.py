"""The format in Spark Declarative Pipelines.

`spark-pipelines` binds Spark Connect's fixed port, 15002, on all interfaces, so this is not for `make test`.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import headrace
from headrace.clients.blocking import BlockingClient
from headrace.spark.session import JVM_OPTIONS
from tests.fixtures.targets import Target
from tests.integration.spark.conftest import Topics, produce_values

PAGE = Path(__file__).resolve().parents[3] / "docs" / "guides" / "pipelines.md"
TIMEOUT_S = 600
SPEC = """
name: flights
storage: file://{directory}/storage
libraries:
  - glob:
      include: transformations/**
"""
SETTINGS = f"""
spark.driver.extraJavaOptions {JVM_OPTIONS}
spark.sql.shuffle.partitions 2
spark.ui.enabled false
spark.sql.warehouse.dir warehouse
"""


@pytest.mark.skipif(
    not os.environ.get("HEADRACE_SPARK_PIPELINES"),
    reason="binds port 15002 on all interfaces: HEADRACE_SPARK_PIPELINES=1, or make chaos-spark, runs it",
)
@pytest.mark.timeout(TIMEOUT_S + 60)
def test_spark_pipelines_runs_the_definitions_of_the_page(
    server: Target, topics: Topics, client: BlockingClient, tmp_path: Path
) -> None:
    source, sink = topics.create(partitions=2), topics.create()
    produce_values(client, source, 0, range(10))
    produce_values(client, source, 1, range(10, 20))
    program = PAGE.read_text().partition("flights.py\n")[2].partition("$ spark-pipelines")[0]
    program = program.replace("127.0.0.1:9092", server.bootstrap)
    program = program.replace('"texts"', f'"{sink}"').replace('"flights"', f'"{source}"', 1)
    (tmp_path / "transformations").mkdir()
    (tmp_path / "transformations" / "flights.py").write_text(program)
    (tmp_path / "pipeline.yml").write_text(SPEC.format(directory=tmp_path))
    (tmp_path / "spark-defaults.conf").write_text(SETTINGS)
    environment = {
        **os.environ,
        "SPARK_CONF_DIR": str(tmp_path),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYTHONWARNINGS": "ignore",
    }
    command = [str(Path(sys.executable).with_name("spark-pipelines")), "run"]
    done = subprocess.run(
        [*command, "--spec", "pipeline.yml"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )

    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-8000:]
    with headrace.Consumer(server.bootstrap, isolation_level="read_committed") as consumer:
        consumer.assign([headrace.TopicPartition(sink, 0)])
        consumer.seek_to_beginning()
        values: list[int] = []
        while records := consumer.poll(1.0):
            values += [int(record.value) for record in records]
    assert sorted(values) == list(range(20))
