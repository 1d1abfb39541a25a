"""Spark finds the format, and a look-up loads no large library and never fails."""

from __future__ import annotations

import subprocess
import sys

import pytest

import pyspark_headrace
from headrace.records.accel import kernels
from headrace.spark.datasource import HeadraceDataSource
from headrace.spark.readers.batch import HeadraceBatchReader
from headrace.spark.readers.stream import HeadraceStreamReader


def run(program: str) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_spark_looks_for_a_class_of_this_name_in_a_module_of_this_name() -> None:
    assert pyspark_headrace.DefaultSource is HeadraceDataSource
    assert HeadraceDataSource.name() == "headrace"


@pytest.mark.parametrize("missing", ["pyspark", "pyspark.sql.datasource", "headrace"])
def test_a_missing_part_never_raises(missing: str) -> None:
    program = (
        f"import sys; sys.modules[{missing!r}] = None; import pyspark_headrace; "
        "print(hasattr(pyspark_headrace, 'DefaultSource'))"
    )
    assert run(program) == "False\n"


def test_a_look_up_loads_neither_arrow_nor_a_client_nor_the_broker() -> None:
    program = (
        "import sys, pyspark.sql.datasource; before = set(sys.modules); import pyspark_headrace; "
        "print(*sorted(name for name in set(sys.modules) - before if '.' in name or name != 'headrace'))"
    )
    loaded = run(program).split()
    heavy = (
        "pyarrow",
        "headrace.clients",
        "headrace.broker",
        "headrace.protocol",
        "headrace.records",
    )
    assert not [name for name in loaded if name.startswith(heavy)]
    assert "headrace.spark.datasource" in loaded


@pytest.mark.slow
@pytest.mark.skipif(kernels is None, reason="in Python columns are lists, and pyarrow asks pandas")
def test_tasks_read_and_write_without_slow_imports() -> None:
    program = """
import sys
import headrace.spark.sink.stream, headrace.spark.readers.stream
from headrace.records.builder import build_batch
from headrace.spark.sink.columns import rows_by_topic
from headrace.spark.source.arrow import RangeDecoder
from headrace.spark.source.schema import topic_schema
from headrace.types import TopicPartition

decoder = RangeDecoder(TopicPartition("a", 1), 0, 2, topic_schema(include_headers=True))
batches = [*decoder.feed(build_batch([(b"k", b"v", (), 0)] * 2)), *decoder.finish()]
rows = next(rows_by_topic(batches[0].select(["value", "timestamp"]), "b", 7))
print(rows.fill({}, 1, 0, -1), {"pandas", "pyarrow.compute"} & set(sys.modules), batches[0].column("topic").to_pylist())
"""
    assert run(program) == "(None, b'v', (), 0, None) set() ['a', 'a']\n"


@pytest.mark.parametrize("reader", [HeadraceBatchReader, HeadraceStreamReader])
def test_readers_have_no_method_for_filters(reader: type) -> None:
    """Spark fails every query of a source with this method, unless a setting allows filters."""
    assert "pushFilters" not in reader.__dict__
