"""A pipeline that `pipeline plan` accepts starts and keeps its values; plan refuses other pipelines, with all errors.

HEADRACE_SPARK_PLANS=1 tries every type with every sink; otherwise a fixed sixth of these pairs is tried.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any, Final

import pytest
from deltalake import DeltaTable, Field, Schema
from deltalake.schema import PrimitiveType

from headrace.errors import ConfigError
from headrace.pipelines import frames as frames_module
from headrace.pipelines import pipeline, table, topic
from headrace.pipelines.checks.sinks import problems
from headrace.pipelines.declaration import Table, Topic
from headrace.pipelines.delta.append import append
from headrace.pipelines.encoding import encoded
from headrace.pipelines.loading import load_file
from headrace.pipelines.plan import DefaultCluster, Plan, PlanError, Trigger
from headrace.pipelines.planning import plan_all
from tests.fixtures.targets import Target
from tests.integration.spark.conftest import Topics
from tests.integration.spark.test_pipeline_examples import SharedSessions
from tests.integration.spark.test_round_trips import contents, typed

TYPES: Final = (
    "TRUE", "1Y", "1S", "1", "1L", "FLOAT('NaN')", "DOUBLE('Infinity')", "CAST(0.1 AS DECIMAL(38,38))", "'a'", "X'00'",
    "DATE'2026-01-01'", "TIMESTAMP'2026-10-25T00:30:00.123456Z'", "TIMESTAMP_NTZ'2026-10-25T02:30:00.123456'",
    "NULL", "INTERVAL '1' DAY", "INTERVAL '1' MONTH", "parse_json('{}')", "CAST('a' AS VARCHAR(3))",
    "'a' COLLATE UNICODE",
    "array()", "array(NULL)", "array(1, 2)", "named_struct('a', 1)", "named_struct('a', NULL)",
    "named_struct('a b', 1, 'c.d', 2)", "named_struct('a', 1, 'A', 2)", "named_struct('a', 1, 'a', 2)",
    "map('k', 1)", "map(1Y, 1)", "map(DATE'2026-01-01', 1)", "map(TIMESTAMP'2026-01-01T00:00:00Z', 1)", "map(TRUE, 1)",
    "map(1.5D, 1)", "map(X'00', 1)", "map(named_struct('a', 1), 1)", "array(map(DATE'2026-01-01', 1))",
    "named_struct('deep', map(DATE'2026-01-01', 1))",
)  # fmt: skip
NAMES: Final = (
    "c", "a.b", "a b", "a-b", "größe", "a`b", "a,b;{}()=", "select", "", " ", 'a"b', "a\\b", "a\nb",
)  # fmt: skip
SINKS: Final = ("topic", "text topic", "parquet", "orc", "json", "csv", "text", "delta")
PAIRS: Final = [
    (sink, expression, name)
    for number, (sink, expression, name) in enumerate(
        [(sink, each, "c") for each in TYPES for sink in SINKS]
        + [(sink, "'v'", each) for each in NAMES for sink in SINKS]
    )
    if os.environ.get("HEADRACE_SPARK_PLANS") or number % 6 == 0
]
READABLE: Final = frozenset({"topic", "parquet", "delta"})


def plan_of(sink: Topic | Table, connection: DefaultCluster) -> Plan:
    source = topic("source", format="text")
    declared = pipeline(source=source, sink=sink, name="tried")(lambda source: source)
    return Plan(declared, connection, {"source": source}, Trigger(None), "checkpoint")


class Ends:
    """Creates sinks of every kind, and reads their rows with a source."""

    def __init__(self, spark: Any, topics: Topics, bootstrap: str, directory: Path) -> None:
        self.spark = spark
        self.topics = topics
        self.connection = DefaultCluster(bootstrap)
        self.directory = directory

    def make(self, kind: str) -> Topic | Table:
        if "topic" in kind:
            name = self.topics.create()
            return topic(name, format="text" if kind == "text topic" else "json")
        made: Any = kind
        return table(str(self.directory / kind), format=made)

    def write(self, frame: Any, sink: Topic | Table) -> None:
        if isinstance(sink, Topic):
            options = {"kafka.bootstrap.servers": self.connection.bootstrap, "topic": sink.name}
            encoded(frame, sink).write.format("headrace").mode("append").options(**options).save()
        elif sink.format == "delta":
            append(frame, sink, "query", 0)
        else:
            options = frames_module.file_options(sink)
            frame.write.format(sink.format).options(**options).save(sink.path)

    def back(self, sink: Topic | Table, schema: Any) -> Any:
        plan = plan_of(sink, self.connection)
        if isinstance(sink, Table):
            return frames_module.read(self.spark, sink, plan)
        options = {"kafka.bootstrap.servers": self.connection.bootstrap, "subscribe": sink.name}
        read = self.spark.read.format("headrace").options(**options, format="json")
        return read.option("schema", schema.json()).load().select("value.*")


@pytest.fixture
def ends(spark: Any, topics: Topics, server: Target, tmp_path: Path) -> Ends:
    return Ends(spark, topics, server.bootstrap, tmp_path)


@pytest.mark.parametrize("kind", SINKS)
def test_an_accepted_column_is_written_and_read_back(ends: Ends, kind: str) -> None:
    failed = []
    for sink_kind, expression, name in PAIRS:
        if sink_kind == kind:
            try:
                _try(ends, kind, expression, name)
            except Exception as error:  # noqa: BLE001 - all that fail are shown
                failed.append(f"{expression} AS {name!r}: {error}")
    assert not failed, "\n\n".join(failed)


def _try(ends: Ends, kind: str, expression: str, name: str) -> None:
    quoted = "`" + name.replace("`", "``") + "`"
    column = "value" if kind == "text topic" else quoted
    frame = ends.spark.sql(f"SELECT 1 AS n, {expression} AS {column}")
    if kind in {"text", "text topic"}:
        frame = frame.drop("n")
    sink = ends.make(kind)
    ends.directory /= "next"
    found = list(problems(ends.spark, frame, plan_of(sink, ends.connection)))
    if found:
        assert all(len(each) > 20 for each in found)
        return
    ends.write(frame, sink)
    if kind not in READABLE:
        return
    try:
        back = ends.back(sink, frame.schema)
    except Exception as error:
        if "option schema" not in str(
            error
        ):  # the source says before it starts what it cannot read
            raise
        return
    assert [_plain(each) for each in typed(back)] == [_plain(each) for each in typed(frame)]
    if "interval month" in str(typed(frame)):  # nor has PySpark
        texts = ["CAST(c AS STRING)"]
        assert back.selectExpr(texts).collect() == frame.selectExpr(texts).collect()
    elif re.search("void|interval", str(typed(frame))):  # Arrow has no such values
        assert back.collect() == frame.collect()
    else:
        assert contents(back) == contents(frame)


def _plain(column: tuple[str, str]) -> tuple[str, str]:
    """Return a column without its collation, which does not change the values."""
    return column[0], re.sub(" collate [A-Z_]+", "", column[1])


def refused(ends: Ends, frame: Any, sink: Topic | Table) -> list[str]:
    return list(problems(ends.spark, frame, plan_of(sink, ends.connection)))


FILE = """
from pyspark.sql import functions as f
from headrace.pipelines import pipeline, table, topic

