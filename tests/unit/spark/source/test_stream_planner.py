"""The planner of streams with a cluster in memory: start, batches, restarts, and topics that change."""

from __future__ import annotations

import json
import pickle
from dataclasses import replace
from typing import Any

import pytest

from headrace.clients.blocking import OffsetAndMetadata
from headrace.errors import ApiError, ConfigError, ErrorCode
from headrace.spark.options.selection import TopicSelection
from headrace.spark.options.source import SourceOptions, source_options
from headrace.spark.readers.stream import HeadraceStreamReader
from headrace.spark.source.offsets import DataLossError, StreamOffsets, TopicDescription
from headrace.spark.source.planner import StreamPlanner
from headrace.spark.source.progress import REPEAT_S
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
    found = [wanted for task in planner.tasks(start, end) for wanted in task.ranges]
    return sorted((each.topic_partition, each.start, each.end) for each in found)


def run(planner: StreamPlanner, start: StreamOffsets) -> tuple[StreamOffsets, list]:
    end = through_the_log(planner.latest(start))
    return end, ranges(planner, start, end)


def test_batches_follow_each_other_without_gap(cluster: FakeCluster) -> None:
    planner = StreamPlanner(cluster, options(max_offsets_per_trigger=4))
    place, covered = planner.initial(), []
    for grown in (0, 5, 1):
        cluster.grow("a", 1, grown)
        place, batch = run(planner, place)
        covered += batch
    end = through_the_log(planner.latest(place, limited=False))
    covered += ranges(planner, place, end)

    for each, size in ((A0, 10), (A1, 6)):
        spans = [
            (first, stop) for topic_partition, first, stop in covered if topic_partition == each
        ]
        assert [offset for span in spans for offset in range(*span)] == list(range(size))


def test_a_stream_without_new_records_returns_the_same_offsets(cluster: FakeCluster) -> None:
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
    logged = through_the_log(planner.latest(start))
    cluster.grow("a", 0, 100)

    again = StreamPlanner(cluster, options(starting="latest"))
    late_start = through_the_log(again.initial())

    assert late_start.positions[A0] == 117
    assert ranges(again, late_start, logged) == [(A0, 10, 17)]
    _, following = run(again, logged)
    assert following == [(A0, 17, 117)]


def test_available_now_ends_where_it_began_to_run(cluster: FakeCluster) -> None:
    planner = StreamPlanner(cluster, options(max_offsets_per_trigger=6, min_offsets_per_trigger=5))
    place = planner.initial()
    planner.set_target()
    cluster.grow("a", 0, 90)
    cluster.grow("a", 2, 5)  # a partition added meanwhile

    place, first = run(planner, place)
    place, second = run(planner, place)

    assert [*first, *second] == [(A0, 0, 6), (A0, 6, 10)], "the last four are not waited with"
    assert through_the_log(planner.latest(place)) == place

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
def test_lost_data_fails_the_query_or_is_skipped(
    cluster: FakeCluster, change, message: str
) -> None:
    planner = StreamPlanner(cluster, options())
    place, _ = run(planner, planner.initial())
    change(cluster)

    with pytest.raises(DataLossError, match=message) as caught:
        planner.latest(place)
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
    logged = through_the_log(planner.latest(planner.initial()))
    cluster.ids["a"] = "another"

    with pytest.raises(DataLossError, match="created again"):
        ranges(StreamPlanner(cluster, options()), planner.initial(), logged)


def test_wrong_options_are_raised_at_the_first_call_not_by_the_constructor() -> None:
    reader = HeadraceStreamReader(ConfigError("option x"))

    with pytest.raises(ConfigError, match="option x"):
        reader.initialOffset()


