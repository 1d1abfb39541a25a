"""Measure one Heartbeat through each client driver, in microseconds, and the cost of a switch between threads.

    python benchmarks/micro/clients.py

The result is the best of several rounds: the machine is shared, and the minimum is what the code needs. Over TCP the
broker is another process on the same machine; its time is in the numbers.
"""

from __future__ import annotations

import asyncio
import tempfile
import threading
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from headrace.broker.context import RequestContext
from headrace.clients.config import ClientConfig
from headrace.clients.drivers import (
    AsyncDriver,
    Driver,
    Target,
    open_aio_driver,
    open_blocking_driver,
)
from headrace.clients.flows.effects import Call, Flow
from headrace.clients.flows.metadata import refresh
from headrace.embedded.broker import Broker
from headrace.protocol.frame import RequestHeader
from headrace.protocol.messages.heartbeat import HeartbeatRequest
from tests.fixtures.processes import ServerProcess

ROUNDS = 7
REQUEST = HeartbeatRequest(group_id="g", generation_id=1, member_id="m")


def heartbeat() -> Flow[object]:
    """Send a heartbeat of a member that does not exist to any broker."""
    return (yield Call(request=REQUEST))


def main() -> None:
    """Measure and print the table."""
    with Broker() as broker, tempfile.TemporaryDirectory() as directory:
        log_path = Path(directory) / "log"
        report("Broker.handle, called directly", direct(broker))
        report("in process, blocking", blocking(broker))
        report("in process, asyncio", asyncio.run(awaited(broker)))
        report("in process, blocking over a loop in another thread", hopping(broker))
        with ServerProcess(None, log_path=log_path) as server:
            address = server.bootstrap
            report("TCP, blocking", blocking(address))
            report("TCP, blocking, with its thread started", blocking(address, background=True))
            report("TCP, asyncio", asyncio.run(awaited(address)))
            report("TCP, blocking over a loop in another thread", hopping(address))
        report("enter and leave, TCP, nothing in flight", entering())


def report(name: str, microseconds: float) -> None:
    """Print one line of the table."""
    print(f"{name:55} {microseconds:8.1f}")


def best(function: Callable[[int], float], count: int) -> float:
    """Return the microseconds of one of `count` repetitions, in the best round."""
    return min(function(count) for _ in range(ROUNDS)) / count * 1e6


def timed(action: Callable[[], object]) -> Callable[[int], float]:
    """Return a function that repeats an action and returns the seconds that it took."""

    def repeat(count: int) -> float:
        began = time.perf_counter()
        for _ in range(count):
            action()
        return time.perf_counter() - began

    return repeat


def config(target: Target) -> ClientConfig:
    """Return a client's configuration."""
    return ClientConfig(bootstrap_servers=target if isinstance(target, str) else "127.0.0.1:9092")


def direct(broker: Broker) -> float:
    """Measure the handler alone."""
    context = RequestContext(
        now_ms=broker.now_ms(),
        header=RequestHeader(REQUEST.API_KEY, 4, 0, "bench"),
        client_address="bench",
        listener_host="127.0.0.1",
        listener_port=9092,
    )
    return best(timed(lambda: broker._core.handle(context, REQUEST)), 5000)  # noqa: SLF001 - the core is measured


def blocking(target: Target, *, background: bool = False) -> float:
    """Measure the blocking driver."""
    driver: Driver = open_blocking_driver(target, config(target))
    if background:
        driver.start_background()
    driver.run(refresh(driver.engine.state, None))
    try:
        return best(timed(lambda: driver.run(heartbeat())), 1000)
    finally:
        driver.close()


async def awaited(target: Target) -> float:
    """Measure the asyncio driver from a task of its loop."""
    driver: AsyncDriver = open_aio_driver(target, config(target))
    await driver.run(refresh(driver.engine.state, None))
    seconds = []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        for _ in range(1000):
            await driver.run(heartbeat())
        seconds.append(time.perf_counter() - began)
    await driver.close()
    return min(seconds) / 1000 * 1e6


def hopping(target: Target) -> float:
    """Measure a design that was not built: a blocking client over the asyncio driver, with a loop in a thread."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    def call(coroutine: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, loop).result()

    async def opened() -> AsyncDriver:
        driver = open_aio_driver(target, config(target))
        await driver.run(refresh(driver.engine.state, None))
        return driver

    driver = call(opened())
    try:
        return best(timed(lambda: call(driver.run(heartbeat()))), 1000)
    finally:
        call(driver.close())
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def entering() -> float:
    """Measure the context manager of short calls such as `Producer.send`."""
    driver = open_blocking_driver("127.0.0.1:9092", ClientConfig())

    def enter() -> None:
        with driver.enter():
            pass

    try:
        return best(timed(enter), 20_000)
    finally:
        driver.close()


if __name__ == "__main__":
    main()
