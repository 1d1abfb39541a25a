"""Convert rows to records of a topic: the value as JSON, and the columns with key and time."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from headrace.pipelines.declaration import Topic

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

TIMES: Final[Mapping[str, str]] = {
    # Spark's defaults have milliseconds and the session's time zone. Historic zones have offsets with seconds.
    "timeZone": "UTC",
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
}
"""Spark's options for times as text without loss of precision."""
JSON_OPTIONS: Final = {"ignoreNullFields": "false", **TIMES}
_MAP_KEYS: Final = frozenset({"string", "tinyint", "smallint", "int", "bigint"})
_FIXED: Final = re.compile(r"z|(utc|gmt|ut)?([+-]\d{1,2}(:\d\d)*)?|etc/.*", re.IGNORECASE)
"""Time zones with a single offset, whose clocks are never set back."""


def encoded(frame: DataFrame, topic: Topic) -> DataFrame:
    """Return a frame with the records of a frame's rows."""
    if topic.format != "json":
        return frame
    from pyspark.sql import functions as f

    columns = [quoted(name) for name in frame.columns if name != topic.tombstone]
    value = f.to_json(f.struct(*columns), dict(JSON_OPTIONS))
    if topic.tombstone is not None:
        deleted = f.coalesce(f.col(quoted(topic.tombstone)), f.lit(False))  # noqa: FBT003 - a column
        value = f.when(deleted, None).otherwise(value)
    made = [value.alias("value")]
    if topic.key is not None:
        made.append(f.col(quoted(topic.key)).cast("string").alias("key"))
    if topic.timestamp is not None:
        made.append(f.col(quoted(topic.timestamp)).cast("timestamp_ltz").alias("timestamp"))
    return frame.select(*made)


def quoted(name: str) -> str:
    """Quote the name of a column, so that a dot in it does not select a field of a struct."""
    return "`" + name.replace("`", "``") + "`"


def key_problems(schema: Any, topic: Topic, zone: str) -> Iterator[str]:
    """Yield a problem if two values of the key could have the same text in a session with this time zone."""
    for field in schema:
        if field.name == topic.key and not _FIXED.fullmatch(zone) and _has_times(field.dataType):
            yield (
                f"key={topic.key!r} is a timestamp, whose text is in the session's time zone, {zone}: two times have "
                "the same text when clocks are set back. Set spark.sql.session.timeZone to UTC, or make the key a "
                f"number, unix_micros({topic.key})"
            )


def maps_that_json_has_not(schema: Any) -> Iterator[str]:
    """Yield the maps of a StructType whose keys JSON cannot have. Spark would write dates as numbers of days."""
    for field in schema:
        yield from _keys_of_maps(field.dataType, field.name)


def _keys_of_maps(kind: Any, path: str) -> Iterator[str]:
    for child, name in children(kind, path):
        yield from _keys_of_maps(child, name)
    key = getattr(kind, "keyType", None)
    if key is not None and key.simpleString() not in _MAP_KEYS:
        yield (
            f"column {path} has a map with keys of {key.simpleString()}, which JSON objects cannot have: make them "
            "text, transform_keys(column, (k, v) -> CAST(k AS STRING))"
        )


def _has_times(kind: Any) -> bool:
    return kind.simpleString() == "timestamp" or any(
        _has_times(child) for child, _ in children(kind, "")
    )


def children(kind: Any, path: str) -> Iterator[tuple[Any, str]]:
    """Yield the child types of a Spark type, each with a name for messages."""
    if hasattr(kind, "fields"):
        yield from ((field.dataType, f"{path}.{field.name}") for field in kind.fields)
    elif hasattr(kind, "elementType"):
        yield kind.elementType, f"{path}.element"
    elif hasattr(kind, "keyType"):
        yield kind.keyType, f"{path}.key"
        yield kind.valueType, f"{path}.value"
