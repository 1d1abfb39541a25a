"""The asyncio drivers: over TCP and with a broker in this process."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
import time
from collections.abc import Awaitable, Callable

import pytest

from headrace.clients.config import ClientConfig, parse_config
from headrace.clients.drivers import AsyncDriver, open_aio_driver
from headrace.clients.flows.admin import NewTopic, create_topics
from headrace.clients.flows.effects import Call, Invoke, Sleep, Wait
from headrace.clients.flows.fetch import FetchLimits, FetchPosition, fetch
from headrace.clients.flows.metadata import refresh
from headrace.clients.flows.produce import produce
from headrace.clients.producer.aio import Producer
from headrace.clients.producer.aio_delivery import DeliveryFuture
from headrace.embedded.runtime import BrokerRuntime
from headrace.errors import ClosedError, TransportError
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.messages.metadata import MetadataRequest
from headrace.records.builder import build_batch
from headrace.types import TopicPartition
from tests.fixtures.broker_harness import values
from tests.unit.clients.drivers.test_background import PATIENCE_S, in_thread
from tests.unit.clients.drivers.test_local_driver import (
    BATCH,
    T0,
    new_simulation,
    open_driver,
    with_topic,
    write,
)
from tests.unit.clients.fake_broker import FakeCluster, Fault

Body = Callable[[AsyncDriver], Awaitable[object]]


def over_tcp(body: Body, **properties) -> None:
    """Run a test's body with a driver of a broker on a socket."""
    with FakeCluster(topics={"t": 1}) as cluster:
        run_with(cluster.bootstrap, body, **properties)


def in_process(body: Body, **properties) -> None:
    """Run a test's body with a driver of a broker in this process."""
    harness = new_simulation(virtual=False)
    with_topic(harness).close()
    run_with(harness, body, **properties)
    harness.close()


def run_with(target: str | BrokerRuntime, body: Body, **properties) -> None:
    async def main() -> None:
        bootstrap = target if isinstance(target, str) else None
        config = parse_config(
            ClientConfig, properties, bootstrap_servers=bootstrap, retry_backoff_ms=5
        )
        driver = open_aio_driver(target, config)
        try:
            await asyncio.wait_for(body(driver), PATIENCE_S)
        finally:
            await driver.close()
        assert asyncio.all_tasks() == {asyncio.current_task()}, "nothing is left behind"

    asyncio.run(main(), debug=True)


both = pytest.mark.parametrize("run", [over_tcp, in_process])


async def ask(driver: AsyncDriver) -> list[str]:
    return list((await driver.run(refresh(driver.engine.state, ["t"]))).topics)


@both
def test_flows_run_side_by_side(run) -> None:
    async def body(driver: AsyncDriver) -> None:
        await driver.connect()
        assert await asyncio.gather(*(ask(driver) for _ in range(20))) == [["t"]] * 20

    run(body)


@both
def test_code_of_the_program_may_be_a_coroutine_and_may_call_again(run) -> None:
    async def body(driver: AsyncDriver) -> None:
        async def listener(argument: str) -> tuple[str, list[str]]:
            await asyncio.sleep(0)
            return argument, await ask(driver)

        def plain() -> str:
            return "plain"

        def flow():
            first = yield Invoke(listener, ("revoked",))
            return first, (yield Invoke(plain))

        assert await driver.run(flow()) == (("revoked", ["t"]), "plain")

    run(body)


@both
def test_an_exception_of_the_programs_code_is_raised_in_the_flow(run) -> None:
    async def body(driver: AsyncDriver) -> None:
        async def fail() -> None:
            raise KeyError("listener")

        def flow():
            try:
                yield Invoke(fail)
            except KeyError as error:
                return repr(error)

        assert await driver.run(flow()) == "KeyError('listener')"

    run(body)