def test_deleted_starting_offsets_fail_or_move_to_the_log_start(cluster: FakeCluster) -> None:
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


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_a_batch_waits_for_enough_records_but_not_for_ever(cluster: FakeCluster) -> None:
    clock = Clock()
    waiting = options(min_offsets_per_trigger=20, max_trigger_delay_ms=60_000)
    planner = StreamPlanner(cluster, waiting, clock=clock)

    place, first = run(planner, planner.initial())
    assert first == [(A0, 0, 10)], "as with Spark's connector, the first batch does not wait"
    cluster.grow("a", 0, 19)
    assert planner.latest(place) is place
    cluster.grow("a", 1, 1)
    place, second = run(planner, place)
    assert second == [(A0, 10, 29), (A1, 0, 1)]
    cluster.grow("a", 0, 3)
    clock.now += 59
    assert planner.latest(place) is place
    clock.now += 1
    assert run(planner, place)[1] == [(A0, 29, 32)]


def test_limits_hold_together_and_not_when_spark_asks_for_all(cluster: FakeCluster) -> None:
    cluster.grow("a", 1, 90)
    cluster.sizes = {A0: 1000.0, A1: 10.0}
    both = options(max_offsets_per_trigger=50, max_bytes_per_trigger=2725)
    planner = StreamPlanner(cluster, both)

    _, batch = run(planner, planner.initial())
    everything = planner.latest(planner.initial(), limited=False)

    assert batch == [(A0, 0, 2), (A1, 0, 22)], "5 and 45 by offsets, of which the bytes allow half"
    assert everything.positions == {A0: 10, A1: 90}


def test_a_batch_that_is_run_again_has_the_tasks_that_it_had(cluster: FakeCluster) -> None:
    first = StreamPlanner(cluster, options(min_partitions=4, max_tasks=5))
    start = first.initial()
    logged = through_the_log(first.latest(start))

    again = StreamPlanner(cluster, options(max_tasks=1))

    before, after = (planner.tasks(start, logged) for planner in (first, again))
    assert [task.ranges for task in after] == [task.ranges for task in before]
    assert len(after) == 4


def test_processed_offsets_are_committed_to_the_group(cluster: FakeCluster) -> None:
    clock = Clock()
    planner = StreamPlanner(cluster, options(group="shop"), clock=clock)
    place = planner.initial()
    end, _ = run(planner, place)
    assert {each: kept.offset for each, kept in cluster.committed["shop"].items()} == {A0: 0, A1: 0}
    run(planner, end)
    assert cluster.committed["shop"] == {
        A0: OffsetAndMetadata(10, leader_epoch=0),
        A1: OffsetAndMetadata(0, leader_epoch=0),
    }

    run(planner, end)
    assert cluster.commits == 2, "nothing new"
    clock.now += REPEAT_S
    run(planner, end)
    assert cluster.commits == 3, "or brokers would forget the offsets"


def test_a_group_that_cannot_be_committed_to_is_refused_at_first_and_warned_of_later(
    cluster: FakeCluster, caplog: pytest.LogCaptureFixture
) -> None:
    planner = StreamPlanner(cluster, options(group="shop"))
    refused = ApiError(ErrorCode.GROUP_AUTHORIZATION_FAILED, "no")
    cluster.commit_error = refused
    with pytest.raises(ConfigError, match="option group: offsets cannot be committed to shop"):
        planner.latest(planner.initial())

    cluster.commit_error = None
    place, _ = run(planner, planner.initial())
    cluster.commit_error = refused
    assert planner.latest(place).positions == place.positions
    assert "not committed to group shop" in caplog.text


