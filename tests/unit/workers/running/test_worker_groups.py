"""Workers join and leave: partitions are assigned, revoked and lost while handlers run."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import pytest

import headrace
import headrace.testing
from headrace import App, Broker
from headrace.errors import ApiError, ErrorCode, WorkerFailedError
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.messages.offset_commit import OffsetCommitRequest
from headrace.testing import error
from headrace.workers.core.scheduler import Ordering

WAIT_S = 20.0


@pytest.fixture
def broker() -> Iterator[Broker]:
    configs = {"group.initial.rebalance.delay.ms": "0", "group.min.session.timeout.ms": "100"}
    with Broker(configs=configs) as broker:
        broker.create_topic("orders", partitions=4)
        yield broker


def committed(broker: Broker) -> dict[int, int]:
    with headrace.Admin(broker) as admin:
        return {name.partition: at.offset for name, at in admin.offsets("g").items()}


def make_app(broker: Broker, **options) -> App:
    return App(broker, group="g", commit_interval_s=60, **options)


def fill(broker: Broker, records: int) -> None:
    for number in range(records):
        for partition in range(4):
            broker.publish("orders", f"{partition} {number}".encode(), partition=partition)


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not condition():  # noqa: ASYNC110 - the broker, too, is looked at
            await asyncio.sleep(0.005)


@contextlib.asynccontextmanager
async def serving(app: App) -> AsyncIterator[None]:
    task = asyncio.create_task(app.serve())
    await asyncio.sleep(0)  # the task must begin before it can be stopped
    try:
        yield
    finally:
        app.stop()
        async with asyncio.timeout(WAIT_S):
            await task


def test_a_second_worker_gets_partitions_only_after_their_handlers_have_ended_and_committed(
    broker: Broker,
) -> None:
    fill(broker, 1)
    events: list[tuple[str, str]] = []

    async def main() -> None:
        gate = asyncio.Event()

        def make(name: str) -> App:
            app = make_app(broker)

            @app.worker("orders", heartbeat_interval_ms=20)
            async def handle(value: str):
                events.append((name, f"begin {value}"))
                if name == "first":
                    await gate.wait()
                events.append((name, f"end {value}"))

            return app

        async with serving(make("first")):
            await until(lambda: len(events) == 4)
            for partition in range(4):
                broker.publish("orders", f"{partition} 1".encode(), partition=partition)
            async with serving(make("second")):
                await until(lambda: len(members(broker)) == 2)
                await asyncio.sleep(0.2)  # long enough for many heartbeats: it must not get any
                assert all(name == "first" for name, _ in events)
                assert committed(broker) == {}
                gate.set()
                await until(lambda: len(events) == 16)

    asyncio.run(main())
    moved = [value.split()[1] for name, value in events if (name, value[:5]) == ("second", "begin")]
    assert len(moved) >= 2
    for partition in moved:
        first_end = events.index(("first", f"end {partition} 0"))
        assert first_end < events.index(("second", f"begin {partition} 1"))
    assert committed(broker) == dict.fromkeys(range(4), 2)


def members(broker: Broker) -> list:
    with headrace.Admin(broker) as admin:
        return list(admin.members("g"))


def stopping(broker: Broker, handler: Callable[[str], Awaitable[None] | None], **options) -> App:
    app = make_app(broker, **options)
    app.worker("orders")(handler)
    return app


def test_a_stop_waits_for_running_handlers_and_commits_their_records(broker: Broker) -> None:
    fill(broker, 3)
    begun: list[str] = []

    async def main() -> None:
        release = asyncio.Event()

        async def handle(value: str) -> None:
            begun.append(value)
            await release.wait()

        app = stopping(broker, handle)
        running = asyncio.create_task(app.serve())
        await until(lambda: len(begun) == 4)
        app.stop()
        await asyncio.sleep(0.05)
        assert not running.done()
        assert committed(broker) == {}
        release.set()
        await running

    asyncio.run(main())
    assert sorted(begun) == [f"{p} 0" for p in range(4)], "what had not begun is left to others"
    assert committed(broker) == dict.fromkeys(range(4), 1)


def test_a_handler_that_is_cancelled_at_the_end_of_the_bound_is_not_committed(
    broker: Broker,
) -> None:
    fill(broker, 1)
    begun: list[str] = []
    cancelled: list[str] = []

    async def main() -> None:
        async def handle(value: str) -> None:
            begun.append(value)
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                cancelled.append(value)
                if value == "3 0":
                    return  # swallowed: still not finished
                raise

        app = stopping(broker, handle, drain_timeout_s=0.05)
        running = asyncio.create_task(app.serve())
        await until(lambda: len(begun) == 4)
        app.stop()
        await running
        assert app.counters["handle"].in_flight == 0
        assert app.counters["handle"].overlaps == 0

    asyncio.run(main())
    assert sorted(cancelled) == sorted(begun)
    assert set(committed(broker).values()) <= {0}


def test_a_thread_that_hangs_is_counted_and_does_not_keep_the_app_from_ending(
    broker: Broker,
) -> None:
    broker.publish("orders", b"stuck", partition=0)
    broker.publish("orders", b"fine", partition=1)
    begun: list[str] = []
    release = threading.Event()

    def handle(value: str) -> None:
        begun.append(value)
        if value == "stuck":
            release.wait(WAIT_S)

    async def main() -> None:
        app = stopping(broker, handle, drain_timeout_s=0.05)
        running = asyncio.create_task(app.serve())
        await until(lambda: len(begun) == 2 and app.counters["handle"].handled == 1)
        app.stop()
        await running
        assert app.counters["handle"].overlaps == 1

    asyncio.run(main())
    release.set()
    assert committed(broker) == {0: 0, 1: 1} or committed(broker) == {1: 1}


def test_a_cancelled_serve_ends_in_order(broker: Broker) -> None:
    fill(broker, 1)
    begun: list[str] = []

    async def main() -> None:
        async def handle(value: str) -> None:
            begun.append(value)
            await asyncio.sleep(0.05)

        running = asyncio.create_task(stopping(broker, handle).serve())
        await until(lambda: len(begun) == 4)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

    asyncio.run(main())
    assert committed(broker) == dict.fromkeys(range(4), 1)


@pytest.mark.parametrize("kind", ["async", "thread"])
def test_lost_partitions_are_forgotten_and_overlapping_handlers_are_counted(
    broker: Broker, kind: str
) -> None:
    broker.publish("orders", b"x", partition=0)
    begun: Counter[str] = Counter()
    ended: list[str] = []
    release = threading.Event()

    async def main() -> None:
        gate = asyncio.Event()
        app = make_app(broker)

        async def in_loop(value: str) -> None:
            begun[value] += 1
            await gate.wait()
            ended.append(value)

        def in_thread(value: str) -> None:
            begun[value] += 1
            release.wait(WAIT_S)
            ended.append(value)

        worker = app.worker("orders", name="handle", heartbeat_interval_ms=20)
        worker(in_loop if kind == "async" else in_thread)
        app.publishes("out")(in_loop if kind == "async" else in_thread)
        async with serving(app):
            await until(lambda: begun["x"] == 1)
            with headrace.Admin(broker) as admin:
                [member] = admin.members("g")
                admin.remove_member("g", member.member_id)
            # The same process gets its partitions again, and the record, which is not finished.
            await until(lambda: begun["x"] == 2)
            assert app.counters["handle"].overlaps == (kind == "thread")
            gate.set()
            release.set()
            await until(lambda: app.counters["handle"].handled == 1)
            # The abandoned thread may end a moment later.
            await until(lambda: len(ended) == 1 + (kind == "thread"))

    asyncio.run(main())
    assert committed(broker)[0] == 1


@pytest.mark.parametrize("assignor", ["range", "cooperative-sticky", "equal"])
@pytest.mark.parametrize("ordering", ["partition", pytest.param("key", marks=pytest.mark.slow)])
def test_no_record_is_lost_or_handled_twice_while_workers_join_and_leave(
    broker: Broker, assignor: str, ordering: Ordering
) -> None:
    fill(broker, 30)
    handled: Counter[str] = Counter()
    orders: dict[str, list[int]] = {}

    def make() -> App:
        app = make_app(broker)

        @app.worker(
            "orders", assignor=assignor, ordering=ordering, heartbeat_interval_ms=10, concurrency=3
        )
        async def handle(value: str):
            await asyncio.sleep(0.002)
            handled[value] += 1
            partition, number = value.split()
            orders.setdefault(partition, []).append(int(number))

        return app

    async def main() -> None:
        async with serving(make()):
            await until(lambda: len(handled) > 10)
            async with serving(make()):
                await until(lambda: len(handled) > 40)
                async with serving(make()):
                    await until(lambda: len(handled) > 70)
                fill(broker, 40)  # half of it is new to them
            await until(lambda: sum(handled.values()) >= 280)

    asyncio.run(main())
    assert sum(handled.values()) == 280
    assert committed(broker) == dict.fromkeys(range(4), 70)
    if ordering == "partition":
        assert all(seen == [*range(30), *range(40)] for seen in orders.values())


def test_committed_offsets_have_no_unfinished_records_before_them(broker: Broker) -> None:
    for number in range(5):
        broker.publish("orders", b"%d" % number, key=b"%d" % number, partition=0)
    ended: list[str] = []

    async def main() -> None:
        release = asyncio.Event()
        app = App(broker, group="g", commit_interval_s=0.01)

        @app.worker("orders", ordering="key", concurrency=8)
        async def handle(value: str):
            if value == "2":
                await release.wait()
            ended.append(value)

        async with serving(app):
            await until(lambda: len(ended) == 4)
            await until(lambda: committed(broker) == {0: 2})
            release.set()
            await until(lambda: committed(broker) == {0: 5})

    asyncio.run(main())


@pytest.mark.parametrize("kind", ["async", "thread"])
def test_at_most_once_handles_each_record_once_while_workers_join_and_leave(
    broker: Broker, kind: str
) -> None:
    fill(broker, 30)
    handled: Counter[str] = Counter()

    def make() -> App:
        app = make_app(broker)

        async def in_loop(value: str):
            await asyncio.sleep(0.002)
            handled[value] += 1

        def in_thread(value: str):
            handled[value] += 1

        decorate = app.worker(
            "orders", delivery="at_most_once", heartbeat_interval_ms=10, concurrency=3
        )
        decorate(in_loop if kind == "async" else in_thread)
        return app

    async def main() -> None:
        async with serving(make()):
            await until(lambda: len(handled) > 10)
            async with serving(make()):
                await until(lambda: len(handled) > 40)
            await until(lambda: sum(handled.values()) >= 120)

    asyncio.run(main())
    assert set(handled.values()) == {1}
    assert len(handled) == 120
    assert committed(broker) == dict.fromkeys(range(4), 30)


def test_a_commit_that_fails_keeps_records_of_at_most_once_from_being_handled(
    broker: Broker, monkeypatch
) -> None:
    broker.publish("orders", b"x", partition=0)
    handled: list[str] = []
    refusals = iter([True, True])
    submit = broker._runtime.submit

    def refuse(client, call, on_done):
        if isinstance(call.request, OffsetCommitRequest) and next(refusals, False):
            assert not handled
            on_done(ApiError.for_code(ErrorCode.GROUP_AUTHORIZATION_FAILED, "not now"))
        else:
            submit(client, call, on_done)

    monkeypatch.setattr(broker._runtime, "submit", refuse)

    async def main() -> None:
        app = make_app(broker)

        @app.worker("orders", delivery="at_most_once")
        async def handle(value: str):
            handled.append(value)

        async with serving(app):
            await until(lambda: handled)

    asyncio.run(main())
    assert handled == ["x"]
    assert next(refusals, None) is None


def test_a_stop_while_at_most_once_commits_loses_nothing(broker: Broker, monkeypatch) -> None:
    fill(broker, 5)
    handled: list[str] = []

    async def main() -> None:
        app = make_app(broker)

        @app.worker("orders", delivery="at_most_once", concurrency=2)
        async def handle(value: str):
            handled.append(value)

        commit = headrace.aio.Consumer.commit

        async def stop_meanwhile(consumer, offsets):
            app.stop()
            await commit(consumer, offsets)
            await asyncio.sleep(0.02)  # the stop runs between the commit and the handlers

        monkeypatch.setattr(headrace.aio.Consumer, "commit", stop_meanwhile)
        await app.serve()

    asyncio.run(main())
    assert 0 < len(handled) == sum(committed(broker).values())


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_worker_that_cannot_commit_a_revoked_partition_stops_with_an_error(
    protocol: str,
) -> None:
    """The partition is released all the same, and its finished records are handled again."""
    handled: list[tuple[str, str]] = []
    options: dict[str, Any] = {"heartbeat_interval_ms": 20} if protocol == "classic" else {}
    configs = {
        "group.consumer.min.heartbeat.interval.ms": "20",
        "group.consumer.heartbeat.interval.ms": "20",
    }

    def make(broker: Broker, name: str) -> App:
        app = make_app(broker, client_id=name, request_timeout_ms=200)

        @app.worker("orders", group_protocol=protocol, **options)
        async def handle(value: str):
            handled.append((name, value))

        return app

    async def main(broker: headrace.testing.Broker) -> None:
        first = asyncio.create_task(make(broker, "first").serve())
        await until(lambda: len(handled) == 4)
        refusal = error("COORDINATOR_NOT_AVAILABLE")
        broker.faults.on(ApiKey.OFFSET_COMMIT, refusal, client_id="first")
        async with serving(make(broker, "second")):
            with pytest.raises(WorkerFailedError, match=r"orders-\d.* could not be committed"):
                await first
            await until(lambda: len(handled) == 8)
            assert len(members(broker)) == 1, (
                "it has left: its partitions do not wait for a session"
            )

    with headrace.testing.Broker(configs=configs) as broker:
        broker.create_topic("orders", partitions=4)
        fill(broker, 1)
        asyncio.run(main(broker))
    assert sorted(handled[4:]) == [("second", f"{partition} 0") for partition in range(4)]


@pytest.mark.parametrize("code", ["COORDINATOR_NOT_AVAILABLE", "UNKNOWN_MEMBER_ID"])
def test_a_stop_that_cannot_commit_raises_unless_the_group_has_continued(code: str) -> None:
    handled: list[str] = []

    async def main(broker: headrace.testing.Broker) -> None:
        async def handle(value: str) -> None:
            handled.append(value)

        app = stopping(broker, handle, request_timeout_ms=200)
        running = asyncio.create_task(app.serve())
        await until(lambda: len(handled) == 4)
        broker.faults.on(ApiKey.OFFSET_COMMIT, error(code))
        app.stop()
        await running

    with headrace.testing.Broker() as broker:
        broker.create_topic("orders", partitions=4)
        fill(broker, 1)
        if code == "UNKNOWN_MEMBER_ID":
            asyncio.run(main(broker))
            return
        with pytest.raises(WorkerFailedError, match="could not be committed"):
            asyncio.run(main(broker))
