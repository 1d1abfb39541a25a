"""A4 to A7 and A9 to A13: groups, their members, and the assignment of partitions."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

import headrace
from headrace import TopicPartition
from headrace.errors import ApiError, ErrorCode, NotAssignedError
from tests.acceptance.place import Member, Place, settled, until

ASSIGNORS = ["equal", "range", "roundrobin", "sticky", "cooperative-sticky"]


class FirstTakesAll:
    """A strategy of the user's own."""

    name = "first-takes-all"
    protocol = "eager"

    def assign(self, members, partition_counts):
        first = min(members)
        return {
            member: [
                TopicPartition(topic, number)
                for topic, count in partition_counts.items()
                for number in range(count if member == first else 0)
            ]
            for member in members
        }


@pytest.mark.parametrize("assignor", ASSIGNORS)
def test_a4_a_group_divides_its_partitions_by_its_strategy(place, name, assignor) -> None:
    topic = place.topic(name, 6)
    members = [Member(place, name, [topic], assignor=assignor) for _ in range(2)]
    until(lambda: settled(6, *members), *members)
    until(lambda: [len(member.partitions) for member in members] == [3, 3], *members)
    assert place.admin().describe_group(name).protocol == assignor


def test_a4_a_group_uses_an_assignor_of_the_program(place, name) -> None:
    topic = place.topic(name, 3)
    members = [Member(place, name, [topic], assignor=FirstTakesAll) for _ in range(2)]
    until(lambda: all(member.consumer.joined for member in members), *members)
    until(lambda: sorted(len(member.partitions) for member in members) == [0, 3], *members)


def test_a4_equal_gives_seven_partitions_to_five_as_2_2_1_1_1(place, name) -> None:
    topic = place.topic(name, 7)
    members = [Member(place, name, [topic], assignor="equal") for _ in range(5)]
    until(lambda: settled(7, *members), *members)
    counts = sorted((len(member.partitions) for member in members), reverse=True)
    assert counts == [2, 2, 1, 1, 1]


def test_a4_equal_moves_only_the_surplus_when_a_member_comes(place, name) -> None:
    topic = place.topic(name, 6)
    first, second = (Member(place, name, [topic], assignor="equal") for _ in range(2))
    until(lambda: settled(6, first, second), first, second)
    before = [first.partitions, second.partitions]
    third = Member(place, name, [topic], assignor="equal")
    until(lambda: settled(6, first, second, third), first, second, third)
    assert first.partitions < before[0]
    assert second.partitions < before[1]
    assert len(third.partitions) == 2


def read_twenty(member: Member) -> bool:
    return len(member.numbers) == 20


def test_a4_groups_are_independent(place, name) -> None:
    topic = place.topic(name, 2)
    place.fill(topic, range(20))
    for group in (f"{name}-a", f"{name}-b"):
        member = Member(place, group, [topic])
        until(partial(read_twenty, member), member)


@pytest.mark.usefixtures("protocol")
def test_a5_a_member_joins_before_its_topic_exists_and_waits(place, name) -> None:
    early = Member(place, name, [name])
    until(lambda: early.consumer.joined, early)
    assert early.partitions == set()
    place.topic(name, 2)
    until(lambda: len(early.partitions) == 2, early)
    place.fill(name, range(10))
    until(lambda: len(early.numbers) == 10, early)


@pytest.mark.usefixtures("protocol")
@pytest.mark.parametrize("by", ["several topics", "a pattern"])
def test_a6_a_group_reads_several_topics_by_subscription(place, name, by) -> None:
    topics = [place.topic(f"{name}-{number}", 2) for number in range(3)]
    if by == "a pattern":
        member = Member(place, name, pattern=f"{name}-.*", exclude=[topics[2]])
    else:
        member = Member(place, name, topics[:2])
    until(lambda: {topic for topic, _ in member.partitions} == set(topics[:2]), member)


def test_a6_a_group_is_attached_and_detached_by_an_administrative_call(
    headrace_place, name
) -> None:
    first, second = (headrace_place.topic(f"{name}-{number}", 2) for number in range(2))
    admin = headrace_place.admin()
    admin.create_group(name, assignor="equal", topics=[first])
    member = Member(headrace_place, name)
    until(lambda: {topic for topic, _ in member.partitions} == {first}, member)
    admin.attach(name, second)
    until(lambda: {topic for topic, _ in member.partitions} == {first, second}, member)
    admin.detach(name, first)
    until(lambda: {topic for topic, _ in member.partitions} == {second}, member)
    assert admin.describe_group(name).protocol == "equal"


