"""The columns of a topic, as Spark's own Kafka connector has them, for Spark and for Arrow."""

from __future__ import annotations

from typing import Any, Final

import pyarrow as pa

_COLUMNS: Final = (
    ("key", "binary"),
    ("value", "binary"),
    ("topic", "string"),
    ("partition", "int"),
    ("offset", "bigint"),
    ("timestamp", "timestamp"),
    ("timestampType", "int"),
)
_HEADERS: Final = ("headers", "array<struct<key:string,value:binary>>")

HEADER_TYPE: Final = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])
HEADERS_TYPE: Final = pa.list_(pa.field("element", HEADER_TYPE))
"""Spark compares types exactly, the name of the list's child included."""

_BASE_FIELDS: Final = [
    ("key", pa.binary()),
    ("value", pa.binary()),
    ("topic", pa.string()),
    ("partition", pa.int32()),
    ("offset", pa.int64()),
    ("timestamp", pa.timestamp("us", tz="UTC")),
    ("timestampType", pa.int32()),
]
_ARROW_SCHEMAS: Final = {
    False: pa.schema(_BASE_FIELDS),
    True: pa.schema([*_BASE_FIELDS, ("headers", HEADERS_TYPE)]),
}


def columns(*, include_headers: bool) -> tuple[tuple[str, str], ...]:
    """Return names and Spark types."""
    return (*_COLUMNS, _HEADERS) if include_headers else _COLUMNS


def spark_schema(*, include_headers: bool) -> str:
    """Return the columns as Spark's DDL text."""
    return ", ".join(f"{name} {kind}" for name, kind in columns(include_headers=include_headers))


def arrow_schema(*, include_headers: bool) -> Any:
    """Return the Arrow schema that Spark derives from `spark_schema`."""
    return _ARROW_SCHEMAS[include_headers]
