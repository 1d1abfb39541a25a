"""Schemas as text are parsed and written as Spark does it."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import StructType

from headrace.errors import ConfigError
from headrace.spark.decode.ddl import spark_type, struct_type

DESCRIBED = {
    "type": "struct",
    "fields": [
        {"name": name, "type": kind, "nullable": True, "metadata": {}}
        for name, kind in {
            "a": "byte",
            "b": "short",
            "c": "integer",
            "d": "long",
            "e": "float",
            "f": "double",
            "g": "decimal(20,3)",
            "h": "string",
            "i": "binary",
            "j": "boolean",
            "k": "date",
            "l": "timestamp",
            "m": "timestamp_ntz",
            "n": {"type": "array", "elementType": "long", "containsNull": True},
            "o": {
                "type": "map",
                "keyType": "string",
                "valueType": {"type": "array", "elementType": "date", "containsNull": True},
                "valueContainsNull": True,
            },
            "p": {
                "type": "struct",
                "fields": [{"name": "x y", "type": "string", "nullable": True, "metadata": {}}],
            },
        }.items()
    ],
}
DDL = """a TINYINT, b smallint, c int, d bigint, e real, f double, g numeric(20, 3), h VARCHAR(10) COMMENT 'it''s, (x)',
  i binary, j boolean NOT NULL, k date, l timestamp_ltz, m timestamp_ntz, n array<long>, o: map<string,array<date>>,
  p struct<`x y`: string>"""


def test_types_are_those_of_spark() -> None:
    spark = StructType.fromJson(DESCRIBED)
    wanted = to_arrow_type(spark, timezone="UTC")

    assert struct_type(json.dumps(DESCRIBED)).equals(wanted, check_metadata=True)
    assert struct_type(DDL).equals(wanted, check_metadata=True)
    assert spark_type(wanted, quoted=False) == spark.simpleString()
    assert struct_type(spark_type(wanted, quoted=True)).equals(wanted)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "must name columns"),
        ("a", "at its end"),
        ("a int b", "at 'b'"),
        ("a array<int", "at its end"),
        ("a int;", "at ';'"),
        ("a int, A string", "the same to Spark"),
        ("a interval", "the type 'interval': known are boolean"),
        ("a decimal(39,2)", "the precision is at most 38"),
        ("a decimal(2,3)", "the precision is at most 38"),
        ("a decimal(x)", "at 'x'"),
        ("a int not", "at its end"),
        ("a " + "array<" * 70 + "int" + ">" * 70, "more than 64 deep"),
        ("{}", "StructType.json"),
        ('{"type": "variant"}', "StructType.json"),
        ("{", "StructType.json"),
    ],
)
def test_a_malformed_schema_is_refused(text: str, said: str) -> None:
    with pytest.raises(ConfigError, match="option schema") as refusal:
        struct_type(text)
    assert said in str(refusal.value)


def test_names_may_be_anything_in_quotes() -> None:
    found = struct_type("`a``b` int, größe string, `select` date")
    assert [field.name for field in found] == ["a`b", "größe", "select"]
    assert found[2].type == pa.date32()
