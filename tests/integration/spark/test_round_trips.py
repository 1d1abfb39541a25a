"""Extreme values of every type are written to every sink and read back unchanged, in sessions of every kind.

Values that cannot be read back are refused before anything is written; `test_pipeline_plans.py` checks that.
HEADRACE_SPARK_VALUES is the number of rows of random values besides the extreme values.
"""

from __future__ import annotations

import math
import os
import random
import struct
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pytest

from headrace.pipelines import table, topic
from headrace.pipelines.delta.append import append
from headrace.pipelines.encoding import encoded
from headrace.pipelines.frames import file_options
from headrace.pipelines.frames import read as read_source
from tests.fixtures.targets import Target
from tests.integration.spark.conftest import Topics

ROWS: Final = int(os.environ.get("HEADRACE_SPARK_VALUES", "200"))
MAX32, MAX64 = 2**31 - 1, 2**63 - 1
BERLIN_2026: Final = (1774746000, 1792888200)
"""The changes of clocks in spring, which skip an hour, and in autumn, which repeat one."""

SESSIONS: Final[list[dict[str, str]]] = [
    {},
    {"spark.sql.session.timeZone": "Europe/Berlin"},
    {"spark.sql.session.timeZone": "America/New_York", "spark.sql.ansi.enabled": "false"},
    {"spark.sql.timestampType": "TIMESTAMP_NTZ", "spark.sql.session.timeZone": "Asia/Kathmandu"},
    {"spark.sql.caseSensitive": "true", "spark.sql.execution.arrow.maxRecordsPerBatch": "7"},
    {"spark.sql.execution.arrow.useLargeVarTypes": "true", "spark.sql.ansi.enabled": "false"},
]


def extremes(bits: int) -> list[int]:
    top = 2 ** (bits - 1)
    return [-top, -1, 0, 1, top - 1]


def single(bits: int) -> float:
    return float(struct.unpack("<f", struct.pack("<I", bits))[0])


def double(bits: int) -> float:
    return float(struct.unpack("<d", struct.pack("<Q", bits))[0])


