"""`headrace.testing.Broker`: an embedded broker for tests. Tests can wait for it, inspect it, break it and reset it."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import ClassVar, Final, NamedTuple

from headrace.broker.broker import Broker as CoreBroker
from headrace.clients.arguments import checked
from headrace.clients.consumer.records import ConsumerRecord
from headrace.clients.drivers.local_target import LocalClient
from headrace.clients.flows.effects import Call
from headrace.config.options import Value
from headrace.embedded.broker import Broker as EmbeddedBroker
from headrace.embedded.clock import Clock, ManualClock
from headrace.embedded.request_lines import OnDone
from headrace.embedded.runtime import BrokerRuntime
from headrace.serdes.serde import Serde
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
"""The settings that make tests fast. All other settings have the defaults of `headrace serve`."""

WAIT_S: Final = 10.0
"""The default timeout of the methods that wait, in seconds."""


class _WatchedBroker(BrokerRuntime):
    """The embedded broker's core that also stores which client sends a request."""

    def _handle(
        self, client: LocalClient, call: Call, on_done: OnDone
    ) -> Callable[[], object] | None:
        core = self.broker
        assert isinstance(core, InterceptedBroker), "set by Broker._core_type"
        core.asker = client
        try:
            return super()._handle(client, call, on_done)
        finally:
            core.asker = None


class Snapshot(NamedTuple):
    """The names of the existing topics and groups at one moment; see `Broker.reset`."""

    topics: frozenset[str] = frozenset()
    groups: frozenset[str] = frozenset()

    def __sub__(self, other: Snapshot) -> Snapshot:
        """Return the names that the other snapshot does not have."""
        return Snapshot(self.topics - other.topics, self.groups - other.groups)

    def __or__(self, other: Snapshot) -> Snapshot:
        """Return the names of both snapshots."""
        return Snapshot(self.topics | other.topics, self.groups | other.groups)


