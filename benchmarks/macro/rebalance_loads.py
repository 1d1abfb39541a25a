"""Measure groups while their membership changes: how long partitions pause, and what the death of a member costs."""

from __future__ import annotations

import multiprocessing
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any

from confluent_kafka import Consumer, Producer

from benchmarks.macro import workloads
from benchmarks.macro.workloads import QUIET

SESSION_TIMEOUT_MS = 6_000  # the minimum that Kafka's brokers accept from classic members
HEARTBEAT_INTERVAL_MS = 1_000
SLOT_S = 0.5  # a partition is active in a slot if a poll returned one of its records in it
SEND_EVERY_S = 0.2
SETTLE_TIMEOUT_S = 60

PROTOCOLS: Mapping[str, Mapping[str, Any]] = {
    "classic, eager": {"partition.assignment.strategy": "range"},
    "classic, cooperative": {"partition.assignment.strategy": "cooperative-sticky"},
    "KIP-848": {"group.protocol": "consumer"},
}
_CLASSIC = {
    "session.timeout.ms": SESSION_TIMEOUT_MS,
    "heartbeat.interval.ms": HEARTBEAT_INTERVAL_MS,
}


def settings(bootstrap: str, group: str, protocol: str) -> dict[str, Any]:
    """Return the properties of a member; under KIP-848 the broker has the timeouts."""
    chosen = dict(PROTOCOLS[protocol])
    timing = {} if "group.protocol" in chosen else _CLASSIC
    common = {"auto.offset.reset": "latest", "enable.auto.commit": False}
    return {
        "bootstrap.servers": bootstrap,
        "group.id": group,
        **common,
        **chosen,
        **timing,
        **QUIET,
    }


@contextmanager
def steady_stream(bootstrap: str, topic: str, partitions: int) -> Iterator[None]:
    """Produce five records per second in every partition, until the block ends."""
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 5, **QUIET})
    ended = threading.Event()

    def send() -> None:
        due = time.monotonic()
        while not ended.is_set():
            for partition in range(partitions):
                producer.produce(topic, b"x", partition=partition)
            producer.flush(SETTLE_TIMEOUT_S)  # a slow broker gets no backlog
            due = max(due + SEND_EVERY_S, time.monotonic())
            ended.wait(due - time.monotonic())

    thread = threading.Thread(target=send)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        producer.flush(30)


class Fleet:
    """Members of one group in one thread, with the time of the last record and the active slots of each partition."""

    def __init__(self, bootstrap: str, topic: str, group: str, protocol: str) -> None:
        self._topic = topic
        self._settings = settings(bootstrap, group, protocol)
        self._members: list[Consumer] = []
        self.last_seen: dict[int, float] = {}
        self.slots: set[tuple[int, int]] = set()

    def join(self, count: int) -> None:
        """Let the given number of members join."""
        for _ in range(count):
            member = Consumer(self._settings)
            member.subscribe([self._topic])
            self._members.append(member)

    def leave(self) -> None:
        """Let the oldest member leave the group."""
        self._members.pop(0).close()

    def poll_until(self, ended: Callable[[], bool]) -> None:
        """Poll all members in turn until a condition is true."""
        while not ended():
            seen = 0
            for member in self._members:
                for message in member.consume(1_000, timeout=0):
                    if message.error() is None:
                        seen += 1
                        self._note(message.partition() or 0)
            if not seen:
                time.sleep(0.002)

    def _note(self, partition: int) -> None:
        now = time.monotonic()
        self.last_seen[partition] = now
        self.slots.add((partition, int(now / SLOT_S)))

    def settle(self, partitions: int) -> None:
        """Poll until every partition has returned records for two seconds without a pause of one second.

        Raises:
            RuntimeError: The partitions did not settle in time.
        """
        deadline, quiet_since = time.monotonic() + SETTLE_TIMEOUT_S, time.monotonic()

        def settled() -> bool:
            nonlocal quiet_since
            now = time.monotonic()
            if now > deadline:
                raise RuntimeError(f"{len(self.last_seen)} of {partitions} partitions flow")
            stale = len(self.last_seen) < partitions or min(self.last_seen.values()) < now - 1
            quiet_since = now if stale else quiet_since
            return now - quiet_since > 2

        self.poll_until(settled)

    def close(self) -> None:
        """Close all members of the group."""
        for member in self._members:
            member.close()


