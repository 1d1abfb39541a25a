"""The checks of declared pipelines that need neither a broker nor Spark."""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from headrace.errors import ConfigError
from headrace.pipelines.declaration import Pipeline, Source, Table, Topic
from headrace.pipelines.delta.tables import local_root, path_problem
from headrace.pipelines.frames import ERROR
from headrace.pipelines.options import (
    DECODED,
    batch_sink_options_of,
    sink_options_of,
    source_options_of,
)
from headrace.pipelines.plan import (
    DefaultCluster,
    Plan,
    PlanError,
    Problem,
    Trigger,
    checkpoint_path,
)
from headrace.pipelines.status.state import NAME
from headrace.spark.decode.options import DecodeOptions
from headrace.spark.options.sink import sink_options
from headrace.spark.options.source import TOPIC_COLUMNS, source_options

TOPIC_FORMATS: Final = ("binary", "text", "json", "avro", "protobuf")
WRITTEN_FORMATS: Final = ("binary", "text", "json")
TABLE_FORMATS: Final = ("parquet", "delta", "json", "csv", "orc", "text")
MODES: Final = ("append", "update", "complete")
AVAILABLE_NOW: Final = "available_now"
_INTERVAL: Final = re.compile(
    r"(?P<count>[1-9][0-9]*) (?P<unit>(?:millisecond|second|minute|hour|day)s?)"
)


def check(
    pipelines: Sequence[Pipeline],
    connection: DefaultCluster,
    checkpoints: str | None = None,
    trigger: str | None = None,
) -> list[Plan]:
    """Check pipelines and return their plans.

    Args:
        pipelines: All pipelines of the run.
        connection: The cluster of their topics.
        checkpoints: The directory for checkpoints that the pipelines do not declare.
        trigger: Replaces the declared triggers; None keeps them.

    Raises:
        PlanError: The pipelines have problems. The error has all of them.
    """
    found = examine_declarations(pipelines, connection, checkpoints, trigger)
    if found.problems:
        raise PlanError(found.problems)
    return found.plans


@dataclass
class Examined:
    """The result of the checks of declarations.

    Attributes:
        plans: The plans of all pipelines, also of those with problems, so that later checks can find more.
        problems: All problems.
        unsound: Names of pipelines whose frames cannot be made or compared with the sink.
    """

    plans: list[Plan]
    problems: list[Problem]
    unsound: set[str]


def examine_declarations(
    pipelines: Sequence[Pipeline],
    connection: DefaultCluster,
    checkpoints: str | None = None,
    trigger: str | None = None,
) -> Examined:
    """Return the plans of pipelines and their problems. `check` describes the arguments."""
    found = Examined([], list(_together(pipelines, checkpoints)), set())
    for pipeline in pipelines:
        text, path = trigger or pipeline.trigger, checkpoint_path(pipeline, checkpoints)
        wrong, late = list(_problems(pipeline, connection)), [*_trigger(text), *_checkpoint(path)]
        found.problems += [Problem(pipeline, each) for each in (*wrong, *late)]
        if wrong:
            found.unsound.add(pipeline.name)
        interval = Trigger(None) if late else read_trigger(text)
        found.plans.append(Plan(pipeline, connection, sources_of(pipeline), interval, path))
    return found


def read_trigger(text: str) -> Trigger:
    """Parse a trigger.

    Raises:
        ConfigError: The text is no trigger.
    """
    if text == AVAILABLE_NOW:
        return Trigger(None)
    if _INTERVAL.fullmatch(text) is None:
        raise ConfigError(f'trigger must be like "1 second" or be "{AVAILABLE_NOW}", not {text!r}')
    return Trigger(text)


def _trigger(text: str) -> Iterator[str]:
    try:
        read_trigger(text)
    except ConfigError as error:
        yield str(error)


def sources_of(pipeline: Pipeline) -> Mapping[str, Source]:
    """Return the sources by the names of the function's parameters."""
    if isinstance(pipeline.source, Mapping):
        return pipeline.source
    return dict.fromkeys(_parameters(pipeline)[:1], pipeline.source)


