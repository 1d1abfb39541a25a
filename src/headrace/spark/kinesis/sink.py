"""Batch and streaming writes with `format("headrace-kinesis")`. Writes are at least once."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import repeat
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from headrace.errors import ConfigError, HeadraceError
from headrace.kinesis.aio import Producer
from headrace.kinesis.client.settings import AwsSettings
from headrace.kinesis.producing.settings import MAX_RECORD_BYTES, ProducerSettings
from headrace.kinesis.reading.shards import StreamShards
from headrace.spark.errors import short_tracebacks
from headrace.spark.kinesis.connections import shared_connections
from headrace.spark.kinesis.options import AWS_OPTIONS, KinesisOptionReader
from headrace.spark.sink.columns import columns_of

WRITE_OPTIONS: Final = (*AWS_OPTIONS, "aggregate", "maxRecordBytes", "deliveryTimeout")
AGGREGATE_BYTES: Final = 51_200
REQUEST_BYTES: Final = 5 << 20
_OF_SPARK: Final = frozenset({"checkpointlocation", "queryname", "path"})
"""Options of Spark's own stream writer, which Spark passes along."""
_BYTES: Final = ("binary", "string")
COLUMNS: Final[Mapping[str, tuple[str, ...]]] = {
    "data": _BYTES,
    "partitionKey": ("string",),
    "explicitHashKey": ("string",),
    "stream": ("string",),
}
_ABSENT: Final = {
    "data": "name one so, or select to_json(struct(*)) AS data",
    "partitionKey": "it chooses the shard; select a column as partitionKey, or uuid() AS partitionKey to spread rows",
}


@dataclass(frozen=True)
class WriteOptions:
    """The parsed options of a write."""

    aws: AwsSettings
    stream: str | None
    producing: ProducerSettings


def write_options(options: Mapping[str, str]) -> WriteOptions:
    """Parse and check the options of a write.

    Raises:
        ConfigError: An option is unknown, or has a wrong value.
    """
    given = {name: value for name, value in options.items() if name.lower() not in _OF_SPARK}
    reader = KinesisOptionReader(given, WRITE_OPTIONS)
    record_bytes = reader.size("maxRecordBytes") or 1 << 20
    if record_bytes > MAX_RECORD_BYTES:
        raise ConfigError(
            f"option maxRecordBytes must be at most {MAX_RECORD_BYTES}, what Kinesis takes, not {record_bytes}"
        )
    stream = reader.text("stream") or None
    if stream is not None and "," in stream:
        raise ConfigError(
            f"option stream={stream}: a write has one stream; give each row its own in a column stream instead"
        )
    aggregate = reader.flag("aggregate", default=False)
    return WriteOptions(
        aws=reader.aws(),
        stream=stream,
        producing=ProducerSettings(
            record_bytes=record_bytes,
            request_bytes=max(REQUEST_BYTES, record_bytes),
            aggregate_bytes=min(AGGREGATE_BYTES, record_bytes) if aggregate else 0,
            delivery_timeout_ms=max(reader.duration_ms("deliveryTimeout", 120_000), 1),
        ),
    )


def check_columns(columns: Mapping[str, str], options: WriteOptions) -> None:
    """Check the columns of a write before its job starts.

    Raises:
        ConfigError: A column is missing, unknown or has a wrong type.
    """
    for name, kind in columns.items():
        known = COLUMNS.get(name)
        if known is None:
            near = difflib.get_close_matches(name, COLUMNS, n=1)
            hint = (
                f"did you mean {near[0]}?" if near else f"drop it; known are {', '.join(COLUMNS)}"
            )
            raise ConfigError(f"unknown column {name}: {hint}")
        if kind not in known:
            raise ConfigError(
                f"column {name} must be {' or '.join(known)}, not {kind}: select CAST({name} AS STRING) AS {name}"
            )
    for name, remedy in _ABSENT.items():
        if name not in columns:
            raise ConfigError(
                f"a column {name} is needed, got {', '.join(columns) or 'none'}: {remedy}"
            )
    if "stream" not in columns and options.stream is None:
        raise ConfigError("set the option stream, or give each row one in a column stream")