class Broker(EmbeddedBroker):
    """A broker in the test's process.

        with headrace.testing.Broker() as broker:
            broker.create_topic("orders")
            start_the_program(broker.bootstrap)         # any Kafka client; Headrace's clients also take the broker
            broker.wait_caught_up("billing")
            assert broker.messages("invoices")[0].value == b"paid"

    The methods beyond those of `headrace.Broker` wait for conditions and never sleep. If the tested program runs on the
    event loop of the test, wait in a thread: `await asyncio.to_thread(broker.wait_caught_up, "billing")`.

    Attributes:
        faults: The faults of the broker, see `headrace.testing.faults`.
    """

    _core_type: ClassVar[type[CoreBroker]] = InterceptedBroker
    _runtime_type: ClassVar[type[BrokerRuntime]] = _WatchedBroker
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
            data: The directory for all data. None keeps the data in memory.
            clock: The clock of the broker. None is the clock of the process, which `advance` can move ahead. With a
                `ManualClock` time moves only by calls of the test, and the broker cannot listen.
            configs: The broker's configuration under Kafka's names, in addition to `TEST_CONFIGS`.
        """
        super().__init__(
            data, clock=clock or LeapingClock(), configs={**TEST_CONFIGS, **(configs or {})}
        )
        core = self._core
        assert isinstance(core, InterceptedBroker), "set by _core_type"
        self._intercepted = core
        self._waiting = 0
        self._bootstrap: str | None = None
        self.faults = Faults(self._runtime, core)
        core.changed = self._changed

    @property
    def bootstrap(self) -> str:
        """HOST:PORT for clients over TCP. The broker begins to listen when this is first read."""
        if self._bootstrap is None:
            self._bootstrap = self.listen()
        return self._bootstrap

    # Waiting

    def wait_until(
        self, condition: Callable[[], object], *, timeout_s: float = WAIT_S, what: str = ""
    ) -> None:
        """Wait until a condition is true. The condition is checked after each event of the broker.

        Args:
            condition: Returns whether the condition is true. It is called with the broker's lock held, so it must not
                use a client. It may read `Fault.hits`, or data of the tested program.
            timeout_s: The timeout in seconds of the broker's clock.
            what: The name of the condition in the error.

        Raises:
            TimeoutError: The condition did not become true in time.
        """
        with self._runtime.condition:
            end_ms = self.now_ms() + round(timeout_s * 1000)
            self._waiting += 1
            try:
                while True:
                    until_ms = self._runtime.pump()
                    if condition():
                        return
                    if self.now_ms() >= end_ms:
                        raise TimeoutError(
                            f"{what or 'the condition'} was not true within {timeout_s} s"
                        )
                    self._runtime.wait(end_ms if until_ms is None else min(until_ms, end_ms))
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
            group: The group. The method waits until it exists, and has `state` and `members` if they are given.
            state: Kafka's name of the state: "Stable", "Empty", "PreparingRebalance", "CompletingRebalance", "Dead".
            members: The number of members.
            topic: The topic, instead of a group.
            records: The least number of records in the topic.
            timeout_s: The timeout in seconds of the broker's clock.

        Raises:
            TimeoutError: The condition did not become true in time. The message has the actual state.
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
        """Wait until a group has committed the ends of its partitions.

        Args:
            group: The group.
            topic: The topic. None is all partitions that are assigned to members or have a committed offset.
            timeout_s: The timeout in seconds of the broker's clock.

        Raises:
            TimeoutError: The group has not caught up in time. The message has the lag of each partition.
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

    def _wait(self, look: Callable[[], bool], timeout_s: float, found: Callable[[], str]) -> None:
        try:
            self.wait_until(look, timeout_s=timeout_s)
        except TimeoutError:
            raise TimeoutError(f"after {timeout_s} s {found()}") from None

    # Inspecting
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

        Partitions are merged by the timestamps of the records. The records of one partition are in offset order.

        Args:
            topic: The topic.
            partition: The partition. None is all partitions.
            serde: The serde of values. None is the serde that the topic's configuration names, or bytes.
            key_serde: The serde of keys. None is the serde that the topic's configuration names, or bytes.
            isolation_level: "read_committed" leaves out records of open and aborted transactions. "read_uncommitted"
                returns all records.

        Raises:
            ApiError: UNKNOWN_TOPIC_OR_PARTITION, if the topic does not exist.
        """
        with self._runtime.condition:
            services = self._core.services
            partitions = services.partitions.of(services.topics.require(topic))
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
        """Return the committed offsets of a group, by partition."""
        found: list[dict[TopicPartition, int]] = []

        def look() -> bool:
            offsets = views.committed_offsets(self._core, group, self.now_ms())
            found.extend([] if offsets is None else [offsets])
            return bool(found)

        self.wait_until(look)
        return found[0]

    # Time

    def advance(self, duration_ms: int) -> None:
        """Move the clock of the broker and of its clients in this process ahead, and do everything that becomes due.

        Clients over TCP have clocks of their own. For the broker they have sent nothing in this time.
        """
        clock = self.clock
        if isinstance(clock, ManualClock) or not isinstance(clock, LeapingClock):
            super().advance(duration_ms)
            return
        with self._runtime.condition:
            end_ms = clock.now_ms() + duration_ms
            while (
                due_ms := self._runtime.pump()
            ) is not None and clock.now_ms() < due_ms <= end_ms:
                clock.advance_to(due_ms)
            clock.advance_to(end_ms)
            self._runtime.pump()
            if self._runtime.listener is not None:
                self._runtime.listener.clock_leapt()
            self._runtime.condition.notify_all()

    # Between tests

    def snapshot(self) -> Snapshot:
        """Return the names of all topics and groups, for `reset`."""
        with self._runtime.condition:
            self._runtime.pump()
            listed = self._core.services.groups.list_groups((), (), self.now_ms())
            groups = [] if not isinstance(listed, tuple) else listed[1]
            return Snapshot(
                frozenset(
                    topic.name for topic in self._core.services.topics if not topic.is_internal
                ),
                frozenset(group.group_id for group in groups),
            )

    def reset(self, to: Snapshot | None = None) -> None:
        """End all faults, and remove topics and groups with their members.

        Args:
            to: The topics and groups to keep. None keeps nothing.
        """
        self.faults.clear()
        self.remove(self.snapshot() - (to or self.NOTHING))

    def remove(self, things: Snapshot) -> None:
        """Remove topics, and groups with their members. Names that do not exist are ignored."""
        if things.topics:
            self._own_producer.renew()  # its metadata of the topics is no longer valid
        with self._runtime.condition:
            core = self._core
            for group in things.groups:
                described = views.describe(core, group, self.now_ms())
                if described is not None and described.members:
                    self.faults.remove_members(group, described.members)
            core.services.groups.delete_groups(sorted(things.groups), self.now_ms())
            for topic in [each for each in core.services.topics if each.name in things.topics]:
                core.delete_topic(topic, self.now_ms())
                # The next test may create the topic again at once.
                core.services.topics.deleted_names.forget(topic.name)
                self._intercepted.makers.pop(topic.name, None)
            self._runtime.pump()
            while any(name in core.services.topics.changing for name in things.topics):
                self._runtime.pump()  # the files of many partitions are removed in steps
            self._runtime.condition.notify_all()

    def held_by_clients(self) -> Snapshot:
        """Return the groups with members, the topics assigned to them, and the topics that connected clients created.

        Topics that this object created by `create_topic` or `publish` belong to no client.
        """
        with self._runtime.condition:
            self._runtime.pump()
            groups, topics = set(), set()
            for group in self.snapshot().groups:
                described = views.describe(self._core, group, self.now_ms())
                if described is not None and described.members:
                    groups.add(group)
                    topics |= {at.topic for each in described.members for at in each.assigned}
            own: list[object] = [self._driver, self._own_producer.driver]
            connected: set[Asker] = {each for each in self._runtime.clients if each not in own}
            if self._runtime.listener is not None:
                connected |= self._runtime.listener.peers()
            topics |= {name for name, who in self._intercepted.makers.items() if who in connected}
            there = {topic.name for topic in self._core.services.topics if not topic.is_internal}
            return Snapshot(frozenset(topics & there), frozenset(groups))

    @property
    def uses(self) -> int:
        """The number of requests plus the number of clients in this process. A change shows that the broker is used."""
        return self._intercepted.requests + len(self._runtime.clients)

    def _changed(self) -> None:
        if self._waiting:
            self._runtime.condition.notify_all()
