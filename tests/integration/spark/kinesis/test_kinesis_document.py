"""The programs in docs/guides/spark-kinesis.md run, one after the other, and do what the text says."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

from headrace.spark.kinesis.columns import arrow_schema
from headrace.spark.kinesis.offsets import StreamOffset, StreamPart
from headrace.spark.kinesis.options import COLUMNS, READ_OPTIONS, read_options
from headrace.spark.kinesis.sink import COLUMNS as WRITTEN
from headrace.spark.kinesis.sink import WRITE_OPTIONS

DOCUMENT = Path(__file__).resolve().parents[4] / "docs" / "guides" / "spark-kinesis.md"


def test_the_programs_of_the_document_run(spark: Any) -> None:
    programs = re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(), flags=re.DOTALL)
    assert len(programs) == 5
    names: dict[str, Any] = {}
    try:
        for program in programs:
            exec(compile(program, str(DOCUMENT), "exec"), names)
        kinesis, parquet = (
            names["fake"].kinesis,
            spark.read.parquet(f"{names['directory']}/carriers"),
        )
        assert sorted(row["carrier"] for row in parquet.collect()) == ["EV", "UA", "UA"]
        assert len(kinesis.records("numbers")) == 1000
        assert sorted(each.partition_key for each in kinesis.records("copies")) == [
            "EV",
            "UA",
            "UA",
        ]
    finally:
        names["fake"].stop()
        shutil.rmtree(names["directory"])


def test_every_option_and_column_is_documented() -> None:
    text = DOCUMENT.read_text()
    for name in (*READ_OPTIONS, *WRITE_OPTIONS, *COLUMNS, *WRITTEN):
        assert f"`{name}`" in text, name
    shown = read_options({"stream": "flights"}, streaming=False)
    assert set(arrow_schema(shown).names) == set(COLUMNS) - {"explicitHashKey"}


def test_the_checkpoint_in_the_document_has_the_fields_that_queries_write() -> None:
    (shown,) = re.findall(r"```json\n(.*?)```", DOCUMENT.read_text(), flags=re.DOTALL)
    part = StreamPart("flights@1")
    planned = StreamOffset(query="q", round=1, parts={part.name: part}).to_json()
    keys = set(re.findall(r'"([a-zA-Z]+)":', shown))
    assert keys == set(planned) | set(planned["planned"]) | set(part.to_json())