class Values:
    """Return random values. Every third value is an extreme of its type."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def any(self, ends: list[Any], other: Any) -> Any:
        kind = self.random.randrange(9)
        return None if kind == 0 else self.random.choice(ends) if kind < 4 else other()

    def integer(self, bits: int) -> Any:
        return self.any(
            extremes(bits), lambda: self.random.randrange(-(2 ** (bits - 1)), 2 ** (bits - 1))
        )

    def floating(self, of: Any, bits: int, ends: list[float]) -> Any:
        special = [float("nan"), float("inf"), float("-inf"), -0.0, 0.0, *ends]
        found = self.any(special, lambda: of(self.random.getrandbits(bits)))
        return float("nan") if found is not None and math.isnan(found) else found  # one of many

    def micros(self) -> Any:
        seconds = self.random.choice(BERLIN_2026) + 900 * self.random.randrange(-8, 8)
        near = [-62_135_596_800_000_000, -1, 0, 253_402_300_800_000_000, -5_364_662_400_000_000]
        ends = [-MAX64 - 1, MAX64, *near, seconds * 1_000_000 + 123_456]
        return self.any(ends, lambda: self.random.randrange(-(2**55), 2**55))

    def text(self) -> Any:
        letters = 'aé"\\/\n\t\x00\x1f\x7f\u2028\ufeff\ufffd😀 NaN0'
        return self.any(
            ["", "NaN", "null", "2026-01-01", "x" * 3000],
            lambda: "".join(self.random.choices(letters, k=self.random.randrange(9))),
        )

    def row(self, number: int) -> tuple[Any, ...]:
        return (
            number,
            self.any([True, False], lambda: True),
            *(self.integer(bits) for bits in (8, 16, 32, 64)),
            self.floating(single, 32, [3.4028234663852886e38, 1.401298464324817e-45]),
            self.floating(double, 64, [1.7976931348623157e308, 5e-324, 0.1]),
            self.any(["9" * 20 + "." + "9" * 18, "-0.000000000000000001", "0"], lambda: "1.5"),
            self.text(),
            self.any([b"", b"\x00", b"\xff\xfe"], lambda: self.random.randbytes(5)),
            self.any(
                [-MAX32 - 1, MAX32, -719_529, 2_932_897],
                lambda: self.random.randrange(-(2**20), 2**20),
            ),
            self.micros(),
            self.micros(),
        )


PLAIN: Final = (
    "n INT, bool BOOLEAN, `t-i` TINYINT, `s i` SMALLINT, `i.i` INT, l BIGINT, f FLOAT, d DOUBLE, dec STRING, "
    "text STRING, bin BINARY, days INT, at BIGINT, local BIGINT"
)
TYPED: Final = (
    "n", "bool", "`t-i`", "`s i`", "`i.i`", "l", "f", "d", "CAST(dec AS DECIMAL(38,18)) AS `größe`", "text", "bin",
    "date_from_unix_date(days) AS `select`", "timestamp_micros(at) AS at",
    "CAST(timestamp_micros(local) AS TIMESTAMP_NTZ) AS local",
)  # fmt: skip
NESTED: Final = (
    "*",
    "array(f, NULL) AS fs",
    "struct(at, local, `select` AS `a.b`, array(d) AS ds, struct(`größe` AS g) AS deep) AS `in side`",
    "map(coalesce(text, 'none'), at, 'other key', NULL) AS named",
    "map(coalesce(l, 5L), struct(local, bin)) AS numbered",
    "array(map('k', array(struct(`i.i` AS x))), NULL, map()) AS tangled",
    "CAST(array() AS ARRAY<STRING>) AS nothing",
    "CAST(NULL AS STRUCT<a:INT>) AS absent",
)


@pytest.fixture(scope="module")
def base(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write the values to Spark's own files, so that every session reads the same values."""
    path = tmp_path_factory.mktemp("values") / "base"
    session = spark.newSession()
    session.conf.set("spark.sql.session.timeZone", "UTC")
    session.conf.set("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
    values = Values(20261122)
    rows = [values.row(number) for number in range(ROWS)]
    plain = session.createDataFrame(rows, PLAIN).selectExpr(*TYPED)
    plain.selectExpr(*NESTED).coalesce(2).write.parquet(str(path))
    return path


@pytest.fixture(
    params=SESSIONS,
    ids=lambda each: ",".join(f"{k[10:]}={v}" for k, v in each.items()) or "default",
)
def session(request: pytest.FixtureRequest, spark: Any) -> Any:
    made = spark.newSession()
    for name, value in request.param.items():
        made.conf.set(name, value)
    return made


def contents(frame: Any) -> list[str]:
    """Return the rows as text that differs if any bit of a value differs. Times are numbers."""
    found = frame.sort("n").toArrow()
    bare = pa.schema([(each.name, _bare(each.type)) for each in found.schema])
    return [repr(row) for row in found.cast(bare).to_pylist()]


def _bare(kind: Any) -> Any:
    """Return a type whose values Python supports, because Python has no year 10000."""
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(each.name, _bare(each.type)) for each in kind])
    if pa.types.is_map(kind):
        return pa.map_(_bare(kind.key_type), _bare(kind.item_type))
    if pa.types.is_list(kind):
        return pa.list_(_bare(kind.value_type))
    if pa.types.is_timestamp(kind):
        return pa.int64()
    others = {
        pa.date32(): pa.int32(),
        pa.large_string(): pa.string(),
        pa.large_binary(): pa.binary(),
    }
    return others.get(kind, kind)


def typed(frame: Any) -> list[tuple[str, str]]:
    return [(each.name, each.dataType.simpleString()) for each in frame.schema]


