"""The last step of a read: the column of values becomes typed, and what does not decode goes where it was told to.

A task sends dead letters before it hands on the rows between which they were, and waits until they are written. A task
that is run again, after a failure or by speculation, sends them again: the topic has each at least once, under the same
headers (topic, partition, offset), by which a reader tells that it has seen one.
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

PLACE: Final = ("topic", "partition", "offset")
LETTER: Final = ("key", "value", *PLACE, "timestamp", "headers")
ERROR: Final = "_error"
"""The column that says why `value` is null, with `onError=null`."""

SendLetters = Callable[[Any, Mapping[int, str]], None]
"""Sends the rows of a batch whose numbers are given, each with what is wrong, and returns when they are written."""


class DecodeError(HeadraceError):
    """A value does not decode, and `onError` is `fail`."""


def raw_columns(options: SourceOptions) -> tuple[str, ...]:
    """Return the topic's columns that a read needs, those besides that errors need behind those that were asked for."""
    if options.decode is None:
        return options.column_names
    more = LETTER if options.decode.on_error == "dlq" else PLACE
    return tuple(dict.fromkeys((*options.column_names, *more)))


def decoded(batches: Iterable[Any], options: SourceOptions, schema: Any) -> Iterator[Any]:
    """Yield batches with typed values; those that are left without rows are left out.

    Args:
        batches: With the columns of `raw_columns`.
        options: Of the read.
        schema: What the batches become.

    Raises:
        DecodeError: A value does not decode, and nothing else is to become of it.
        HeadraceError: A dead letter could not be written.
    """
    if options.decode is None:
        yield from batches
        return
    with ExitStack() as stack:
        letters: DeadLetters | None = None

        def send(batch: Any, errors: Mapping[int, str]) -> None:
            nonlocal letters
            if letters is None:
                from headrace.spark.source.dead_letters import DeadLetters

                letters = stack.enter_context(DeadLetters(options))
            letters.send(batch, errors)

        for batch in batches:
            done = decode_batch(batch, options.decode, schema, send)
            if done.num_rows:
                yield done


def decode_batch(batch: Any, options: DecodeOptions, schema: Any, send: SendLetters) -> Any:
    """Return a batch with typed values; for arguments and errors see `decoded`."""
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
    topic, partition, offset = (batch.column(name)[row].as_py() for name in PLACE)
    return DecodeError(
        f"the value at offset {offset} of {topic}-{partition} does not decode as {kind}: {errors[row]}. With the "
        "option onError=null such rows have no value and say why in the column _error; with onError=dlq:TOPIC they go "
        "there"
    )