def test_a6_groups_are_objects_of_a_broker(name) -> None:
    with headrace.Broker() as broker:
        broker.create_topic("orders", 2)
        group = broker.create_group(name, assignor="equal", topics=["orders"])
        place = Place("in process", broker)
        member = Member(place, name)
        until(lambda: len(member.partitions) == 2, member)
        group.detach("orders")
        until(lambda: not member.partitions, member)
        group.attach("orders")
        until(lambda: len(member.partitions) == 2, member)
        assert [len(one.assignment) for one in group.members()] == [2]
        place.close()


@pytest.mark.usefixtures("protocol")
def test_a7_several_consumers_share_a_topic(place, name) -> None:
    topic = place.topic(name, 6)
    place.fill(topic, range(60), partitions=6)
    members = [Member(place, name, [topic]) for _ in range(3)]
    until(lambda: settled(6, *members), *members)
    until(lambda: sum(len(set(member.numbers)) for member in members) >= 60, *members)
    place.fill(topic, range(60, 120), partitions=6)
    until(lambda: len({n for member in members for n in member.numbers}) == 120, *members)
    late = [{n for n in member.numbers if n >= 60} for member in members]
    assert all(late), "each of them reads"
    assert sum(map(len, late)) == 60, "and no two read the same"


@pytest.mark.usefixtures("protocol")
def test_a9_partitions_move_when_a_consumer_joins_or_leaves(place, name) -> None:
    topic = place.topic(name, 4)
    first = Member(place, name, [topic])
    until(lambda: settled(4, first), first)
    second = Member(place, name, [topic])
    until(lambda: settled(4, first, second), first, second)
    second.consumer.close()
    # Shorter than the session: the member has left explicitly.
    until(lambda: settled(4, first), first, patience_s=3)


@pytest.mark.usefixtures("protocol")
def test_a10_live_members_take_over_the_partitions_of_a_dead_consumer(place, name) -> None:
    topic = place.topic(name, 6)
    options = {"session_timeout_ms": 2_000, "heartbeat_interval_ms": 200, "assignor": "equal"}
    members = [Member(place, name, [topic], **options) for _ in range(3)]
    until(lambda: settled(6, *members), *members)
    members[0].die()
    until(lambda: settled(6, *members[1:]), *members[1:])
    assert [len(member.partitions) for member in members[1:]] == [3, 3]


@pytest.mark.usefixtures("protocol")
def test_a11_added_partitions_are_picked_up_without_a_restart(place, name) -> None:
    topic = place.topic(name, 2)
    first, second = (Member(place, name, [topic]) for _ in range(2))
    until(lambda: settled(2, first, second), first, second)
    place.admin().add_partitions(topic, 6)
    until(lambda: settled(6, first, second), first, second)
    place.fill(topic, range(30), partitions=6)
    until(lambda: len(set(first.numbers + second.numbers)) == 30, first, second)


@pytest.mark.parametrize("group_protocol", ["classic", "consumer"])
def test_a11_a_worker_with_default_settings_reads_added_partitions_within_seconds(
    headrace_place, name, group_protocol
) -> None:
    topic = headrace_place.topic(name, 2)
    app = headrace.App(headrace_place.target)
    seen: set[int] = set()

    @app.worker(topic, group=name, group_protocol=group_protocol)
    async def handle(value: bytes) -> None:
        seen.add(int(value))

    with app.test(headrace_place.target):
        headrace_place.fill(topic, range(2), partitions=2)
        until(lambda: len(seen) == 2)
        headrace_place.admin().add_partitions(topic, 6)
        headrace_place.fill(topic, range(2, 32), partitions=6)
        until(lambda: len(seen) == 32, patience_s=20)


@pytest.mark.usefixtures("protocol")
def test_a12_processed_records_are_not_read_again_after_a_graceful_rebalance(place, name) -> None:
    topic = place.topic(name, 4)
    place.fill(topic, range(40), partitions=4)
    first = Member(place, name, [topic], max_poll_records=3)
    until(lambda: len(first.numbers) >= 10, first)
    second = Member(place, name, [topic], max_poll_records=3)
    until(lambda: settled(4, first, second), first, second)
    first.consumer.close()
    until(lambda: len(first.numbers + second.numbers) >= 40, second)
    assert sorted(first.numbers + second.numbers) == list(range(40)), "each of them once"


@pytest.mark.usefixtures("protocol")
def test_a12_reading_resumes_at_the_committed_offset_after_a_crash(place, name) -> None:
    topic = place.topic(name, 1)
    place.fill(topic, range(20))
    options = {
        "session_timeout_ms": 2_000,
        "heartbeat_interval_ms": 200,
        "enable_auto_commit": False,
        "max_poll_records": 4,
    }
    first = Member(place, name, [topic], **options)
    until(lambda: len(first.numbers) >= 8, first)
    committed = first.numbers[-1] + 1
    first.consumer.commit()
    until(lambda: len(first.numbers) > committed, first)
    first.die()
    second = Member(place, name, [topic], **options)
    until(lambda: second.numbers and second.numbers[-1] == 19, second)
    assert second.numbers == list(range(committed, 20))