def test_rows_survive_a_round_trip_through_a_json_topic(
    session: Any, base: Path, topics: Topics, server: Target
) -> None:
    given = session.read.parquet(str(base))
    name = topics.create(partitions=2)
    sink = topic(name, schema=given.schema, key="text")
    cluster = {"kafka.bootstrap.servers": server.bootstrap}

    encoded(given, sink).write.format("headrace").mode("append").options(
        **cluster, topic=name
    ).save()

    assert sink.schema is not None
    read = session.read.format("headrace").options(**cluster, subscribe=name)
    back = read.options(format="json", schema=sink.schema).load().select("value.*")
    assert typed(back) == typed(given)
    assert contents(back) == contents(given)


def test_a_source_with_on_error_reads_every_value(
    spark: Any, base: Path, topics: Topics, server: Target
) -> None:
    """A source with `onError` reads all values of a sink without an error."""
    given = spark.read.parquet(str(base))
    name = topics.create()
    sink = topic(name, schema=given.schema)
    cluster = {"kafka.bootstrap.servers": server.bootstrap}
    encoded(given, sink).write.format("headrace").mode("append").options(
        **cluster, topic=name
    ).save()

    options = {**cluster, "subscribe": name, "format": "json", "onError": "null"}
    back = spark.read.format("headrace").options(**options, schema=sink.schema).load()

    assert [row[0] for row in back.where("_error IS NOT NULL").select("_error").collect()] == []


def test_rows_survive_a_round_trip_through_a_delta_table(
    session: Any, base: Path, tmp_path: Path
) -> None:
    given = session.read.parquet(str(base))
    end = table(str(tmp_path / "a table"), format="delta")

    append(given.where("n % 2 = 0"), end, "query", 0)
    append(given.where("n % 2 = 1"), end, "query", 1)
    append(given.where("n % 2 = 1"), end, "query", 1)

    back = read_source(session, end, None)  # type: ignore[arg-type]  # a table needs no plan
    assert typed(back) == typed(given)
    assert contents(back) == contents(given)


@pytest.mark.parametrize("kind", ["parquet", "json"])
def test_rows_survive_a_round_trip_through_files(
    spark: Any, base: Path, tmp_path: Path, kind: Any
) -> None:
    """The session's time zone has changes of clocks. (ORC's writer rejects extreme times with an error.)"""
    session = spark.newSession()
    session.conf.set("spark.sql.session.timeZone", "Europe/Berlin")
    given = session.read.parquet(str(base))
    if kind == "json":
        given = given.selectExpr("n", "at", "local", "`select`", "`i.i`", "text")
    path = str(tmp_path / "files")
    end = table(path, format=kind, schema=given.schema)
    given.write.format(kind).options(**file_options(end)).save(path)

    back = read_source(session, end, None)  # type: ignore[arg-type]  # a table needs no plan
    assert typed(back) == typed(given)
    assert contents(back) == contents(given)


def test_records_keep_the_times_of_rows(session: Any, topics: Topics, server: Target) -> None:
    """The times are in the repeated and in the skipped hour of a time zone. A record has whole milliseconds."""
    name = topics.create()
    cluster = {"kafka.bootstrap.servers": server.bootstrap}
    micros = [
        (at + 900 * step) * 1_000_000 + 999_999 for at in BERLIN_2026 for step in range(-8, 9)
    ]
    rows = session.createDataFrame([(each,) for each in micros], "us BIGINT")
    rows = rows.selectExpr("CAST(us AS STRING) AS value", "timestamp_micros(us) AS timestamp")
    for more in ([], ["array(struct('h' AS key, X'00' AS value)) AS headers"]):
        write = rows.selectExpr("*", *more).write.format("headrace").mode("append")
        write.options(**cluster, topic=name).save()

    found = session.read.format("headrace").options(**cluster, subscribe=name).load()
    times = found.selectExpr(
        "CAST(CAST(value AS STRING) AS BIGINT) AS us", "unix_micros(timestamp)"
    ).collect()
    assert len(times) == 2 * len(micros)
    assert [at for us, at in times if at != us // 1000 * 1000] == []
