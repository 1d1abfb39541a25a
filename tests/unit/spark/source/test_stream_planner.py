"""The stream's planner against a cluster in memory: start, batches, restarts, and topics that change under it."""

from __future__ import annotations

import json
import pickle
from dataclasses import replace
from typing import Any

import pytest

from headrace.errors import ConfigError
from headrace.spark.options.source import SourceOptions, source_options
from headrace.spark.source.offsets import DataLossError, StreamOffsets
from headrace.spark.source.stream import HeadraceStreamReader, StreamPlanner
from headrace.types import TopicPartition
from tests.unit.spark.fakes import FakeCluster

A0, A1 = TopicPartition("a", 0), TopicPartition("a", 1)


def options(**changes: Any) -> SourceOptions:
    base = {
        "kafka.bootstrap.servers": "localhost:1",
        "subscribe": "a",
        "startingOffsets": "earliest",
    }
    return replace(source_options(base, streaming=True), **changes)


@pytest.fixture
def cluster() -> FakeCluster:
    cluster = FakeCluster()
    cluster.grow("a", 0, 10)
    cluster.grow("a", 1, 0)
    return cluster


def through_the_log(offsets: StreamOffsets) -> StreamOffsets:
    return StreamOffsets.from_json(json.loads(json.dumps(offsets.to_json())))


def ranges(planner: StreamPlanner, start: StreamOffsets, end: StreamOffsets) -> list[tuple]:
    return [tuple(vars(task.wanted).values()) for task in planner.ranges(start, end)]


def run(
    planner: StreamPlanner, start: StreamOffsets, max_offsets: int | None = None
) -> tuple[StreamOffsets, list]:
    end = through_the_log(planner.latest(start, max_offsets))
    return end, ranges(planner, start, end)


def test_batches_follow_each_other_without_gap(cluster: FakeCluster) -> None:
    planner = StreamPlanner(cluster, options())
    place, covered = planner.initial(), []
    for grown in (0, 5, 1):
        cluster.grow("a", 1, grown)
        place, batch = run(planner, place, 4)
        covered += batch
    place, batch = run(planner, place)
    covered += batch

    for each, end in ((A0, 10), (A1, 6)):
        spans = [
            (first, stop) for topic_partition, first, stop in covered if topic_partition == each
        ]
        assert [offset for span in spans for offset in range(*span)] == list(range(end))


def test_nothing_new_is_the_very_same_place(cluster: FakeCluster) -> None:
    reader = HeadraceStreamReader(options())
    reader._planner = StreamPlanner(cluster, options())
    first = reader.latestOffset(reader.initialOffset(), reader.getDefaultReadLimit())
    second = reader.latestOffset(first, reader.getDefaultReadLimit())

    assert json.dumps(second) == json.dumps(first), (
        "an equal text is what keeps Spark from an empty batch"
    )


def test_latest_is_pinned_for_a_query_that_fails_in_its_first_batch(cluster: FakeCluster) -> None:
    planner = StreamPlanner(cluster, options(starting="latest"))
    start = planner.initial()
    cluster.grow("a", 0, 7)
    assert planner.initial() == start, "Spark asks twice"
    logged = through_the_log(planner.latest(start, None))
    cluster.grow("a", 0, 100)

    again = StreamPlanner(cluster, options(starting="latest"))
    late_start = through_the_log(again.initial())

    assert late_start.positions[A0] == 117
    assert ranges(again, late_start, logged) == [(A0, 10, 17)]
    _, following = run(again, logged)
    assert following == [(A0, 17, 117)]


def test_available_now_ends_where_it_began_to_run(cluster: FakeCluster) -> None:
    planner = StreamPlanner(cluster, options())
    planner.set_target()
    cluster.grow("a", 0, 90)
    cluster.grow("a", 2, 5)  # a partition added meanwhile

    place, first = run(planner, planner.initial(), 6)
    place, second = run(planner, place, 6)

    assert [*first, *second] == [(A0, 0, 6), (A0, 6, 10)]
    assert through_the_log(planner.latest(place, 6)) == place

    later = StreamPlanner(cluster, options())
    later.set_target()
    _, third = run(later, place)
    assert third == [(A0, 10, 100), (TopicPartition("a", 2), 0, 5)]


def test_topics_that_match_a_pattern_later_are_read_from_their_beginning(
    cluster: FakeCluster,
) -> None:
    selection = source_options(
        {"kafka.bootstrap.servers": "localhost:1", "subscribePattern": "a.*"}, streaming=True
    )
    planner = StreamPlanner(cluster, selection)
    place, _ = run(planner, planner.initial())
    cluster.grow("another", 0, 3)

    _, batch = run(planner, place)

    assert batch == [(TopicPartition("another", 0), 0, 3)]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda cluster: cluster.remove("a"), "topic a does not exist any more"),
        (lambda cluster: cluster.logs.pop(A1), "partition a-1 does not exist any more"),
        (lambda cluster: cluster.ids.update(a="another"), "topic a was deleted and created again"),
        (
            lambda cluster: cluster.logs.update({A0: (0, 4)}),
            "a-0 ends at offset 4, before offset 10",
        ),
    ],
)
def test_what_is_gone_stops_the_query_or_is_passed_over(
    cluster: FakeCluster, change, message: str
) -> None:
    planner = StreamPlanner(cluster, options())
    place, _ = run(planner, planner.initial())
    change(cluster)

    with pytest.raises(DataLossError, match=message) as caught:
        planner.latest(place, None)
    assert "failOnDataLoss" in str(caught.value)

    lenient = StreamPlanner(cluster, options(fail_on_data_loss=False))
    after, _ = run(lenient, place)
    cluster.grow("a", 0, 2)
    _, batch = run(lenient, after)
    assert batch[-1][0] == A0
    assert batch[-1][2] - batch[-1][1] == 2


def test_a_logged_batch_of_a_topic_created_again_is_not_read_from_the_new_one(
    cluster: FakeCluster,
) -> None:
    planner = StreamPlanner(cluster, options())
    logged = through_the_log(planner.latest(planner.initial(), None))
    cluster.ids["a"] = "another"

    with pytest.raises(DataLossError, match="created again"):
        ranges(StreamPlanner(cluster, options()), planner.initial(), logged)


def test_wrong_options_are_raised_at_the_first_call_not_by_the_constructor() -> None:
    reader = HeadraceStreamReader(ConfigError("option x"))

    with pytest.raises(ConfigError, match="option x"):
        reader.initialOffset()


def test_starting_offsets_that_are_gone_fail_or_move(cluster: FakeCluster) -> None:
    cluster.logs[A0] = (6, 10)
    start = {A0: 2, A1: -1}

    with pytest.raises(DataLossError, match="offsets 2 to 5 of a-0 were removed"):
        StreamPlanner(cluster, options(starting=start)).initial()
    lenient = StreamPlanner(cluster, options(starting=start, fail_on_data_loss=False))
    assert lenient.initial().positions == {A0: 6, A1: 0}


def test_the_reader_is_pickled_for_tasks_without_its_connections(cluster: FakeCluster) -> None:
    reader = HeadraceStreamReader(options())
    reader._planner = StreamPlanner(cluster, options())

    assert pickle.loads(pickle.dumps(reader))._planner is None
