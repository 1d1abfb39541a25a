"""`headrace.testing.Broker`: an embedded broker for tests, which can be waited for, looked into, broken and emptied."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import ClassVar, Final, NamedTuple

from headrace.broker.broker import Broker as CoreBroker
from headrace.clients.arguments import checked
from headrace.clients.consumer.records import ConsumerRecord
from headrace.clients.drivers.local import LocalClient
from headrace.clients.flows.effects import Call
from headrace.config.options import Value
from headrace.serdes.serde import Serde
from headrace.streams.broker import Broker as EmbeddedBroker
from headrace.streams.clock import Clock, ManualClock
from headrace.streams.lines import OnDone
from headrace.streams.world import World
from headrace.testing import views
from headrace.testing.clock import LeapingClock
from headrace.testing.faults import Faults
from headrace.testing.interception import Asker, InterceptedBroker
from headrace.types import TopicPartition

TEST_CONFIGS: Final = {
    "durability": "os",
    "group.initial.rebalance.delay.ms": "0",
    "offsets.topic.num.partitions": "1",
}
"""Settings that make tests fast; all others are as in `headrace serve`."""

WAIT_S: Final = 10.0


class _WorldOfTests(World):
    """Notes which client asks."""

    def _handle(
        self, client: LocalClient, call: Call, on_done: OnDone
    ) -> Callable[[], object] | None:
        core = self.broker
        assert isinstance(core, InterceptedBroker), "it is what `Broker._core_type` says"
        core.asker = client
        try:
            return super()._handle(client, call, on_done)
        finally:
            core.asker = None


class Snapshot(NamedTuple):
    """The names of what there was at one moment; see `Broker.reset`."""

    topics: frozenset[str] = frozenset()
    groups: frozenset[str] = frozenset()

    def __sub__(self, other: Snapshot) -> Snapshot:
        """Return what is only here."""
        return Snapshot(self.topics - other.topics, self.groups - other.groups)

    def __or__(self, other: Snapshot) -> Snapshot:
        """Return what is in either."""
        return Snapshot(self.topics | other.topics, self.groups | other.groups)


class Broker(EmbeddedBroker):
    """A broker in the test's process.

        with headrace.testing.Broker() as broker:
            broker.create_topic("orders")
            start_the_program(broker.bootstrap)         # any Kafka client; or give the broker to Headrace's own
            broker.wait_caught_up("billing")
            assert broker.messages("invoices")[0].value == b"paid"

    What it adds to `headrace.Broker` waits for conditions and never sleeps. A program that runs on the same event
    loop as the test has to be let run meanwhile: `await asyncio.to_thread(broker.wait_caught_up, "billing")`.

    Attributes:
        faults: What it does wrong, see `headrace.testing.faults`.
    """

    _core_type: ClassVar[type[CoreBroker]] = InterceptedBroker
    _world_type: ClassVar[type[World]] = _WorldOfTests
    NOTHING: ClassVar = Snapshot()

    @checked
    def __init__(
        self,
        data: str | Path | None = None,
        *,
        clock: Clock | None = None,
        configs: Mapping[str, Value] | None = None,
    ) -> None:
        """Open a broker.

        Args:
            data: The directory to keep everything in; None keeps it in memory.
            clock: Its time; None is the process's, which `advance` can move ahead. With a `ManualClock` nothing happens
                by itself, and it cannot listen.
            configs: The broker's configuration under Kafka's names, on top of `TEST_CONFIGS`.
        """
        super().__init__(
            data, clock=clock or LeapingClock(), configs={**TEST_CONFIGS, **(configs or {})}
        )
        core = self._core
        assert isinstance(core, InterceptedBroker), "it is what _core_type says"
        self._intercepted = core
        self._waiting = 0
        self._bootstrap: str | None = None
        self.faults = Faults(self._world, core)
        core.changed = self._changed

    @property
    def bootstrap(self) -> str:
        """HOST:PORT for clients over TCP; it listens from the first time that this is asked for."""
        if self._bootstrap is None:
            self._bootstrap = self.listen()
        return self._bootstrap

    # Waiting

    def wait_until(
        self, condition: Callable[[], object], *, timeout_s: float = WAIT_S, what: str = ""
    ) -> None:
        """Wait until something is true, looking again after each thing that happens to the broker.

        Args:
            condition: What should become true. It is called with the broker's lock held, so it must not use a client;
                to look at what a handler has done, at `Fault.hits` and the like.
            timeout_s: How long to wait at most, in seconds of the broker's time.
            what: What is waited for, for the error.

        Raises:
            TimeoutError: It did not become true.
        """
        with self._world.condition:
            end_ms = self.now_ms() + round(timeout_s * 1000)
            self._waiting += 1
            try:
                while True:
                    until_ms = self._world.pump()
                    if condition():
                        return
                    if self.now_ms() >= end_ms:
                        raise TimeoutError(
                            f"{what or 'the condition'} was not so for {timeout_s} s"
                        )
                    self._world.wait(end_ms if until_ms is None else min(until_ms, end_ms))
            finally:
                self._waiting -= 1

    def wait_for(
        self,
        *,
        group: str | None = None,
        state: str | None = None,
        members: int | None = None,
        topic: str | None = None,
        records: int = 1,
        timeout_s: float = WAIT_S,
    ) -> None:
        """Wait for a group, or for records in a topic.

        Args:
            group: The group; it is waited for until it exists, and is in the `state` and has the `members` if given.
            state: Kafka's name of the state: "Stable", "Empty", "PreparingRebalance", "CompletingRebalance", "Dead".
            members: How many members it has.
            topic: The topic, instead of a group.
            records: How many records it should have at least.
            timeout_s: How long to wait at most.

        Raises:
            TimeoutError: With what was there instead.
        """
        assert (group is None) != (topic is None), "wait_for takes a group or a topic"
        if topic is not None:
            seen = [0]

            def enough() -> bool:
                seen[0] = views.record_count(self._core, topic)
                return seen[0] >= records

            self._wait(enough, timeout_s, lambda: f"topic {topic!r} has {seen[0]} of {records} records")  # fmt: skip
        elif group is not None:
            wanted = [each for each in (state, members) if each is not None]

            def reached(view: views.GroupView) -> bool:
                if state is None and view.state == "Dead":
                    return False
                return state in {None, view.state} and members in {None, view.members}

            self._wait_for_group(group, None, reached, timeout_s, f"waited for {wanted}")

    def wait_caught_up(
        self, group: str, topic: str | None = None, *, timeout_s: float = WAIT_S
    ) -> None:
        """Wait until a group has committed all there is to read.

        Args:
            group: The group.
            topic: The topic; None is all that its members are assigned, or that it has commits for.
            timeout_s: How long to wait at most.

        Raises:
            TimeoutError: With the lag of each partition.
        """

        def caught_up(view: views.GroupView) -> bool:
            return bool(view.lag) and not any(view.lag.values())

        self._wait_for_group(group, topic, caught_up, timeout_s, "waited for a lag of 0")

    def _wait_for_group(
        self,
        group: str,
        topic: str | None,
        reached: Callable[[views.GroupView], bool],
        timeout_s: float,
        wanted: str,
    ) -> None:
        seen: list[views.GroupView] = []

        def look() -> bool:
            view = views.view_group(self._core, group, topic, self.now_ms())
            if view is not None:
                seen[:] = [view]
            return view is not None and reached(view)

        self._wait(look, timeout_s, lambda: f"group {group!r} is {', '.join(map(str, seen))}; {wanted}")  # fmt: skip

    def _wait(self, look: Callable[[], bool], timeout_s: float, told: Callable[[], str]) -> None:
        try:
            self.wait_until(look, timeout_s=timeout_s)
        except TimeoutError:
            raise TimeoutError(f"after {timeout_s} s {told()}") from None

    # Looking

    def messages(
        self,
        topic: str,
        partition: int | None = None,
        *,
        serde: str | Serde | None = None,
        key_serde: str | Serde | None = None,
        isolation_level: str = "read_committed",
    ) -> list[ConsumerRecord]:
        """Return all records of a topic, or of one of its partitions.

        Partitions are merged by the records' time; inside a partition their order is that of their offsets.

        Args:
            topic: The topic.
            partition: The partition; None is all of them.
            serde: How values are read; None is what the topic's metadata says, else bytes.
            key_serde: How keys are read; None is what the topic's metadata says, else bytes.
            isolation_level: "read_committed" leaves out records of open and aborted transactions; "read_uncommitted"
                returns them all.

        Raises:
            ApiError: UNKNOWN_TOPIC_OR_PARTITION.
        """
        with self._world.condition:
            partitions = self._core.services.topics.require(topic).partitions
            ranges = [
                (index, each.log_start_offset, each.high_watermark - each.log_start_offset)
                for index, each in enumerate(partitions)
                if each is not None and partition in {None, index}
            ]
        found = [
            self.read(
                topic,
                index,
                begin,
                count,
                serde=serde,
                key_serde=key_serde,
                isolation_level=isolation_level,
            )
            for index, begin, count in ranges
        ]
        return list(heapq.merge(*found, key=lambda record: record.timestamp_ms))

    def committed(self, group: str) -> dict[TopicPartition, int]:
        """Return what a group has committed: of each partition the offset of the next record."""
        found: list[dict[TopicPartition, int]] = []

        def look() -> bool:
            offsets = views.committed_offsets(self._core, group, self.now_ms())
            found.extend([] if offsets is None else [offsets])
            return bool(found)

        self.wait_until(look)
        return found[0]

    # Time

    def advance(self, duration_ms: int) -> None:
        """Let time leap ahead for the broker and its clients in this process, with all that falls due on the way.

        Clients over TCP do not notice; to the broker they have been silent for so long.
        """
        clock = self.clock
        if isinstance(clock, ManualClock) or not isinstance(clock, LeapingClock):
            super().advance(duration_ms)
            return
        with self._world.condition:
            end_ms = clock.now_ms() + duration_ms
            while (due_ms := self._world.pump()) is not None and clock.now_ms() < due_ms <= end_ms:
                clock.advance_to(due_ms)
            clock.advance_to(end_ms)
            self._world.pump()
            if self._world.listener is not None:
                self._world.listener.clock_leapt()
            self._world.condition.notify_all()

    # Between tests

    def snapshot(self) -> Snapshot:
        """Return the names of all topics and groups, for `reset`."""
        with self._world.condition:
            self._world.pump()
            listed = self._core.services.groups.list_groups((), (), self.now_ms())
            groups = [] if not isinstance(listed, tuple) else listed[1]
            return Snapshot(
                frozenset(
                    topic.name for topic in self._core.services.topics if not topic.is_internal
                ),
                frozenset(group.group_id for group in groups),
            )

    def reset(self, to: Snapshot | None = None) -> None:
        """End all faults, and remove topics and groups, with their members if they have any.

        Args:
            to: What is to stay; None is nothing.
        """
        self.faults.clear()
        self.remove(self.snapshot() - (to or self.NOTHING))

    def remove(self, things: Snapshot) -> None:
        """Remove topics, and groups with their members; no error for what is not there."""
        if self._producer is not None and things.topics:
            self._producer.close()  # what it knows of topics is not true any more
            self._producer = None
        with self._world.condition:
            core = self._core
            for group in things.groups:
                described = views.describe(core, group, self.now_ms())
                if described is not None and described.members:
                    self.faults.remove_members(group, described.members)
            core.services.groups.delete_groups(sorted(things.groups), self.now_ms())
            for topic in [each for each in core.services.topics if each.name in things.topics]:
                core.delete_topic(topic, self.now_ms())
                core.services.topics.deleted_names.forget(
                    topic.name
                )  # the next test finds a new broker
                self._intercepted.makers.pop(topic.name, None)
            self._world.pump()
            self._world.condition.notify_all()

    def held_by_clients(self) -> Snapshot:
        """Return the groups that have members, the topics assigned to them, and those made by clients still connected.

        Topics that this broker made itself, by `create_topic` or `publish`, are nobody's.
        """
        with self._world.condition:
            self._world.pump()
            groups, topics = set(), set()
            for group in self.snapshot().groups:
                described = views.describe(self._core, group, self.now_ms())
                if described is not None and described.members:
                    groups.add(group)
                    topics |= {at.topic for each in described.members for at in each.assigned}
            own: list[object] = [self._driver]
            if self._producer is not None:
                own.append(self._producer._driver)  # noqa: SLF001 - it is this broker's
            connected: set[Asker] = {each for each in self._world.clients if each not in own}
            if self._world.listener is not None:
                connected |= self._world.listener.peers()
            topics |= {name for name, who in self._intercepted.makers.items() if who in connected}
            there = {topic.name for topic in self._core.services.topics if not topic.is_internal}
            return Snapshot(frozenset(topics & there), frozenset(groups))

    @property
    def uses(self) -> int:
        """How many requests it was sent, and clients in this process it has: a change says that somebody uses it."""
        return self._intercepted.requests + len(self._world.clients)

    # Within

    def _changed(self) -> None:
        if self._waiting:
            self._world.condition.notify_all()
