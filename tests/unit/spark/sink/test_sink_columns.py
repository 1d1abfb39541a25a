"""Arrow columns become records; for columns that cannot be written the error names the remedy."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import StringType, StructType

from headrace.clients.producer.many import Row, Rows
from headrace.errors import ConfigError, HeadraceError
from headrace.spark.options.sink import sink_options
from headrace.spark.sink import columns as columns_module
from headrace.spark.sink.columns import check_columns, columns_of, content_size, rows_by_topic
from tests.fixtures.accelerator import built_kernels

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
MOMENT = pa.timestamp("us", tz="UTC")


@pytest.fixture(params=["C", "Python"], autouse=True)
def _implementation(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    kernels = built_kernels() if request.param == "C" else None
    monkeypatch.setattr(columns_module, "kernels", kernels)


def records(batch: pa.RecordBatch, topic: str | None = "t") -> dict[str, list[Row]]:
    return {rows.topic: list(taken(rows)) for rows in rows_by_topic(batch, topic, 77)}


def taken(rows: Rows) -> Iterator[Row]:
    """Return all rows. No open batch has space for another row."""
    while (row := rows.fill({}, 1, 0, -1)) is not None:
        yield row


def batch(**columns: pa.Array) -> pa.RecordBatch:
    return pa.record_batch(list(columns.values()), names=list(columns))


def check(columns: dict[str, str], **options: str) -> None:
    given = {"kafka.bootstrap.servers": "h:1", **options}
    check_columns(columns, sink_options(given, streaming=False))


def test_each_column_becomes_its_part_of_the_record() -> None:
    at = dt.datetime(2013, 1, 1, 10, 0, 0, 123_999, dt.UTC)
    rows = batch(
        key=pa.array(["k", None]),
        value=pa.array([b"v", None], pa.binary()),
        partition=pa.array([2, None], pa.int32()),
        timestamp=pa.array([at, None], MOMENT),
        headers=pa.array(
            [[{"key": "h", "value": b"1"}, {"key": "n", "value": None}], None], HEADERS
        ),
    )

    assert records(rows) == {
        "t": [
            (b"k", b"v", [("h", b"1"), ("n", None)], 1_357_034_400_123, 2),
            (None, None, [], 77, None),
        ]
    }
    (found,) = rows_by_topic(rows, "t", 77)
    assert found.partitions == {2}


def test_rows_may_have_only_values_and_times_before_1970() -> None:
    before = dt.datetime(1969, 12, 31, 23, 59, 59, 999_500, dt.UTC)
    assert records(batch(value=pa.array(["é"]))) == {"t": [(None, "é".encode(), (), 77, None)]}
    early = batch(value=pa.array([b""]), timestamp=pa.array([before], MOMENT))
    assert records(early) == {"t": [(None, b"", (), -1, None)]}


def test_a_slice_has_its_own_rows() -> None:
    whole = batch(
        value=pa.array([b"0", b"1", b"2"]),
        headers=pa.array(
            [[{"key": None, "value": b""}], [{"key": "h", "value": b"x"}], []], HEADERS
        ),
    )
    assert records(whole.slice(1)) == {
        "t": [(None, b"1", [("h", b"x")], 77, None), (None, b"2", [], 77, None)]
    }


def test_a_slice_of_columns_without_headers_has_its_own_rows() -> None:
    at = dt.datetime(2013, 1, 1, tzinfo=dt.UTC)
    whole = batch(
        key=pa.array([b"-"] * 9 + [None, b"k"], pa.large_binary()),
        value=pa.array(["-"] * 9 + ["v", None]),
        partition=pa.array([5] * 9 + [None, 1], pa.int32()),
        timestamp=pa.array([at] * 10 + [None], MOMENT),
        headers=pa.array([None] * 11, HEADERS),
    )
    assert records(whole.slice(9)) == {
        "t": [(None, b"v", (), 1_356_998_400_000, None), (b"k", None, (), 77, 1)]
    }
    assert records(whole.slice(11)) == {"t": []}


def test_topics_of_rows_keep_each_ones_order() -> None:
    rows = batch(value=pa.array([b"0", b"1", b"2", b"3"]), topic=pa.array(["a", "b", "a", "b"]))

    values = {topic: [row[1] for row in found] for topic, found in records(rows, None).items()}

    assert values == {"a": [b"0", b"2"], "b": [b"1", b"3"]}


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"topic": pa.array(["a", None])}, "a row has no topic: set the option topic"),
        (
            {
                "topic": pa.array(["a", "a"]),
                "headers": pa.array([[{"key": None, "value": b""}], []], HEADERS),
            },
            "a header has no key",
        ),
    ],
)
def test_rows_without_topic_or_header_name_are_refused(
    columns: dict[str, Any], message: str
) -> None:
    with pytest.raises(HeadraceError, match=message):
        records(batch(value=pa.array([b"v", b"w"]), **columns), None)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (
            {"value": "bigint"},
            r"must be binary or string, not bigint: select CAST\(value AS STRING\)",
        ),
        (
            {"key": "string"},
            r"a column value is needed, got key: .* to_json\(struct\(\*\)\) AS value",
        ),
        ({}, "a column value is needed, got none"),
        ({"value": "string", "Key": "string"}, "unknown column Key: did you mean key"),
        ({"value": "string", "carrier": "string"}, "unknown column carrier: drop it"),
        ({"value": "string", "offset": "bigint"}, "column offset cannot be written: drop it"),
        ({"value": "string", "partition": "bigint"}, r"select CAST\(partition AS INT\)"),
        ({"value": "string", "headers": "map<string,string>"}, "column headers must be array"),
    ],
)
def test_columns_of_wrong_names_and_types_are_refused(
    columns: dict[str, str], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        check(columns, topic="t")


def test_two_columns_of_one_name_are_refused() -> None:
    """Arrow cannot look up a name that two columns have, so the records would have no value."""
    schema = StructType().add("value", StringType()).add("key", StringType())
    assert columns_of(schema) == {"value": "string", "key": "string"}
    with pytest.raises(ConfigError, match="two columns value: drop or rename"):
        columns_of(schema.add("value", StringType()))


@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin", "America/New_York", "Asia/Kathmandu"])
def test_times_do_not_depend_on_the_zone_of_the_session(zone: str) -> None:
    """The column has the session's time zone. Every hour is written, also hours that clocks repeat or skip."""
    first = int(dt.datetime(1800, 1, 1, tzinfo=dt.UTC).timestamp())
    changes = [1792888200, 1793511000, 1774746000, 1772953200]  # in Berlin and New York, 2026
    seconds = [first, -1, 0, *(at + 1800 * step for at in changes for step in range(-4, 5))]
    micros = [each * 1_000_000 + extra for each in seconds for extra in (0, 1, 999_999)]
    column = pa.array(micros, pa.int64()).cast(pa.timestamp("us", tz=zone))
    headers = pa.array([[{"key": "h", "value": b""}]] * len(micros), HEADERS)
    values = pa.array([b"v"] * len(micros))

    for rows in (
        batch(value=values, timestamp=column),
        batch(value=values, timestamp=column, headers=headers),
    ):
        assert [row[3] for row in records(rows)["t"]] == [each // 1000 for each in micros]


def test_a_topic_is_an_option_or_a_column() -> None:
    check({"value": "binary", "topic": "string"})
    check({"value": "binary"}, topic="t")
    with pytest.raises(ConfigError, match="set the option topic"):
        check({"value": "binary"})


def test_the_size_of_rows_does_not_depend_on_how_they_are_batched() -> None:
    keys, values = pa.array([b"a", None, b"bcd"]), pa.array(["\u00fc", "xy", None])
    batch = pa.RecordBatch.from_arrays([keys, values], names=["key", "value"])

    assert content_size(batch) == 8
    assert [content_size(batch.slice(row, 1)) for row in range(3)] == [3, 2, 3]
    assert content_size(batch.slice(0, 0)) == 0
    assert content_size(batch.select(["value"])) == 4
