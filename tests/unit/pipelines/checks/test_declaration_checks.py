"""Errors of declared pipelines are found at once, with their positions, without a broker or Spark."""

from __future__ import annotations

import functools
import textwrap
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.types import IntegerType, StringType, StructType

from headrace.errors import ConfigError
from headrace.pipelines import for_each_batch, pipeline, table, topic
from headrace.pipelines.checks.declarations import check, read_trigger
from headrace.pipelines.declaration import Pipeline
from headrace.pipelines.loading import choose, load_file
from headrace.pipelines.options import (
    batch_sink_options_of,
    sink_options_of,
    source_options_of,
)
from headrace.pipelines.plan import DefaultCluster, Plan, PlanError
from headrace.spark.decode.ddl import struct_type

CONNECTION = DefaultCluster("127.0.0.1:1", {"request_timeout_ms": "5000"})
ORDERS = topic("orders", schema="id BIGINT")
CSV: Any = "csv"
RESULT = topic("result", key="id")


def declared(function: Any = None, **changes: Any) -> Pipeline:
    options = {"source": ORDERS, "sink": RESULT, "name": "one", **changes}
    return pipeline(**options)(function or (lambda orders: orders))


def plan_of(tmp_path: Path, *pipelines: Pipeline) -> list[Plan]:
    return check(pipelines, CONNECTION, str(tmp_path))


def wrong(tmp_path: Path, *pipelines: Pipeline) -> list[str]:
    with pytest.raises(PlanError) as caught:
        plan_of(tmp_path, *pipelines)
    return [each.message for each in caught.value.problems]


def test_a_pipeline_can_be_called_like_its_function() -> None:
    assert declared(lambda orders: [orders, "and more"])("rows") == ["rows", "and more"]


def test_every_kind_of_function_has_a_source_location_and_a_name() -> None:
    class Doubled:
        def __call__(self, orders: Any) -> Any:
            return orders

    def both(factor: int, orders: Any) -> Any:
        return orders

    @functools.wraps(both)
    def wrapped(orders: Any) -> Any:
        return both(1, orders)

    kinds: dict[str, Any] = {
        "Doubled": Doubled(),
        "both": functools.partial(both, 2),
        "wrapped": wrapped,
    }
    found = {name: pipeline(source=ORDERS, sink=RESULT)(kind) for name, kind in kinds.items()}

    assert [each.name for each in found.values()] == ["Doubled", "both", "both"]
    assert {each.file for each in found.values()} == {__file__}
    assert found["Doubled"]("rows") == "rows"
    with pytest.raises(ConfigError, match="a pipeline is a function of its sources' frames, not 7"):
        pipeline(source=ORDERS, sink=RESULT)(7)  # type: ignore[arg-type]  # the slip that is tested


def test_the_schema_of_a_struct_type_keeps_unusual_names() -> None:
    kind = StructType().add("flight no", StringType()).add("a-b", IntegerType())
    use = topic("odd", schema=kind)
    assert use.schema is not None
    assert [each.name for each in struct_type(use.schema)] == ["flight no", "a-b"]


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ({"schema": "topic STRING", "include": ("topic",)}, "names the record's topic"),
        ({"schema": "a INT, `Key` STRING", "include": ("offset", "key")}, "has a field Key"),
        ({"schema": "a INT, `_error` STRING", "on_error": "null"}, "adds a column _error"),
    ],
)
def test_a_source_has_no_column_twice(tmp_path: Path, source: dict[str, Any], said: str) -> None:
    """Parquet would write the values of one column to both columns of the same name, without an error."""
    (text,) = wrong(tmp_path, declared(source=topic("orders", **source)))
    assert said in text


@pytest.mark.parametrize("line", ['f.udf("int")(lambda x: 1)', 'f.col("a") + 1'])
def test_a_file_that_needs_a_session_is_reported_with_a_remedy(tmp_path: Path, line: str) -> None:
    path = tmp_path / "early.py"
    path.write_text(f"from pyspark.sql import functions as f\n{line}\n")
    with pytest.raises(ConfigError, match=r"early.py:2: .* There is no Spark session while"):
        load_file(path)


