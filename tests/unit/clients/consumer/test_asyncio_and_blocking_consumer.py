"""The asyncio and the blocking consumer behave alike, in process and over TCP."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import headrace
from headrace.clients.consumer import aio, blocking
from headrace.clients.flows.admin import NewTopic, create_topics
from headrace.clients.producer.blocking import Producer
from headrace.errors import ClosedError, HeadraceError
from headrace.types import TopicPartition
from tests.fixtures.processes import running_server

PATIENCE_S = 20
QUICK = {"heartbeat_interval_ms": 50, "auto_commit_interval_ms": 50, "retry_backoff_ms": 10}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    directory: Path = tmp_path_factory.mktemp("faces")
    settings = ("group.initial.rebalance.delay.ms=0", "offsets.topic.num.partitions=2")
    arguments = [word for setting in settings for word in ("--config", setting)]
    with running_server(directory, *arguments) as running:
        yield running.bootstrap


@pytest.fixture(params=["in process", "tcp"])
def target(request: pytest.FixtureRequest) -> Iterator[object]:
    if request.param == "tcp":
        yield request.getfixturevalue("server")
        return
    with headrace.Broker(configs={"group.initial.rebalance.delay.ms": "0"}) as broker:
        yield broker


@pytest.fixture
def topic(target, request: pytest.FixtureRequest) -> str:
    name: str = request.node.originalname
    with blocking.Consumer(target) as admin:
        flow = create_topics(admin._driver.engine.state, [NewTopic(name, 6)])
        assert admin._driver.run(flow) == {name: None}
    return name


def fill(target, topic: str, count: int, start: int = 0) -> None:
    with Producer(target) as producer:
        for number in range(start, start + count):
            producer.send(topic, b"%d" % number, key=b"%d" % number)


def consumer_of(target, topic: str, **options) -> blocking.Consumer:
    return blocking.Consumer(
        target, **{"group": topic, "auto_offset_reset": "earliest", **QUICK, **options}
    )


def within(condition) -> bool:
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        if condition():
            return True
    return False


def test_a_group_reads_everything_once(target, topic) -> None:
    fill(target, topic, 100)
    seen: list[int] = []
    with consumer_of(target, topic) as first, consumer_of(target, topic) as second:
        first.subscribe([topic])
        second.subscribe([topic])

        def read() -> bool:
            for one in (first, second):
                seen.extend(int(record.value) for record in one.poll(0.05))
            return len(seen) >= 200 and len(first.positions()) == len(second.positions()) == 3

        assert within(lambda: read() or len(seen) >= 100)
        fill(target, topic, 100, start=100)
        assert within(read)
    assert sorted(set(seen)) == list(range(200))
    with consumer_of(target, topic) as again:
        again.subscribe([topic])
        assert len(again.assignment()) == 6
        assert again.lag() == dict.fromkeys(again.partitions_for(topic), 0), "all was committed"


def test_iteration_and_its_end(target, topic) -> None:
    fill(target, topic, 20)
    with consumer_of(target, topic) as consumer:
        consumer.subscribe([topic])
        values = set()
        for record in consumer:
            values.add(int(record.value))
            if len(values) == 20:
                break
    assert values == set(range(20))


def test_heartbeats_go_on_while_the_program_works(target, topic) -> None:
    options = {"session_timeout_ms": 6_000, "heartbeat_interval_ms": 50}
    with consumer_of(target, topic, **options) as worker:
        worker.subscribe([topic])
        worker.assignment()
        engine = worker._driver.engine
        beats = []
        engine_submit = engine.transport.submit

        def counted(call, deadline_ms, on_done):
            if type(call.request).__name__ == "HeartbeatRequest":
                beats.append(call)
            engine_submit(call, deadline_ms, on_done)

        engine.transport.submit = counted  # type: ignore[method-assign]  # to watch, not to change
        # The program is not inside a call of the consumer here.
        assert within(lambda: len(beats) >= 3)


def test_polling_from_one_thread_and_closing_from_another(target, topic) -> None:
    consumer = consumer_of(target, topic)
    consumer.subscribe([topic])
    consumer.assignment()
    outcome: list[BaseException] = []

    def poll() -> None:
        try:
            consumer.poll(PATIENCE_S)
        except HeadraceError as error:
            outcome.append(error)

    thread = threading.Thread(target=poll)
    thread.start()
    assert within(lambda: consumer._core._polling)
    consumer.close()
    thread.join(PATIENCE_S)
    assert not thread.is_alive()
    [error] = outcome
    assert isinstance(error, ClosedError)
    with pytest.raises(ClosedError):
        consumer.poll(0)
    consumer.close()


def test_an_exception_in_the_block_commits_only_finished_records(target, topic) -> None:
    fill(target, topic, 10)
    consumer = consumer_of(target, topic, max_poll_records=3, auto_commit_interval_ms=3_600_000)

    def work() -> None:
        with consumer:
            consumer.assign([TopicPartition(topic, number) for number in range(6)])
            first = consumer.poll(PATIENCE_S)
            assert first
            assert consumer.poll(PATIENCE_S)
            raise ValueError(len(first))

    with pytest.raises(ValueError, match=r"^[123]$") as raised:
        work()
    with consumer_of(target, topic) as again:
        every = again.partitions_for(topic)
        offsets = [at.offset for at in again.committed(every).values() if at is not None]
    assert sum(offsets) == int(str(raised.value))


# asyncio


def test_the_asyncio_consumer_runs_the_same_program(target, topic) -> None:
    fill(target, topic, 30)
    told: list[str] = []

    class Listener:
        async def on_assigned(self, partitions) -> None:
            await asyncio.sleep(0)
            told.append(f"assigned {len(partitions)}")

        async def on_revoked(self, partitions) -> None:
            told.append(f"revoked {len(partitions)}")

    async def program() -> list[int]:
        values = []
        options = {"group": topic, "auto_offset_reset": "earliest", **QUICK}
        async with aio.Consumer(target, **options) as consumer:
            await consumer.subscribe([topic], listener=Listener())
            async for record in consumer:
                values.append(int(record.value))
                if len(values) == 20:
                    break
            while len(values) < 30:
                values += [int(record.value) for record in await consumer.poll(1)]
            await consumer.commit()
            every = await consumer.partitions_for(topic)
            assert await consumer.lag() == dict.fromkeys(every, 0)
            committed = await consumer.committed(every)
            assert sum(at.offset for at in committed.values() if at is not None) == 30
        with pytest.raises(ClosedError):
            await consumer.poll(0)
        return values

    assert sorted(asyncio.run(program())) == list(range(30))
    assert told == ["assigned 6", "revoked 6"]


def test_a_cancelled_poll_loses_no_records(target, topic) -> None:
    fill(target, topic, 200)

    async def program() -> list[int]:
        values: list[int] = []
        options = {"group": topic, "auto_offset_reset": "earliest", "max_poll_records": 7, **QUICK}
        async with aio.Consumer(target, **options) as consumer:
            await consumer.subscribe([topic])
            deadline = time.monotonic() + PATIENCE_S
            while len(values) < 200:
                assert time.monotonic() < deadline
                polling = asyncio.ensure_future(consumer.poll(1))
                for _ in range(len(values) % 5):
                    await asyncio.sleep(0)
                if len(values) % 2:
                    polling.cancel()
                try:
                    values += [int(record.value) for record in await polling]
                except asyncio.CancelledError:
                    values += [int(record.value) for record in await consumer.poll(1)]
        return values

    assert sorted(asyncio.run(program())) == list(range(200))


def test_listeners_may_use_their_consumer(target, topic) -> None:
    fill(target, topic, 12)
    done: dict[str, dict[TopicPartition, int]] = {"blocking": {}, "asyncio": {}}

    def positions_of(records) -> dict[TopicPartition, int]:
        return {TopicPartition(one.topic, one.partition): one.offset + 1 for one in records}

    class Blocking:
        def on_assigned(self, partitions) -> None:
            assert consumer.assignment() == partitions
            consumer.seek_to_beginning(partitions)

        def on_revoked(self, _partitions) -> None:
            consumer.commit(done["blocking"])

    with consumer_of(target, topic, enable_auto_commit=False) as consumer:
        consumer.subscribe([topic], listener=Blocking())
        count = 0
        while count < 12:
            records = consumer.poll(1)
            count += len(records)
            done["blocking"] |= positions_of(records)

    async def program() -> None:
        options: dict[str, Any] = {
            "group": f"{topic}-aio",
            "auto_offset_reset": "earliest",
            **QUICK,
        }
        own = aio.Consumer(target, enable_auto_commit=False, **options)

        class Asyncio:
            async def on_assigned(self, partitions) -> None:
                assert await own.assignment() == partitions
                await own.seek_to_beginning(partitions)

            async def on_revoked(self, _partitions) -> None:
                await own.commit(done["asyncio"])

        async with own:
            await own.subscribe([topic], listener=Asyncio())
            count = 0
            while count < 12:
                records = await own.poll(1)
                count += len(records)
                done["asyncio"] |= positions_of(records)

    asyncio.run(program())
    for group in (topic, f"{topic}-aio"):
        with consumer_of(target, group) as observer:
            found = observer.committed(observer.partitions_for(topic))
            assert sum(at.offset for at in found.values() if at is not None) == 12
