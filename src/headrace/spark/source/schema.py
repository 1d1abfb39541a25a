"""The columns of a topic, as Spark's own Kafka connector has them, for Spark and for Arrow."""

from __future__ import annotations

from typing import Any, Final

import pyarrow as pa

from headrace.spark.options.source import TOPIC_COLUMNS, SourceOptions

HEADER_TYPE: Final = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])
HEADERS_TYPE: Final = pa.list_(pa.field("element", HEADER_TYPE))
"""Spark compares types exactly, the name of the list's child included."""

_TYPES: Final = {
    "key": ("binary", pa.binary()),
    "value": ("binary", pa.binary()),
    "topic": ("string", pa.string()),
    "partition": ("int", pa.int32()),
    "offset": ("bigint", pa.int64()),
    "timestamp": ("timestamp", pa.timestamp("us", tz="UTC")),
    "timestampType": ("int", pa.int32()),
    "headers": ("array<struct<key:string,value:binary>>", HEADERS_TYPE),
}
_TOPIC_SCHEMAS: Final = {
    include_headers: pa.schema(
        [(name, _TYPES[name][1]) for name in TOPIC_COLUMNS if include_headers or name != "headers"]
    )
    for include_headers in (False, True)
}


def columns(options: SourceOptions) -> tuple[tuple[str, str], ...]:
    """Return names and Spark types of the columns that are read."""
    return tuple((name, _TYPES[name][0]) for name in options.column_names)


def spark_schema(options: SourceOptions) -> str:
    """Return the columns as Spark's DDL text."""
    return ", ".join(f"{name} {kind}" for name, kind in columns(options))


def arrow_schema(options: SourceOptions) -> Any:
    """Return the Arrow schema that Spark derives from `spark_schema`."""
    return pa.schema([(name, _TYPES[name][1]) for name in options.column_names])


def topic_schema(*, include_headers: bool) -> Any:
    """Return the Arrow schema of all columns of a topic."""
    return _TOPIC_SCHEMAS[include_headers]