def test_a_plan_is_available_as_json(tmp_path: Path) -> None:
    (plan,) = plan_of(tmp_path, declared(trigger="5 seconds"))
    found = plan.as_dict()

    assert found["name"] == "one"
    assert found["file"] == __file__
    assert found["sources"] == {
        "orders": {"topic": "orders", "format": "json", "schema": "id BIGINT"}
    }
    assert found["sink"] == {"topic": "result", "format": "json", "schema": None}
    assert (found["trigger"], found["output_mode"]) == ("5 seconds", "append")
    assert found["checkpoint"] == f"{tmp_path}/one"


def test_all_problems_are_listed_with_file_and_line(tmp_path: Path) -> None:
    with pytest.raises(PlanError) as caught:
        plan_of(
            tmp_path,
            declared(trigger="often", output_mode="upsert"),
            declared(name="two", sink=table("out", format="xml")),
        )

    lines = str(caught.value).splitlines()
    assert lines[0] == "3 problems"
    assert all(line.startswith(f"{__file__}:") for line in lines[1:])
    assert lines[1].endswith(
        "one: output_mode must be one of append, update, complete, not 'upsert'"
    )
    assert lines[2].endswith(
        """one: trigger must be like "1 second" or be "available_now", not 'often'"""
    )
    assert "two: sink: format must be one of parquet, delta" in lines[3]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": "a/b"}, "the name 'a/b' may only have a-z"),
        ({"settings": {"spark.driver.memory": "2g"}}, "--conf spark.driver.memory=..."),
        ({"source": topic("orders")}, "format json needs schema="),
        ({"source": topic("orders", format=CSV)}, "format must be one of binary, text, json"),
        ({"source": topic("orders", format="text", schema="a INT")}, "text has no schema"),
        (
            {"source": topic("o", schema="a INT", include=("time",))},
            "include must name some of key",
        ),
        ({"source": topic("o", schema="a INT", on_error="skip")}, "option onError must be fail"),
        ({"source": topic("o", schema="a INT", starting="soon")}, "option startingOffsets must be"),
        (
            {"source": topic("o", schema="a INT", options={"maxOfsetsPerTrigger": 5})},
            "did you mean maxOffsetsPerTrigger?",
        ),
        ({"source": topic("o", schema="a INT", create=0)}, "create must be a number of partitions"),
        (
            {"source": topic("o,p", schema="a INT", create=1)},
            "create= is for one topic, not for 'o,p'",
        ),
        ({"source": topic("o", schema="a INT", configs={"x": 1})}, "add create=PARTITIONS"),
        (
            {"source": {"payments": ORDERS}},
            "has the parameters orders, but the sources are payments",
        ),
        ({"source": table("t")}, "no source is a stream"),
        ({"source": table("t", stream=True)}, "a source of parquet files needs schema="),
        ({"source": table("t", format="delta", stream=True)}, "cannot be read as a stream"),
        ({"sink": topic("a,b")}, "a sink has one topic, not 'a,b'"),
        ({"sink": topic("a", format="avro", schema="{}")}, "the format of a topic that is written"),
        ({"sink": topic("a"), "output_mode": "update"}, "changed rows need key="),
        ({"sink": topic("a", tombstone="gone")}, "tombstone= needs key="),
        ({"sink": topic("a", format="binary", key="id")}, "are for format json"),
        ({"sink": topic("a", options={"delivery": "twice"})}, "option delivery is one of"),
        ({"sink": for_each_batch(print, to=topic("a,b"))}, "a sink has one topic"),
        ({"sink": table("t"), "output_mode": "update"}, "must be append, not update"),
        ({"sink": table("t", format="delta", partition_by=("a",))}, "cannot be partitioned"),
        ({"sink": table("s3://b/t", format="delta")}, "must be a directory of this machine"),
    ],
)
def test_a_wrong_declaration_is_reported(
    changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    (found, *_) = [each for each in wrong(tmp_path, declared(**changes)) if message in each]
    assert found


def test_a_checkpoint_is_a_directory_that_can_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (message,) = wrong(tmp_path, declared(checkpoint=str(tmp_path / "file" / "here")))

    assert f"file/here cannot be written: {tmp_path}/file is not a writable directory" in message
    elsewhere = declared(checkpoint="s3a://bucket/here")
    assert plan_of(tmp_path, elsewhere)[0].checkpoint == "s3a://bucket/here"


def test_the_functions_parameters_must_match_the_sources(tmp_path: Path) -> None:
    (message,) = wrong(tmp_path, declared(lambda a, b: a))
    assert "the function must have one parameter, for its source, not 2" in message

    joined = declared(lambda a, b: a, source={"b": table("t"), "a": ORDERS})
    assert list(plan_of(tmp_path, joined)[0].sources) == ["b", "a"]


def test_names_and_checkpoints_are_each_ones_own(tmp_path: Path) -> None:
    (message,) = wrong(tmp_path, declared(), declared())
    assert "has the name one, too" in message

    same = {"checkpoint": str(tmp_path / "same")}
    (message,) = wrong(tmp_path, declared(**same), declared(name="two", **same))
    assert f"has the checkpoint {tmp_path / 'same'}, too" in message


def test_a_trigger_is_an_interval_or_available_now() -> None:
    assert read_trigger("500 milliseconds").every == "500 milliseconds"
    assert read_trigger("available_now").every is None
    for text in ("", "0 seconds", "1", "second", "1 fortnight"):
        with pytest.raises(ConfigError, match="trigger must be like"):
            read_trigger(text)


def test_options_of_a_topic_by_its_role() -> None:
    both = topic(
        "orders",
        schema="id BIGINT",
        include=("timestamp",),
        options={"maxOffsetsPerTrigger": 10, "markerTopic": "m", "kafka.client.id": "me"},
    )
    read = source_options_of(both, "one", CONNECTION)
    written = sink_options_of(both, CONNECTION)

    assert read == {
        "kafka.bootstrap.servers": "127.0.0.1:1",
        "kafka.request.timeout.ms": "5000",
        "kafka.client.id": "me",
        "kafka.isolation.level": "read_committed",
        "subscribe": "orders",
        "startingOffsets": "earliest",
        "group": "one",
        "format": "json",
        "schema": "id BIGINT",
        "onError": "fail",
        "columns": "timestamp,value",
        "maxOffsetsPerTrigger": "10",
    }
    assert (written["topic"], written["markerTopic"]) == ("orders", "m")
    assert "maxOffsetsPerTrigger" not in written
    assert batch_sink_options_of(both, CONNECTION, "app", 7)["txnVersion"] == "7"
    text = topic("orders", format="text", include=("key",))
    assert source_options_of(text, "one", CONNECTION)["columns"] == "key,value"
    assert "columns" not in source_options_of(topic("o", format="text"), "one", CONNECTION)
    weak = topic("orders", options={"delivery": "at_least_once"})
    assert "txnAppId" not in batch_sink_options_of(weak, CONNECTION, "app", 7)


def test_a_pipeline_file_can_import_modules_of_its_directory(tmp_path: Path) -> None:
    (tmp_path / "beside_the_pipelines.py").write_text("TOPIC = 'flights'\n")
    path = tmp_path / "flow.py"
    path.write_text(
        textwrap.dedent("""
        from headrace.pipelines import pipeline, table, topic
        from beside_the_pipelines import TOPIC

        @pipeline(source=topic(TOPIC, format="text"), sink=table("a"))
        def first(records): return records

        @pipeline(source=topic(TOPIC, format="text"), sink=table("b"), name="second")
        def other(records): return records
        """)
    )
    found = load_file(path)

    assert [each.name for each in found] == ["first", "second"]
    assert [each.line for each in found] == [5, 8]
    assert found[0].source.name == "flights"  # type: ignore[union-attr]  # it is a topic
    assert [each.name for each in choose(found, ("second",))] == ["second"]
    with pytest.raises(ConfigError, match="no pipeline third; there are first, second"):
        choose(found, ("third",))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = 1\n", "declares no pipeline"),
        ("x = 1\ny = 1 / 0\n", "flow.py:2: ZeroDivisionError: division by zero"),
        ("x = (\n", "flow.py:1: '\\(' was never closed"),
    ],
)
def test_a_file_that_fails_is_reported_with_its_line(
    text: str, message: str, tmp_path: Path
) -> None:
    path = tmp_path / "flow.py"
    path.write_text(text)

    with pytest.raises(ConfigError, match=message):
        load_file(path)
    with pytest.raises(ConfigError, match="there is no file"):
        load_file(tmp_path / "absent.py")
