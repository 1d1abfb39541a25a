"""The columns of a topic for Spark and for Arrow, the same as those of Spark's own Kafka connector."""

from __future__ import annotations

from typing import Any, Final

import pyarrow as pa

from headrace.spark.decode.ddl import spark_type
from headrace.spark.decode.formats import codec_of
from headrace.spark.options.source import TOPIC_COLUMNS, SourceOptions
from headrace.spark.source.decoding import ERROR, raw_columns

HEADER_TYPE: Final = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])
HEADERS_TYPE: Final = pa.list_(pa.field("element", HEADER_TYPE))
"""The type of the column `headers`. Spark compares types exactly, also the name of the list's child."""

_TYPES: Final = {
    "key": pa.binary(),
    "value": pa.binary(),
    "topic": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestampType": pa.int32(),
    "headers": HEADERS_TYPE,
}
_TOPIC_SCHEMAS: Final = {
    include_headers: pa.schema(
        [(name, _TYPES[name]) for name in TOPIC_COLUMNS if include_headers or name != "headers"]
    )
    for include_headers in (False, True)
}


def columns(options: SourceOptions) -> tuple[tuple[str, str], ...]:
    """Return the names and Spark types of a read's columns."""
    return tuple(
        (field.name, spark_type(field.type, quoted=False)) for field in arrow_schema(options)
    )


def spark_schema(options: SourceOptions) -> str:
    """Return the columns as Spark's DDL text."""
    return ", ".join(
        f"{field.name} {spark_type(field.type, quoted=True)}" for field in arrow_schema(options)
    )


def arrow_schema(options: SourceOptions) -> Any:
    """Return the Arrow schema that Spark derives from `spark_schema`."""
    types = {name: _TYPES[name] for name in options.column_names}
    if options.decode is not None:
        types["value"] = codec_of(options.decode).column.type
        if options.decode.on_error == "null":
            types[ERROR] = pa.string()
    return pa.schema(types)


def raw_schema(options: SourceOptions) -> Any:
    """Return the Arrow schema of records before their values are decoded."""
    return pa.schema([(name, _TYPES[name]) for name in raw_columns(options)])


def topic_schema(*, include_headers: bool) -> Any:
    """Return the Arrow schema of all columns of a topic."""
    return _TOPIC_SCHEMAS[include_headers]