@pytest.mark.usefixtures("protocol")
def test_a12_offsets_are_kept_per_group_and_partition(place, name) -> None:
    topic = place.topic(name, 2)
    place.fill(topic, range(10), partitions=2)
    member = Member(place, name, [topic], enable_auto_commit=False)
    until(lambda: len(member.numbers) == 10, member)
    zero, one = (TopicPartition(topic, number) for number in range(2))
    member.consumer.commit({zero: 3, one: 5})
    offsets = place.admin().offsets(name)
    assert {where: at.offset for where, at in offsets.items()} == {zero: 3, one: 5}


@pytest.mark.usefixtures("protocol")
def test_a13_a_partition_is_confirmed_before_it_moves(place, name) -> None:
    """The second member gets a partition only after the first has finished, committed and confirmed."""
    topic = place.topic(name, 2)
    place.fill(topic, range(20), partitions=2)
    events: list[tuple[str, str, set[TopicPartition]]] = []

    class ReportingMember(Member):
        def __init__(self, label: str, **options) -> None:
            self.label = label
            super().__init__(place, name, [topic], **options)

        def on_assigned(self, partitions) -> None:
            events.append((self.label, "takes", set(partitions)))

        def on_revoked(self, partitions) -> None:
            held = self.consumer.positions()
            self.consumer.commit({one: held[one] or 0 for one in partitions})
            events.append((self.label, "gives", set(partitions)))

    first = ReportingMember("first", assignor="equal", enable_auto_commit=False)
    until(lambda: len(first.numbers) == 20, first)
    second = ReportingMember("second", assignor="equal", enable_auto_commit=False)
    until(lambda: settled(2, first, second), first, second)
    owner: dict[TopicPartition, str | None] = {}
    for label, what, partitions in events:
        for one in partitions:
            assert owner.get(one) in ({None} if what == "takes" else {label}), events
            owner[one] = label if what == "takes" else None
    assert ("second", "takes", second.partitions) in events
    until(lambda: second.consumer.joined, second)
    assert second.numbers == [], "what the first had finished was committed before it moved"


@pytest.mark.usefixtures("protocol")
def test_a13_an_owner_that_sleeps_is_removed_and_its_late_commit_is_fenced(place, name) -> None:
    topic = place.topic(name, 1)
    place.fill(topic, range(5))
    options = {"session_timeout_ms": 2_000, "enable_auto_commit": False}
    sleeper = Member(place, name, [topic], **options)
    until(lambda: sleeper.numbers, sleeper)
    who = sleeper.consumer.group_metadata()
    with pausing(place, sleeper):
        other = Member(place, name, [topic], **options)
        until(lambda: other.numbers, other)
        other.consumer.commit()
    with pytest.raises((ApiError, NotAssignedError)) as refused:
        sleeper.consumer.commit({TopicPartition(topic, 0): 1})
    if isinstance(refused.value, ApiError):
        fenced = {ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION}
        assert refused.value.code in fenced
    assert place.admin().offsets(name)[TopicPartition(topic, 0)].offset == 5
    assert other.consumer.group_metadata().generation_id > who.generation_id


class pausing:  # noqa: N801 - a context manager with the name of a function
    """Stop a consumer's heartbeats, as SIGSTOP would: no thread runs its engine."""

    def __init__(self, place: Place, member: Member) -> None:
        self._driver: Any = member.consumer._driver
        self._place = place

    def __enter__(self) -> None:
        if self._place.name == "in process":
            with self._place.target._runtime.condition:
                self._place.target._runtime.clients.remove(self._driver)
        else:
            self._driver._lock.acquire()

    def __exit__(self, *_: object) -> None:
        if self._place.name == "in process":
            with self._place.target._runtime.condition:
                self._place.target._runtime.clients.append(self._driver)
        else:
            self._driver._lock.release()


def test_a13_a_member_is_removed_by_an_administrative_call(place, name) -> None:
    topic = place.topic(name, 1)
    member = Member(place, name, [topic], enable_auto_commit=False)
    until(lambda: member.partitions, member)
    admin = place.admin()
    (described,) = admin.members(name)
    admin.remove_member(name, described.member_id)
    with pytest.raises(ApiError) as refused:
        member.consumer.commit({TopicPartition(topic, 0): 0})
    assert refused.value.code is ErrorCode.UNKNOWN_MEMBER_ID