def standing_still(
    bootstrap: str,
    topic: str,
    protocol: str,
    *,
    members: int = 50,
    partitions: int = 500,
    seconds: float = 10,
) -> dict[str, float]:
    """Let a member join a running group and another leave; return the percentage of time without records."""
    found = {}
    with steady_stream(bootstrap, topic, partitions):
        fleet = Fleet(bootstrap, topic, f"{topic}-group", protocol)
        try:
            fleet.join(members - 1)
            fleet.settle(partitions)
            for change, act in (("join", lambda: fleet.join(1)), ("leave", fleet.leave)):
                found[f"% of partition time stalled, {change}"] = _stalled(
                    fleet, act, partitions, seconds
                )
                fleet.settle(partitions)
        finally:
            fleet.close()
    return found


def _stalled(fleet: Fleet, act: Callable[[], None], partitions: int, seconds: float) -> float:
    begun = time.monotonic()
    act()
    fleet.poll_until(lambda: time.monotonic() > begun + seconds)
    first, end = int(begun / SLOT_S) + 1, int((begun + seconds) / SLOT_S)
    flowing = sum(first <= slot < end for _, slot in fleet.slots)
    return 100 * (1 - flowing / (partitions * (end - first)))


def _victim(member: Mapping[str, Any], topic: str, tell: Connection) -> None:
    """Run a member in its own process, which sends its partitions whenever they change."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    consumer = Consumer(dict(member))
    consumer.subscribe([topic])
    told: Sequence[int] = ()
    while True:
        consumer.consume(1_000, timeout=0.05)
        mine = sorted(each.partition for each in consumer.assignment())
        if mine != told:
            told = mine
            tell.send(mine)


def death(bootstrap: str, topic: str, protocol: str, *, partitions: int = 8) -> float:
    """Return the seconds from a member's death until its successor has the first record of one of its partitions."""
    context = multiprocessing.get_context("spawn")
    group = f"{topic}-group"
    with steady_stream(bootstrap, topic, partitions):
        fleet = Fleet(bootstrap, topic, group, protocol)
        told, tell = context.Pipe(duplex=False)
        arguments = (settings(bootstrap, group, protocol), topic, tell)
        victim = context.Process(target=_victim, args=arguments, daemon=True)
        fleet.join(1)
        try:
            fleet.settle(partitions)
            victim.start()
            lost = _await_share(fleet, told, partitions)
            victim.kill()
            begun = time.monotonic()
            fleet.last_seen = dict.fromkeys(lost, 0.0)
            fleet.poll_until(
                lambda: (
                    max(fleet.last_seen[each] for each in lost) > begun
                    or time.monotonic() > begun + SETTLE_TIMEOUT_S
                )
            )
            return max(fleet.last_seen[each] for each in lost) - begun
        finally:
            if victim.pid is not None:
                victim.kill()
                victim.join()
            fleet.close()


def _await_share(fleet: Fleet, told: Connection, partitions: int) -> list[int]:
    """Return the victim's partitions when it has half of them and the other member has settled."""
    share: list[int] = []
    deadline = time.monotonic() + SETTLE_TIMEOUT_S

    def balanced() -> bool:
        nonlocal share
        while told.poll():
            share = told.recv()
        if time.monotonic() > deadline:
            raise RuntimeError(f"the second member has {len(share)} of {partitions} partitions")
        return len(share) == partitions // 2

    fleet.poll_until(balanced)
    begun = time.monotonic()
    fleet.poll_until(lambda: time.monotonic() > begun + 2)
    while told.poll():
        share = told.recv()
    return share


def measure_rebalances(
    bootstrap: str, name: Callable[[], str], note: Callable[[str, str, float], None]
) -> None:
    """Measure all protocols in turn; `name` returns names of topics that do not exist yet."""
    for protocol in PROTOCOLS:
        topic = name()
        workloads.create_topic(bootstrap, topic, 500)
        for metric, value in standing_still(bootstrap, topic, protocol).items():
            note(f"50 members, 500 partitions, {protocol}", metric, value)
        workloads.delete_topic(bootstrap, topic)
        topic = name()
        workloads.create_topic(bootstrap, topic, 8)
        seconds = death(bootstrap, topic, protocol)
        note(f"kill -9 of a member, {protocol}", "s from death to the successor's record", seconds)
        workloads.delete_topic(bootstrap, topic)