@both
@pytest.mark.parametrize("effect", ["wait", "sleep", "invoke", "call"])
def test_a_caller_that_is_cancelled_leaves_the_client_usable(run, effect: str) -> None:
    async def body(driver: AsyncDriver) -> None:
        ended: list[str] = []
        began = asyncio.Event()

        def flow():
            began.set()
            try:
                if effect == "wait":
                    yield Wait()
                elif effect == "sleep":
                    yield Sleep(3_600_000, TransportError("unused"))
                elif effect == "invoke":
                    yield Invoke(asyncio.Event().wait)
                else:
                    yield from fetch(
                        driver.engine.state, {T0: FetchPosition(0)}, FetchLimits(max_wait_ms=5_000)
                    )
            finally:
                ended.append(effect)

        await ask(driver)
        task = asyncio.create_task(driver.run(flow(), 36_000_000))
        await began.wait()
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        assert task.cancelled()
        assert ended == [effect], "the flow was ended"
        assert await ask(driver) == ["t"]

    run(body)


@both
def test_timers_and_callbacks_do_not_wait_for_the_program(run) -> None:
    async def body(driver: AsyncDriver) -> None:
        driver.start_background()
        called = asyncio.Event()
        order: list[str] = []

        async def callback() -> None:
            await ask(driver)
            order.append("coroutine")
            called.set()

        def fail() -> None:
            order.append("failing")
            raise ZeroDivisionError

        with driver.enter() as engine:
            engine.at(engine.now_ms + 5, lambda: engine.callbacks.extend((fail, callback)))
        await called.wait()
        assert order == ["failing", "coroutine"]

    run(body)


@both
def test_closing_ends_the_calls_that_are_open(run) -> None:
    async def body(driver: AsyncDriver) -> None:
        def flow():
            yield Wait()

        waiting = asyncio.create_task(driver.run(flow(), 60_000))
        await asyncio.sleep(0)
        await driver.close()
        with pytest.raises(ClosedError):
            await waiting
        with pytest.raises(ClosedError):
            await ask(driver)
        await driver.close()

    run(body)


def test_a_client_outside_of_a_loop_is_refused_with_advice() -> None:
    with pytest.raises(RuntimeError, match="inside a coroutine"):
        open_aio_driver("127.0.0.1:1", ClientConfig())


def test_a_lost_connection_fails_its_calls_and_is_made_again() -> None:
    with FakeCluster(topics={"t": 1}) as cluster:

        async def body(driver: AsyncDriver) -> None:
            await driver.connect()
            cluster.faults.append(Fault(ApiKey.METADATA, "drop"))
            with pytest.raises(TransportError, match=rf"{cluster.bootstrap} (closed|lost)"):
                await driver.run(one_call())
            assert await ask(driver) == ["t"]
            assert driver.lost_connections == 1

        run_with(cluster.bootstrap, body)
        assert cluster.brokers[1].accepted == 2


def test_a_request_without_a_response_is_complete_when_it_is_written() -> None:
    with FakeCluster(topics={"t": 1}) as cluster:

        async def fill(sender: Producer) -> list[DeliveryFuture]:
            return [await sender.send("t", b"y" * 100_000) for _ in range(1000)]

        async def body() -> int:
            sender = Producer(
                cluster.bootstrap, acks=0, linger_ms=0, buffer_memory=1 << 20, max_block_ms=200
            )
            await (await sender.send("t", b"x"))
            with cluster.lock, pytest.raises(TransportError, match="wait for delivery"):
                await fill(sender)  # the broker does not read
            await sender.close()
            assert sender.failed == 0
            return sender.delivered

        sent = asyncio.run(body())
        deadline = time.monotonic() + 20
        while cluster.logs[TopicPartition("t", 0)].end_offset < sent:
            assert time.monotonic() < deadline


def one_call():
    return (yield Call(request=MetadataRequest(topics=None)))


def test_silence_ends_at_the_deadline() -> None:
    with FakeCluster(topics={"t": 1}) as cluster:

        async def body(driver: AsyncDriver) -> None:
            await driver.connect()
            cluster.faults.append(Fault(ApiKey.METADATA, "silence"))
            with pytest.raises(TransportError, match="did not answer in time"):
                await driver.run(one_call())
            assert await ask(driver) == ["t"]

        run_with(cluster.bootstrap, body, request_timeout_ms=300)


def test_a_missing_listener_is_reported_with_the_address() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]

        async def body(driver: AsyncDriver) -> None:
            expected = f"cannot connect to 127.0.0.1:{port}: Connection refused"
            with pytest.raises(TransportError, match=expected):
                await driver.connect()

        run_with(f"127.0.0.1:{port}", body)


