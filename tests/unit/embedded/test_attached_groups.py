"""A group with three members on two transports follows its attached topics while the members run."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from headrace.clients.admin.blocking import Admin
from headrace.clients.consumer.blocking import Consumer
from headrace.embedded.broker import Broker
from headrace.embedded.groups import Group
from headrace.types import TopicPartition

PATIENCE_S = 20
QUICK = {
    "group.consumer.min.heartbeat.interval.ms": "20",
    "group.consumer.heartbeat.interval.ms": "20",
}
MEMBER: dict[str, Any] = {
    "group": "g",
    "heartbeat_interval_ms": 100,
    "auto_offset_reset": "earliest",
    "auto_commit_interval_ms": 100,
}


class Members:
    """Members of one group that run in turn, and the records that they received."""

    def __init__(self, group: Group, *members: Consumer) -> None:
        self.group = group
        self.consumers = members
        self.records: list[bytes] = []
        for member in members:
            member.subscribe()

    def turn(self) -> None:
        for member in self.consumers:
            self.records += [record.value for record in member.poll(0.02)]

    def until(self, what: str, holds: Callable[[], bool]) -> None:
        deadline_s = time.monotonic() + PATIENCE_S
        while not holds():
            assert time.monotonic() < deadline_s, f"not in time: {what}; {self.assignments()}"
            self.turn()

    def assignments(self) -> list[list[TopicPartition]]:
        """Return the assignment that the coordinator has. A call of the consumer could start a rebalance."""
        return [sorted(member.assignment) for member in self.group.members()]

    def share(self, *topics: tuple[str, int]) -> bool:
        """Return whether exactly the partitions of these topics are assigned, each to one member."""
        given = sorted(name for names in self.assignments() for name in names)
        return given == sorted(
            TopicPartition(topic, number) for topic, count in topics for number in range(count)
        )

    def close(self) -> None:
        for member in self.consumers:
            member.close()


@pytest.fixture
def broker():
    with Broker(configs=QUICK) as opened:
        opened.create_topic("a", partitions=3)
        opened.create_topic("b", partitions=4)
        yield opened


def publish(broker: Broker, topic: str, partitions: int, text: str) -> set[bytes]:
    values = {f"{text}-{topic}-{number}".encode() for number in range(partitions)}
    for number, value in enumerate(sorted(values)):
        broker.publish(topic, value, partition=number)
    return values


def test_members_on_two_transports_follow_changes_of_the_attached_topics(broker) -> None:
    address = broker.listen()
    group = broker.create_group("g", assignor="equal")
    members = Members(
        group,
        Consumer(broker, **MEMBER),
        Consumer(address, **MEMBER),
        Consumer(address, **MEMBER),
    )
    members.until("three wait", lambda: len(group.members()) == 3 and group.state() == "Stable")
    assert members.share()

    group.attach("a")
    members.until("a is read", lambda: members.share(("a", 3)))
    assert [len(names) for names in members.assignments()] == [1, 1, 1]
    first = publish(broker, "a", 3, "first")
    members.until("first records", lambda: set(members.records) == first)

    with Admin(address) as admin:
        admin.attach("g", "b")
    members.until("a and b are read", lambda: members.share(("a", 3), ("b", 4)))
    assert sorted(len(names) for names in members.assignments()) == [2, 2, 3]
    second = publish(broker, "b", 4, "second")
    members.until("second records", lambda: set(members.records) == first | second)

    group.detach("a")
    members.until("b is read", lambda: members.share(("b", 4)))
    publish(broker, "a", 3, "unread")
    third = publish(broker, "b", 4, "third")
    members.until("third records", lambda: set(members.records) == first | second | third)
    assert len(members.records) == len(set(members.records)), "nothing is handed out twice"

    with Admin(address) as admin:
        admin.add_partitions("b", 7)
    members.until("new partitions are read", lambda: members.share(("b", 7)))
    members.close()


def test_seven_partitions_and_five_members_by_the_assignor_of_the_group(broker) -> None:
    address = broker.listen()
    group = broker.create_group("g", assignor="equal", topics=["a", "b"])
    targets = [broker, address, broker, address, broker]
    members = Members(group, *(Consumer(target, **MEMBER) for target in targets))
    members.until("all are read", lambda: members.share(("a", 3), ("b", 4)))
    members.until("five are in", lambda: len(group.members()) == 5 and group.state() == "Stable")
    members.until(
        "2, 2, 1, 1, 1",
        lambda: sorted(len(names) for names in members.assignments()) == [1, 1, 1, 2, 2],
    )
    assert {len(member.assignment) for member in group.members()} == {1, 2}
    members.close()


def test_a_group_exists_after_a_restart(tmp_path) -> None:
    with Broker(tmp_path, configs=QUICK) as first:
        first.create_topic("a", partitions=3)
        group = first.create_group("g", assignor="equal", topics=["a"])
        expected = publish(first, "a", 3, "first")
        members = Members(group, Consumer(first, **MEMBER))
        members.until("first records", lambda: set(members.records) == expected)
        members.close()
    with Broker(tmp_path, configs=QUICK) as second:
        expected = publish(second, "a", 3, "second")
        group = second.group("g")
        members = Members(group, Consumer(second, **MEMBER), Consumer(second, **MEMBER))
        members.until("only what is new", lambda: set(members.records) == expected)
        members.until("both are in", lambda: len(group.members()) == 2 and members.share(("a", 3)))
        members.close()
