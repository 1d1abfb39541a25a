"""Assignors: each partition is assigned once, the load is balanced, few partitions move, as with Kafka's assignors."""

from __future__ import annotations

import warnings
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.clients.assignors import (
    Assignor,
    CooperativeStickyAssignor,
    EqualAssignor,
    MemberSubscription,
    RangeAssignor,
    RoundRobinAssignor,
    StickyAssignor,
    choose_assignors,
)
from headrace.clients.assignors.base import ExistingPartitions, withhold
from headrace.clients.assignors.sticky import decode_history, encode_history
from headrace.types import TopicPartition
from tests.effort import examples

with warnings.catch_warnings():
    warnings.simplefilter(
        "ignore", DeprecationWarning
    )  # kafka-python reads its schemas the old way
    from kafka.coordinator.assignors.range import RangePartitionAssignor
    from kafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
    from kafka.coordinator.assignors.sticky.user_data import StickyAssignorUserData

NAMES = ["range", "roundrobin", "sticky", "cooperative-sticky", "equal"]
TOPICS = ["a", "b", "c", "d"]
EXISTING = ExistingPartitions(dict.fromkeys(TOPICS, 100))

counts = st.dictionaries(st.sampled_from(TOPICS), st.integers(1, 9), min_size=1)
member_ids = st.lists(st.text("mnopq", min_size=1, max_size=3), min_size=1, max_size=6, unique=True)
wishes = st.lists(st.frozensets(st.sampled_from(TOPICS), min_size=1), min_size=6, max_size=6)


def group(members, topics) -> dict[str, MemberSubscription]:
    return {
        member: MemberSubscription(frozenset(wanted))
        for member, wanted in zip(members, topics, strict=False)
    }


def given_out(assignment) -> list[TopicPartition]:
    return sorted(name for partitions in assignment.values() for name in partitions)


def wanted_by_somebody(members, partition_counts) -> list[TopicPartition]:
    return sorted(
        TopicPartition(topic, number)
        for topic, count in partition_counts.items()
        for number in range(count)
        if any(topic in subscription.topics for subscription in members.values())
    )


def after(assignor: Assignor, members, assignment, generation: int):
    """Return the members' subscriptions when they join again with the partitions of an assignment."""
    told = {}
    for member, subscription in members.items():
        partitions = sorted(assignment.get(member, ()))
        owned = tuple(partitions) if assignor.protocol == "cooperative" else ()
        user_data = b""
        if isinstance(assignor, StickyAssignor):
            user_data = encode_history(partitions, generation)
        told[member] = MemberSubscription(subscription.topics, owned, generation, user_data)
    return told


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=examples(60))
@given(members=member_ids, topics=wishes, partition_counts=counts)
def test_every_subscribed_partition_is_assigned_to_a_subscriber(
    name: str, members, topics, partition_counts
) -> None:
    subscriptions = group(members, topics)
    [assignor] = choose_assignors(name)
    assignment = assignor.assign(subscriptions, partition_counts)
    assert set(assignment) == set(members)
    assert given_out(assignment) == wanted_by_somebody(subscriptions, partition_counts)
    for member, partitions in assignment.items():
        assert {topic for topic, _ in partitions} <= subscriptions[member].topics


@pytest.mark.parametrize("name", ["sticky", "cooperative-sticky", "equal", "roundrobin"])
@settings(max_examples=examples(60))
@given(members=member_ids, partition_counts=counts)
def test_equal_subscriptions_give_members_partition_counts_that_differ_by_at_most_one(
    name: str, members, partition_counts
) -> None:
    subscriptions = group(members, [frozenset(TOPICS)] * len(members))
    [assignor] = choose_assignors(name)
    sizes = sorted(map(len, assignor.assign(subscriptions, partition_counts).values()))
    assert sizes[-1] - sizes[0] <= 1


@pytest.mark.parametrize("name", ["sticky", "cooperative-sticky", "equal"])
@settings(max_examples=examples(60))
@given(members=member_ids, topics=wishes, partition_counts=counts)
def test_no_single_move_would_balance_better(name: str, members, topics, partition_counts) -> None:
    subscriptions = group(members, topics)
    [assignor] = choose_assignors(name)
    assignment = assignor.assign(subscriptions, partition_counts)
    for owner, partitions in assignment.items():
        for topic, _ in partitions:
            for other, subscription in subscriptions.items():
                if topic in subscription.topics:
                    assert len(assignment[other]) + 1 >= len(partitions), (owner, other)


