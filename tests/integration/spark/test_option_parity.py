"""Option by option, the source and Spark's own Kafka connector read the same topics: rows, offsets, tasks and errors.

Reads of one source are one Spark job, for a job costs more than what it reads here.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import functions

from headrace.clients.blocking import BlockingClient
from headrace.errors import HeadraceError
from headrace.spark.options.source import source_options
from headrace.spark.readers.batch import batch_ranges
from headrace.spark.source.cluster_client import shared_client
from tests.integration.spark.conftest import Reader, Topics, produce_values

SOURCES: Final = ("headrace", "kafka")
SIZES: Final = {0: 20, 1: 3, 2: 1}
T0: Final = 1_700_000_000_000
"""The time of each partition's first record. Later records follow a millisecond apart."""

Options = Mapping[str, str]


@pytest.fixture(autouse=True)
def connector(jars: list[Path] | str) -> None:
    if isinstance(jars, str):
        pytest.skip(f"no Spark Kafka connector: {jars}")


def offsets(*values: int) -> str:
    return json.dumps({"TOPIC": dict(enumerate(values))})


def given(read: Reader, topic: str, options: Options) -> dict[str, str]:
    every = {"kafka.bootstrap.servers": read.bootstrap, "subscribe": "TOPIC", **options}
    return {name: text.replace("TOPIC", topic) for name, text in every.items() if text != "-"}


def opened(read: Reader, source: str, topic: str, options: Options, *, stream: bool = False) -> Any:
    builder = (read.spark.readStream if stream else read.spark.read).format(source)
    if source == "kafka":  # so that its errors come soon
        options = {"fetchOffset.numRetries": "1", "kafkaConsumer.pollTimeoutMs": "500", **options}
    return builder.options(**given(read, topic, options)).load()


READS: Final[list[Options]] = [
    {},
    {"subscribe": "-", "subscribePattern": "TOP.*IC"},
    {"subscribe": "-", "assign": '{"TOPIC": [0, 2]}'},
    {"startingOffsets": offsets(5, -2, -2)},
    {"endingOffsets": offsets(5, -1, 0)},
    {"startingOffsets": offsets(5, 1, -2), "endingOffsets": offsets(11, 1, -1)},
    {"endingOffsets": offsets(50, 0, 0), "failOnDataLoss": "false"},
    {"startingTimestamp": f"{T0}", "endingTimestamp": f"{T0 + 2}"},
    {"startingTimestamp": f"{T0 + 5}", "startingOffsetsByTimestampStrategy": "latest"},
    {"startingOffsetsByTimestamp": offsets(T0 + 7, T0, 0), "startingOffsets": offsets(1, 1, 1)},
    {"endingOffsetsByTimestamp": offsets(T0 + 7, T0 + 70, 0), "endingOffsets": "latest"},
    {"startingTimestamp": f"{T0}", "startingOffsetsByTimestamp": offsets(T0 + 7, T0, 0)},
    {"startingTimestamp": "-1"},
    {
        "startingTimestamp": f"{T0 + 1}",
        "endingTimestamp": "-1",
        "startingOffsetsByTimestampStrategy": "latest",
    },
    {
        "startingOffsetsByTimestamp": offsets(-1, -2, T0),
        "endingOffsetsByTimestamp": offsets(-1, -1, -1),
    },
    {"minPartitions": "5"},
    {"minPartitions": "9", "maxRecordsPerPartition": "7"},
    {"maxOffsetsPerTrigger": "5", "minOffsetsPerTrigger": "4", "maxTriggerDelay": "1s"},
    {"kafka.isolation.level": "read_committed"},
]


def rows_and_tasks(read: Reader, source: str, topic: str) -> dict[int, list[tuple[int, ...]]]:
    """Return for each of READS the (partition, first offset, last offset, count) of its tasks."""
    frames = [
        opened(read, source, topic, options).select(
            functions.lit(number).alias("read"),
            "partition",
            "offset",
            functions.spark_partition_id().alias("task"),
        )
        for number, options in enumerate(READS)
    ]
    together = functools.reduce(lambda left, right: left.union(right), frames)
    shown = (
        together.groupBy("read", "partition", "task")
        .agg(functions.min("offset"), functions.max("offset"), functions.count("offset"))
        .collect()
    )
    found: dict[int, list[tuple[int, ...]]] = {number: [] for number in range(len(READS))}
    for row in shown:
        found[row[0]].append((row[1], *row[3:]))
    return {number: sorted(spans) for number, spans in found.items()}


