"""The columns of a write: the check of names and types, and the conversion of Arrow batches to records."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise, repeat
from typing import Any, Final

import pyarrow as pa

from headrace.clients.producer.many import ColumnRows, Row, Rows
from headrace.errors import ConfigError, HeadraceError
from headrace.records.accel import Column, kernels
from headrace.records.builder import Headers
from headrace.spark.options.sink import SinkOptions

_BYTES: Final = ("binary", "string")
COLUMNS: Final[Mapping[str, tuple[str, ...]]] = {
    "key": _BYTES,
    "value": _BYTES,
    "topic": ("string",),
    "partition": ("int",),
    "timestamp": ("timestamp",),
    "headers": ("array<struct<key:string,value:binary>>",),
}
_READ_ONLY: Final = frozenset({"offset", "timestampType"})
_CASTS: Final[Mapping[str, str]] = {
    "key": "CAST(key AS STRING)",
    "value": "CAST(value AS STRING), or to_json(struct(*)) for a whole row",
    "topic": "CAST(topic AS STRING)",
    "partition": "CAST(partition AS INT)",
    "timestamp": "CAST(timestamp AS TIMESTAMP)",
    "headers": "array(struct('name' AS key, CAST('content' AS BINARY) AS value))",
}


def check_columns(columns: Mapping[str, str], options: SinkOptions) -> None:
    """Check the columns of a write before its job starts.

    Args:
        columns: Spark's text for the type of each column, by name.
        options: The options of the write.

    Raises:
        ConfigError: A column is missing, unknown or has a wrong type.
    """
    wrong = list(column_problems(columns, options.topic))
    if wrong:
        raise ConfigError("; ".join(wrong))


def column_problems(columns: Mapping[str, str], topic: str | None) -> Iterator[str]:
    """Yield the reasons why columns cannot be written.

    Args:
        columns: Spark's text for the type of each column, by name.
        topic: The topic of all rows; None if a column has the topic of each row.
    """
    for name, kind in columns.items():
        wanted = COLUMNS.get(name)
        if wanted is None:
            yield _unknown(name)
        elif kind not in wanted:
            yield (
                f"column {name} must be {' or '.join(wanted)}, not {kind}: select {_CASTS[name]}"
            )
    if "value" not in columns:
        yield (
            f"a column value is needed, got {', '.join(columns) or 'none'}: rename a column, or select "
            "to_json(struct(*)) AS value"
        )
    if "topic" not in columns and topic is None:
        yield "set the option topic, or give each row one in a column topic"


def columns_of(schema: Iterable[Any]) -> dict[str, str]:
    """Return the type of each column of a Spark schema, by name.

    Raises:
        ConfigError: Two columns have one name. An Arrow batch cannot look up a name that it has twice.
    """
    found: dict[str, str] = {}
    for each in schema:
        if each.name in found:
            raise ConfigError(f"there are two columns {each.name}: drop or rename one of them")
        found[each.name] = each.dataType.simpleString()
    return found


def _unknown(name: str) -> str:
    known = ", ".join(COLUMNS)
    if name in _READ_ONLY:
        return f"column {name} cannot be written: drop it; known are {known}"
    near = difflib.get_close_matches(name.lower(), COLUMNS, n=1)
    hint = (
        f"did you mean {near[0]}?" if near else f"drop it, or put it into value; known are {known}"
    )
    return f"unknown column {name}: {hint}"


def content_size(batch: pa.RecordBatch) -> int:
    """Return the size of a batch's keys and values in bytes."""
    return sum(_content_size(_column_or_none(batch, name)) for name in ("key", "value"))


def _content_size(column: Any | None) -> int:
    if not column or column.type not in {pa.binary(), pa.string()}:
        return 0
    ends = memoryview(column.buffers()[1]).cast("i")
    size: int = ends[column.offset + len(column)] - ends[column.offset]
    return size