def _parameters(pipeline: Pipeline) -> list[str]:
    return list(inspect.signature(pipeline.function).parameters)


def _together(pipelines: Sequence[Pipeline], root: str | None) -> Iterator[Problem]:
    """Yield problems of several pipelines together: equal names or checkpoints."""
    things: tuple[tuple[str, Callable[[Pipeline], str]], ...] = (
        ("name", lambda each: each.name),
        ("checkpoint", lambda each: checkpoint_path(each, root)),
    )
    for what, of in things:
        first: dict[str, Pipeline] = {}
        for pipeline in pipelines:
            other = first.setdefault(of(pipeline), pipeline)
            same_name = what != "name" and other.name == pipeline.name
            if other is not pipeline and not same_name:
                yield Problem(
                    pipeline, f"{other.where} has the {what} {of(pipeline)}, too: choose another"
                )


def _problems(pipeline: Pipeline, connection: DefaultCluster) -> Iterator[str]:
    if NAME.fullmatch(pipeline.name) is None:
        yield f"the name {pipeline.name!r} may only have a-z, A-Z, 0-9, dots, dashes and underscores"
    if pipeline.output_mode not in MODES:
        yield f"output_mode must be one of {', '.join(MODES)}, not {pipeline.output_mode!r}"
    for name in pipeline.settings:
        if not name.startswith("spark.sql."):
            yield f"the setting {name} counts for the whole session: give it to the command, --conf {name}=..."
    yield from _source_problems(pipeline, connection)
    yield from _sink_problems(pipeline, connection)


def _source_problems(pipeline: Pipeline, connection: DefaultCluster) -> Iterator[str]:
    parameters = _parameters(pipeline)
    if isinstance(pipeline.source, Mapping):
        if set(parameters) != set(pipeline.source):
            yield (
                f"the function has the parameters {', '.join(parameters) or 'none'}, "
                f"but the sources are {', '.join(pipeline.source) or 'none'}"
            )
    elif len(parameters) != 1:
        yield (
            f"the function must have one parameter, for its source, not {len(parameters)}; "
            "name several sources: source={'orders': ..., 'payments': ...}"
        )
    sources = sources_of(pipeline)
    if not any(isinstance(each, Topic) or each.stream for each in sources.values()):
        yield "no source is a stream: a topic, or a table with stream=True"
    for parameter, source in sources.items():
        found = (
            _topic_source(source, pipeline.name, connection)
            if isinstance(source, Topic)
            else _table_source(source)
        )
        for problem in found:
            yield f"source {parameter}: {problem}"


def _topic_source(topic: Topic, group: str, connection: DefaultCluster) -> Iterator[str]:
    yield from _topic(topic)
    unknown = [name for name in topic.include if name not in TOPIC_COLUMNS]
    if unknown:
        yield f"include must name some of {', '.join(TOPIC_COLUMNS)}, not {', '.join(unknown)}"
        return
    if topic.schema is None and topic.format in DECODED:
        yield f'format {topic.format} needs schema=; format="binary" reads records without decoding'
        return
    try:
        options = source_options(source_options_of(topic, group, connection), streaming=True)
    except ConfigError as error:
        yield str(error)
        return
    if options.decode is not None:
        yield from _duplicate_columns(topic, options.decode)


def _duplicate_columns(topic: Topic, decode: DecodeOptions) -> Iterator[str]:
    """Yield the columns that a source would have twice: as a column of the record or of errors, and of the value."""
    from headrace.spark.decode.formats import codec_of

    besides = [*topic.include, *([ERROR] if decode.on_error == "null" else [])]
    record = {name.lower(): name for name in besides}
    for field in codec_of(decode).column.type:
        name = record.get(field.name.lower())
        if name == ERROR:
            yield f'on_error="null" adds a column {ERROR}, and the schema has a field {field.name}: rename the field'
        elif name is not None:
            yield (
                f"include names the record's {name}, and the schema has a field {field.name}: leave it out of include, "
                'or read format="binary" and decode the value in the function'
            )