def test_reads_with_the_same_options_have_the_same_rows_in_the_same_tasks(
    topics: Topics, client: BlockingClient, read: Reader
) -> None:
    topic = topics.create(partitions=len(SIZES))
    for partition, size in SIZES.items():
        produce_values(client, topic, partition, range(size))

    ours, theirs = (rows_and_tasks(read, source, topic) for source in SOURCES)

    for number, options in enumerate(READS):
        assert ours[number] == theirs[number], options
    assert ours[0] == [(0, 0, 19, 20), (1, 0, 2, 3), (2, 0, 0, 1)]
    assert ours[5] == [(0, 5, 10, 6), (2, 0, 0, 1)]
    assert len(ours[READS.index({"minPartitions": "5"})]) == 5


ERRORS: Final[list[tuple[Options, str]]] = [
    ({"startingOffsets": offsets(5)}, "startingOffsets does not name TOPIC-1, TOPIC-2"),
    ({"startingOffsets": offsets(5, 0, 0, 0)}, "startingOffsets names TOPIC-3"),
    ({"startingOffsets": offsets(50, 0, 0)}, "TOPIC-0 ends at offset 20, before startingOffsets"),
    (
        {"startingOffsets": offsets(50, 0, 0), "failOnDataLoss": "false"},
        "TOPIC-0 ends at offset 20, before startingOffsets",
    ),
    (
        {"startingOffsets": offsets(5, 0, 0), "endingOffsets": offsets(4, -1, -1)},
        "startingOffsets 5 of TOPIC-0 is after endingOffsets 4",
    ),
    ({"startingOffsets": "latest"}, "startingOffsets cannot be latest"),
    ({"startingOffsets": offsets(-1, 0, 0)}, "startingOffsets cannot have -1"),
    ({"startingOffsets": "soon"}, "startingOffsets must be"),
    ({"endingOffsets": "earliest"}, "endingOffsets cannot be earliest"),
    ({"endingOffsets": offsets(-2, 0, 0)}, "endingOffsets cannot have -2"),
    ({"startingTimestamp": f"{T0 + 5}"}, "startingTimestamp: TOPIC-1 has no record"),
    ({"startingTimestamp": "soon"}, "startingTimestamp must be"),
    ({"startingOffsetsByTimestamp": offsets(T0)}, "ByTimestamp does not name TOPIC-1"),
    ({"startingOffsetsByTimestampStrategy": "never"}, "Strategy must be error or latest"),
    ({"minPartitions": "0"}, "minPartitions must be"),
    ({"maxRecordsPerPartition": "0"}, "maxRecordsPerPartition must be"),
    ({"minOffsetsPerTrigger": "6", "maxOffsetsPerTrigger": "5"}, "minOffsetsPerTrigger 6 is more"),
    ({"failOnDataLoss": "maybe"}, "failOnDataLoss must be"),
    ({"includeHeaders": "maybe"}, "includeHeaders must be"),
    ({"kafkaConsumer.pollTimeoutMs": "x"}, "kafkaConsumer.pollTimeoutMs must be"),
    ({"kafka.auto.offset.reset": "latest"}, "kafka.auto.offset.reset cannot be set"),
    ({"kafka.enable.auto.commit": "true"}, "kafka.enable.auto.commit cannot be set"),
    ({"kafka.bootstrap.servers": "-"}, "kafka.bootstrap.servers is missing"),
    ({"subscribe": "no-such-topic"}, "there is no topic no-such-topic"),
    ({"subscribe": " ,"}, "subscribe names no topic"),
    ({"subscribe": "-"}, "exactly one of subscribe"),
    ({"assign": '{"TOPIC": [0]}'}, "exactly one of subscribe"),
    ({"subscribe": "-", "assign": "[1]"}, "assign must be like"),
    ({"subscribe": "-", "subscribePattern": "("}, "not a regular expression"),
    ({"subscribe": "-", "subscribePattern": ""}, "subscribePattern is empty"),
]


BY_TASKS: Final = "ends at offset 20, before startingOffsets"
"""Errors that the connector raises only in its tasks, after four attempts."""


def test_options_that_the_connector_refuses_are_refused_before_a_job_runs(
    topics: Topics, client: BlockingClient, read: Reader
) -> None:
    topic = topics.create(partitions=len(SIZES))
    for partition, size in SIZES.items():
        produce_values(client, topic, partition, range(size))

    for options, message in ERRORS:
        with pytest.raises(HeadraceError, match=re.escape(message.replace("TOPIC", topic))):
            planned(given(read, topic, options))
        if message != f"TOPIC-0 {BY_TASKS}":
            with pytest.raises(Exception):  # noqa: B017, PT011 - of many kinds
                opened(read, "kafka", topic, options).rdd.getNumPartitions()


