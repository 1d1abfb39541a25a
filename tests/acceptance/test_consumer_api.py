"""B1 and B2: one consumer API, in groups and with manual assignment, wherever offsets are stored."""

from __future__ import annotations

import asyncio
import time

import pytest

import headrace
from headrace import TopicPartition
from headrace.errors import (
    ConflictingSubscriptionError,
    InvalidCommittedOffsetError,
    NoOffsetError,
    NoSubscriptionError,
    NotAssignedError,
)
from tests.acceptance.place import Member, read_all, until


def zero_of(place, name: str, count: int = 10) -> TopicPartition:
    """A topic of one partition with records."""
    topic = place.topic(name)
    place.fill(topic, range(count))
    return TopicPartition(topic, 0)


def numbers(records) -> list[int]:
    return [int(record.value) for record in records]


@pytest.mark.usefixtures("protocol")
@pytest.mark.parametrize("what", ["topics", "a pattern", "a partition", "an offset"])
def test_b1_topics_patterns_partitions_and_offsets_can_be_read(place, name, what) -> None:
    zero = zero_of(place, name)
    consumer = place.consumer(name)
    if what == "topics":
        consumer.subscribe([name])
    elif what == "a pattern":
        consumer.subscribe(pattern=f"{name}.*", exclude=f"{name}-.+")
    elif what == "a partition":
        consumer.assign([zero])
    else:
        consumer.assign({zero: 6})
    expected = list(range(6 if what == "an offset" else 0, 10))
    assert numbers(read_all(consumer, len(expected))) == expected


def test_b1_poll_ends_in_time_and_within_its_number(place, name) -> None:
    zero = zero_of(place, name)
    consumer = place.consumer()
    consumer.assign([zero])
    until(lambda: len(consumer.poll(1, max_records=3)) == 3)
    consumer.seek_to_end()
    began = time.monotonic()
    assert consumer.poll(0.2) == []
    assert time.monotonic() - began < 5


@pytest.mark.usefixtures("protocol")
@pytest.mark.parametrize("how", ["sync", "async", "given offsets"])
def test_b1_a_consumer_commits_offsets(place, name, how) -> None:
    zero = zero_of(place, name)
    consumer = place.consumer(name, enable_auto_commit=False)
    consumer.subscribe([name])
    read_all(consumer, 10)
    told: list[object] = []
    if how == "sync":
        consumer.commit()
    elif how == "async":
        consumer.commit_async(callback=lambda offsets, error: told.append((set(offsets), error)))
        until(lambda: told or consumer.poll(0.05))
        assert told == [({zero}, None)]
    else:
        consumer.commit({zero: 4})
    found = consumer.committed([zero])[zero]
    assert found is not None
    assert found.offset == (4 if how == "given offsets" else 10)


def test_b1_a_consumer_seeks_and_reports_its_position(place, name) -> None:
    zero = zero_of(place, name)
    consumer = place.consumer()
    consumer.assign([zero])
    assert consumer.position(zero) == 0
    consumer.seek(zero, 7)
    assert (consumer.position(zero), numbers(read_all(consumer, 3))) == (7, [7, 8, 9])
    consumer.seek_to_beginning()
    assert numbers(read_all(consumer, 10)) == list(range(10))
    consumer.seek_to_end()
    assert consumer.position(zero) == 10
    (found,) = consumer.offsets_for_times({zero: 1}).values()
    assert found.offset == 0
    consumer.seek_to_time([zero], 1)
    assert consumer.position(zero) == 0
    assert consumer.lag() == {zero: 10}
    assert consumer.begin_offsets([zero]) == {zero: 0}
    assert consumer.end_offsets([zero]) == {zero: 10}


def test_b1_a_consumer_pauses_and_resumes_partitions(place, name) -> None:
    topic = place.topic(name, 2)
    zero, one = (TopicPartition(topic, number) for number in range(2))
    place.fill(topic, range(20), partitions=2)
    consumer = place.consumer()
    consumer.assign([zero, one])
    consumer.pause([zero])
    assert consumer.paused() == [zero]
    assert {record.partition for record in read_all(consumer, 10)} == {1}
    consumer.resume([zero])
    assert {record.partition for record in read_all(consumer, 10)} == {0}


@pytest.mark.usefixtures("protocol")
def test_b1_assignment_and_committed_wait_until_they_are_known(place, name) -> None:
    zero = zero_of(place, name)
    consumer = place.consumer(name)
    consumer.subscribe([name])
    assert consumer.assignment() == [zero]
    assert consumer.committed([zero]) == {zero: None}
    assert consumer.subscription() == {name}


@pytest.mark.usefixtures("protocol")
def test_b1_committed_covers_everything_consumed(place, name) -> None:
    zero = zero_of(place, name)
    other = zero_of(place, f"{name}-other")
    consumer = place.consumer(name, enable_auto_commit=False)
    consumer.subscribe([zero.topic])
    read_all(consumer, 10)
    consumer.commit({zero: 7})
    consumer.subscribe([other.topic])
    until(lambda: consumer.assignment() == [other])
    found = consumer.committed()
    assert {at: offset and offset.offset for at, offset in found.items()} == {zero: 7, other: None}


