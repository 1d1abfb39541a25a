"""The offsets of a batch read: by the options for offsets and times, with a cluster in memory."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from headrace.errors import ConfigError
from headrace.spark.options.selection import TopicSelection
from headrace.spark.options.source import SourceOptions, source_options
from headrace.spark.readers.batch import HeadraceBatchReader, batch_ranges
from headrace.spark.source.offsets import DataLossError, OffsetRange, TopicDescription
from headrace.spark.source.resolving import check_exists, select
from headrace.types import TopicPartition
from tests.unit.spark.fakes import FakeCluster

A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)
TOPOLOGY = {
    "a": TopicDescription("id-a", (0, 1)),
    "b": TopicDescription("", (0,)),
    "ab": TopicDescription("id-ab", (0,)),
}


def options(**changes: Any) -> SourceOptions:
    base = {"kafka.bootstrap.servers": "localhost:1", "subscribe": "a"}
    return replace(source_options(base, streaming=False), **changes)


def given(**texts: str) -> SourceOptions:
    base = {"kafka.bootstrap.servers": "localhost:1", "subscribe": "a"}
    return source_options({**base, **texts}, streaming=False)


@pytest.fixture
def cluster() -> FakeCluster:
    cluster = FakeCluster()
    cluster.grow("a", 0, 20)
    return cluster


def test_a_batch_read_covers_all_records_without_empty_ranges(cluster: FakeCluster) -> None:
    cluster.grow("a", 1, 0)
    cluster.logs[A0] = (3, 20)

    assert batch_ranges(cluster, options()) == [OffsetRange(A0, 3, 20)]


def test_a_batch_read_between_given_offsets(cluster: FakeCluster) -> None:
    given = options(starting={A0: 5}, ending={A0: -1})

    assert batch_ranges(cluster, given) == [OffsetRange(A0, 5, 20)]


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        (
            {"starting": {A0: 5, TopicPartition("b", 0): 1}},
            ConfigError,
            "names b-0, which the query does not read",
        ),
        ({"starting": {}}, ConfigError, "startingOffsets does not name a-0"),
        ({"ending": {A0: 21}}, DataLossError, "a-0 ends at offset 20, before endingOffsets 21"),
        (
            {"starting": {A0: 9}, "ending": {A0: 8}},
            ConfigError,
            "starts at offset 9, after its end at 8",
        ),
        ({"starting": {A0: 25}}, ConfigError, "ends at offset 20, before startingOffsets 25"),
        (
            {"starting": {A0: 25}, "fail_on_data_loss": False},
            ConfigError,
            "ends at offset 20, before startingOffsets 25",
        ),
    ],
)
def test_offsets_that_do_not_fit_are_refused_before_a_task_runs(
    cluster: FakeCluster, changes: dict, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        batch_ranges(cluster, options(**changes))


def test_without_fail_on_data_loss_a_read_ends_where_the_log_does(cluster: FakeCluster) -> None:
    lenient = options(ending={A0: 25}, fail_on_data_loss=False)

    assert batch_ranges(cluster, lenient) == [OffsetRange(A0, 0, 20)]


@pytest.mark.parametrize(
    ("texts", "span"),
    [
        ({"startingTimestamp": "35"}, (4, 20)),
        ({"startingTimestamp": "40", "endingTimestamp": "120"}, (4, 12)),
        ({"endingTimestamp": "9999"}, (0, 20)),
        ({"startingTimestamp": "0"}, (0, 20)),
        ({"startingTimestamp": "-2", "endingTimestamp": "-1"}, (0, 20)),
        ({"startingTimestamp": "50", "endingTimestamp": "-1"}, (5, 20)),
        ({"startingOffsetsByTimestamp": '{"a": {"0": -2}}', "endingTimestamp": "120"}, (0, 12)),
        ({"startingOffsetsByTimestamp": '{"a": {"0": 150}}'}, (15, 20)),
        ({"endingOffsetsByTimestamp": '{"a": {"0": 150}}'}, (0, 15)),
        # A time for all partitions takes precedence over times for each, and times over offsets.
        ({"startingTimestamp": "50", "startingOffsetsByTimestamp": '{"a": {"0": 1}}'}, (5, 20)),
        (
            {"startingOffsetsByTimestamp": '{"a": {"0": 60}}', "startingOffsets": "earliest"},
            (6, 20),
        ),
        ({"endingTimestamp": "50", "endingOffsetsByTimestamp": '{"a": {"0": 1}}'}, (0, 5)),
        ({"endingOffsetsByTimestamp": '{"a": {"0": 60}}', "endingOffsets": "latest"}, (0, 6)),
    ],
)
def test_times_are_the_first_record_of_that_time_or_later(
    cluster: FakeCluster, texts: dict[str, str], span: tuple[int, int]
) -> None:
    assert batch_ranges(cluster, given(**texts)) == [OffsetRange(A0, *span)]


def test_a_time_that_no_record_has_is_an_error_or_the_end(cluster: FakeCluster) -> None:
    with pytest.raises(ConfigError, match=r"startingTimestamp: a-0 has no record of 500 or later"):
        batch_ranges(cluster, given(startingTimestamp="500"))
    late = given(startingTimestamp="500", startingOffsetsByTimestampStrategy="latest")
    assert batch_ranges(cluster, late) == []


def test_times_for_each_partition_are_for_all_of_them(cluster: FakeCluster) -> None:
    cluster.grow("a", 1, 3)

    with pytest.raises(ConfigError, match="startingOffsetsByTimestamp does not name a-1"):
        batch_ranges(cluster, given(startingOffsetsByTimestamp='{"a": {"0": 5}}'))


def test_spark_is_offered_no_filters() -> None:
    """If the reader had a method `pushFilters`, Spark would fail each query with its default settings."""
    assert "pushFilters" not in vars(HeadraceBatchReader)


def test_selection_by_name_pattern_and_partition() -> None:
    assert select(TopicSelection(topics=("b", "a")), TOPOLOGY) == [A0, A1, B0]
    assert select(TopicSelection(pattern="a"), TOPOLOGY) == [A0, A1]
    assert select(TopicSelection(pattern="a.*"), TOPOLOGY) == [A0, A1, TopicPartition("ab", 0)]
    assert select(TopicSelection(partitions=(A1, TopicPartition("a", 9))), TOPOLOGY) == [A1]


def test_a_missing_topic_is_named_unless_the_stream_has_read_it() -> None:
    with pytest.raises(ConfigError, match="no topic gone, lost"):
        check_exists(TopicSelection(topics=("gone", "a", "lost")), TOPOLOGY)
    with pytest.raises(ConfigError, match="no partition a-7"):
        check_exists(TopicSelection(partitions=(A0, TopicPartition("a", 7))), TOPOLOGY)
    check_exists(TopicSelection(topics=("gone",)), TOPOLOGY, known=[TopicPartition("gone", 0)])
