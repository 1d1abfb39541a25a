"""Decode Avro by the schema with which the values were written.

Types map to Spark's types as in Spark's Avro support.
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import Any, Final

import pyarrow as pa

from headrace.errors import ConfigError
from headrace.spark.decode.codec import Codec
from headrace.spark.decode.columns import Array, Column, Field, Leaf, Map, Struct
from headrace.spark.decode.ddl import MAX_PRECISION, TIMESTAMP, TIMESTAMP_NTZ

_PLAIN: Final = {
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "fixed": pa.binary(),
    "string": pa.string(),
    "enum": pa.string(),
}
_WIDER: Final = ({"int", "long"}, {"float", "double"})


def avro_codec(schema: str) -> Codec:
    """Create the decoder of Avro records.

    Raises:
        ConfigError: The schema is malformed, or has types that columns cannot have, or fastavro is not installed.
    """
    try:
        import fastavro
    except ImportError:
        raise ConfigError(
            "option format avro needs fastavro: pip install 'headrace[avro]'"
        ) from None
    try:
        described = json.loads(schema)
        logical = fastavro.parse_schema(described)
        # Times are decoded as plain numbers: Arrow accepts these, also for years after 9999.
        written = fastavro.parse_schema(_without_times(described))
    except (ValueError, KeyError, TypeError, fastavro.schema.SchemaParseException) as error:
        raise ConfigError(f"option schema is no Avro schema: {error!r}") from None
    column = _Types().column(logical)
    read = fastavro.schemaless_reader

    def parse(value: bytes) -> Any:
        source = io.BytesIO(value)
        try:
            found = read(source, written, None)
        except EOFError:
            raise ValueError("the value ends within the record") from None
        if rest := len(value) - source.tell():
            raise ValueError(f"{rest} bytes follow the record: it was written with another schema")
        return found

    return Codec(parse, column)


def _without_times(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_without_times(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    kept = schema.get("logicalType") == "decimal"
    return {
        name: _without_times(part) if name in {"type", "fields", "items", "values"} else part
        for name, part in schema.items()
        if kept or name != "logicalType"
    }


class _Types:
    """Converts the types of a parsed schema to columns. A named type may be used again by its name."""

    def __init__(self) -> None:
        self._named: dict[str, Any] = {}
        self._open: list[str] = []

    def column(self, schema: Any) -> Column:
        """Make the column of a schema.

        Raises:
            ConfigError: A record contains itself, or a union has types that one column cannot have.
        """
        if isinstance(schema, list):
            return self._choice(schema)
        if isinstance(schema, str):
            schema = self._named.get(schema, {"type": schema})
        kind = schema["type"]
        if isinstance(kind, dict | list) or kind in self._named:
            return self.column(kind)
        if "name" in schema:
            self._named[schema["name"]] = schema
        match kind:
            case "record":
                return self._record(schema)
            case "array":
                return Array(self.column(schema["items"]))
            case "map":
                return Map(Leaf(pa.string()), self.column(schema["values"]))
            case _:
                return _leaf(schema)

    def _record(self, schema: Mapping[str, Any]) -> Column:
        name = schema["name"]
        if name in self._open:
            raise ConfigError(f"option schema: {name} contains itself, which a column cannot")
        self._open.append(name)
        fields = [
            Field(each["name"], itemgetter(each["name"]), self.column(each["type"]))
            for each in schema["fields"]
        ]
        self._open.pop()
        if not fields and self._open:
            raise ConfigError(f"option schema: {name} has no fields, and a column needs one")
        return Struct(fields)

    def _choice(self, schema: Sequence[Any]) -> Column:
        others = [each for each in schema if each != "null"]
        if len(others) == 1:
            return self.column(others[0])
        for wider in _WIDER:
            if all(isinstance(each, str) for each in others) and set(others) == wider:
                return Leaf(_PLAIN["long" if "long" in wider else "double"])
        raise ConfigError(
            f"option schema has a union of {', '.join(map(_shown, others)) or 'nothing'}: a column has one type "
            "or null, or is int or long, or float or double"
        )


def _shown(schema: Any) -> str:
    return str(schema.get("name", schema["type"]) if isinstance(schema, dict) else schema)


def _leaf(schema: Mapping[str, Any]) -> Column:
    match schema["type"], schema.get("logicalType"):
        case "bytes" | "fixed", "decimal":
            return Leaf(_decimal(schema.get("precision"), schema.get("scale", 0)))
        case "fixed", _ if schema["size"] < 1:
            raise ConfigError(
                f"option schema has a fixed of {schema['size']} bytes, {schema['name']}: leave it out, it holds nothing"
            )
        case "int", "date":
            return Leaf(pa.date32())
        case "long", "timestamp-millis" | "timestamp-micros" | "timestamp-nanos" as unit:
            return _times(TIMESTAMP, unit)
        case "long", (
            "local-timestamp-millis" | "local-timestamp-micros" | "local-timestamp-nanos"
        ) as unit:
            return _times(TIMESTAMP_NTZ, unit)
        case kind, _ if kind in _PLAIN:
            return Leaf(_PLAIN[kind])
        case kind, _:
            raise ConfigError(f"option schema has a field of type {kind}, which no column can have")


def _decimal(precision: Any, scale: Any) -> Any:
    if type(precision) is not int or type(scale) is not int or not 0 <= scale <= precision != 0:
        raise ConfigError(
            f"option schema has a decimal with precision {precision} and scale {scale}: the precision must be 1 or "
            "more, and the scale at most the precision"
        )
    if precision > MAX_PRECISION:
        raise ConfigError(
            f"option schema has a decimal of {precision} digits: Spark has {MAX_PRECISION} at most"
        )
    return pa.decimal128(precision, scale)


def _times(kind: Any, logical: str) -> Column:
    unit = {"millis": "ms", "micros": "us", "nanos": "ns"}[logical.rpartition("-")[2]]
    written = pa.timestamp(unit, tz=kind.tz)
    if written == kind:
        return Leaf(kind)
    safe = unit == "ms"  # Spark's timestamps have microseconds: nanoseconds are truncated
    return Leaf(kind, lambda values: pa.array(values, written).cast(kind, safe=safe))
