"""The columns of a read, and the conversion of records to Arrow batches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import pyarrow as pa

from headrace.errors import ConfigError
from headrace.kinesis.reading.records import KinesisRecord
from headrace.spark.decode.ddl import spark_type
from headrace.spark.decode.formats import codec_of
from headrace.spark.decode.options import DecodeOptions
from headrace.spark.kinesis.options import ReadOptions
from headrace.spark.source.decoding import ERROR, DecodeError

_TIMESTAMP: Final = pa.timestamp("us", tz="UTC")
_TYPES: Final = {
    "partitionKey": pa.string(),
    "data": pa.binary(),
    "stream": pa.string(),
    "shardId": pa.string(),
    "sequenceNumber": pa.string(),
    "subSequenceNumber": pa.int64(),
    "approximateArrivalTimestamp": _TIMESTAMP,
    "explicitHashKey": pa.string(),
}
_CONSTANT: Final = frozenset({"stream", "shardId"})
_RAW: Final = pa.schema([(name, kind) for name, kind in _TYPES.items() if name not in _CONSTANT])


def columns(options: ReadOptions) -> tuple[tuple[str, str], ...]:
    """Return the names and Spark types of a read's columns."""
    return tuple((each.name, spark_type(each.type, quoted=False)) for each in arrow_schema(options))


def spark_schema(options: ReadOptions) -> str:
    """Return the columns as Spark's DDL text."""
    return ", ".join(
        f"{each.name} {spark_type(each.type, quoted=True)}" for each in arrow_schema(options)
    )


def arrow_schema(options: ReadOptions) -> Any:
    """Return the Arrow schema that Spark derives from `spark_schema`."""
    types = {name: _TYPES[name] for name in options.columns}
    if options.decode is not None:
        types["data"] = codec_of(options.decode).column.type
        if options.decode.on_error == "null":
            types[ERROR] = pa.string()
    return pa.schema(types)


def raw_batch(records: Sequence[KinesisRecord]) -> Any:
    """Convert one or more records of a shard to an Arrow batch without the columns that are constant in a shard."""
    _, _, numbers, subs, _, keys, hash_keys, data, timestamps_ms, _ = zip(*records, strict=True)
    return pa.RecordBatch.from_arrays(
        [
            pa.array(keys, pa.string()),
            pa.array(data, pa.binary()),
            pa.array(numbers, pa.string()),
            pa.array(subs, pa.int64()),
            pa.array([each * 1000 for each in timestamps_ms], pa.int64()).cast(_TIMESTAMP),
            pa.array(hash_keys, pa.string()),
        ],
        schema=_RAW,
    )


def row_batch(raw: Any, stream: str, shard: str, options: ReadOptions) -> Any:
    """Convert a raw batch to the columns of the read, with decoded data.

    Raises:
        DecodeError: Data does not decode, and `onError` is `fail`.
    """
    schema = arrow_schema(options)
    constants = {"stream": stream, "shardId": shard}
    arrays = {
        name: pa.repeat(pa.scalar(constants[name], pa.string()), raw.num_rows)
        if name in _CONSTANT
        else raw.column(name)
        for name in options.columns
    }
    if options.decode is not None:
        arrays |= _decoded(raw, f"{shard} of {stream}", options.decode)
    return pa.RecordBatch.from_arrays([arrays[name] for name in schema.names], schema=schema)


def _decoded(raw: Any, where: str, decode: DecodeOptions) -> dict[str, Any]:
    values, errors = codec_of(decode).decode(raw.column("data").to_pylist())
    if decode.on_error == "null":
        reasons = pa.array([errors.get(row) for row in range(raw.num_rows)], pa.string())
        return {"data": values, ERROR: reasons}
    if errors:
        row = min(errors)
        raise DecodeError(
            f"the data of record {raw.column('sequenceNumber')[row]} of {where} does not decode as {decode.format}: "
            f"{errors[row]}. With the option onError=null the data of such a row is null, and the column _error has "
            "the reason"
        )
    return {"data": values}


def check_schema(given: Any, options: ReadOptions) -> None:
    """Check that `.schema(...)` did not change the columns.

    Raises:
        ConfigError: The columns differ from those of the source.
    """
    names = tuple((column.name, column.dataType.simpleString()) for column in given)
    if names != columns(options):
        raise ConfigError(
            'the columns of format("headrace-kinesis") are fixed: leave .schema(...) out, name those wanted in the '
            "option columns and cast afterwards"
        )