@pytest.mark.parametrize("name", ["sticky", "cooperative-sticky", "equal"])
@settings(max_examples=examples(60))
@given(members=member_ids, topics=wishes, partition_counts=counts)
def test_an_unchanged_group_keeps_its_assignment(
    name: str, members, topics, partition_counts
) -> None:
    subscriptions = group(members, topics)
    [assignor] = choose_assignors(name)
    first = assignor.assign(subscriptions, partition_counts)
    again = assignor.assign(after(assignor, subscriptions, first, 3), partition_counts)
    assert again == first


@pytest.mark.parametrize("name", ["sticky", "cooperative-sticky", "equal"])
@settings(max_examples=examples(60))
@given(members=member_ids, partition_counts=counts, newcomer=st.booleans())
def test_only_surplus_moves(name: str, members, partition_counts, *, newcomer: bool) -> None:
    subscriptions = group(members, [frozenset(TOPICS)] * len(members))
    [assignor] = choose_assignors(name)
    first = assignor.assign(subscriptions, partition_counts)
    told = after(assignor, subscriptions, first, 3)
    if newcomer:
        told["zzzz"] = MemberSubscription(frozenset(TOPICS))
    else:
        del told[members[0]]
    if not told:
        return
    second = assignor.assign(told, partition_counts)
    total = sum(partition_counts.values())
    for member, partitions in second.items():
        kept = set(partitions) & set(first.get(member, ()))
        lost = set(first.get(member, ())) - kept
        if newcomer and member != "zzzz":
            assert len(partitions) - len(kept) == 0, "no other member gains when a member joins"
            assert not lost or len(kept) >= total // len(second), "gave up more than the surplus"
        elif not newcomer:
            assert not lost, "no member loses partitions when a member leaves"


def test_equal_over_two_topics_with_ties_by_member_id() -> None:
    subscriptions = group(["e", "d", "c", "b", "a"], [frozenset("xy")] * 5)
    assignment = EqualAssignor().assign(subscriptions, {"x": 4, "y": 3})
    assert {member: len(partitions) for member, partitions in assignment.items()} == {
        "a": 2,
        "b": 2,
        "c": 1,
        "d": 1,
        "e": 1,
    }


# The results of Kafka's assignors, from another implementation


def kafka_view(members, partition_counts):
    cluster = SimpleNamespace(
        partitions_for_topic=lambda topic: (
            set(range(partition_counts[topic])) if topic in partition_counts else None
        )
    )
    return cluster, [
        SimpleNamespace(
            member_id=member,
            group_instance_id=subscription.group_instance_id,
            metadata=SimpleNamespace(topics=sorted(subscription.topics)),
        )
        for member, subscription in sorted(members.items())
    ]


def read_kafka(assigned) -> dict[str, list[TopicPartition]]:
    return {
        member: sorted(
            TopicPartition(topic, number)
            for topic, numbers in assignment.assigned_partitions
            for number in numbers
        )
        for member, assignment in assigned.items()
    }


@settings(max_examples=examples(100))
@given(members=member_ids, topics=wishes, partition_counts=counts)
def test_range_is_kafkas(members, topics, partition_counts) -> None:
    subscriptions = group(members, topics)
    theirs = RangePartitionAssignor.assign(*kafka_view(subscriptions, partition_counts))
    ours = RangeAssignor().assign(subscriptions, partition_counts)
    assert {member: sorted(names) for member, names in ours.items()} == read_kafka(theirs)


@settings(max_examples=examples(100))
@given(members=member_ids, partition_counts=counts, topics=st.frozensets(st.sampled_from(TOPICS)))
def test_round_robin_is_kafkas(members, partition_counts, topics) -> None:
    wanted = topics | set(partition_counts)
    subscriptions = group(members, [wanted] * len(members))
    theirs = RoundRobinPartitionAssignor.assign(*kafka_view(subscriptions, partition_counts))
    ours = RoundRobinAssignor().assign(subscriptions, partition_counts)
    assert {member: sorted(names) for member, names in ours.items()} == read_kafka(theirs)


def test_round_robin_passes_over_members_that_do_not_want_a_topic() -> None:
    # The example of the documentation of Kafka's class.
    subscriptions = group(["C0", "C1", "C2"], [{"t0"}, {"t0", "t1"}, {"t0", "t1", "t2"}])
    assert RoundRobinAssignor().assign(subscriptions, {"t0": 1, "t1": 2, "t2": 3}) == {
        "C0": [TopicPartition("t0", 0)],
        "C1": [TopicPartition("t1", 0)],
        "C2": [TopicPartition("t1", 1), *(TopicPartition("t2", number) for number in range(3))],
    }


