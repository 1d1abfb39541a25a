"""The declarations in a file of pipelines. Nothing is checked here: `checking.py` finds all problems at once."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from headrace.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Transform: TypeAlias = "Callable[..., DataFrame]"
BatchFunction: TypeAlias = "Callable[[DataFrame, int], object]"
Format = Literal["binary", "text", "json", "avro", "protobuf"]
Mode = Literal["append", "update", "complete"]

DEFAULT_TRIGGER: Final = "1 second"
EMPTY: Final[Mapping[str, str]] = {}


@dataclass(frozen=True)
class Topic:
    """A topic that pipelines read or write; created by `topic`."""

    name: str
    format: str
    schema: str | None
    include: tuple[str, ...]
    on_error: str
    starting: str
    key: str | None
    timestamp: str | None
    tombstone: str | None
    create: int | None
    configs: Mapping[str, str]
    options: Mapping[str, str] = field(repr=False)  # may hold secrets

    def __str__(self) -> str:
        return f"topic {self.name}"


@dataclass(frozen=True)
class Table:
    """A directory of files that pipelines read or write; created by `table`."""

    path: str
    format: str
    schema: str | None
    partition_by: tuple[str, ...]
    stream: bool
    options: Mapping[str, str] = field(repr=False)  # may hold secrets

    def __str__(self) -> str:
        return f"{self.format} table {self.path}"


@dataclass(frozen=True)
class ForEachBatch:
    """A function that receives each batch; created by `for_each_batch`."""

    function: BatchFunction
    to: Topic | None

    def __str__(self) -> str:
        name = f"function {getattr(self.function, '__name__', self.function)}"
        return name if self.to is None else f"{name}, to {self.to}"


Source = Topic | Table
Sink = Topic | Table | ForEachBatch


@dataclass(frozen=True)
class Pipeline:
    """A function over DataFrames with its sources and its sink; created by `pipeline`.

    The object can be called like the function, for example in a test.
    """

    name: str
    function: Transform
    source: Source | Mapping[str, Source]
    sink: Sink
    trigger: str
    output_mode: str
    checkpoint: str | None
    settings: Mapping[str, object]
    file: str
    line: int

    def __call__(self, *frames: DataFrame, **named: DataFrame) -> DataFrame:
        """Call the pipeline's function."""
        return self.function(*frames, **named)

    @property
    def where(self) -> str:
        """The file and line of the declaration, `FILE:LINE`."""
        return f"{self.file}:{self.line}"


_declared: ContextVar[list[Pipeline] | None] = ContextVar("declared pipelines", default=None)


@contextmanager
def collecting() -> Iterator[list[Pipeline]]:
    """Collect the pipelines that are declared inside the block."""
    found: list[Pipeline] = []
    token = _declared.set(found)
    try:
        yield found
    finally:
        _declared.reset(token)


def pipeline(
    *,
    source: Source | Mapping[str, Source],
    sink: Sink,
    name: str | None = None,
    trigger: str = DEFAULT_TRIGGER,
    output_mode: Mode = "append",
    checkpoint: str | None = None,
    settings: Mapping[str, object] = EMPTY,
) -> Callable[[Transform], Pipeline]:
    """Declare a pipeline: the decorated function computes the sink's frame from the sources' frames.

        @pipeline(
            source=topic("flights", schema="carrier STRING, delay INT, at TIMESTAMP"),
            sink=topic("delays", key="carrier"),
            output_mode="update",
        )
        def delays(flights: DataFrame) -> DataFrame:
            return flights.groupBy("carrier").agg(F.avg("delay").alias("delay"))

    Args:
        source: A topic or table, or a dictionary of several by the names of the function's parameters.
        sink: The target of the function's result: a topic, a table, or a function (`for_each_batch`).
        name: The name of the pipeline, by default the function's name. The consumer group that shows the pipeline's lag
            has the same name.
        trigger: How often batches begin, `"1 second"`; `"available_now"` processes the present records and ends.
        output_mode: The rows that each batch writes, as in Spark: "append" writes final rows, "update" changed rows,
            "complete" all rows. In a topic, `key` identifies the row that a changed row replaces.
        checkpoint: The directory of the pipeline's progress and state. The default is a directory with the pipeline's
            name in `--checkpoints`.
        settings: Settings of Spark's session for this pipeline, `{"spark.sql.shuffle.partitions": 8}`.
    """

    def declare(function: Transform) -> Pipeline:
        if not callable(function):
            raise ConfigError(f"a pipeline is a function of its sources' frames, not {function!r}")
        file, line = _code_of(function)
        declared = Pipeline(
            name or _name_of(function),
            function,
            source,
            sink,
            trigger,
            output_mode,
            checkpoint,
            settings,
            file,
            line,
        )
        collected = _declared.get()
        if collected is not None:
            collected.append(declared)
        return declared

    return declare


