"""Kafka's key hash, and the other ways to choose a partition."""

from __future__ import annotations

import random

import pytest
from aiokafka.partitioner import murmur2 as reference_murmur2
from hypothesis import given
from hypothesis import strategies as st

from headrace.clients.partitioners import (
    KeyHash,
    Random,
    RoundRobin,
    Sticky,
    murmur2,
    partition_for_key,
    partitioner_factory,
    register_partitioner,
)
from headrace.errors import ConfigError


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
    sticky = KeyHash(random.Random(7).randrange)
    every = range(6)
    first = sticky.partition(None, b"", every, 6)
    assert {sticky.partition(None, b"", every, 6) for _ in range(50)} == {first}
    sticky.batch_closed((first + 1) % 6, every)
    assert sticky.partition(None, b"", every, 6) == first, "another partition's batch says nothing"
    seen = {first}
    for _ in range(60):
        before = sticky.partition(None, b"", every, 6)
        sticky.batch_closed(before, every)
        assert sticky.partition(None, b"", every, 6) != before
        seen.add(sticky.partition(None, b"", every, 6))
    assert seen == set(every)


def test_sticky_uses_the_only_partition_of_a_topic() -> None:
    sticky = Sticky(random.Random(7).randrange)
    sticky.batch_closed(sticky.partition(None, b"", [0], 1), [0])
    assert sticky.partition(b"any", b"", [0], 1) == 0


def test_sticky_ignores_keys_and_avoids_partitions_without_a_leader() -> None:
    sticky = Sticky(random.Random(7).randrange)
    for _ in range(20):
        partition = sticky.partition(b"key", b"", [1, 3], 4)
        assert partition in (1, 3)
        sticky.batch_closed(partition, [1, 3])


def test_round_robin_takes_turns_and_goes_on_where_it_was_saved() -> None:
    first = RoundRobin()
    assert [first.partition(b"same", b"", range(3), 3) for _ in range(4)] == [0, 1, 2, 0]
    second = RoundRobin()
    second.load(first.dump())
    assert [second.partition(None, b"", range(3), 3) for _ in range(3)] == [1, 2, 0]
    assert [second.partition(None, b"", range(5), 5) for _ in range(3)] == [1, 2, 3], (
        "more partitions"
    )


def test_random_reaches_every_partition_that_has_a_leader() -> None:
    chosen = Random(random.Random(7).randrange)
    assert {chosen.partition(b"k", b"", [0, 2, 3], 4) for _ in range(100)} == {0, 2, 3}


class EvenLengths:
    def partition(self, key, value, available, count):
        return len(value) % count


def test_partitioners_are_found_by_name_class_and_object() -> None:
    choose = random.Random(7).randrange
    assert isinstance(partitioner_factory("key_hash")(choose), KeyHash)
    assert partitioner_factory("round_robin")(choose) is not partitioner_factory("round_robin")(
        choose
    )
    assert isinstance(partitioner_factory(Random)(choose), Random)
    assert partitioner_factory(EvenLengths)(choose).partition(None, b"abc", range(2), 2) == 1
    shared = EvenLengths()
    assert partitioner_factory(shared)(choose) is shared
    register_partitioner("even lengths", lambda choose: EvenLengths())
    assert isinstance(partitioner_factory("even lengths")(choose), EvenLengths)


@pytest.mark.parametrize("wrong", ["roundrobin", 7, object, bytes, b"x"])
def test_an_object_that_is_not_a_partitioner_is_refused(wrong: object) -> None:
    with pytest.raises(ConfigError, match="partitioner"):
        partitioner_factory(wrong)  # type: ignore[arg-type]  # that it is wrong is the test
