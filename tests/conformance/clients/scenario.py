"""The scenario that every client has to pass, written once for all clients.

A client is any class with the methods of `Client`: most are a program that speaks JSON lines (`ProgramClient`), the
command-line clients are wrapped in their own modules.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Protocol

from tests.conformance.clients.observer import Observer, stored_batches, wait_until
from tests.conformance.clients.peer import Peer
from tests.conformance.clients.programs.common import BASE_TIMESTAMP, value_of
from tests.fixtures.client_security import NO_SECURITY, Properties
from tests.fixtures.history.members import History, check_deliveries, check_ledger
from tests.fixtures.targets import Target

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
STORED = ("uncompressed", *CODECS[1:])
"""The values of `compression.type` that a topic may have."""
CODEC_NUMBERS = {name: number for number, name in enumerate(CODECS)}
PARTITIONS = 6
BURST = 60
PAUSE_S = 0.1  # between bursts: members, not throughput, are tested

Acknowledged = list[tuple[int, int, int]]  # (n, partition, offset)


class Member(Protocol):
    """A running group member, whose events are added to the history under its name."""

    name: str

    def leave(self) -> None: ...
    def kill(self) -> None: ...


class Client(Protocol):
    """A client library or tool as the scenario needs it.

    `chooses_partitions`: record n can be sent to partition n modulo partitions. `carries_headers`: headers and
    timestamps can be set. `tells_commits`: its members say what they committed. `outlives_brokers`: it waits for a
    broker that is away instead of giving up.
    """

    name: str
    chooses_partitions: bool
    carries_headers: bool
    tells_commits: bool
    outlives_brokers: bool

    def create_topic(self, topic: str, partitions: int) -> None: ...
    def produce(
        self, topic: str, partitions: int, first: int, count: int, codec: str, *, idempotent: bool
    ) -> Acknowledged: ...
    def consume(self, topic: str, partitions: int, count: int) -> list[Sequence[object]]: ...
    def member(self, name: str, group: str, topic: str, history: History) -> Member: ...
    def value_of(self, number: int) -> str: ...
    def load(self, topic: str) -> Load: ...
    def close(self) -> None: ...


class Load(Protocol):
    """Produce records until it is stopped; n counts up from 0."""

    @property
    def acknowledged(self) -> Acknowledged: ...
    def stop(self) -> None: ...
    def burst(self) -> None: ...


class ProgramMember:
    """A member in a process of its own."""

    def __init__(self, peer: Peer, history: History) -> None:
        self.name = peer.name
        self._peer, self._history = peer, history

    def leave(self) -> None:
        self._peer.call("left", do="leave")
        self._peer.close()

    def kill(self) -> None:
        self._peer.kill()
        self._history.add(self.name, "killed", {})


class ProgramClient:
    """A client that is a program with the JSON lines of `programs.common`."""

    chooses_partitions = True
    carries_headers = True
    tells_commits = True
    outlives_brokers = True

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        bootstrap: str,
        directory: Path,
        properties: Properties = NO_SECURITY,
    ) -> None:
        self.name = name
        self._command = [*command, bootstrap]
        self._directory = directory
        self._properties = properties
        self._peer = Peer(name, self._command, directory=directory, properties=properties)

    @classmethod
    def python(
        cls,
        name: str,
        module: str,
        bootstrap: str,
        directory: Path,
        properties: Properties = NO_SECURITY,
        *,
        arguments: Sequence[str] = (),
    ) -> ProgramClient:
        """Return a client whose program is a module of `programs`, with arguments before the address."""
        program = f"tests.conformance.clients.programs.{module}"
        command = [sys.executable, "-m", program, *arguments]
        return cls(name, command, bootstrap, directory, properties)

    def create_topic(self, topic: str, partitions: int) -> None:
        self._peer.call("created", do="create", topic=topic, partitions=partitions)

    def produce(
        self,
        topic: str,
        partitions: int,
        first: int,
        count: int,
        codec: str,
        *,
        idempotent: bool,
        acks: str = "all",
    ) -> Acknowledged:
        answer = self._peer.call(
            "produced",
            do="produce",
            topic=topic,
            partitions=partitions,
            first=first,
            count=count,
            codec=codec,
            idempotent=idempotent,
            acks=acks,
        )
        return [(row[0], row[1], row[2]) for row in answer["records"]]

    def consume(self, topic: str, partitions: int, count: int) -> list[Sequence[object]]:
        answer = self._peer.call(
            "consumed", do="consume", topic=topic, partitions=partitions, count=count
        )
        return list(answer["records"])

    def peer(self, name: str, history: History) -> Peer:
        """Start another process of the same program."""
        return Peer(
            name,
            self._command,
            directory=self._directory,
            history=history,
            properties=self._properties,
        )

    def member(self, name: str, group: str, topic: str, history: History) -> Member:
        peer = self.peer(name, history)
        peer.send(do="member", name=name, group=group, topic=topic)
        return ProgramMember(peer, history)

    def value_of(self, number: int) -> str:
        return value_of(number)

    def load(self, topic: str) -> Load:
        return BurstLoad(self, topic)

    def close(self) -> None:
        self._peer.close()


def check_codec(
    client: Client, target: Target, observer: Observer, codec: str, *, idempotent: bool
) -> None:
    """Produce with one codec; check the offsets, the contents and the compression of the records."""
    topic, partitions = f"{client.name}-{codec}-{'idempotent' if idempotent else 'plain'}", 2
    if client.chooses_partitions:  # else any number of them will do, and producing creates it
        client.create_topic(topic, partitions)
    acknowledged = client.produce(topic, partitions, 0, BURST, codec, idempotent=idempotent)

    assert sorted(n for n, _, _ in acknowledged) == list(range(BURST))
    if client.chooses_partitions:
        assert all(partition == n % partitions for n, partition, _ in acknowledged)
    check_log(observer, topic, acknowledged, client.value_of)
    expected = sorted(_as_sent(client, *each) for each in acknowledged)
    assert sorted(map(tuple, client.consume(topic, partitions, BURST))) == expected
    if client.carries_headers:
        seen = [
            (
                each.partition,
                each.offset,
                (each.key or b"").decode(),
                (each.value or b"").decode(),
                [[name, (value or b"").decode()] for name, value in each.headers],
                each.timestamp,
            )
            for each in observer.read(topic)
        ]
        assert sorted(seen) == expected, "as another client reads them"

    batches = stored_batches(target, topic)
    assert {batch.codec for batch in batches} == {CODEC_NUMBERS[codec]}
    assert all((batch.producer_id >= 0) == idempotent for batch in batches)


def check_stored_codec(client: Client, target: Target, observer: Observer, stored: str) -> None:
    """Produce with every codec to a topic with a codec of its own; check the stored records."""
    topic, partitions = f"{client.name}-stored-{stored}", 1
    observer.create_topic(topic, partitions, {"compression.type": stored})
    acknowledged: Acknowledged = []
    for number, codec in enumerate(CODECS):
        first, idempotent = number * BURST, number % 2 == 0
        acknowledged += sorted(
            client.produce(topic, partitions, first, BURST, codec, idempotent=idempotent)
        )
    count = BURST * len(CODECS)
    assert [offset for _, _, offset in acknowledged] == list(range(count))
    seen = [(each.offset, (each.value or b"").decode()) for each in observer.read(topic)]
    assert seen == [(offset, client.value_of(n)) for n, _, offset in acknowledged]
    expected = sorted(_as_sent(client, *each) for each in acknowledged)
    assert sorted(map(tuple, client.consume(topic, partitions, count))) == expected
    codecs = {batch.codec for batch in stored_batches(target, topic)}
    assert codecs == {0 if stored == "uncompressed" else CODEC_NUMBERS[stored]}


def _as_sent(client: Client, n: int, partition: int, offset: int) -> tuple[object, ...]:
    row = (partition, offset, str(n), client.value_of(n))
    return (*row, [["n", str(n)]], BASE_TIMESTAMP + n) if client.carries_headers else row


class BurstLoad:
    """Produce bursts of records, one after the other, until it is stopped."""

    def __init__(self, client: Client, topic: str, first: int = 0) -> None:
        self._acknowledged: Acknowledged = []
        self._client, self._topic, self.next = client, topic, first
        self._stop = threading.Event()
        self.between_bursts = threading.Lock()
        """A lock. While a thread holds it, the next burst waits."""
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    @property
    def acknowledged(self) -> Acknowledged:
        """Return the numbers that are acknowledged so far."""
        return self._acknowledged

    def _run(self) -> None:
        try:
            while not self._stop.wait(PAUSE_S):
                with self.between_bursts:
                    self.burst()
        except BaseException as error:  # noqa: BLE001  # raised again by stop()
            self._failure = error

    def burst(self) -> None:
        """Produce one burst, and wait for its acknowledgements."""
        client, first = self._client, self.next
        self.next += BURST
        self._acknowledged += client.produce(
            self._topic, PARTITIONS, first, BURST, "lz4", idempotent=True
        )

    def stop(self) -> None:
        """Stop after the current burst.

        Raises:
            BaseException: The load has failed before.
        """
        self._stop.set()
        self._thread.join()
        if self._failure is not None:
            raise self._failure


@contextlib.contextmanager
def _members() -> Iterator[dict[str, Member]]:
    """Yield members by name. Members that still run at the end are killed."""
    members: dict[str, Member] = {}
    try:
        yield members
    finally:
        for member in members.values():
            member.kill()


class GroupUnderLoad:
    """A group of members under load. Subclasses say what happens to them."""

    def __init__(self, client: Client, observer: Observer) -> None:
        self._client, self._observer = client, observer
        self.topic = f"{client.name}-life"
        self.group = f"{client.name}-group"
        self.history = History()

    def run(self) -> None:
        """Run all phases and check the result. The message of a failure has the events of the members."""
        try:
            self._run()
        except AssertionError as error:
            events = [e for e in self.history.events() if e.kind not in ("records", "committed")]
            said = [f"{e.at_ns / 1e9:.3f} {e.member} {e.kind} {dict(e.fields)}" for e in events]
            error.add_note("\n".join(said[-60:]))
            raise

    def _run(self) -> None:
        self._create_topic()
        with _members() as members:
            load = self._client.load(self.topic)
            try:
                self._phases(members, load)
            finally:
                load.stop()
            self._wait_all_committed(load)
            while members:
                members.popitem()[1].leave()
            self._after_load(members, load)
            self._check(load)

    def _create_topic(self) -> None:
        self._client.create_topic(self.topic, PARTITIONS)

    def _phases(self, members: dict[str, Member], load: Load) -> None:
        """Do what the members have to live through, while the load runs."""
        raise NotImplementedError

    def _after_load(self, members: dict[str, Member], load: Load) -> None:
        """Do more, when all members have left."""

    def _add(self, members: dict[str, Member], *names: str) -> None:
        for name in names:
            members[name] = self._client.member(name, self.group, self.topic, self.history)
        self._observer.wait_stable(self.group, set(members), PARTITIONS)

    def _wait_progress(self, members: dict[str, Member], since: int | None = None) -> None:
        """Wait until each member has got (and committed) records since now, or since a number of events."""
        seen = len(self.history.events()) if since is None else since
        kind = "committed" if self._client.tells_commits else "records"

        def probe() -> bool:
            active = {e.member for e in self.history.events()[seen:] if e.kind == kind}
            return active >= set(members)

        wait_until(f"{kind} of {sorted(members)}", probe)

    def _wait_all_committed(self, load: Load) -> None:
        expected: dict[int, int] = {}
        for _, partition, offset in load.acknowledged:
            expected[partition] = max(expected.get(partition, 0), offset + 1)
        wait_until(
            f"{self.group} committed up to {expected}",
            lambda: self._observer.committed(self.group, self.topic) == expected,
        )

    def _check(self, load: Load) -> None:
        check_log(self._observer, self.topic, load.acknowledged, self._client.value_of)
        delivered = self.history.delivered()
        for n, partition, offset in load.acknowledged:
            assert delivered[partition].get(offset) == self._client.value_of(n), (
                f"{n} at {partition}@{offset}"
            )
        problems = check_deliveries(self.history.events(), commits_told=self._client.tells_commits)
        assert not problems, "\n".join(problems)
        ledger = self._observer.ledger(self.group)
        assert len(ledger) > 10, "the coordinator's own records are there to be checked"
        problems = check_ledger(ledger)
        assert not problems, "\n".join(problems)


class GroupLife(GroupUnderLoad):
    """A group of three members under load, with joins, leaves, kills and restarts of the broker."""

    def __init__(
        self,
        client: Client,
        target: Target,
        observer: Observer,
        *,
        crash_under_load: bool = True,
    ) -> None:
        super().__init__(client, observer)
        self._target = target
        self._crash_under_load = crash_under_load and client.outlives_brokers

    def _phases(self, members: dict[str, Member], load: Load) -> None:
        self._join_leave_die(members, load)
        self._restart(members, load, self._target.restart)
        if self._crash_under_load:
            self._restart(members, load, self._crash)

    def _after_load(self, members: dict[str, Member], load: Load) -> None:
        self._crash_without_members(members, load)
        self._wait_all_committed(load)

    @contextlib.contextmanager
    def _quiet(self, load: Load) -> Iterator[None]:
        """Pause the load for a client that drops records while it is being stopped."""
        if not getattr(self._client, "drops_when_stopped", False):
            yield
            return
        assert isinstance(load, BurstLoad)
        with load.between_bursts:
            self._wait_all_committed(load)
            yield

    def _join_leave_die(self, members: dict[str, Member], load: Load) -> None:
        self._add(members, "one", "two", "three")
        self._wait_progress(members)
        self._add(members, "four")
        self._wait_progress(members)
        with self._quiet(load):
            members.pop("two").leave()
        self._observer.wait_stable(self.group, set(members), PARTITIONS)
        self._wait_progress(members)
        members.pop("three").kill()
        self._observer.wait_stable(self.group, set(members), PARTITIONS)
        self._wait_progress(members)

    def _crash(self) -> None:
        self._target.kill()
        self._target.start()

    def _restart(self, members: dict[str, Member], load: Load, restart: Callable[[], None]) -> None:
        """Restart the broker, under load if the client can wait for it."""
        names, before = set(members), len(self.history.events())
        if not self._client.outlives_brokers:
            load.stop()
            with self._quiet(load):
                while members:
                    members.popitem()[1].leave()
        self.history.add("broker", "broker_down", {})
        restart()
        if self._client.outlives_brokers:
            self._observer.wait_stable(self.group, names, PARTITIONS)
            before = len(self.history.events())
        else:
            self._add(members, *names)
            load.burst()
        self._wait_progress(members, before)

    def _crash_without_members(self, members: dict[str, Member], load: Load) -> None:
        """Kill the broker; check that a new member begins at the committed offsets and gets only new records."""
        before = self._observer.committed(self.group, self.topic)
        self._crash()
        assert self._observer.committed(self.group, self.topic) == before
        load.burst()
        self._add(members, "late")


def check_log(
    observer: Observer,
    topic: str,
    acknowledged: Acknowledged,
    value: Callable[[int], str],
) -> None:
    """Check that the log has exactly the acknowledged records, at their offsets, without gaps and in the order sent."""
    rows: dict[int, list[tuple[int, str]]] = {}
    for each in observer.read(topic):
        rows.setdefault(each.partition, []).append((each.offset, (each.value or b"").decode()))
    expected: dict[int, list[tuple[int, str]]] = {}
    for n, partition, offset in sorted(acknowledged):
        expected.setdefault(partition, []).append((offset, value(n)))
    assert rows == expected
    for partition, found in rows.items():
        assert [offset for offset, _ in found] == list(range(len(found))), f"dense {partition}"
