"""The programs in docs/guides/spark.md run in order and do what the page says."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from headrace.clients.blocking import BlockingClient
from headrace.records.builder import build_batch
from headrace.spark.options.declared import option_names
from headrace.spark.options.reader import WITHOUT_EFFECT
from headrace.spark.options.sink import SINK_OPTIONS
from headrace.spark.options.source import SOURCE_OPTIONS
from headrace.types import TopicPartition
from tests.integration.spark.conftest import Reader, Topics

DOCS = Path(__file__).resolve().parents[3] / "docs"
DOCUMENT = DOCS / "guides" / "spark.md"
OPTIONS = DOCS / "reference" / "spark-options.md"


def test_the_programs_of_the_document_run(
    read: Reader, client: BlockingClient, topics: Topics, tmp_path: Path
) -> None:
    topics.create(name="flights", partitions=2)
    topics.create(name="numbers", partitions=2)
    topics.create(name="carriers")
    topics.create(name="totals")
    records = [(carrier, b"{}", (), 0) for carrier in (b"UA", b"EV", b"UA")]
    client.produce(TopicPartition("flights", 1), build_batch(records))

    programs = re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(), flags=re.DOTALL)
    names: dict[str, Any] = {
        "spark": read.spark,
        "bootstrap": read.bootstrap,
        "directory": str(tmp_path),
    }
    for program in programs:
        exec(compile(program, str(DOCUMENT), "exec"), names)

    assert len(programs) == 5
    parquet = read.spark.read.parquet(str(tmp_path / "carriers"))
    assert sorted(row["carrier"] for row in parquet.collect()) == ["EV", "UA", "UA"]
    assert read.batch("numbers").count() == 1000
    published = read.batch("carriers").selectExpr("CAST(value AS STRING) AS value").collect()
    assert sorted(row["value"] for row in published) == [
        '{"carrier":"EV"}',
        '{"carrier":"UA"}',
        '{"carrier":"UA"}',
    ]
    totals = read.batch("totals").selectExpr("CAST(key AS STRING)", "CAST(value AS STRING)")
    assert sorted(tuple(row) for row in totals.collect()) == [("EV", "1"), ("UA", "2")]


def test_every_option_of_the_source_is_documented() -> None:
    text = OPTIONS.read_text()
    for name in (*option_names((*SOURCE_OPTIONS, *SINK_OPTIONS)), *WITHOUT_EFFECT):
        assert f"`{name}`" in text, name