@dataclass
class StreamRowsWritten(WriterCommitMessage):
    """The number of records that a task has written."""

    records: int


class StreamRowWriter:
    """Writes rows. Spark pickles it for the tasks."""

    def __init__(self, given: Mapping[str, str], schema: StructType) -> None:
        """Check options, columns and the stream before a job starts.

        Raises:
            ConfigError: An option or a column is wrong.
            KinesisError: The stream does not exist, or Kinesis does not answer.
        """
        self._options = write_options(given)
        check_columns(columns_of(schema), self._options)
        if self._options.stream is not None:
            _check_stream(self._options.aws, self._options.stream)

    def write(self, batches: Iterator[Any]) -> StreamRowsWritten:
        """Write one task's rows. Kinesis has acknowledged all of them when this returns.

        Raises:
            HeadraceError: Some rows could not be written in time. A repeated task writes all its rows again.
        """
        connections = shared_connections()
        client = connections.run(connections.client(self._options.aws))
        producer = Producer(
            replace(self._options.aws, clients={"kinesis": client}),
            settings=self._options.producing,
        )
        written = 0
        try:
            for batch in batches:
                connections.run(self._send(producer, batch))
                written += batch.num_rows
            connections.run(producer.flush())
        finally:
            connections.run(producer.close(flush=False))
        return StreamRowsWritten(written)

    async def _send(self, producer: Producer, batch: Any) -> None:
        streams = repeat(self._options.stream) if self._options.stream else _column(batch, "stream")
        rows = zip(
            streams,
            _column(batch, "data"),
            _column(batch, "partitionKey"),
            _column(batch, "explicitHashKey"),
            strict=False,  # `repeat` stands for a missing column and never ends
        )
        for stream, data, key, hash_key in rows:
            if stream is None or data is None or key is None:
                missing = "stream" if stream is None else "data" if data is None else "partitionKey"
                raise HeadraceError(
                    f"a row has no {missing}, which every Kinesis record needs: fill the column, or filter such rows "
                    "out"
                )
            # `flush` raises delivery errors.
            _ = await producer.send(stream, data, partition_key=key, explicit_hash_key=hash_key)


def _column(batch: Any, name: str) -> Any:
    index = batch.schema.get_field_index(name)
    if index < 0:
        return repeat(None)
    column = batch.column(index)
    return (column.cast(pa.binary()) if name == "data" else column).to_pylist()


STREAM_CONTACT_MS: Final = 10_000
"""Milliseconds for which a Python worker that plans a write waits for the first response."""
_checked: set[tuple[AwsSettings, str]] = set()


def _check_stream(aws: AwsSettings, stream: str) -> None:
    """Check once in a process that a stream exists. Spark creates a writer for every batch."""
    if (aws, stream) in _checked:
        return
    connections = shared_connections()
    client = connections.run(connections.client(aws))
    connections.run(StreamShards(client, stream).describe(answer_within_ms=STREAM_CONTACT_MS))
    _checked.add((aws, stream))


@short_tracebacks
class KinesisWriter(DataSourceArrowWriter):
    """The writer of a batch query, at least once: a task that Spark repeats writes its rows again."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        """Check options, columns and the stream; see `StreamRowWriter`."""
        self._rows = StreamRowWriter(options, schema)

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        """Write one task's rows."""
        return self._rows.write(iterator)


@short_tracebacks
class KinesisStreamWriter(DataSourceStreamArrowWriter):
    """The writer of a micro-batch, at least once: a batch that Spark repeats is written again."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        """Check options, columns and the stream; see `StreamRowWriter`."""
        self._rows = StreamRowWriter(options, schema)

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        """Write one task's rows of a micro-batch."""
        return self._rows.write(iterator)
