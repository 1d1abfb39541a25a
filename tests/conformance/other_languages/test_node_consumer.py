"""The JavaScript consumer, written from docs/reference/client-protocol.md alone, works in several kinds of groups."""

from __future__ import annotations

import os
import re
import shutil
import signal
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions

from tests.conformance.clients.observer import Observer, wait_until
from tests.conformance.clients.peer import Peer, json_event
from tests.conformance.clients.programs.common import HEARTBEAT_MS, SESSION_TIMEOUT_MS, value_of
from tests.conformance.clients.scenario import Acknowledged, Client, GroupLife, ProgramClient
from tests.fixtures.client_security import NO_SECURITY
from tests.fixtures.history.members import History, check_deliveries, check_ledger, records_of
from tests.fixtures.targets import Target

CONSUMER = Path(__file__).with_name("consumer.js")
LINES_LIMIT = 300
PARTITIONS = 6
BURST = 30
MEMBER_MODULE = "tests.conformance.other_languages.headrace_member"


def node_event(line: str) -> tuple[str, Mapping[str, object]] | None:
    """An event of the consumer in the words of the checkers, which know one topic and lists of records."""
    event = json_event(line)
    if event is None:
        return None
    kind, fields = event
    if kind == "record":
        row = [fields["partition"], fields["offset"], fields["value"]]
        return "records", {**fields, "records": [row]}
    if kind in ("committed", "commit_failed"):
        offsets = fields["offsets"]
        assert isinstance(offsets, list)
        return kind, {**fields, "offsets": {str(e["partition"]): e["offset"] for e in offsets}}
    return event


class NodeMember:
    """A process that runs consumer.js as a member."""

    def __init__(
        self,
        name: str,
        group: str,
        topic: str,
        history: History,
        *,
        bootstrap: str,
        directory: Path,
    ) -> None:
        node = shutil.which("node")
        if node is None:
            pytest.skip("node is not installed (Debian: apt-get install nodejs)")
        options = {
            "bootstrap": bootstrap,
            "group": group,
            "topics": topic,
            "client-id": name,
            "session-timeout-ms": SESSION_TIMEOUT_MS,
            "heartbeat-ms": HEARTBEAT_MS,
            "max-wait-ms": 100,
        }
        words = [word for key, value in options.items() for word in (f"--{key}", str(value))]
        self.name, self._history = name, history
        self.peer = Peer(
            name,
            [node, str(CONSUMER), *words],
            directory=directory,
            history=history,
            translate=node_event,
        )

    def leave(self) -> None:
        self.peer.close(signal.SIGTERM)
        self.peer.wait("left", 0)

    def kill(self) -> None:
        self.peer.kill()
        self._history.add(self.name, "killed", {})


class BurstsUncompressed:
    """A thread that produces bursts of uncompressed records, which the consumer can read, until it is stopped."""

    def __init__(self, producer: ProgramClient, topic: str) -> None:
        self.acknowledged: Acknowledged = []
        self._producer, self._topic, self._next = producer, topic, 0
        self._stop = threading.Event()
        self._failures: list[BaseException] = []
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            while not self._stop.wait(0.1):
                self.burst()
        except BaseException as error:  # noqa: BLE001  # raised again by stop()
            self._failures.append(error)

    def burst(self) -> None:
        first, self._next = self._next, self._next + BURST
        self.acknowledged += self._producer.produce(
            self._topic, PARTITIONS, first, BURST, "none", idempotent=True
        )

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()
        if self._failures:
            raise self._failures[0]


class _Program(ProgramClient):
    """A program that has members and nothing else."""

    def __init__(self, command: Sequence[str], bootstrap: str, directory: Path) -> None:
        self._command, self._directory = [*command, bootstrap], directory
        self._properties = NO_SECURITY


class NodeClient:
    """The consumer as the clients' scenario wants a client; records come from kafka-python."""

    name = "node"
    chooses_partitions = True
    carries_headers = True
    tells_commits = True
    outlives_brokers = True

    def __init__(self, target: Target, directory: Path) -> None:
        self._producer = ProgramClient.python(
            "kafka-python", "kafka_python", target.bootstrap, directory
        )
        self.member: Callable[[str, str, str, History], NodeMember] = partial(
            NodeMember, bootstrap=target.bootstrap, directory=directory
        )
        self.create_topic = self._producer.create_topic
        self.produce = self._producer.produce
        self.consume = self._producer.consume
        self.python_member = self._producer.member
        program = [sys.executable, "-m", MEMBER_MODULE]
        self.headrace_member = _Program(program, target.bootstrap, directory).member
        self.close = self._producer.close

    def value_of(self, number: int) -> str:
        return value_of(number)

    def load(self, topic: str) -> BurstsUncompressed:
        return BurstsUncompressed(self._producer, topic)


@pytest.fixture(scope="module")
def client(target: Target, scratch: Path) -> Iterator[NodeClient]:
    client = NodeClient(target, scratch)
    yield client
    client.close()