def test_static_members_come_first_and_in_the_order_of_their_instances() -> None:
    subscriptions = {
        "a": MemberSubscription(frozenset("t")),
        "b": MemberSubscription(frozenset("t"), group_instance_id="2"),
        "c": MemberSubscription(frozenset("t"), group_instance_id="1"),
    }
    assignment = RangeAssignor().assign(subscriptions, {"t": 3})
    assert [name for name in assignment if assignment[name] == [TopicPartition("t", 0)]] == ["c"]
    assert assignment["b"] == [TopicPartition("t", 1)]


@settings(max_examples=examples(100))
@given(
    partitions=st.lists(
        st.builds(TopicPartition, st.sampled_from(TOPICS), st.integers(0, 99)), unique=True
    ),
    generation=st.integers(-1, 2**31 - 1),
)
def test_user_data_of_sticky_members_is_read_by_other_clients(partitions, generation: int) -> None:
    data = encode_history(partitions, generation)
    assert decode_history(data, EXISTING) == (generation, tuple(sorted(partitions)))
    topics: dict[str, list[int]] = {}
    for topic, number in partitions:
        topics.setdefault(topic, []).append(number)
    theirs = StickyAssignorUserData(list(topics.items()), generation).encode()
    read = decode_history(theirs, EXISTING)
    assert (read[0], sorted(read[1])) == (generation, sorted(partitions))


def test_user_data_of_sticky_members_equals_that_of_kafka() -> None:
    # Written by org.apache.kafka.clients.consumer.StickyAssignor and CooperativeStickyAssignor of Kafka 4.3.
    had = [TopicPartition("t", 1), TopicPartition("t", 2), TopicPartition("u", 0)]
    sticky = StickyAssignor()
    sticky.on_assignment(had, 7)
    assert sticky.subscription_user_data() == bytes.fromhex(
        "00000002000174000000020000000100000002000175000000010000000000000007"
    )
    cooperative = CooperativeStickyAssignor()
    cooperative.on_assignment(had, 7)
    assert cooperative.subscription_user_data() == bytes.fromhex("00000007")


@given(data=st.binary(max_size=60))
def test_any_user_data_of_a_member_is_survived(data: bytes) -> None:
    generation, partitions = decode_history(data, EXISTING)
    assert isinstance(generation, int)
    assert all(isinstance(name, TopicPartition) for name in partitions)


def test_the_claim_of_the_newest_generation_holds() -> None:
    t0 = TopicPartition("t", 0)
    subscriptions = {
        "a": MemberSubscription(frozenset("t"), user_data=encode_history([t0], 4)),
        "b": MemberSubscription(frozenset("t"), user_data=encode_history([t0], 5)),
    }
    assert StickyAssignor().assign(subscriptions, {"t": 1}) == {"a": [], "b": [t0]}
    cooperative = {
        "a": MemberSubscription(frozenset("t"), (t0,), user_data=b"\0\0\0\4"),
        "b": MemberSubscription(frozenset("t"), (t0,), user_data=b"\0\0\0\5"),
    }
    assert CooperativeStickyAssignor().assign(cooperative, {"t": 1}) == {"a": [], "b": [t0]}


@pytest.mark.parametrize("name", ["cooperative-sticky", "equal"])
@settings(max_examples=examples(60))
@given(members=member_ids, partition_counts=counts)
def test_partitions_that_were_held_back_are_assigned_in_the_next_generation(
    name: str, members, partition_counts
) -> None:
    [assignor] = choose_assignors(name)
    subscriptions = group(members, [frozenset(TOPICS)] * len(members))
    told = after(assignor, subscriptions, assignor.assign(subscriptions, partition_counts), 1)
    told["zzzz"] = MemberSubscription(frozenset(TOPICS))
    target = assignor.assign(told, partition_counts)
    first = withhold(target, told)
    owners = {name: member for member, one in told.items() for name in one.owned}
    for member, partitions in first.items():
        assert all(owners.get(name, member) == member for name in partitions)
    told = after(assignor, told, first, 2)
    second = withhold(assignor.assign(told, partition_counts), told)
    assert second == {member: sorted(names) for member, names in target.items()}