def test_a_truncated_log_that_grew_again_is_noticed_by_its_epoch(
    cluster: FakeCluster,
) -> None:
    planner = StreamPlanner(cluster, options())
    place, _ = run(planner, planner.initial())
    cluster.epochs[A0] = [0, 10]  # a new leader with the whole log
    cluster.grow("a", 0, 5)
    assert planner.latest(place).positions[A0] == 15
    assert len(cluster.asked_epochs) == 1
    planner.latest(place)
    assert len(cluster.asked_epochs) == 1, "asked once for each new epoch"

    cluster.epochs[A0] = [0, 6]  # a new leader without the last four records; others lie there
    with pytest.raises(
        DataLossError, match=r"a-0 was truncated at offset 6 after .* up to offset 10"
    ):
        StreamPlanner(cluster, options()).latest(place)
    lenient = StreamPlanner(cluster, options(fail_on_data_loss=False))
    after, batch = run(lenient, place)
    assert (after.positions[A0], batch) == (6, [])
    assert run(lenient, after)[1] == [(A0, 6, 15)]


def test_records_removed_before_they_were_read_are_noticed_before_a_task_runs(
    cluster: FakeCluster,
) -> None:
    start = StreamPlanner(cluster, options()).initial()
    cluster.logs[A0] = (6, 10)

    with pytest.raises(DataLossError, match="offsets 0 to 5 of a-0 were removed before"):
        StreamPlanner(cluster, options()).latest(start)
    lenient = StreamPlanner(cluster, options(fail_on_data_loss=False, max_offsets_per_trigger=3))
    end = lenient.latest(start)
    assert end.positions[A0] == 9, "the limit counts what there is"


def test_a_new_partition_with_removed_records_is_reported(cluster: FakeCluster) -> None:
    planner = StreamPlanner(cluster, options())
    place, _ = run(planner, planner.initial())
    cluster.logs[TopicPartition("a", 2)] = (4, 9)

    with pytest.raises(DataLossError, match="offsets 0 to 3 of a-2 were removed before"):
        planner.latest(place)


def test_topics_that_the_options_no_longer_name_are_reported(cluster: FakeCluster) -> None:
    cluster.grow("b", 0, 3)
    both = options(selection=TopicSelection(topics=("a", "b")))
    place, _ = run(StreamPlanner(cluster, both), StreamPlanner(cluster, both).initial())

    with pytest.raises(DataLossError, match="topic b does not exist any more, or the options"):
        StreamPlanner(cluster, options()).latest(place)
    matching = options(selection=TopicSelection(pattern="a.*"))
    with pytest.raises(DataLossError, match="the options do not name partition b-0"):
        StreamPlanner(cluster, matching).latest(place)


def test_an_empty_topic_causes_one_empty_batch(cluster: FakeCluster) -> None:
    cluster.logs[A0] = (0, 0)
    planner = StreamPlanner(cluster, options())

    place, batch = run(planner, planner.initial())

    assert batch == []
    assert planner.latest(place) is place
    assert planner.tasks(place, place) == []


def test_tasks_contain_the_id_of_their_topic(cluster: FakeCluster) -> None:
    planner = StreamPlanner(cluster, options(min_partitions=3))
    start = planner.initial()

    tasks = planner.tasks(start, planner.latest(start))

    assert {wanted.topic_id for task in tasks for wanted in task.ranges} == {"id-a"}


def described(*partitions: int, topic_id: str = "id-a") -> dict[str, TopicDescription]:
    return {"a": TopicDescription(topic_id, partitions)}


@pytest.mark.parametrize("stale", [{}, described(0), described(0, 1, topic_id="old")])
def test_metadata_of_a_stale_broker_is_requested_again(
    cluster: FakeCluster, stale: dict[str, TopicDescription]
) -> None:
    planner = StreamPlanner(cluster, options())
    start = replace(planner.initial(), first_start=None)
    cluster.grow("a", 1, 2)
    cluster.stale = [stale, stale]

    end, covered = run(planner, start)

    assert covered == [(A0, 0, 10), (A1, 0, 2)]
    cluster.stale = [stale, stale]
    assert ranges(StreamPlanner(cluster, options()), start, end) == covered


def test_a_topic_that_only_some_brokers_know_is_found(cluster: FakeCluster) -> None:
    cluster.stale = [{}, {}]

    assert StreamPlanner(cluster, options()).initial().positions == {A0: 0, A1: 0}