def planned(options: Options) -> list[Any]:
    """Call the source as Spark does before a job runs."""
    checked = source_options(options, streaming=False)
    return batch_ranges(shared_client(checked.client), checked)


@pytest.mark.parametrize(
    ("options", "message", "when"),
    [
        ({"minPartitions": "0"}, "minPartitions must be", "load"),
        ({"startingOffsets": "latest"}, "startingOffsets cannot be latest", "plan"),
        ({"subscribe": "no-such-topic"}, "there is no topic no-such-topic", "plan"),
    ],
)
def test_errors_come_as_early_as_spark_lets_a_source_speak(
    read: Reader, options: Options, message: str, when: str
) -> None:
    if when == "load":
        with pytest.raises(AnalysisException, match=message):
            opened(read, "headrace", "any", options)
        return
    frame = opened(read, "headrace", "any", options)
    with pytest.raises(AnalysisException, match=message):
        frame.rdd.getNumPartitions()


STREAMS: Final[list[Options]] = [
    {"startingOffsets": "earliest", "maxOffsetsPerTrigger": "9"},
    {"startingOffsets": "earliest", "maxOffsetsPerTrigger": "10", "minOffsetsPerTrigger": "8"},
    {"startingTimestamp": f"{T0 + 2}", "startingOffsetsByTimestampStrategy": "latest"},
    {"startingOffsets": offsets(18, -2, -1), "maxRecordsPerPartition": "1"},
    {"startingTimestamp": "-2", "maxOffsetsPerTrigger": "20"},
]


def logged(checkpoint: Path) -> list[dict[str, dict[str, int]]]:
    """Return the end offsets of each batch."""
    numbers = sorted(
        int(each.name) for each in (checkpoint / "offsets").iterdir() if each.name.isdigit()
    )
    found = []
    for number in numbers:
        place = json.loads((checkpoint / "offsets" / str(number)).read_text().splitlines()[2])
        place.pop("$headrace", None)
        found.append(place)
    return found


def run(read: Reader, source: str, topic: str, options: Options, checkpoint: Path) -> int:
    """Run a query over the present records, and return the number of rows."""
    stream = opened(read, source, topic, options, stream=True)
    writer = stream.writeStream.format("noop").trigger(availableNow=True)
    query = writer.option("checkpointLocation", str(checkpoint)).start()
    assert query.awaitTermination(120)
    assert query.exception() is None
    return sum(progress["numInputRows"] for progress in query.recentProgress)


def test_streams_with_the_same_options_have_the_same_batches(
    topics: Topics, client: BlockingClient, read: Reader, tmp_path: Path
) -> None:
    topic = topics.create(partitions=len(SIZES))
    for partition, size in SIZES.items():
        produce_values(client, topic, partition, range(size))

    places: dict[str, list[Any]] = {}
    for source in SOURCES:
        checkpoints = [tmp_path / f"{source}-{number}" for number in range(len(STREAMS))]
        for options, checkpoint in zip(STREAMS, checkpoints, strict=True):
            run(read, source, topic, options, checkpoint)
        places[source] = [logged(checkpoint) for checkpoint in checkpoints]

    ends = {topic: {str(partition): size for partition, size in SIZES.items()}}
    for options, ours, theirs in zip(STREAMS, places["headrace"], places["kafka"], strict=True):
        assert ours[: len(theirs)] == theirs, options
        assert ours[-1] == ends, options
        if "minOffsetsPerTrigger" not in options:
            assert len(ours) == len(theirs), options
    # With fewer records than its minimum, the connector ends an AvailableNow run without reading them.
    assert places["kafka"][1][-1] != ends


def test_a_query_continues_from_a_checkpoint_of_the_connector(
    topics: Topics, client: BlockingClient, read: Reader, tmp_path: Path
) -> None:
    topic = topics.create(partitions=2)
    options = {"startingOffsets": "earliest"}
    produce_values(client, topic, 0, range(5))
    assert run(read, "kafka", topic, options, tmp_path) == 5
    produce_values(client, topic, 0, range(5, 8))
    produce_values(client, topic, 1, range(2))

    assert run(read, "headrace", topic, options, tmp_path) == 5

    assert logged(tmp_path)[-1] == {topic: {"0": 8, "1": 2}}