def rows_by_topic(batch: pa.RecordBatch, topic: str | None, now_ms: int) -> Iterator[Rows]:
    """Yield the records of a batch's rows, topic by topic.

    Args:
        batch: The rows.
        topic: The topic of all rows; None if the column `topic` has the topic of each row.
        now_ms: The time of records without a time, in milliseconds since 1970.

    Raises:
        HeadraceError: A row has no topic, or a header no name.
    """
    if topic is not None:
        yield _rows(batch, topic, now_ms)
        return
    column = batch.column("topic")
    if column.null_count:
        raise HeadraceError("a row has no topic: set the option topic, or fill the column")
    topics = column.unique()
    if len(topics) == 1:
        yield _rows(batch, topics[0].as_py(), now_ms)
        return
    from pyarrow import compute

    for name in topics.to_pylist():
        yield _rows(batch.filter(compute.equal(column, name)), name, now_ms)


def _rows(batch: pa.RecordBatch, topic: str, now_ms: int) -> Rows:
    headers = _column_or_none(batch, "headers")
    if kernels is not None and (headers is None or headers.null_count == len(headers)):
        columns = (_buffers(batch, name) for name in ("key", "value", "timestamp", "partition"))
        return ColumnRows(
            topic, kernels.RowColumns(len(batch), now_ms, *columns), _partitions(batch)
        )
    records: Iterable[Row] = zip(
        _binary(batch, "key"),
        _binary(batch, "value"),
        _headers(batch),
        _milliseconds(batch, now_ms),
        _column(batch, "partition"),
        strict=False,  # `repeat` stands for a missing column and never ends
    )
    return Rows(topic, records, _partitions(batch))


def _buffers(batch: pa.RecordBatch, name: str) -> Column:
    column = _column_or_none(batch, name)
    if column is None:
        return None
    if name in {"key", "value"}:
        if column.type not in {pa.binary(), pa.string()}:
            column = column.cast(pa.binary())
        return (column.offset, *column.buffers())
    validity, numbers = column.buffers()
    return column.offset, validity, None, numbers


def _column_or_none(batch: pa.RecordBatch, name: str) -> Any | None:
    index = batch.schema.get_field_index(name)
    return None if index < 0 else batch.column(index)


def _column(batch: pa.RecordBatch, name: str) -> Iterable[Any]:
    column = _column_or_none(batch, name)
    return repeat(None) if column is None else column.to_pylist()


def _binary(batch: pa.RecordBatch, name: str) -> Iterable[bytes | None]:
    column = _column_or_none(batch, name)
    if column is None:
        return repeat(None)
    if (
        column.type == pa.string()
    ):  # a cast would import pyarrow's compute functions, which takes as long as thousands of rows
        column = column.view(pa.binary())
    elif column.type != pa.binary():
        column = column.cast(pa.binary())
    values: list[bytes | None] = column.to_pylist()
    return values


def _milliseconds(batch: pa.RecordBatch, now_ms: int) -> Iterable[int]:
    column = _column_or_none(batch, "timestamp")
    if column is None:
        return repeat(now_ms)
    # Whole milliseconds, rounded down, as Spark's own connector writes them. The column's type has the session's time
    # zone, but its numbers are in UTC, so that changes of a zone's clock do not matter.
    microseconds = column.view(pa.int64()).to_pylist()
    return [now_ms if each is None else each // 1000 for each in microseconds]


def _headers(batch: pa.RecordBatch) -> Iterable[Headers]:
    column = _column_or_none(batch, "headers")
    if column is None or column.null_count == len(column):
        return repeat(())
    ends = column.offsets.to_pylist()
    first = ends[0]  # not 0 in a slice
    names, contents = column.values.slice(first, ends[-1] - first).flatten()
    if names.null_count:
        raise HeadraceError("a header has no key: give each one a name")
    pairs = list(zip(names.to_pylist(), contents.to_pylist(), strict=True))
    return [pairs[start - first : end - first] for start, end in pairwise(ends)]


def _partitions(batch: pa.RecordBatch) -> Iterable[int]:
    column = _column_or_none(batch, "partition")
    if column is None:
        return ()
    return [number for number in column.unique().to_pylist() if number is not None]
