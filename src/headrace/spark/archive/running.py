"""A run of an archive: copy topics to a table once, or until the run is stopped."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, Literal

from headrace.errors import ConfigError, HeadraceError
from headrace.spark.archive.batches import Archiver, BatchResult
from headrace.spark.archive.manifest import SparkTasks, archive_schema
from headrace.spark.archive.planning import BatchLimits
from headrace.spark.archive.table import create_table
from headrace.spark.archive.table_format import FinalError
from headrace.spark.client.settings import consumer_config
from headrace.spark.options.source import SourceOptions, source_options
from headrace.spark.source.cluster_client import shared_client
from headrace.spark.source.progress import GroupProgress
from headrace.spark.source.resolving import check_exists, current_topology
from headrace.types import TopicPartition

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from headrace.spark.archive.table_format import ArchiveTable

log = logging.getLogger(__name__)

RETRIES: Final = 8


@dataclass(frozen=True)
class ArchiveSettings:
    """The settings of `headrace archive run`."""

    options: Mapping[str, str]
    """Options of `format("headrace")`: cluster, topics, typed values."""
    table: str
    """The path or address of the table."""
    kind: Literal["delta", "iceberg"] = "delta"
    catalog: str | None = field(default=None, repr=False)
    """The address of the Iceberg catalog; None is a file in the table's directory."""
    name: str | None = None
    """The name of the archive; None uses the name in the table, or a generated name for a new table."""
    group: str | None = None
    """The group to which progress is committed; None is the name of the archive."""
    limits: BatchLimits = field(default_factory=BatchLimits)
    interval_s: float = 60.0
    """Seconds from the start of a batch to the next, unless many offsets are pending."""
    once: bool = False
    """Whether the run ends at the offsets that the partitions had at its start."""
    recreated: Literal["fail", "archive"] = "fail"
    """The treatment of a topic that was created again: "fail" is an error, "archive" adds its records to the table."""
    skip_lost: bool = False
    """Whether the archive continues without records that were removed before they were archived."""

    def source(self) -> SourceOptions:
        """Parse and check the options of the read.

        Raises:
            ConfigError: An option is wrong.
        """
        given = {
            "kafka.isolation.level": "read_committed",
            **{name.lower(): value for name, value in self.options.items()},
        }
        options = source_options({**given, "includeheaders": "true"}, streaming=False)
        consumer_config(options.client)  # for its checks
        return options


def check(settings: ArchiveSettings) -> ArchiveTable:
    """Check topics and table before Spark starts. Create the table if it does not exist.

    Raises:
        ConfigError: The settings are wrong, a topic does not exist, or the table belongs to another archive.
    """
    source = settings.source()
    topology = current_topology(shared_client(source.client), source.selection)
    check_exists(source.selection, topology)
    return create_table(
        settings.kind, settings.table, settings.name, archive_schema(source), settings.catalog
    )


def archiver(settings: ArchiveSettings, spark: SparkSession) -> Archiver:
    """Create the archiver that runs its tasks in a session. `check` describes the errors."""
    source, table = settings.source(), check(settings)
    client = shared_client(source.client)
    progress = GroupProgress(client, settings.group or table.snapshot().name, time.monotonic)
    options = {
        **settings.options,
        "kafka.isolation.level": dict(source.client.properties)["isolation.level"],
        "includeHeaders": "true",
    }
    limits = replace(settings.limits, cores=spark.sparkContext.defaultParallelism)
    return Archiver(
        client,
        table,
        source.selection,
        SparkTasks(spark, options, table.root, limits.file_bytes),
        lambda offsets: progress.reached(offsets, {}),
        limits,
        settings.recreated,
        skip_lost=settings.skip_lost,
    )


def run(
    work: Archiver,
    settings: ArchiveSettings,
    stopped: threading.Event,
    *,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[BatchResult]:
    """Archive batch after batch, and yield the results.

    With `once` the run ends at the end offsets that the partitions had at its start. Otherwise it runs until `stopped`
    is set: the next batch begins at once if many offsets are pending, else `interval_s` after the start of the last
    batch. Errors that may be transient, such as an unavailable broker or a failed task, are retried.

    Raises:
        ConfigError: Topics or table do not fit the settings.
        FinalError: Records were lost, or another process writes to the table.
        HeadraceError: More than `RETRIES` attempts in a row failed.
    """
    ends: Mapping[TopicPartition, int] | None = None
    failures = 0
    while not stopped.is_set():
        began = clock()
        try:
            if settings.once and ends is None:
                ends = work.ends()
            result = work.run_batch(ends)
        except (ConfigError, FinalError):
            raise
        except HeadraceError as error:
            failures += 1
            if failures > RETRIES:
                raise
            log.warning("%s; the batch is retried", error)
            stopped.wait(min(2.0**failures / 4, 30.0))
            continue
        failures = 0
        if result is not None:
            yield result
        elif settings.once:
            return
        if not settings.once and (result is None or result.behind < settings.limits.max_offsets):
            stopped.wait(max(0.0, settings.interval_s - (clock() - began)))
