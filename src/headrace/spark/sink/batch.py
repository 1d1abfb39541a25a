"""Batch writes: `dataframe.write.format("headrace")`. At least once: a task that is repeated writes its rows again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from headrace.clients.config import ProducerConfig, parse_config
from headrace.clients.producer.blocking import Producer
from headrace.errors import ConfigError, HeadraceError
from headrace.spark.options.reader import ClientOptions
from headrace.spark.options.sink import SinkOptions

_BYTES: Final = ("binary", "string")
_COLUMNS: Final[Mapping[str, tuple[str, ...]]] = {
    "key": _BYTES,
    "value": _BYTES,
    "topic": ("string",),
    "partition": ("int",),
    "timestamp": ("timestamp",),
    "headers": ("array<struct<key:string,value:binary>>",),
}

_DEFAULTS: Final[Mapping[str, str]] = {
    "client.id": "headrace-spark",
    # A task sends as fast as it can and waits at its end: large batches cost it nothing.
    "batch.size": str(256 << 10),
    "linger.ms": "20",
}


@dataclass
class WrittenRecords(WriterCommitMessage):
    """What one task wrote."""

    records: int


class HeadraceWriter(DataSourceArrowWriter):
    """Writes the rows of each task through an idempotent producer of its own."""

    def __init__(self, options: SinkOptions, schema: StructType, *, overwrite: bool) -> None:
        """Check options and columns before the job starts.

        Raises:
            ConfigError: They cannot be written.
        """
        if overwrite:
            raise ConfigError('topics cannot be overwritten: use .mode("append")')
        _check_columns({column.name: column.dataType.simpleString() for column in schema}, options)
        producer_config(options.client)  # for its checks
        self._options = options

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        """Write one task's rows; they are acknowledged when this returns."""
        written = 0
        with Producer(
            self._options.client.bootstrap, **_properties(self._options.client)
        ) as producer:
            for batch in iterator:
                written += self._send(producer, batch)
            producer.flush()
        return WrittenRecords(written)

    def _send(self, producer: Producer, batch: Any) -> int:
        rows = batch.num_rows
        values = _binary(batch, "value", rows)
        keys = _binary(batch, "key", rows)
        topics = (
            [self._options.topic] * rows if self._options.topic else _list(batch, "topic", rows)
        )
        partitions = _list(batch, "partition", rows)
        timestamps = _milliseconds(batch, rows)
        headers = _list(batch, "headers", rows)
        for topic, key, value, partition, timestamp_ms, given in zip(
            topics, keys, values, partitions, timestamps, headers, strict=True
        ):
            if topic is None:
                raise HeadraceError("a row has no topic: set the option topic or fill the column")
            producer.send(
                topic,
                key=key,
                value=value,
                headers=[(each["key"], each["value"]) for each in given or ()],
                timestamp_ms=timestamp_ms,
                partition=partition,
            )
        return int(rows)


def producer_config(options: ClientOptions) -> ProducerConfig:
    """Return the configuration that the `kafka.*` options of a write make.

    Raises:
        ConfigError: One of them is unknown or malformed.
    """
    try:
        return parse_config(
            ProducerConfig, _properties(options), bootstrap_servers=options.bootstrap
        )
    except ConfigError as error:
        raise ConfigError(f"kafka.* options: {error}") from None


def _properties(options: ClientOptions) -> dict[str, Any]:
    return {**_DEFAULTS, **dict(options.properties)}


def _check_columns(columns: Mapping[str, str], options: SinkOptions) -> None:
    if "value" not in columns:
        raise ConfigError(f"a column value is needed, got {', '.join(columns) or 'none'}")
    if "topic" not in columns and options.topic is None:
        raise ConfigError("set the option topic, or give each row one in a column topic")
    for name, kind in columns.items():
        wanted = _COLUMNS.get(name)
        if wanted is None:
            raise ConfigError(f"unknown column {name}: known are {', '.join(_COLUMNS)}")
        if kind not in wanted:
            raise ConfigError(f"column {name} must be {' or '.join(wanted)}, not {kind}")


def _list(batch: Any, name: str, rows: int) -> list[Any]:
    if name not in batch.schema.names:
        return [None] * rows
    column: list[Any] = batch.column(name).to_pylist()
    return column


def _binary(batch: Any, name: str, rows: int) -> list[bytes | None]:
    if name not in batch.schema.names:
        return [None] * rows
    column: list[bytes | None] = batch.column(name).cast(pa.binary()).to_pylist()
    return column


def _milliseconds(batch: Any, rows: int) -> list[int | None]:
    if "timestamp" not in batch.schema.names:
        return [None] * rows
    column = batch.column("timestamp")
    milliseconds = column.cast(pa.timestamp("ms", tz="UTC"), safe=False).cast(pa.int64())
    result: list[int | None] = milliseconds.to_pylist()
    return result