def topic(
    name: str,
    *,
    format: Format = "json",  # noqa: A002 - Spark's word for it, and a keyword
    schema: Any = None,
    include: tuple[str, ...] = (),
    on_error: str = "fail",
    starting: str = "earliest",
    key: str | None = None,
    timestamp: str | None = None,
    tombstone: str | None = None,
    create: int | None = None,
    configs: Mapping[str, object] = EMPTY,
    options: Mapping[str, object] = EMPTY,
) -> Topic:
    """Describe a topic for use as source or sink.

    Args:
        name: The topic; a source may name several, comma-separated.
        format: The encoding of values. "json" is an object with the columns of a row. "avro" and "protobuf" can be
            read only. With "text" and "binary" a frame has the columns of a record, with `value` among them.
        schema: The columns of a value: Spark's `"carrier STRING, delay INT"` or a StructType, or the JSON of an Avro
            schema. A source needs a schema. The frame of a sink is compared with the sink's schema, if there is one.
        include: Columns of the record that a source has besides the value: `("timestamp", "key")`. With "text" and
            "binary" the source has only these columns; the default is all.
        on_error: What happens to values that do not fit the schema: "fail" ends the pipeline, "null" makes their
            columns null and adds the reason in a column `_error`, "dlq:TOPIC" sends the records to that dead-letter
            topic.
        starting: The start of a pipeline without checkpoint: "earliest", "latest", or offsets as JSON.
        key: The column with the key of a written record.
        timestamp: The column with the time of a written record; the default is the time of writing.
        tombstone: A boolean column, which is not written. If it is true, the record has no value, which deletes the
            key from a compacted topic.
        create: The number of partitions with which a missing topic is created; None requires that the topic exists.
        configs: Settings of a topic that is created, `{"cleanup.policy": "compact"}`.
        options: Options of `format("headrace")`, `{"maxOffsetsPerTrigger": 10_000}`.
    """
    return Topic(
        name,
        format,
        _schema_text(schema),
        tuple(include),
        on_error,
        starting,
        key,
        timestamp,
        tombstone,
        create,
        _texts(configs),
        _texts(options),
    )


def table(
    path: str,
    *,
    format: str = "parquet",  # noqa: A002 - Spark's word for it, and a keyword
    schema: Any = None,
    partition_by: tuple[str, ...] = (),
    stream: bool = False,
    options: Mapping[str, object] = EMPTY,
) -> Table:
    """Describe a directory of files for use as source or sink.

    Args:
        path: The directory, on a file system that Spark can access.
        format: "parquet", "delta", "json", "csv", "orc" or "text".
        schema: The columns; required for a source of "json" or "csv" files, and with `stream`.
        partition_by: The columns of a sink whose values are the names of its directories.
        stream: Whether a source also reads files that are added later. Otherwise it has the files that exist when the
            pipeline starts.
        options: Options of Spark's format.
    """
    return Table(
        str(path), format, _schema_text(schema), tuple(partition_by), stream, _texts(options)
    )


def for_each_batch(function: BatchFunction, *, to: Topic | None = None) -> ForEachBatch:
    """Describe a sink that calls a function with each batch.

    The frame of a batch is no stream. An interrupted batch is repeated with the same rows and the same number.

    Args:
        function: Called with the frame and the number of a batch.
        to: The topic to which the frame that the function returns is written, exactly once; None if it returns none.
    """
    return ForEachBatch(function, to)


def _schema_text(schema: Any) -> str | None:
    """Return a schema as text. A StructType becomes JSON, because its DDL does not quote names."""
    return schema if schema is None or isinstance(schema, str) else str(schema.json())


def _code_of(function: Any) -> tuple[str, int]:
    """Return the file and line of a function, of the function that it wraps, or of a callable object's class."""
    function = inspect.unwrap(function)
    while isinstance(function, partial):
        function = inspect.unwrap(function.func)
    code = getattr(function, "__code__", None)
    if code is None:
        code = getattr(vars(type(function)).get("__call__"), "__code__", None)
    return ("unknown file", 0) if code is None else (code.co_filename, code.co_firstlineno)


def _name_of(function: Any) -> str:
    while isinstance(function, partial):
        function = function.func
    return str(getattr(function, "__name__", type(function).__name__))


def _texts(values: Mapping[str, object]) -> Mapping[str, str]:
    """Convert values to the texts of options."""
    return {
        name: str(value).lower() if isinstance(value, bool) else str(value)
        for name, value in values.items()
    }
