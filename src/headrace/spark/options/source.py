"""The options of a read, with the names and meanings of Spark's Kafka connector."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from headrace.errors import ConfigError
from headrace.spark.decode.options import DecodeOptions
from headrace.spark.options.declared import Option, option_names
from headrace.spark.options.decode import DECODE_OPTIONS, decode_options
from headrace.spark.options.history import HISTORY_OPTIONS, HistoryOptions, history_options
from headrace.spark.options.positions import (
    ENDING_OPTIONS,
    STARTING_OPTIONS,
    Ending,
    Starting,
    check_order,
    ending,
    starting,
)
from headrace.spark.options.reader import WITHOUT_EFFECT, ClientOptions, OptionReader
from headrace.spark.options.selection import SELECTION_OPTIONS, TopicSelection, selection

log = logging.getLogger(__name__)

TOPIC_COLUMNS: Final = (
    "key",
    "value",
    "topic",
    "partition",
    "offset",
    "timestamp",
    "timestampType",
    "headers",
)
STREAM_OPTIONS: Final = (
    Option(
        "maxOffsetsPerTrigger",
        "The most offsets of a micro-batch. Each partition has a share in proportion to its pending offsets, and at "
        "least one offset.",
        only_for="stream",
    ),
    Option(
        "maxBytesPerTrigger",
        "The most stored bytes of a micro-batch, for example `64m`. Both limits may be given "
        "([Limits of a batch](spark-source.md#limits-of-a-batch)).",
        only_for="stream",
    ),
    Option(
        "minOffsetsPerTrigger",
        "The number of pending offsets for which a micro-batch waits.",
        only_for="stream",
    ),
    Option(
        "maxTriggerDelay",
        "The longest wait for `minOffsetsPerTrigger`.",
        only_for="stream",
        default="15m",
    ),
    Option(
        "group",
        "A consumer group to which the query commits its progress ([Lag](spark-source.md#lag)).",
        only_for="stream",
    ),
)
"""The options that only streams use. A batch read ignores them with a warning; Spark's connector ignores them, too."""
SOURCE_OPTIONS: Final = (
    *SELECTION_OPTIONS,
    *STARTING_OPTIONS,
    *ENDING_OPTIONS,
    *STREAM_OPTIONS,
    Option(
        "minPartitions",
        "About the least number of tasks. Large ranges are divided ([Tasks](spark-source.md#tasks)).",
    ),
    Option("maxRecordsPerPartition", "The most offsets of a task."),
    Option(
        "maxTasks",
        "The most tasks. The default depends on the number of cores and of offsets ([Tasks](spark-source.md#tasks)).",
    ),
    Option(
        "failOnDataLoss",
        "Whether the query fails if records are lost ([Lost data](spark-source.md#lost-data)).",
        default="true",
    ),
    Option(
        "columns",
        "The columns of the read in their order, comma-separated: `value,offset`. Without this option the read has all "
        "columns but `headers`.",
    ),
    Option(
        "includeHeaders",
        "Whether the read has the column `headers`. If `columns` is given, this option has no effect.",
        default="false",
    ),
    *DECODE_OPTIONS,
    *HISTORY_OPTIONS,
    Option(
        "kafkaConsumer.pollTimeoutMs",
        "How long a task waits for records that do not arrive, in milliseconds.",
        default="120000",
    ),
)


@dataclass(frozen=True)
class SourceOptions:
    """The parsed options of a read."""

    client: ClientOptions
    selection: TopicSelection
    starting: Starting
    ending: Ending = "latest"
    max_offsets_per_trigger: int | None = None
    min_offsets_per_trigger: int | None = None
    max_trigger_delay_ms: int = 900_000
    """The longest wait for `min_offsets_per_trigger` in milliseconds."""
    max_bytes_per_trigger: int | None = None
    min_partitions: int | None = None
    max_records_per_partition: int | None = None
    max_tasks: int | None = None
    group: str | None = None
    fail_on_data_loss: bool = True
    include_headers: bool = False
    columns: tuple[str, ...] | None = None
    decode: DecodeOptions | None = None
    history: HistoryOptions | None = None
    poll_timeout_ms: int = 120_000
    """Milliseconds for which a task waits for records that do not arrive."""

    @property
    def column_names(self) -> tuple[str, ...]:
        """The columns of the topic that are read, in order."""
        if self.columns is not None:
            return self.columns
        return TOPIC_COLUMNS if self.include_headers else TOPIC_COLUMNS[:-1]