@pytest.mark.usefixtures("protocol")
def test_b1_a_consumer_goes_back_to_its_committed_offsets(place, name) -> None:
    zero = zero_of(place, name)
    consumer = place.consumer(name, enable_auto_commit=False)
    consumer.subscribe([name])
    read_all(consumer, 10)
    consumer.seek_to_committed()
    assert numbers(read_all(consumer, 10)) == list(range(10)), "nothing is committed"
    consumer.commit({zero: 6})
    consumer.seek_to_committed()
    assert numbers(read_all(consumer, 4)) == [6, 7, 8, 9]


def test_b1_callbacks_report_assigned_revoked_and_lost_partitions(place, name) -> None:
    zero = zero_of(place, name)
    member = Member(place, name, [name], max_poll_interval_ms=6_000)
    until(lambda: member.partitions, member)
    assert member.told == [("assigned", [zero])]
    place.admin().remove_member(name, member.consumer.group_metadata().member_id)
    until(lambda: ("lost", [zero]) in member.told, member)
    until(lambda: member.partitions, member)
    member.consumer.unsubscribe()
    assert member.told[-1] == ("revoked", [zero])


def test_b1_a_program_assigns_partitions_to_its_consumer(place, name) -> None:
    topic = place.topic(name, 4)

    class Evens:
        name = "evens-to-the-leader"
        protocol = "eager"

        def assign(self, members, partition_counts):
            chosen = [TopicPartition(topic, number) for number in range(0, 4, 2)]
            return {member: chosen if member == min(members) else [] for member in members}

    consumer = place.consumer(name, assignor=Evens)
    consumer.subscribe([topic])
    assert [number for _, number in consumer.assignment()] == [0, 2]


def test_b1_each_failure_has_an_error_of_its_own(place, name) -> None:
    zero = zero_of(place, name)
    idle = place.consumer(name)
    calls = (
        lambda: idle.poll(0),
        idle.commit,
        idle.commit_async,
        idle.assignment,
        idle.committed,
        idle.lag,
        idle.seek_to_committed,
        lambda: idle.position(zero),
        lambda: idle.seek(zero, 0),
        lambda: idle.pause([zero]),
    )
    for call in calls:
        with pytest.raises(NoSubscriptionError):
            call()
    consumer = place.consumer(name, auto_offset_reset="none", enable_auto_commit=False)
    consumer.assign([zero])
    with pytest.raises(ConflictingSubscriptionError):
        consumer.subscribe([name])
    with pytest.raises(NoOffsetError):
        consumer.position(zero)
    with pytest.raises(NotAssignedError):
        consumer.commit({TopicPartition(name, 7): 1})
    with pytest.raises(InvalidCommittedOffsetError):
        consumer.committed([TopicPartition(name, 7)])


@pytest.mark.usefixtures("protocol")
def test_b1_revocation_commits_by_default(place, name) -> None:
    zero = zero_of(place, name)
    member = Member(place, name, [name], auto_commit_interval_ms=600_000)
    until(lambda: len(member.numbers) == 10, member)
    member.poll()  # this finishes the records of the poll before
    member.consumer.unsubscribe()
    assert place.admin().offsets(name)[zero].offset == 10


@pytest.mark.usefixtures("protocol")
def test_b1_the_asyncio_consumer_has_the_same_interface(place, name) -> None:
    async def life() -> list[int]:
        async with headrace.aio.Admin(place.target) as admin:
            await admin.create_topic(name, 2)
        async with headrace.aio.Producer(place.target, linger_ms=0) as producer:
            for number in range(10):
                await (await producer.send(name, b"%d" % number))
        options = place.options(enable_auto_commit=False)
        async with headrace.aio.Consumer(place.target, group=name, **options) as consumer:
            await consumer.subscribe([name])
            assert len(await consumer.assignment()) == 2
            found: list[int] = []
            async for record in consumer:
                found.append(int(record.value))
                if len(found) == 10:
                    break
            await consumer.commit()
            assert set((await consumer.lag()).values()) == {0}
            return sorted(found)

    assert asyncio.run(asyncio.wait_for(life(), 60)) == list(range(10))


def test_b2_manual_assignment_has_the_same_interface(place, name) -> None:
    zero = zero_of(place, name)
    consumer = place.consumer(name, enable_auto_commit=False)
    consumer.assign([zero])
    assert numbers(read_all(consumer, 10)) == list(range(10))
    consumer.commit({zero: 5})
    again = place.consumer(name, enable_auto_commit=False)
    again.assign([zero])
    assert numbers(read_all(again, 5)) == [5, 6, 7, 8, 9], "it begins where the group committed"


@pytest.mark.usefixtures("protocol")
def test_b2_offsets_are_kept_outside(place, name) -> None:
    """A member of a group that stores offsets with its results. It seeks when partitions are assigned."""
    zero = zero_of(place, name)
    results: dict[str, int] = {"sum": 0 + 1 + 2 + 3, "next": 4}  # as a former process left them

    class Keeper:
        def on_assigned(self, partitions: list[TopicPartition]) -> None:
            for one in partitions:
                consumer.seek(one, results["next"])

    consumer = place.consumer(name, enable_auto_commit=False)
    consumer.subscribe([name], listener=Keeper())
    for record in read_all(consumer, 6):
        results["sum"] += int(record.value)
        results["next"] = record.offset + 1
    assert results == {"sum": sum(range(10)), "next": 10}
    assert consumer.committed([zero]) == {zero: None}, "the group keeps nothing"
