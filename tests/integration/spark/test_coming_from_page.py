"""docs/start/coming-from-spark.md: the programs before and after the migration write the same records."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from headrace.clients.blocking import BlockingClient
from headrace.records.builder import build_batch
from headrace.types import TopicPartition
from tests.integration.spark.conftest import Reader, Topics

PAGE = Path(__file__).resolve().parents[3] / "docs" / "start" / "coming-from-spark.md"
PROGRAMS = re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)
SESSION = re.compile(r"^spark = .*?getOrCreate\(\)\n", re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("source", ["kafka", "headrace"])
def test_the_program_writes_the_orders_as_invoices(
    source: str,
    read: Reader,
    client: BlockingClient,
    topics: Topics,
    tmp_path: Path,
) -> None:
    if source == "kafka" and not read.spark.conf.get("spark.jars"):
        pytest.skip("the jar of Spark's own connector is not there")
    (program,) = (each for each in PROGRAMS if f'readStream.format("{source}")' in each)
    orders, invoices = topics.create(), topics.create()
    client.produce(TopicPartition(orders, 0), build_batch([(b"alice", b"one", (), 0)]))
    program, found = SESSION.subn("", program)
    assert found == 1
    for shown, used in (
        ("localhost:9092", read.bootstrap),
        ('"orders"', f'"{orders}"'),
        ('"invoices"', f'"{invoices}"'),
        ("checkpoints/billing", str(tmp_path)),
    ):
        program = program.replace(shown, used)
    names: dict[str, Any] = {"spark": read.spark}
    exec(compile(program, PAGE.name, "exec", dont_inherit=True), names)

    rows = read.batch(invoices).selectExpr("CAST(key AS STRING)", "CAST(value AS STRING)").collect()
    assert [tuple(row) for row in rows] == [("alice", "ONE")]
