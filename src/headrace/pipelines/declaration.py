"""What a file of pipelines says. Nothing is checked here: `checking.py` finds everything that is wrong at once."""

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
    """A topic that pipelines read, write, or both; made by `topic`."""

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
    """Files that pipelines read, write, or both; made by `table`."""

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
    """A function that gets each batch; made by `for_each_batch`."""

    function: BatchFunction
    to: Topic | None

    def __str__(self) -> str:
        name = f"function {getattr(self.function, '__name__', self.function)}"
        return name if self.to is None else f"{name}, to {self.to}"


Source = Topic | Table
Sink = Topic | Table | ForEachBatch


@dataclass(frozen=True)
class Pipeline:
    """A function over DataFrames, with where they come from and where its result goes; made by `pipeline`.

    It can be called as the function it was, in a test of it for example.
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
        """Return what the function makes of frames."""
        return self.function(*frames, **named)

    @property
    def where(self) -> str:
        """The place of the declaration, as compilers write it."""
        return f"{self.file}:{self.line}"


_declared: ContextVar[list[Pipeline] | None] = ContextVar("declared pipelines", default=None)


@contextmanager
def collecting() -> Iterator[list[Pipeline]]:
    """Give a list to which every pipeline is added that is declared inside the block."""
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
    """Declare a pipeline: the decorated function makes the sink's frame from the sources' frames.

        @pipeline(
            source=topic("flights", schema="carrier STRING, delay INT, at TIMESTAMP"),
            sink=topic("delays", key="carrier"),
            output_mode="update",
        )
        def delays(flights: DataFrame) -> DataFrame:
            return flights.groupBy("carrier").agg(F.avg("delay").alias("delay"))

    Args:
        source: A topic or table; of several, each by the name of the function's parameter that gets it.
        sink: Where the function's result goes: a topic, a table, or a function (`for_each_batch`).
        name: By default the function's. It is the name of the consumer group by which lag is seen, too.
        trigger: How often batches begin, `"1 second"`; `"available_now"` handles what there is and ends.
        output_mode: What of the result each batch writes, as Spark has it: "append" rows that are final, "update" rows
            that changed, "complete" all. Into a topic, changed rows go one for each `key`.
        checkpoint: The directory of its progress and state, by default one of its name under `--checkpoints`.
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
    """Name a topic as source, sink, or both.

    Args:
        name: The topic; a source may have several, separated by commas.
        format: What values are. "json" is an object of a row's columns; "avro" and "protobuf" can be read. With "text"
            and "binary" frames have the columns of a record, `value` among them.
        schema: The columns of a value: Spark's `"carrier STRING, delay INT"` or a StructType; for Avro its JSON. A
            source needs it; a sink that has one is checked against it.
        include: Columns of the record that a source has besides the value: `("timestamp", "key")`. With "text" and
            "binary" these alone are read, and by default all.
        on_error: What becomes of values that do not fit the schema: "fail" ends the pipeline, "null" makes their
            columns null and says why in another one, `_error`, "dlq:TOPIC" writes them there.
        starting: Where a pipeline without checkpoint starts: "earliest", "latest", or offsets as JSON.
        key: The column that is the key of a record to write.
        timestamp: The column that is its time; by default it is the time of writing.
        tombstone: A boolean column, which is not written; where it is true a record has no value. This deletes the key
            from a compacted topic.
        create: With how many partitions to create the topic where it is missing; otherwise it has to exist.
        configs: Settings of the topic then, `{"cleanup.policy": "compact"}`.
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
    """Name a directory of files as source, sink, or both.

    Args:
        path: The directory, on a file system that Spark knows.
        format: "parquet", "delta", "json", "csv", "orc", "text".
        schema: The columns; needed for a source of "json", "csv" or of `stream`.
        partition_by: The columns after whose values a sink has a directory each.
        stream: Whether a source is read on as files are added. Otherwise it is as it was when the pipeline started.
        options: Options of Spark's format.
    """
    return Table(
        str(path), format, _schema_text(schema), tuple(partition_by), stream, _texts(options)
    )


def for_each_batch(function: BatchFunction, *, to: Topic | None = None) -> ForEachBatch:
    """Have a function called with each batch, which is no stream, and its number.

    A batch that was interrupted comes again, with the same rows and the same number.

    Args:
        function: Called with the frame and the number of a batch.
        to: Where the frame goes that the function returns, exactly once; None if it returns none.
    """
    return ForEachBatch(function, to)


def _schema_text(schema: Any) -> str | None:
    """Return a schema as text; that of a StructType is JSON, for DDL quotes no names."""
    return schema if schema is None or isinstance(schema, str) else str(schema.json())


def _code_of(function: Any) -> tuple[str, int]:
    """Return the file and the line of a function, of what it wraps, or of the class of an object that is called."""
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
    """Return values as options have them."""
    return {
        name: str(value).lower() if isinstance(value, bool) else str(value)
        for name, value in values.items()
    }
