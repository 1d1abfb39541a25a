"""Two members of a group for each kind of client: one behind a proxy, the other not; and when each handled what.

Each call of a handler is written down with the epoch of its member. By one clock, no two members may handle records of
one partition at a time, and no epoch may come after a higher one.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import headrace
import headrace.aio
from headrace import TopicPartition
from headrace.errors import HeadraceError, NotAssignedError

PARTITIONS: Final = 2
BACKLOG: Final = 500
"""Records in each partition at the beginning: members have read ahead for longer than a session lasts."""
FEED_S: Final = 0.1
"""Then one more for each partition in such a time."""
HANDLING_S: Final = 0.03
SESSION_MS: Final = 6_000
"""The shortest session timeout of Kafka. With the default of 45 s each silence would take a minute."""
SETTINGS: Final = {
    "group.initial.rebalance.delay.ms": "0",
    "group.consumer.session.timeout.ms": str(SESSION_MS),
    "group.consumer.min.session.timeout.ms": str(SESSION_MS),
    "group.consumer.heartbeat.interval.ms": "1000",
    "group.consumer.min.heartbeat.interval.ms": "1000",
}
WORKERS: Final[dict[str, dict[str, Any]]] = {
    "partition": {},
    "key": {"ordering": "key"},
    "none": {"ordering": "none", "concurrency": 4},
    "batches": {"batch": 5},
    "most": {"delivery": "at_most_once"},
    "once": {"delivery": "exactly_once"},
    "static": {},
    "threads": {},
}
PLAIN: Final = ("blocking", "aio")
KINDS: Final = (*WORKERS, *PLAIN)


@dataclass(slots=True)
class Handled:
    """One call of a handler."""

    member: str
    epoch: int
    began_s: float
    values: list[bytes]
    ended_s: float = 0.0


@dataclass
class Notes:
    """Everything that was handled, by kind and partition."""

    calls: dict[tuple[str, int], list[Handled]] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    @contextlib.contextmanager
    def handling(
        self, kind: str, partition: int, member: str, epoch: int, values: list[bytes]
    ) -> Iterator[None]:
        note = Handled(member, epoch, time.monotonic(), values)
        with self.lock:
            self.calls.setdefault((kind, partition), []).append(note)
        try:
            yield
        finally:
            note.ended_s = time.monotonic()

    def of(self, kind: str, member: str, since_s: float = 0.0) -> int:
        """Count the partitions of a kind in which a member has begun to handle something since a time."""
        return sum(
            any(call.member == member and call.began_s >= since_s for call in calls)
            for (name, _), calls in list(self.calls.items())
            if name == kind
        )

    def values(self, kind: str) -> Counter[bytes]:
        return Counter(
            value
            for (name, _), calls in list(self.calls.items())
            if name == kind
            for call in calls
            for value in call.values
        )

    def check(self) -> None:
        """Fail if two members handled one partition at the same time, or if a member handled a lost partition."""
        for (kind, partition), calls in self.calls.items():
            ordered = sorted(calls, key=lambda call: call.began_s)
            last_of: dict[str, Handled] = {}
            highest = -1
            for call in ordered:
                where = f"{kind}, partition {partition}: {call}"
                for member, other in last_of.items():
                    assert member == call.member or other.ended_s <= call.began_s, (
                        f"{where} began during {other}"
                    )
                assert call.epoch >= highest, f"{where} after epoch {highest}"
                highest = max(highest, call.epoch)
                known = last_of.get(call.member)
                if known is None or known.ended_s < call.ended_s:
                    last_of[call.member] = call


def options(kind: str, member: str, protocol: str) -> dict[str, Any]:
    """The arguments of consumers: only the session timeout differs from the defaults."""
    if protocol == "consumer":
        given: dict[str, Any] = {"group_protocol": "consumer"}
    else:
        given = {
            "group_protocol": "classic",
            "session_timeout_ms": SESSION_MS,
            "heartbeat_interval_ms": 1_000,
        }
    if kind == "static":
        given["group_instance_id"] = f"{kind}-{member}"
    return given


def make_app(target: str, member: str, protocol: str, notes: Notes) -> headrace.App:
    """One app with a worker of each kind."""
    app = headrace.App(target, client_id=member, drain_timeout_s=30)
    for kind, settings in WORKERS.items():
        handler = _handler(kind, member, notes)
        if kind == "once":
            handler = app.publishes(f"{kind}-out")(handler)
        worker = app.worker(
            kind, group=f"group-{kind}", name=kind, **settings, **options(kind, member, protocol)
        )
        worker(handler)
    return app


def _handler(kind: str, member: str, notes: Notes) -> Callable[..., Any]:
    async def handle(value: bytes, context: headrace.Context) -> bytes:
        with notes.handling(kind, context.partition, member, context.epoch, [value]):
            await asyncio.sleep(HANDLING_S)
        return value

    async def handle_batch(values: list[bytes], context: headrace.Context) -> None:
        with notes.handling(kind, context.partition, member, context.epoch, list(values)):
            await asyncio.sleep(HANDLING_S * len(values))

    def handle_in_thread(value: bytes, context: headrace.Context) -> None:
        with notes.handling(kind, context.partition, member, context.epoch, [value]):
            time.sleep(HANDLING_S)

    handlers: dict[str, Callable[..., Any]] = {"batches": handle_batch, "threads": handle_in_thread}
    return handlers.get(kind, handle)


class Feeder:
    """Writes records to all partitions of all topics until it is stopped."""

    def __init__(self, target: str) -> None:
        self._target = target
        self.counts: Counter[str] = Counter()
        """Number of records handled, by kind of client."""
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join(60)
        assert not self._thread.is_alive(), "the feeder hangs"

    def _run(self) -> None:
        with headrace.Producer(self._target) as producer:
            for number in range(BACKLOG):
                self._round(producer, number)
            while not self._stopping.wait(FEED_S):
                number += 1
                self._round(producer, number)

    def _round(self, producer: headrace.Producer, number: int) -> None:
        for kind in KINDS:
            for partition in range(PARTITIONS):
                value = f"{kind}-{partition}-{number}".encode()
                key = b"%d" % (number % 7)
                producer.send(kind, value, key=key, partition=partition)
                self.counts[kind] += 1


class Blocking:
    """A blocking consumer in a thread that handles records."""

    def __init__(self, target: str, member: str, protocol: str, notes: Notes) -> None:
        self._arguments = target, member, protocol, notes
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join(30)
        assert not self._thread.is_alive(), "the blocking consumer hangs"

    def _run(self) -> None:
        target, member, protocol, notes = self._arguments
        with headrace.Consumer(
            target,
            group="group-blocking",
            auto_offset_reset="earliest",
            **options("blocking", member, protocol),
        ) as consumer:
            consumer.subscribe(["blocking"])
            while not self._stopping.is_set():
                left: dict[TopicPartition, int] = {}
                with contextlib.suppress(HeadraceError):
                    for record in consumer.poll(0.2, max_records=50):
                        name = TopicPartition(record.topic, record.partition)
                        epoch = consumer.group_metadata().generation_id
                        if name in left or not consumer.owns(name):
                            left.setdefault(name, record.offset)
                            continue
                        with notes.handling(
                            "blocking", record.partition, member, epoch, [record.value]
                        ):
                            time.sleep(HANDLING_S)
                return_to(consumer, left)


def return_to(
    consumer: headrace.Consumer | headrace.aio.Consumer, left: dict[TopicPartition, int]
) -> None:
    """Read partitions that still belong to this consumer again, from the first unhandled record."""
    for name, offset in left.items():
        with contextlib.suppress(NotAssignedError):
            consumer.seek(name, offset)


async def consume(target: str, member: str, protocol: str, notes: Notes) -> None:
    """Consume with an asyncio consumer until the task is cancelled."""
    async with headrace.aio.Consumer(
        target,
        group="group-aio",
        auto_offset_reset="earliest",
        **options("aio", member, protocol),
    ) as consumer:
        await consumer.subscribe(["aio"])
        while True:
            left: dict[TopicPartition, int] = {}
            with contextlib.suppress(HeadraceError):
                for record in await consumer.poll(0.2, max_records=50):
                    name = TopicPartition(record.topic, record.partition)
                    epoch = consumer.group_metadata().generation_id
                    if name in left or not consumer.owns(name):
                        left.setdefault(name, record.offset)
                        continue
                    with notes.handling("aio", record.partition, member, epoch, [record.value]):
                        await asyncio.sleep(HANDLING_S)
            return_to(consumer, left)


@contextlib.asynccontextmanager
async def everyone(
    target: str, member: str, protocol: str, notes: Notes
) -> AsyncIterator[headrace.App]:
    """One member of each kind, on the running loop but for the blocking one."""
    app = make_app(target, member, protocol, notes)
    serving = asyncio.create_task(app.serve())
    consuming = asyncio.create_task(consume(target, member, protocol, notes))
    blocking = Blocking(target, member, protocol, notes)
    try:
        yield app
    finally:
        consuming.cancel()
        app.stop()
        await asyncio.to_thread(blocking.stop)
        await asyncio.gather(serving, consuming, return_exceptions=True)
    if not serving.cancelled() and (error := serving.exception()) is not None:
        raise error
