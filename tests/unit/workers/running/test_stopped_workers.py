"""An administrator stops workers: handlers finish, offsets are committed, the last worker ends the app."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

import headrace
import headrace.aio
from headrace import App, Broker
from headrace.errors import WorkerFailedError
from headrace.workers.core.delivery import Delivery

WAIT_S = 20.0


@pytest.fixture
def broker() -> Iterator[Broker]:
    configs = {"group.initial.rebalance.delay.ms": "0", "group.min.session.timeout.ms": "100"}
    with Broker(configs=configs) as broker:
        broker.create_topic("orders", partitions=2)
        broker.create_topic("visits", partitions=2)
        yield broker


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not condition():  # noqa: ASYNC110 - the broker, too, is looked at
            await asyncio.sleep(0.005)


def members(broker: Broker, group: str) -> list[str]:
    if group not in broker.groups():
        return []
    return [member.member_id for member in broker.group(group).members() if member.assignment]


def consumers(app: App) -> list[Any]:
    """The members of an app, in the order of its workers."""
    service = app._service
    assert service is not None
    return [worker._source for worker in service.workers]


def stop(broker: Broker, group: str, member: str) -> Awaitable[str]:
    async def ask() -> str:
        async with headrace.aio.Admin(broker) as admin:
            return await admin.stop_member(group, member, timeout_s=WAIT_S)

    return asyncio.ensure_future(ask())


@pytest.mark.parametrize("kind", ["async", "thread"])
@pytest.mark.parametrize("delivery", ["at_least_once", "at_most_once", "exactly_once"])
@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_worker_finishes_commits_and_leaves_and_its_app_ends(
    broker: Broker,
    caplog: pytest.LogCaptureFixture,
    kind: str,
    delivery: Delivery,
    protocol: str,
) -> None:
    """Handlers that run finish within the bounds; records that have not begun are left to other members."""
    caplog.set_level(logging.INFO, "headrace.workers")
    for number in range(5):
        broker.publish("orders", b"%d" % number, partition=0)
    begun: list[str] = []
    ended: list[str] = []
    release = threading.Event()

    async def main() -> None:
        app = App(broker, group="g", commit_interval_s=60)
        gate = asyncio.Event()

        async def in_loop(value: str) -> None:
            begun.append(value)
            await gate.wait()
            ended.append(value)

        def in_thread(value: str) -> None:
            begun.append(value)
            release.wait(WAIT_S)
            ended.append(value)

        settings: dict[str, Any] = {"heartbeat_interval_ms": 20} if protocol == "classic" else {}
        worker = app.worker(
            "orders",
            name="handle",
            delivery=delivery,
            transactional_id="t" if delivery == "exactly_once" else None,
            group_protocol=protocol,
            **settings,
        )
        worker(in_loop if kind == "async" else in_thread)
        serving = asyncio.create_task(app.serve())
        await until(lambda: begun)
        [member] = members(broker, "g")
        asked = stop(broker, "g", member)
        [consumer] = consumers(app)
        await until(lambda: consumer._core._group.stopping)
        assert not ended
        assert not serving.done()
        gate.set()
        release.set()
        assert await asked == "stopped"
        await asyncio.wait_for(serving, WAIT_S)

    asyncio.run(main())
    assert ended == begun
    committed = broker.group("g").offsets()[headrace.TopicPartition("orders", 0)].offset
    assert committed == len(ended)
    assert broker.group("g").members() == []
    lines = [record.getMessage() for record in caplog.records]
    assert any("handle: an administrator has stopped this member" in line for line in lines)
    assert "no worker is left: the app ends" in lines


def test_only_that_worker_of_that_process_ends(broker: Broker) -> None:
    handled: list[str] = []

    async def main() -> None:
        apps = [App(broker, group="g") for _ in range(2)]
        for number, app in enumerate(apps):

            @app.worker("orders", group="orders", name=f"orders {number}", heartbeat_interval_ms=20)
            async def of_orders(value: str, where: int = number) -> None:
                handled.append(f"{where} {value}")

            @app.worker("visits", group="visits", name=f"visits {number}", heartbeat_interval_ms=20)
            async def of_visits(value: str, where: int = number) -> None:
                handled.append(f"{where} {value}")

        serving = [asyncio.create_task(app.serve()) for app in apps]
        await until(lambda: len(members(broker, "orders")) == len(members(broker, "visits")) == 2)
        mine = [consumer.group_metadata().member_id for consumer in consumers(apps[0])]
        assert await stop(broker, "orders", mine[0]) == "stopped"
        await until(lambda: apps[0].status()["orders 0"].state == "stopped")
        assert apps[0].status()["visits 0"].state == "running"
        await until(lambda: len(members(broker, "orders")) == 1)
        for partition in range(2):
            broker.publish("orders", b"o", partition=partition)
            broker.publish("visits", b"v", partition=partition)
        await until(lambda: len(handled) == 4)
        assert sorted(handled) == ["0 v", "1 o", "1 o", "1 v"]
        assert not serving[0].done()
        assert await stop(broker, "visits", mine[1]) == "stopped"
        await asyncio.wait_for(serving[0], WAIT_S)
        assert not serving[1].done()
        apps[1].stop()
        await asyncio.wait_for(serving[1], WAIT_S)

    asyncio.run(main())


def test_the_app_can_still_be_stopped_and_a_worker_can_still_fail(broker: Broker) -> None:
    """One worker of three has been stopped; then another fails, which ends the third too."""

    async def main() -> None:
        app = App(broker, group="g")

        @app.worker("orders", group="a", heartbeat_interval_ms=20)
        async def first(value: str) -> None: ...

        @app.worker("visits", group="b", heartbeat_interval_ms=20, retry=headrace.Retry(attempts=1))
        async def second(value: str) -> None:
            raise ValueError(value)

        serving = asyncio.create_task(app.serve())
        await until(lambda: members(broker, "a") and members(broker, "b"))
        assert await stop(broker, "a", members(broker, "a")[0]) == "stopped"
        await until(lambda: app.status()["first"].state == "stopped")
        broker.publish("visits", b"poison")
        with pytest.raises(WorkerFailedError):
            await asyncio.wait_for(serving, WAIT_S)

    asyncio.run(main())