def source_options(options: Mapping[str, str], *, streaming: bool | None) -> SourceOptions:
    """Parse and check the options of a read.

    Args:
        options: Values by option name; case does not matter.
        streaming: Whether the read is a stream. None if that is not known yet: options of both kinds are accepted.

    Raises:
        ConfigError: An option is unknown, missing, contradicts another option or has a wrong value.
    """
    reader = OptionReader(options, (*option_names(SOURCE_OPTIONS), *WITHOUT_EFFECT))
    start, end = starting(reader, streaming=streaming), ending(reader, streaming=streaming)
    if streaming is False:
        check_order(start, end)
        for option in option_names(STREAM_OPTIONS):
            if reader.text(option) is not None:
                log.warning("option %s has no effect in a batch read", option)
    poll_timeout_ms = reader.number("kafkaConsumer.pollTimeoutMs", 120_000)
    assert poll_timeout_ms is not None
    columns = _columns(reader)
    history = history_options(reader)
    checked = SourceOptions(
        client=_client(reader, history),
        selection=selection(reader),
        starting=start,
        ending=end,
        max_offsets_per_trigger=reader.number("maxOffsetsPerTrigger", None),
        min_offsets_per_trigger=reader.number("minOffsetsPerTrigger", None),
        max_trigger_delay_ms=reader.duration_ms("maxTriggerDelay", 900_000),
        max_bytes_per_trigger=reader.size("maxBytesPerTrigger"),
        min_partitions=reader.number("minPartitions", None),
        max_records_per_partition=reader.number("maxRecordsPerPartition", None),
        max_tasks=reader.number("maxTasks", None),
        group=reader.text("group") or None,
        fail_on_data_loss=reader.flag("failOnDataLoss", default=True),
        include_headers=reader.flag("includeHeaders", default=False)
        if columns is None
        else "headers" in columns,
        columns=columns,
        decode=decode_options(reader),
        history=history,
        poll_timeout_ms=poll_timeout_ms,
    )
    _check_order(
        "minOffsetsPerTrigger",
        checked.min_offsets_per_trigger,
        "maxOffsetsPerTrigger",
        checked.max_offsets_per_trigger,
    )
    _check_order("minPartitions", checked.min_partitions, "maxTasks", checked.max_tasks)
    _check_dead_letters(checked)
    return checked


def _check_dead_letters(options: SourceOptions) -> None:
    """Reject a dead-letter topic that the read covers. Each dead letter would be read and fail again, without end."""
    dead_letters = None if options.decode is None else options.decode.dlq_topic
    if dead_letters is not None and options.selection.covers(dead_letters):
        pattern = options.selection.pattern
        how = "" if pattern is None else f" (subscribePattern {pattern!r} matches its name)"
        raise ConfigError(
            f"option onError names the dead-letter topic {dead_letters}, which the query reads{how}: name another topic"
        )


def _client(reader: OptionReader, history: HistoryOptions | None) -> ClientOptions:
    """Parse the client's options. With an archive the isolation level is `read_committed` unless it is given.

    An archive has no records of aborted transactions. With `read_uncommitted`, a task that is repeated after its
    records were archived would find other rows.
    """
    client = reader.client()
    if history is None or "isolation.level" in dict(client.properties):
        return client
    properties = (*client.properties, ("isolation.level", "read_committed"))
    return replace(client, properties=tuple(sorted(properties)))


def _columns(reader: OptionReader) -> tuple[str, ...] | None:
    given = reader.names("columns")
    if given is None:
        return None
    canonical = {name.lower(): name for name in TOPIC_COLUMNS}
    unknown = [name for name in given if name.lower() not in canonical]
    if unknown or not given:
        raise ConfigError(
            f"option columns must name some of {', '.join(TOPIC_COLUMNS)}, "
            f"not {', '.join(unknown) or 'none'}"
        )
    return tuple(dict.fromkeys(canonical[name.lower()] for name in given))


def _check_order(low: str, minimum: int | None, high: str, maximum: int | None) -> None:
    if minimum is not None and maximum is not None and minimum > maximum:
        raise ConfigError(f"option {low} {minimum} is more than {high} {maximum}")