def test_a_listener_that_never_answers_the_handshake_is_given_up() -> None:
    with socket.socket() as mute:
        mute.bind(("127.0.0.1", 0))
        mute.listen()

        async def body(driver: AsyncDriver) -> None:
            with pytest.raises(TransportError, match="does not answer the handshake"):
                await driver.connect()

        address = f"127.0.0.1:{mute.getsockname()[1]}"
        run_with(address, body, socket_connection_setup_timeout_ms=500)


def test_closing_while_a_connection_is_being_opened() -> None:
    with socket.socket() as mute:
        mute.bind(("127.0.0.1", 0))
        mute.listen()

        async def body(driver: AsyncDriver) -> None:
            connecting = asyncio.create_task(driver.connect())
            await asyncio.sleep(0)
            await driver.close()
            with pytest.raises(ClosedError):
                await connecting

        run_with(f"127.0.0.1:{mute.getsockname()[1]}", body)


def test_a_port_that_speaks_something_else_is_recognised() -> None:
    async def serve() -> None:
        ended = asyncio.Event()

        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            with contextlib.suppress(ConnectionError):
                await reader.read()
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()
            ended.set()

        async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
            address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
            driver = open_aio_driver(address, ClientConfig(bootstrap_servers=address))
            with pytest.raises(TransportError, match="TLS or an HTTP port"):
                await driver.connect()
            await driver.close()
            await ended.wait()

    asyncio.run(serve())


def test_large_batches_pass_in_both_directions() -> None:
    async def body(driver: AsyncDriver) -> None:
        state = driver.engine.state
        batch = build_batch([(None, bytes(4 << 20), (), 1)])
        await driver.run(refresh(state, ["t"]))
        await driver.run(produce(state, T0, batch, -1, 30_000))
        fetched = await driver.run(
            fetch(state, {T0: FetchPosition(0, max_bytes=1 << 30)}, FetchLimits())
        )
        assert len(fetched[T0].records) == len(batch)

    over_tcp(body)


def test_a_write_in_another_thread_ends_a_long_poll_in_the_thread_of_the_loop() -> None:
    harness = new_simulation(virtual=False)
    other = with_topic(harness)
    threads: list[int] = []

    async def body(driver: AsyncDriver) -> None:
        def flow():
            found = yield from fetch(
                driver.engine.state, {T0: FetchPosition(0)}, FetchLimits(max_wait_ms=60_000)
            )
            threads.append(threading.get_ident())
            return found

        reading = asyncio.create_task(driver.run(flow(), 120_000))
        await asyncio.sleep(0)
        thread, _ = in_thread(lambda: write(other))
        assert values((await reading)[T0].records) == [b"v"]
        thread.join()

    run_with(harness, body)
    assert threads == [threading.get_ident()]


def test_waiting_with_a_manual_clock_takes_no_time_and_lets_other_tasks_run() -> None:
    harness = new_simulation()

    async def body(driver: AsyncDriver) -> None:
        state = driver.engine.state
        assert await driver.run(create_topics(state, [NewTopic("t", 1)])) == {"t": None}
        began_ms = harness.now_ms()
        reading = fetch(state, {T0: FetchPosition(0)}, FetchLimits(max_wait_ms=20_000))
        found, written = await asyncio.gather(
            driver.run(reading, 36_000_000), driver.run(produce(state, T0, BATCH, -1, 30_000))
        )
        assert written.base_offset == 0
        assert values(bytes(found[T0].records)) == [b"v"]
        await driver.run(
            fetch(state, {T0: FetchPosition(1)}, FetchLimits(max_wait_ms=20_000)), 36_000_000
        )
        assert harness.now_ms() - began_ms == 20_000

    run_with(harness, body)


def test_blocking_and_asyncio_clients_share_a_broker() -> None:
    harness = new_simulation()
    blocking = with_topic(harness)

    async def body(driver: AsyncDriver) -> None:
        assert write(open_driver(harness)) == 0
        assert await ask(driver) == ["t"]
        assert write(blocking) == 1

    run_with(harness, body)
