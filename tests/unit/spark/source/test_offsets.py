"""Offsets in checkpoints, the ranges of a batch, and the detection of changed topics."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import ConfigError
from headrace.spark.source.division import TaskDivision
from headrace.spark.source.offsets import (
    OffsetRange,
    StreamOffsets,
    TopicDescription,
    plan,
    removed,
)
from headrace.types import TopicPartition

A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)
TOPOLOGY = {
    "a": TopicDescription("id-a", (0, 1)),
    "b": TopicDescription("", (0,)),
    "ab": TopicDescription("id-ab", (0,)),
}


def test_the_json_is_sparks_with_one_extra_key() -> None:
    offsets = StreamOffsets(
        {B0: 3, A1: 2, A0: 1},
        {"a": "id-a", "b": ""},
        {A0: 0},
        {A0: 7, B0: 4},
        TaskDivision(2, min_partitions=9),
    )

    assert json.dumps(offsets.to_json()) == (
        '{"a": {"0": 1, "1": 2}, "b": {"0": 3}, "$headrace": {"version": 2, '
        '"start": {"a": {"0": 0}}, "topicIds": {"a": "id-a"}, "epochs": {"a": {"0": 7}, "b": 4}, '
        '"tasks": {"cores": 2, "min_partitions": 9, "worth": 100000, "least": 1}}}'
    )


# Checkpoints of earlier versions and of Spark's own connector. Queries continue from all of them.
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"a": {"0": 1}}', StreamOffsets({A0: 1})),
        ('{"a":{"1":2,"0":1},"b":{"0":3}}', StreamOffsets({A0: 1, A1: 2, B0: 3})),
        (
            '{"a": {"0": 1}, "$headrace": {"start": {"a": {"0": 0}}, "topicIds": {"a": "id-a"}}}',
            StreamOffsets({A0: 1}, {"a": "id-a"}, {A0: 0}),
        ),
        (
            (
                '{"a": {"0": 1}, "$headrace": {"version": 2, "topicIds": {"a": "id-a"}, '
                '"epochs": {"a": 7}, "tasks": {"cores": 2, "max_records": 5}}}'
            ),
            StreamOffsets(
                {A0: 1}, {"a": "id-a"}, None, {A0: 7}, TaskDivision(2, max_records=5, worth=20_000)
            ),
        ),
    ],
)
def test_checkpoints_of_all_earlier_versions_are_read(text: str, expected: StreamOffsets) -> None:
    assert StreamOffsets.from_json(json.loads(text)) == expected


def test_a_checkpoint_of_a_later_version_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"later version of Headrace .* upgrade"):
        StreamOffsets.from_json({"a": {"0": 1}, "$headrace": {"version": 3}})


partitions = st.builds(TopicPartition, st.sampled_from(["a", "b.c", "x_y-z"]), st.integers(0, 12))
positions = st.dictionaries(partitions, st.integers(0, 1 << 50), max_size=8)


@given(
    positions,
    st.one_of(st.none(), positions),
    st.dictionaries(st.sampled_from("ab"), st.just("id")),
    positions,
    st.one_of(st.none(), st.builds(TaskDivision, st.integers(1, 9), max_records=st.integers(1, 9))),
)
def test_json_round_trip_is_exact_and_canonical(
    at: dict, start: dict | None, ids: dict, epochs: dict, division: TaskDivision | None
) -> None:
    offsets = StreamOffsets(at, ids, start, epochs, division)
    text = json.dumps(offsets.to_json())

    again = StreamOffsets.from_json(json.loads(text))

    assert again == offsets
    assert json.dumps(again.to_json()) == text


@pytest.mark.parametrize("foreign", [{"a": 5}, {"a": {"x": 1}}, {"$headrace": {"start": 3}}])
def test_a_checkpoint_of_something_else_is_refused(foreign: dict) -> None:
    with pytest.raises(ConfigError, match="checkpoint"):
        StreamOffsets.from_json(foreign)


def test_ranges_between_two_offsets_of_a_stream() -> None:
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


def test_a_log_that_moved_back_is_reported() -> None:
    ranges, lost = plan(StreamOffsets({A0: 90}), StreamOffsets({A0: 4}))

    assert not ranges
    assert lost == ["the end of a-0 moved back from offset 90 to 4"]


def test_removed_records_and_topics_created_again_are_reported() -> None:
    known = StreamOffsets(
        {A0: 1, TopicPartition("a", 5): 1, TopicPartition("gone", 0): 1, B0: 1},
        {"a": "other", "b": "x"},
    )

    assert removed(known, TOPOLOGY, {A0}) == [
        "topic a was deleted and created again",
        "topic gone does not exist any more, or the options do not name it any more",
        "partition a-5 does not exist any more",
        "the options do not name partition b-0 any more",
    ]
