"""The brokers that are chosen for the replicas of new partitions."""

from __future__ import annotations

from collections import Counter
from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.cluster.placement import placements, with_away

Placed = list[tuple[int, ...]]


def place(
    racks: dict[int, str | None],
    factor: int,
    count: int,
    *,
    start: int = 0,
    present: Placed | None = None,
) -> Placed:
    return list(islice(placements(racks, factor, start=start, present=present or ()), count))


def spread(counts: Counter[int], racks: dict[int, str | None]) -> int:
    """Return the difference between the brokers with the most and the fewest."""
    values = [counts[broker] for broker in racks]
    return max(values) - min(values)


def check(racks: dict[int, str | None], placed: Placed, *, racks_are_equal: bool) -> None:
    """Assert the promises of the module."""
    factor = len(placed[0])
    rack_count = len(set(racks.values()) - {None}) + list(racks.values()).count(None)
    for replicas in placed:
        assert len(set(replicas)) == factor
        used = Counter(racks[broker] or str(broker) for broker in replicas)
        assert max(used.values()) <= -(-factor // rack_count) or not racks_are_equal
        assert len(used) == min(factor, rack_count)
    if racks_are_equal:
        most = 1 if factor <= rack_count else 2
        assert spread(Counter(broker for each in placed for broker in each), racks) <= most
        assert spread(Counter(each[0] for each in placed), racks) <= most


@st.composite
def clusters(draw: st.DrawFn) -> tuple[dict[int, str | None], int]:
    """Draw brokers in racks of equal size, or without racks, and a replication factor."""
    rack_count, size = draw(st.integers(1, 6)), draw(st.integers(1, 4))
    has_racks = draw(st.booleans())
    ids = draw(st.permutations(range(rack_count * size)))
    racks = {broker: f"r{n % rack_count}" if has_racks else None for n, broker in enumerate(ids)}
    return racks, draw(st.integers(1, min(5, len(racks))))


@given(clusters(), st.lists(st.tuples(st.integers(1, 40), st.integers(0, 1_000)), max_size=6))
def test_leaders_and_replicas_stay_balanced_when_a_topic_grows(
    cluster: tuple[dict[int, str | None], int], growths: list[tuple[int, int]]
) -> None:
    racks, factor = cluster
    placed: Placed = []
    for count, start in growths:
        placed += place(racks, factor, count, start=start, present=placed)
        check(racks, placed, racks_are_equal=True)


@given(
    st.dictionaries(
        st.integers(0, 30), st.sampled_from([None, "a", "b", "c"]), min_size=1, max_size=9
    ),
    st.data(),
)
def test_racks_of_any_size_get_at_most_one_replica_of_a_partition_while_there_are_enough(
    racks: dict[int, str | None], data: st.DataObject
) -> None:
    factor = data.draw(st.integers(1, len(racks)))
    check(racks, place(racks, factor, 30), racks_are_equal=False)


@given(clusters(), st.integers(0, 1_000))
def test_the_same_start_gives_the_same_placement(
    cluster: tuple[dict[int, str | None], int], start: int
) -> None:
    racks, factor = cluster
    reversed_racks = dict(reversed(list(racks.items())))
    assert place(racks, factor, 20, start=start) == place(reversed_racks, factor, 20, start=start)


def test_topics_with_one_partition_begin_with_different_brokers() -> None:
    racks: dict[int, str | None] = dict.fromkeys((1, 2, 3))
    leaders = [place(racks, 2, 1, start=start)[0][0] for start in range(6)]
    assert leaders == [1, 2, 3, 1, 2, 3]


def test_the_partitions_of_a_leader_have_different_followers() -> None:
    placed = place(dict.fromkeys(range(6)), 2, 60)
    for leader in range(6):
        assert len({each[1] for each in placed if each[0] == leader}) > 1


def test_partitions_on_brokers_that_are_gone_do_not_count() -> None:
    present: Placed = [(8, 9), (9, 8), (1, 9)]
    assert place(dict.fromkeys((1, 2)), 1, 2, present=present) == [(2,), (1,)]


@pytest.mark.parametrize("factor", [1, 3])
def test_equal_replicas_are_one_object(factor: int) -> None:
    placed = place(dict.fromkeys((1, 2, 3)), factor, 200)
    assert len({id(each) for each in placed}) == len(set(placed))


def test_replicas_on_brokers_that_are_not_live_are_the_last_ones_and_spread_evenly() -> None:
    placed = with_away([(1, 2), (2, 1), (1, 2)], [7, 8, 9], 4, start=0)
    assert list(placed) == [(1, 2, 7, 8), (2, 1, 8, 9), (1, 2, 9, 7)]
    assert list(with_away([(1,)], [7, 8], 2, start=1)) == [(1, 8)]
