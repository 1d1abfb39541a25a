"""Kafka's key hash, the sticky partitioner, and the range assignor."""

from __future__ import annotations

import random

import pytest
from aiokafka.partitioner import murmur2 as reference_murmur2
from hypothesis import given
from hypothesis import strategies as st

from headrace.clients.flows.assignors import assign_range
from headrace.clients.partitioner import StickyPartitioner, murmur2, partition_for_key
from headrace.types import TopicPartition


@pytest.mark.parametrize(
    ("text", "signed"),
    [
        ("21", -973932308),
        ("foobar", -790332482),
        ("a-little-bit-long-string", -985981536),
        ("a-little-bit-longer-string", -1486304829),
        ("lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        ("abc", 479470107),
    ],
)
def test_murmur2_of_kafkas_own_test_vectors(text: str, signed: int) -> None:
    assert murmur2(text.encode()) == signed & 0xFFFFFFFF


@given(st.binary(max_size=200))
def test_murmur2_equals_another_clients(data: bytes) -> None:
    assert murmur2(data) == reference_murmur2(data) & 0xFFFFFFFF


@given(st.binary(max_size=100), st.integers(1, 1000))
def test_a_key_has_one_partition(key: bytes, count: int) -> None:
    partition = partition_for_key(key, count)
    assert 0 <= partition < count
    assert partition == (murmur2(key) & 0x7FFFFFFF) % count


def test_records_without_key_stay_together_until_the_batch_is_closed() -> None:
    sticky = StickyPartitioner(random.Random(7).randrange)
    first = sticky.partition("t", 6)
    assert {sticky.partition("t", 6) for _ in range(50)} == {first}
    sticky.batch_closed("t", (first + 1) % 6, 6)
    assert sticky.partition("t", 6) == first, "another partition's batch says nothing"
    seen = {first}
    for _ in range(60):
        before = sticky.partition("t", 6)
        sticky.batch_closed("t", before, 6)
        assert sticky.partition("t", 6) != before
        seen.add(sticky.partition("t", 6))
    assert seen == set(range(6))


def test_a_topic_of_one_partition_sticks_to_it() -> None:
    sticky = StickyPartitioner(random.Random(7).randrange)
    sticky.batch_closed("t", sticky.partition("t", 1), 1)
    assert sticky.partition("t", 1) == 0


def test_range_gives_the_first_members_the_rest() -> None:
    assignment = assign_range(
        {"b": frozenset("t"), "a": frozenset("t"), "c": frozenset("t")}, {"t": 7}
    )
    assert {member: [p.partition for p in parts] for member, parts in assignment.items()} == {
        "a": [0, 1, 2],
        "b": [3, 4],
        "c": [5, 6],
    }


def test_range_gives_topics_only_to_those_who_want_them() -> None:
    subscriptions = {"a": frozenset({"t", "u"}), "b": frozenset({"u"}), "c": frozenset({"none"})}
    assignment = assign_range(subscriptions, {"t": 1, "u": 2, "unwanted": 3})
    assert assignment == {
        "a": [TopicPartition("t", 0), TopicPartition("u", 0)],
        "b": [TopicPartition("u", 1)],
        "c": [],
    }


@given(
    st.dictionaries(
        st.text("abcdef", min_size=1, max_size=3), st.frozensets(st.sampled_from("tuv")), min_size=1
    ),
    st.dictionaries(st.sampled_from("tuv"), st.integers(0, 20)),
)
def test_range_assigns_every_wanted_partition_once(subscriptions, counts) -> None:
    assignment = assign_range(subscriptions, counts)
    assert set(assignment) == set(subscriptions)
    given_out = [p for parts in assignment.values() for p in parts]
    wanted = {topic for topics in subscriptions.values() for topic in topics}
    assert sorted(given_out) == sorted(
        TopicPartition(topic, number)
        for topic in counts
        if topic in wanted
        for number in range(counts[topic])
    )
    for member, parts in assignment.items():
        assert {p.topic for p in parts} <= subscriptions[member]