def ends_of(acknowledged: Acknowledged) -> dict[int, int]:
    """Partition -> one past the last acknowledged offset."""
    ends: dict[int, int] = {}
    for _, partition, offset in acknowledged:
        ends[partition] = max(ends.get(partition, 0), offset + 1)
    return ends


def wait_committed(observer: Observer, group: str, topic: str, acknowledged: Acknowledged) -> None:
    """Waits until the group has committed everything that was acknowledged, and no more."""
    ends = ends_of(acknowledged)
    wait_until(
        f"{group} committed {ends}", lambda: observer.committed(group, topic) == ends or None
    )


class Group:
    """A group under load, and what has to be true of it at the end."""

    def __init__(self, client: NodeClient, observer: Observer, name: str) -> None:
        self.client, self.observer, self.name = client, observer, name
        self.topic = f"{name}-topic"
        self.history = History()
        self._names: set[str] = set()
        client.create_topic(self.topic, PARTITIONS)
        self._load = client.load(self.topic)

    @contextmanager
    def members(self, *makers: Callable[[str, str, str, History], object]) -> Iterator[list]:
        """Members that join one after the other; all that are not gone at the end are killed."""
        with ExitStack() as stack:
            yield [self.add(stack, maker) for maker in makers]

    def add(self, stack: ExitStack, maker: Callable[[str, str, str, History], object]) -> object:
        """One member more; returns when the group has settled with it."""
        name = f"{self.name}-{len(self._names) + 1}"
        member = maker(name, self.name, self.topic, self.history)
        stack.callback(member.kill)  # type: ignore[attr-defined]  # all members can be killed
        self._names.add(name)
        self.settle()
        return member

    def settle(self) -> None:
        """Waits until just the members that are left share all partitions, and each has committed since."""
        self.observer.wait_stable(self.name, self._names, PARTITIONS)
        seen = len(self.history.events())

        def probe() -> bool:
            events = self.history.events()[seen:]
            return {e.member for e in events if e.kind == "committed"} >= self._names

        wait_until(f"commits of {sorted(self._names)}", probe)

    def gone(self, member: object) -> None:
        """A member has left or died: the others take over."""
        self._names.discard(member.name)  # type: ignore[attr-defined]  # all members have a name
        self.settle()

    def back(self, member: object) -> None:
        """A member has found its way back by itself."""
        self._names.add(member.name)  # type: ignore[attr-defined]  # all members have a name
        self.settle()

    def repeated(self) -> dict[tuple[int, int], int]:
        """(partition, offset) of what was handed out more than once, and how often."""
        rows = [row[:2] for event in self.history.events() for row in records_of(event)]
        return {place: times for place, times in Counter(rows).items() if times > 1}

    def reasons(self, name: str) -> list[object]:
        """Return the reason of each revocation of a member's partitions."""
        events = self.history.events()
        return [e.fields["why"] for e in events if (e.member, e.kind) == (name, "revoked")]

    def finish(self, members: Sequence, *, exact: bool = True) -> None:
        """Everything is consumed; the members leave; nothing was lost, or handled again after its commit.

        Not `exact`: where a member was paused, records that it held may have been handled by two.
        """
        self._load.stop()
        wait_committed(self.observer, self.name, self.topic, self._load.acknowledged)
        for member in members:
            member.leave()
        state, owners = self.observer.owners(self.name)
        assert (state, owners) == ("EMPTY", {})
        delivered = self.history.delivered()
        for number, partition, offset in self._load.acknowledged:
            assert delivered[partition].get(offset) == value_of(number), f"{partition}@{offset}"
        problems = check_deliveries(self.history.events()) if exact else []
        problems += check_ledger(self.observer.ledger(self.name))
        assert not problems, "\n".join(problems)


def test_the_consumer_stays_small_and_needs_nothing() -> None:
    source = CONSUMER.read_text()
    lines = source.splitlines()
    assert len(lines) <= LINES_LIMIT
    assert max(map(len, lines)) <= 120
    required = re.findall(r"require\('([^']+)'\)", source)
    assert required
    assert all(name.startswith("node:") for name in required)
    assert "import" not in source


def test_alone_it_reads_everything_and_resumes_at_its_commit(
    client: NodeClient, observer: Observer
) -> None:
    topic, group, history = "node-alone", "node-alone", History()
    client.create_topic(topic, PARTITIONS)
    produced = client.produce(topic, PARTITIONS, 0, BURST, "none", idempotent=True)
    for start in (0, BURST):
        member = client.member("alone", group, topic, history)
        try:
            wait_committed(observer, group, topic, produced)
            if start == 0:  # and what comes while it waits at the end
                produced += client.produce(topic, PARTITIONS, BURST, BURST, "none", idempotent=True)
                wait_committed(observer, group, topic, produced)
        finally:
            member.leave()
        assert observer.owners(group) == ("EMPTY", {})
        produced += client.produce(
            topic, PARTITIONS, 2 * BURST + start, BURST, "none", idempotent=True
        )
    events = history.events()
    assert not check_deliveries(events)
    rows = [event.fields for event in events if event.kind == "records"]
    assert len(rows) == 3 * BURST, "each record once"
    for row in rows:
        number = int(str(row["key"]))
        assert row["value"] == value_of(number)
        assert row["headers"] == [["n", str(number)]]
        assert row["timestamp_ms"] == 1_600_000_000_000 + number
        assert (row["topic"], row["partition"]) == (topic, number % PARTITIONS)