def _table_source(table: Table) -> Iterator[str]:
    if table.format not in TABLE_FORMATS:
        yield _one_of("format", TABLE_FORMATS, table.format)
    if table.format == "delta":
        if table.stream:
            yield "a delta table cannot be read as a stream: read its topic"
        elif problem := path_problem(table.path):
            yield problem
    if table.schema is None and (table.stream or table.format in {"json", "csv"}):
        yield f"a source of {table.format} files needs schema="


def _sink_problems(pipeline: Pipeline, connection: DefaultCluster) -> Iterator[str]:
    found: Iterator[str] = iter(())
    if isinstance(pipeline.sink, Topic):
        mode = pipeline.output_mode
        found = _topic_sink(pipeline.sink, mode, connection, streaming=mode == "append")
    elif isinstance(pipeline.sink, Table):
        found = _table_sink(pipeline.sink, pipeline.output_mode)
    elif pipeline.sink.to is not None:
        found = _topic_sink(pipeline.sink.to, "append", connection, streaming=False)
    for problem in found:
        yield f"sink: {problem}"


def _topic_sink(
    topic: Topic, mode: str, connection: DefaultCluster, *, streaming: bool
) -> Iterator[str]:
    yield from _topic(topic)
    if topic.format not in WRITTEN_FORMATS:
        yield _one_of("the format of a topic that is written", WRITTEN_FORMATS, topic.format)
    if "," in topic.name:
        yield f"a sink has one topic, not {topic.name!r}"
    if mode == "update" and topic.key is None and topic.format == "json":
        yield "changed rows need key=, the column that identifies the row that is replaced"
    if topic.tombstone is not None and topic.key is None:
        yield "tombstone= needs key=, the column that identifies the deleted row"
    if topic.format != "json" and (topic.key or topic.timestamp or topic.tombstone):
        yield (
            f"key=, timestamp= and tombstone= are for format json; records of a {topic.format} topic have the frame's "
            "columns key, value, timestamp and headers"
        )
    try:
        if streaming:
            sink_options(sink_options_of(topic, connection), streaming=True)
        else:
            sink_options(batch_sink_options_of(topic, connection, "app", 0), streaming=False)
    except ConfigError as error:
        yield str(error)


def _table_sink(table: Table, mode: str) -> Iterator[str]:
    if table.format not in TABLE_FORMATS:
        yield _one_of("format", TABLE_FORMATS, table.format)
    if mode != "append":
        yield f"rows of a table cannot change: output_mode must be append, not {mode}"
    if table.format == "delta":
        if table.partition_by:
            yield "a delta sink cannot be partitioned"
        if local_root(table.path) is None:
            yield f"a delta sink must be a directory of this machine, not {table.path}"
        elif problem := path_problem(table.path):
            yield problem


def _topic(topic: Topic) -> Iterator[str]:
    if topic.format not in TOPIC_FORMATS:
        yield _one_of("format", TOPIC_FORMATS, topic.format)
    elif topic.format in {"binary", "text"} and topic.schema is not None:
        yield f"format {topic.format} has no schema"
    if topic.create is not None and topic.create < 1:
        yield f"create must be a number of partitions, not {topic.create}"
    if topic.create is not None and "," in topic.name:
        yield f"create= is for one topic, not for {topic.name!r}"
    if topic.configs and topic.create is None:
        yield "configs= are settings of a topic that is created: add create=PARTITIONS"


def _checkpoint(path: str) -> Iterator[str]:
    """Yield why a local checkpoint directory cannot be written. Only Spark can check other file systems."""
    root = local_root(path)
    if root is None:
        return
    nearest = root.absolute()
    while not nearest.exists():
        nearest = nearest.parent
    if not nearest.is_dir() or not os.access(nearest, os.W_OK | os.X_OK):
        yield f"the checkpoint {path} cannot be written: {nearest} is not a writable directory"


def _one_of(what: str, known: Sequence[str], given: str) -> str:
    return f"{what} must be one of {', '.join(known)}, not {given!r}"