THERE = topic("{there}", schema="id BIGINT, at TIMESTAMP")

@pipeline(source=THERE, sink=topic("{there}-missing", key="name"), trigger="often")
def first(records):
    return records

@pipeline(source=topic("{there}-too", schema="id BIGINT"), sink=table("{directory}/t", partition_by=("day",)))
def second(records):
    return records.select("id", "id")

@pipeline(source=THERE, sink=topic("{there}", format="xml"))
def third(records):
    return records

@pipeline(source=THERE, sink=table("{directory}/d", format="delta"))
def fourth(records):
    return records.select("id", "nothing")
"""


def test_plan_lists_the_problems_of_all_stages(ends: Ends) -> None:
    """Declarations, brokers and Spark have errors; no stage hides the errors of the next one."""
    path = ends.directory / "flow.py"
    there = ends.topics.create()
    path.write_text(FILE.format(there=there, directory=ends.directory))
    sessions: Any = SharedSessions(ends.spark)
    with pytest.raises(PlanError) as caught:
        plan_all(load_file(path), ends.connection, str(ends.directory / "c"), sessions=sessions)

    found = [(each.pipeline.name, each.message) for each in caught.value.problems if each.pipeline]
    wanted = [
        ("first", 'trigger must be like "1 second"'),
        ("first", f"there is no topic {there}-missing"),
        ("first", "key='name': the frame has no such column, it has id, at"),
        ("second", f"there is no topic {there}-too"),
        ("second", "the frame has two columns id"),
        ("second", "partition_by: the frame has no column day"),
        ("third", "sink: format must be one of"),
        ("third", "sink: the format of a topic that is written"),
        ("fourth", "[UNRESOLVED_COLUMN"),
    ]
    assert [name for name, _ in found] == [name for name, _ in wanted]
    assert [
        (name, text)
        for (name, text), (_, said) in zip(found, wanted, strict=True)
        if said not in text
    ] == []


def test_columns_that_cannot_be_key_time_or_tombstone_are_refused(ends: Ends) -> None:
    frame = ends.spark.sql(
        "SELECT 'k' AS `a.k`, map('a', 1) AS m, 1 AS one, TRUE AS gone, X'ff' AS raw, current_timestamp() AS at"
    )
    name = ends.topics.create()
    assert refused(ends, frame, topic(name, key="a.k", tombstone="gone", timestamp="at")) == []
    assert refused(ends, frame, topic(name, key="raw")) == []
    (text,) = refused(ends, frame, topic(name, key="a.k", tombstone="one"))
    assert "tombstone='one' must be a boolean column, not int" in text
    (text,) = refused(ends, frame, topic(name, key="a.k", timestamp="m"))
    assert "CAST" in text
    session = ends.spark.newSession()
    session.conf.set("spark.sql.session.timeZone", "Europe/Berlin")
    (text,) = problems(session, frame, plan_of(topic(name, key="at"), ends.connection))
    assert "two times have the same text when clocks are set back" in text


def test_records_of_a_topic_need_columns_of_the_right_types(ends: Ends) -> None:
    frame = ends.spark.sql("SELECT 1 AS value, 'p' AS partition, 2 AS offset")
    assert [
        each.partition(":")[0] for each in refused(ends, frame, topic("t", format="binary"))
    ] == ["offset"]
    assert [
        each.partition(":")[0]
        for each in refused(ends, frame.drop("offset"), topic("t", format="binary"))
    ] == [
        "column value must be binary or string, not int",
        "column partition must be int, not string",
    ]


@pytest.mark.parametrize("kind", ["delta", "parquet", "orc"])
def test_a_plan_that_changes_the_columns_of_a_table_is_refused(ends: Ends, kind: Any) -> None:
    sink = table(str(ends.directory / "kept"), format=kind)
    ends.write(ends.spark.sql("SELECT 1 AS a, 'x' AS s"), sink)
    changes = {
        "SELECT 2 AS a, 'y' AS s": [],
        "SELECT 'y' AS s, 2 AS a": [],
        "SELECT 2 AS a, 'y' AS s, 5 AS more": ["the frame has a column more int, but"],
        "SELECT 2L AS a, 'y' AS s": ["column a is int in"],
        "SELECT 'y' AS s": ["has a column a int, but the frame does not"],
        "SELECT 'y' AS s, 2 AS A": ["has a column a int, but the", "the frame has a column A int"],
    }
    for sql, wanted in changes.items():
        found = refused(ends, ends.spark.sql(sql), sink)
        assert len(found) == len(wanted), sql
        assert all(said in text for said, text in zip(wanted, found, strict=True)), found


def test_readers_that_merge_files_may_have_more_columns(ends: Ends) -> None:
    plain = table(str(ends.directory / "merged"))
    merged = table(plain.path, options={"mergeSchema": True})
    ends.write(ends.spark.sql("SELECT 1 AS a"), plain)

    assert len(refused(ends, ends.spark.sql("SELECT 1 AS a, 2 AS b"), plain)) == 1
    assert refused(ends, ends.spark.sql("SELECT 1 AS a, 2 AS b"), merged) == []
    assert len(refused(ends, ends.spark.sql("SELECT 'x' AS a"), merged)) == 1


def test_a_plan_that_changes_the_partitions_of_a_table_is_refused(ends: Ends) -> None:
    path = str(ends.directory / "parts")
    frame = ends.spark.sql("SELECT 1 AS a, 2 AS b, 3 AS c")
    frame.write.partitionBy("b").parquet(path)

    assert refused(ends, frame, table(path, partition_by=("b",))) == []
    for other in ((), ("c",), ("b", "c")):
        assert (
            "is partitioned by b, but" in refused(ends, frame, table(path, partition_by=other))[0]
        )


def test_a_batch_that_does_not_fit_is_not_appended(ends: Ends) -> None:
    """The function was changed while the pipeline was stopped. The checkpoint was kept, and plan was not run."""
    sink = table(str(ends.directory / "kept"), format="delta")
    append(ends.spark.sql("SELECT 1 AS a, 'x' AS s"), sink, "query", 0)
    before = DeltaTable(sink.path).version()
    for sql in ("SELECT 2 AS a, 'y' AS s, 5 AS more", "SELECT 'y' AS a, 's' AS s", "SELECT 1 AS a"):
        with pytest.raises(ConfigError, match="write to another table"):
            append(ends.spark.sql(sql), sink, "query", 1)
    assert DeltaTable(sink.path).version() == before
    assert [
        row.a
        for row in frames_module.read(ends.spark, sink, plan_of(sink, ends.connection)).collect()
    ] == [1]


def test_null_goes_into_no_column_that_has_none(ends: Ends) -> None:
    sink = table(str(ends.directory / "strict"), format="delta")
    kind = Schema([Field("a", PrimitiveType("integer"), nullable=False)])
    DeltaTable.create(sink.path, schema=kind)

    assert refused(ends, ends.spark.sql("SELECT 1 AS a"), sink) == []
    (text,) = refused(ends, ends.spark.sql("SELECT CAST(NULL AS INT) AS a"), sink)
    assert "is NOT NULL, but may be null in the frame" in text
