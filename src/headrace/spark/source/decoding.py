"""The last step of a read: decode the column of values, and treat values that do not decode as `onError` says.

A task writes the dead letters of a batch, and waits until they are durable, before it returns the batch's rows. A task
that Spark repeats, after a failure or by speculation, writes its dead letters again. So the topic has each dead letter
at least once. The headers for topic, partition and offset identify duplicates.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from headrace.errors import HeadraceError
from headrace.spark.decode.formats import codec_of
from headrace.spark.decode.options import DecodeOptions
from headrace.spark.options.source import SourceOptions

if TYPE_CHECKING:
    from headrace.spark.source.dead_letters import DeadLetters

POSITION_COLUMNS: Final = ("topic", "partition", "offset")
DEAD_LETTER_COLUMNS: Final = ("key", "value", *POSITION_COLUMNS, "timestamp", "headers")
ERROR: Final = "_error"
"""The name of the column with the reason why `value` is null, with `onError=null`."""

SendLetters = Callable[[Any, Mapping[int, str]], None]
"""Writes some rows of a batch to the dead-letter topic, and returns when they are durable. The mapping has the reason
for each row number."""


class DecodeError(HeadraceError):
    """A value does not decode although `onError` is `fail`."""


def raw_columns(options: SourceOptions) -> tuple[str, ...]:
    """Return the topic's columns that a read needs: the columns of the result, then those that errors need."""
    if options.decode is None:
        return options.column_names
    more = DEAD_LETTER_COLUMNS if options.decode.on_error == "dlq" else POSITION_COLUMNS
    return tuple(dict.fromkeys((*options.column_names, *more)))


def decoded(batches: Iterable[Any], options: SourceOptions, schema: Any) -> Iterator[Any]:
    """Yield batches with decoded values. Batches without rows are dropped.

    Args:
        batches: Batches with the columns of `raw_columns`.
        options: The options of the read.
        schema: The schema of the results.

    Raises:
        DecodeError: A value does not decode, and `onError` is `fail`.
        HeadraceError: A dead letter could not be written.
    """
    if options.decode is None:
        yield from batches
        return
    with ExitStack() as stack:
        dead_letters: DeadLetters | None = None

        def send(batch: Any, errors: Mapping[int, str]) -> None:
            nonlocal dead_letters
            if dead_letters is None:
                from headrace.spark.source.dead_letters import DeadLetters

                dead_letters = stack.enter_context(DeadLetters(options))
            dead_letters.send(batch, errors)

        for batch in batches:
            done = decode_batch(batch, options.decode, schema, send)
            if done.num_rows:
                yield done


def decode_batch(batch: Any, options: DecodeOptions, schema: Any, send: SendLetters) -> Any:
    """Return a batch with decoded values. `decoded` describes the arguments and errors."""
    codec = codec_of(options)
    values, errors = codec.decode(batch.column("value").to_pylist())
    if errors and options.on_error == "fail":
        raise _failure(batch, errors, options.format)
    arrays = {name: batch.column(name) for name in schema.names if name not in {"value", ERROR}}
    arrays["value"] = values
    if options.on_error == "null":
        arrays[ERROR] = pa.array([errors.get(row) for row in range(batch.num_rows)], pa.string())
    done = pa.RecordBatch.from_arrays([arrays[name] for name in schema.names], schema=schema)
    if errors and options.on_error == "dlq":
        send(batch, errors)
        rows = pa.array([row for row in range(batch.num_rows) if row not in errors], pa.int64())
        done = done.take(rows)
    return done


def _failure(batch: Any, errors: Mapping[int, str], kind: str) -> DecodeError:
    row = min(errors)
    topic, partition, offset = (batch.column(name)[row].as_py() for name in POSITION_COLUMNS)
    return DecodeError(
        f"the value at offset {offset} of {topic}-{partition} does not decode as {kind}: {errors[row]}. With the "
        "option onError=null the value of such a row is null, and the column _error has the reason. With "
        "onError=dlq:TOPIC such records are sent to that topic"
    )
