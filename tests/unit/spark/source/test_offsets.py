"""Planning: what a checkpoint holds, ranges, limits, and what is noticed when topics change."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import ConfigError
from headrace.spark.options.source import Selection
from headrace.spark.source.offsets import (
    OffsetRange,
    StreamOffsets,
    TopicDescription,
    check_exists,
    limit_total,
    plan,
    removed,
    select,
)
from headrace.types import TopicPartition

A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)
TOPOLOGY = {
    "a": TopicDescription("id-a", (0, 1)),
    "b": TopicDescription("", (0,)),
    "ab": TopicDescription("id-ab", (0,)),
}


def test_the_json_is_sparks_with_one_extra_key() -> None:
    offsets = StreamOffsets({B0: 3, A1: 2, A0: 1}, {"a": "id-a", "b": ""}, {A0: 0})

    assert json.dumps(offsets.to_json()) == (
        '{"a": {"0": 1, "1": 2}, "b": {"0": 3}, '
        '"$headrace": {"start": {"a": {"0": 0}}, "topicIds": {"a": "id-a"}}}'
    )
    assert json.dumps(StreamOffsets({A0: 1}).to_json()) == '{"a": {"0": 1}}'


partitions = st.builds(TopicPartition, st.sampled_from(["a", "b.c", "x_y-z"]), st.integers(0, 12))
positions = st.dictionaries(partitions, st.integers(0, 1 << 50), max_size=8)


@given(
    positions,
    st.one_of(st.none(), positions),
    st.dictionaries(st.sampled_from("ab"), st.just("id")),
)
def test_json_round_trip_is_exact_and_canonical(at: dict, start: dict | None, ids: dict) -> None:
    offsets = StreamOffsets(at, ids, start)
    text = json.dumps(offsets.to_json())

    again = StreamOffsets.from_json(json.loads(text))

    assert again == offsets
    assert json.dumps(again.to_json()) == text


@pytest.mark.parametrize("foreign", [{"a": 5}, {"a": {"x": 1}}, {"$headrace": {"start": 3}}])
def test_a_checkpoint_of_something_else_is_refused(foreign: dict) -> None:
    with pytest.raises(ConfigError, match="checkpoint"):
        StreamOffsets.from_json(foreign)


def test_selection_by_name_pattern_and_partition() -> None:
    assert select(Selection(topics=("b", "a")), TOPOLOGY) == [A0, A1, B0]
    assert select(Selection(pattern="a"), TOPOLOGY) == [A0, A1]
    assert select(Selection(pattern="a.*"), TOPOLOGY) == [A0, A1, TopicPartition("ab", 0)]
    assert select(Selection(partitions=(A1, TopicPartition("a", 9))), TOPOLOGY) == [A1]


def test_what_is_missing_is_named_unless_the_stream_knew_it() -> None:
    with pytest.raises(ConfigError, match="no topic gone, lost"):
        check_exists(Selection(topics=("gone", "a", "lost")), TOPOLOGY)
    with pytest.raises(ConfigError, match="no partition a-7"):
        check_exists(Selection(partitions=(A0, TopicPartition("a", 7))), TOPOLOGY)
    check_exists(Selection(topics=("gone",)), TOPOLOGY, known=[TopicPartition("gone", 0)])


@given(
    st.dictionaries(
        partitions, st.tuples(st.integers(0, 50), st.integers(0, 1000)), min_size=1, max_size=8
    ),
    st.integers(1, 2000),
)
def test_a_limit_is_kept_shared_and_starves_nobody(sizes: dict, limit: int) -> None:
    start = {each: first for each, (first, _) in sizes.items()}
    end = {each: first + size for each, (first, size) in sizes.items()}
    waiting = sum(size for _, size in sizes.values())

    limited = limit_total(start, end, limit)

    assert limited.keys() == end.keys()
    taken = {each: limited[each] - start[each] for each in sizes}
    assert all(0 <= taken[each] <= size for each, (_, size) in sizes.items())
    assert all(taken[each] >= 1 for each, (_, size) in sizes.items() if size)
    assert sum(taken.values()) <= limit + len(sizes)
    if waiting <= limit:
        assert limited == end


def test_a_limit_is_shared_in_proportion() -> None:
    assert limit_total({A0: 0, A1: 10}, {A0: 900, A1: 110}, 100) == {A0: 90, A1: 20}


def test_ranges_between_two_places() -> None:
    ranges, lost = plan(StreamOffsets({A0: 5, A1: 7}), StreamOffsets({A0: 9, A1: 7, B0: 2}))

    assert ranges == [OffsetRange(A0, 5, 9), OffsetRange(B0, 0, 2)], (
        "a new partition is read from 0"
    )
    assert not lost


def test_the_logged_start_of_the_first_batch_wins_over_a_later_latest() -> None:
    logged = StreamOffsets({A0: 150}, first_start={A0: 100})

    ranges, lost = plan(StreamOffsets({A0: 180}), logged)

    assert ranges == [OffsetRange(A0, 100, 150)]
    assert not lost


def test_a_topic_created_again_is_read_from_its_beginning() -> None:
    ranges, lost = plan(StreamOffsets({A0: 90}, {"a": "old"}), StreamOffsets({A0: 4}, {"a": "new"}))

    assert ranges == [OffsetRange(A0, 0, 4)]
    assert not lost


def test_a_log_that_moved_back_is_told() -> None:
    ranges, lost = plan(StreamOffsets({A0: 90}), StreamOffsets({A0: 4}))

    assert not ranges
    assert lost == ["the end of a-0 moved back from offset 90 to 4"]


def test_what_was_removed_or_created_again_is_told() -> None:
    known = StreamOffsets(
        {A0: 1, TopicPartition("a", 5): 1, TopicPartition("gone", 0): 1, B0: 1},
        {"a": "other", "b": "x"},
    )

    assert removed(known, TOPOLOGY) == [
        "topic a was deleted and created again",
        "topic gone does not exist any more",
        "partition a-5 does not exist any more",
    ]