def test_two_share_a_third_joins_one_is_killed(client: NodeClient, observer: Observer) -> None:
    group = Group(client, observer, "node-three")
    with group.members(client.member, client.member) as (first, second), ExitStack() as stack:
        third = group.add(stack, client.member)
        assert not group.repeated(), "no member was killed so far"
        second.kill()
        group.gone(second)
        group.finish([first, third])


def test_a_paused_member_is_fenced_and_comes_back(client: NodeClient, observer: Observer) -> None:
    group = Group(client, observer, "node-paused")
    with group.members(client.member, client.member) as (first, second):
        os.kill(first.peer.pid, signal.SIGSTOP)
        group.gone(first)
        os.kill(first.peer.pid, signal.SIGCONT)
        wait_until("it finds out", lambda: "lost" in group.reasons(first.name))
        group.back(first)
        group.finish([first, second], exact=False)


@pytest.mark.parametrize("python", ["kafka-python", "headrace"])
@pytest.mark.parametrize("leader", ["node", "python"])
def test_a_node_and_a_python_member_share_a_group(
    client: NodeClient, observer: Observer, python: str, leader: str
) -> None:
    member = client.python_member if python == "kafka-python" else client.headrace_member
    group = Group(client, observer, f"node-with-{python}-{leader}")
    makers = [client.member, member] if leader == "node" else [member, client.member]
    with group.members(*makers, client.member) as (first, second, third):
        first.leave()  # the leader has gone: the next member takes over
        group.gone(first)
        group.finish([second, third])
    assert not group.repeated(), "each record was handled once"


def test_the_leader_of_the_group_finds_new_partitions(
    client: NodeClient, observer: Observer, target: Target
) -> None:
    topic, group, history = "node-grows", "node-grows", History()
    client.create_topic(topic, 2)
    member = client.member("grower", group, topic, history)
    try:
        observer.wait_stable(group, {"grower"}, 2)
        admin = AdminClient({"bootstrap.servers": target.bootstrap})
        admin.create_partitions([NewPartitions(topic, 4)])[topic].result(20)
        observer.wait_stable(group, {"grower"}, 4)
        produced = client.produce(topic, 4, 0, BURST, "none", idempotent=True)
        wait_committed(observer, group, topic, produced)
    finally:
        member.leave()


def test_the_consumer_begins_in_the_middle_of_a_batch(
    client: NodeClient, observer: Observer, target: Target
) -> None:
    topic, group, history = "node-middle", "node-middle", History()
    client.create_topic(topic, 1)
    client.produce(topic, 1, 0, BURST, "none", idempotent=True)
    admin = AdminClient({"bootstrap.servers": target.bootstrap})
    start = ConsumerGroupTopicPartitions(group, [TopicPartition(topic, 0, BURST // 2)])
    admin.alter_consumer_group_offsets([start])[group].result(20)
    member = client.member("middle", group, topic, history)
    try:
        wait_until("the end", lambda: observer.committed(group, topic) == {0: BURST})
    finally:
        member.leave()
    assert sorted(history.delivered()[0]) == list(range(BURST // 2, BURST))


def test_the_consumer_skips_control_batches(
    client: NodeClient, observer: Observer, target: Target
) -> None:
    topic, group, history = "node-markers", "node-markers", History()
    client.create_topic(topic, 1)
    producer = Producer({"bootstrap.servers": target.bootstrap, "transactional.id": group})
    producer.init_transactions(20)
    for value in ("first", "second"):
        producer.begin_transaction()
        producer.produce(topic, value, partition=0)
        producer.commit_transaction(20)
    member = client.member("markers", group, topic, history)
    try:
        wait_until("past the last marker", lambda: observer.committed(group, topic) == {0: 4})
    finally:
        member.leave()
    assert history.delivered()[0] == {0: "first", 2: "second"}


def test_a_compressed_batch_is_refused_by_name(client: NodeClient) -> None:
    client.create_topic("node-gzip", 1)
    client.produce("node-gzip", 1, 0, BURST, "gzip", idempotent=True)
    member = client.member("refuses", "node-gzip", "node-gzip", History())
    try:
        with pytest.raises(AssertionError, match="node-gzip-0@0: damaged, compressed"):
            member.peer.wait("revoked")
    finally:
        member.kill()


@pytest.mark.slow
def test_group_lives_through_members_and_brokers_coming_and_going(
    client: Client, target: Target, observer: Observer
) -> None:
    GroupLife(client, target, observer).run()
