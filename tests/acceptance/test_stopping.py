"""A17: one member of a running group is stopped gracefully by an administrative call."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

import headrace
import headrace.aio
from headrace import TopicPartition
from headrace.errors import ApiError, ErrorCode, MemberStoppedError, TransactionError
from tests.acceptance.place import PATIENCE_S, QUICK, Member, Place, settled, until

PROTOCOLS = ["classic", "consumer"]


@contextmanager
def stopping(place: Place, group: str, member: str = "", **options: Any) -> Iterator[list[str]]:
    """Stop a member from another thread, like the program of an administrator. The list gets the outcome."""
    outcomes: list[str] = []
    admin = headrace.Admin(place.target, **QUICK)

    def run() -> None:
        try:
            outcomes.append(admin.stop_member(group, member, **options))
        except ApiError as error:
            outcomes.append(error.code.name)

    thread = threading.Thread(target=run)
    thread.start()
    yield outcomes
    thread.join(PATIENCE_S)
    assert not thread.is_alive()
    admin.close()


def member_id(member: Member) -> str:
    return member.consumer.group_metadata().member_id


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("auto_commit", [True, False])
def test_a17_a_member_finishes_commits_leaves_and_does_not_join_again(
    headrace_place: Place, name: str, protocol: str, *, auto_commit: bool
) -> None:
    place = headrace_place
    place.protocol = protocol
    topic = place.topic(name, 4)
    members = [Member(place, name, [topic], enable_auto_commit=auto_commit) for _ in range(2)]
    until(lambda: settled(4, *members), *members)
    place.fill(topic, range(40), 4)
    until(lambda: len(members[0].numbers) + len(members[1].numbers) == 40, *members)
    first, second = members
    held = first.partitions
    with stopping(place, name, member_id(first)) as outcomes:
        while not first.consumer.stopped:
            if not auto_commit:
                first.consumer.commit()
                second.consumer.commit()
            first.poll()
            second.poll()
        until(lambda: outcomes, second)
    assert outcomes == ["stopped"]
    assert first.told[-1] == ("revoked", sorted(held))
    with pytest.raises(MemberStoppedError, match="stopped"):
        first.consumer.poll(0)
    until(lambda: len(second.partitions) == 4, second)
    # Nothing is read again: what the member had read was committed before its partitions went.
    place.fill(topic, range(40, 44), 4)
    until(lambda: len(first.numbers) + len(second.numbers) == 44, second)
    assert sorted(first.numbers + second.numbers) == list(range(44))
    assert len(place.admin().members(name)) == 1


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a17_the_iteration_of_a_stopped_consumer_ends(
    headrace_place: Place, name: str, protocol: str
) -> None:
    place = headrace_place
    place.protocol = protocol
    topic = place.topic(name, 1)
    place.fill(topic, range(10))
    consumer = place.consumer(name)
    consumer.subscribe([topic])
    read: list[Any] = []
    outcomes: list[str] = []
    with ExitStack() as stack:
        for record in consumer:
            read.append(record)
            if len(read) == 10:
                who = consumer.group_metadata().member_id
                outcomes = stack.enter_context(stopping(place, name, who))
    assert outcomes == ["stopped"]
    assert consumer.stopped is True
    assert list(consumer) == []
    assert place.admin().offsets(name)[TopicPartition(topic, 0)].offset == 10
    consumer.subscribe([topic])
    assert bool(consumer.stopped) is False
    place.fill(topic, [10])
    assert next(consumer).offset == 10


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a17_a_stopped_member_finishes_its_records_first(
    headrace_place: Place, name: str, protocol: str
) -> None:
    """The program handles records of its last poll. The stop waits for the next poll."""
    place = headrace_place
    place.protocol = protocol
    topic = place.topic(name, 1)
    place.fill(topic, range(5))
    member = Member(place, name, [topic])
    until(lambda: len(member.numbers) == 5, member)
    told = place.admin()
    with stopping(place, name, member_id(member)) as outcomes:
        # Its heartbeats ask it to stop while it works; it is not removed meanwhile.
        wait_for(lambda: member.consumer._core._group.stopping)
        assert member.partitions == {TopicPartition(topic, 0)}
        assert not outcomes
        assert len(told.members(name)) == 1
        assert member.poll() == 0
    assert outcomes == ["stopped"]
    assert told.offsets(name)[TopicPartition(topic, 0)].offset == 5


def wait_for(condition: Callable[[], object]) -> None:
    waited = threading.Event()
    for _ in range(PATIENCE_S * 100):
        if condition():
            return
        waited.wait(0.01)
    raise AssertionError("it does not come about")


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a17_stop_member_stops_an_asyncio_consumer(
    headrace_place: Place, name: str, protocol: str
) -> None:
    place = headrace_place
    place.protocol = protocol
    topic = place.topic(name, 2)
    place.fill(topic, range(10))

    async def main() -> None:
        consumer = headrace.aio.Consumer(place.target, group=name, **place.options())
        admin = headrace.aio.Admin(place.target, **QUICK)
        async with consumer, admin:
            await consumer.subscribe([topic])
            read = []
            task = None
            async for record in consumer:
                read.append(record)
                if len(read) == 10:
                    who = consumer.group_metadata().member_id
                    task = asyncio.create_task(admin.stop_member(name, who))
            assert task is not None
            assert await task == "stopped"
            assert consumer.stopped is True
            with pytest.raises(MemberStoppedError):
                await consumer.poll(0)
            assert await admin.members(name) == []

    asyncio.run(asyncio.wait_for(main(), PATIENCE_S))


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a17_a_transaction_of_a_member_that_was_stopped_is_refused(
    headrace_place: Place, name: str, protocol: str
) -> None:
    """A commit without a member would set back the offsets of the group, which other members have advanced."""
    place = headrace_place
    place.protocol = protocol
    topic = place.topic(name, 1)
    place.fill(topic, range(5))
    member = Member(place, name, [topic], enable_auto_commit=False)
    until(lambda: len(member.numbers) == 5, member)
    member.consumer.commit()
    with stopping(place, name, member_id(member)) as outcomes:
        until(lambda: member.consumer.stopped, member)
    assert outcomes == ["stopped"]
    where = TopicPartition(topic, 0)
    producer = place.producer(transactional_id=name)
    with pytest.raises(TransactionError), producer.transaction() as transaction:
        transaction.send_offsets({where: 1}, member.consumer)
    assert place.admin().offsets(name)[where].offset == 5


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a17_a_static_member_leaves_for_good(
    headrace_place: Place, name: str, protocol: str
) -> None:
    place = headrace_place
    place.protocol = protocol
    topic = place.topic(name, 2)
    first = Member(place, name, [topic], group_instance_id="one")
    second = Member(place, name, [topic], group_instance_id="two")
    until(lambda: settled(2, first, second), first, second)
    with stopping(place, name, group_instance_id="one") as outcomes:
        until(lambda: first.consumer.stopped, first, second)
        until(lambda: outcomes, second)
    assert outcomes == ["stopped"]
    (left,) = place.admin().members(name)
    assert left.group_instance_id == "two"


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a17_a_member_that_does_not_come_back_is_removed_by_force(
    headrace_place: Place, name: str, protocol: str
) -> None:
    place = headrace_place
    place.protocol = protocol
    topic = place.topic(name, 1)
    member = Member(place, name, [topic])
    until(lambda: member.partitions, member)
    assert place.admin().stop_member(name, member_id(member), timeout_s=1.5) == "removed"
    assert place.admin().members(name) == []
    # It was asked to stop, so it does not join again.
    while not member.consumer.stopped:
        member.poll()
    assert member.told[-1][0] == "lost"
    assert place.admin().members(name) == []


def test_a17_a_member_that_waits_for_others_to_join_stops_at_once(
    headrace_place: Place, name: str
) -> None:
    """Other members may take up to `max.poll.interval.ms`. This member has no records, and does not join again."""
    place = headrace_place
    topic = place.topic(name, 2)
    slow, waiting = (Member(place, name, [topic], assignor="range") for _ in range(2))
    until(lambda: settled(2, slow, waiting), slow, waiting)
    place.admin().add_partitions(topic, 3)
    # A rebalance begins, in which only one of the two takes part.
    until(lambda: not waiting.partitions, waiting)
    with stopping(place, name, member_id(waiting)) as outcomes:
        until(lambda: waiting.consumer.stopped, waiting)
    assert outcomes == ["stopped"]
    (left,) = place.admin().members(name)
    until(lambda: len(slow.partitions) == 3, slow)
    assert left.member_id == member_id(slow)


def test_a17_a_stop_of_an_unknown_member_is_refused(headrace_place: Place, name: str) -> None:
    place = headrace_place
    there = Member(place, name, [place.topic(name, 1)])
    until(lambda: there.partitions, there)
    for member, instance in (("nobody", None), ("", "nobody")):
        with pytest.raises(ApiError) as refused:
            place.admin().stop_member(name, member, group_instance_id=instance)
        assert refused.value.code is ErrorCode.UNKNOWN_MEMBER_ID
    with pytest.raises(headrace.errors.ConfigError, match="needs a member id"):
        place.admin().stop_member(name)


@pytest.mark.java
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a17_kafka_refuses_a_stop_and_removes_no_member(
    kafka: str, name: str, protocol: str
) -> None:
    place = Place("kafka", kafka, protocol=protocol)
    try:
        member = Member(place, name, [place.topic(name, 1)])
        until(lambda: member.partitions, member)
        with pytest.raises(ApiError, match="not a Headrace broker") as refused:
            place.admin().stop_member(name, member_id(member))
        assert refused.value.code is ErrorCode.UNSUPPORTED_VERSION
        for wanted in ("nobody", ""):
            with pytest.raises(ApiError, match="not a Headrace broker"):
                place.admin().stop_member(name, wanted, group_instance_id="i")
        assert [each.member_id for each in place.admin().members(name)] == [member_id(member)]
        member.poll()
        assert not member.consumer.stopped
    finally:
        place.close()
