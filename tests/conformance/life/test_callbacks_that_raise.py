"""Every kind of callback raises every kind of exception: it is reported, and all clients continue to work."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any
from uuid import uuid4

import pytest

import headrace
from tests.fixtures.processes import ServerProcess


class OwnError(BaseException):
    """An exception that derives from BaseException, as some libraries do to pass `except Exception`."""


EXCEPTIONS = (ValueError, SystemExit, KeyboardInterrupt, GeneratorExit, StopIteration, OwnError)
WITHIN_S = 20


@pytest.fixture(params=["tcp", "embedded"])
def target(request: pytest.FixtureRequest, server: ServerProcess) -> Iterator[Any]:
    if request.param == "tcp":
        yield server.bootstrap
        return
    with headrace.Broker() as broker:
        yield broker


@pytest.fixture
def topic(target: Any) -> str:
    name = f"callbacks-{uuid4()}"
    with headrace.Admin(target) as admin:
        admin.create_topic(name, 1)
    return name


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + WITHIN_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def raising(kind: type[BaseException], seen: list[str]) -> Callable[..., Any]:
    def callback(*_: object) -> None:
        seen.append(threading.current_thread().name)
        raise kind("by a callback")

    return callback


def was_logged(caplog: pytest.LogCaptureFixture, kind: type[BaseException]) -> bool:
    return any(
        record.levelno == logging.ERROR and record.exc_info and record.exc_info[0] is kind
        for record in caplog.records
    )


@pytest.mark.parametrize("kind", EXCEPTIONS)
@pytest.mark.parametrize("way", ["on_delivery", "add_done_callback"])
def test_a_delivery_callback_raises_in_the_background(
    target: Any, topic: str, caplog: pytest.LogCaptureFixture, way: str, kind: type[BaseException]
) -> None:
    seen: list[str] = []
    told: list[Any] = []
    with (
        headrace.Producer(target, linger_ms=50) as producer,
        headrace.Producer(target, linger_ms=50) as neighbour,
    ):
        for client in (producer, neighbour):
            client.send(topic, b"first").result(WITHIN_S)
        if way == "on_delivery":
            producer.send(topic, b"x", on_delivery=raising(kind, seen))
        else:
            producer.send(topic, b"x").add_done_callback(raising(kind, seen))
        until(lambda: seen)
        # Only the background thread sends both: no thread is inside a call.
        producer.send(topic, b"y", on_delivery=told.append)
        neighbour.send(topic, b"z", on_delivery=told.append)
        until(lambda: len(told) == 2)
        assert {each.exception() for each in told} == {None}
    assert threading.main_thread().name not in seen
    assert was_logged(caplog, kind)


@pytest.mark.parametrize("kind", EXCEPTIONS)
def test_a_delivery_callback_raises_inside_a_call_of_the_program(
    target: Any, topic: str, caplog: pytest.LogCaptureFixture, kind: type[BaseException]
) -> None:
    seen: list[str] = []
    told: list[Any] = []
    with headrace.Producer(target, linger_ms=60_000) as producer:
        producer.send(topic, b"x", on_delivery=raising(kind, seen))
        producer.send(topic, b"y", on_delivery=told.append)
        producer.flush()  # does not raise what the callback does
        until(lambda: told)
    assert seen
    assert was_logged(caplog, kind)


@pytest.mark.parametrize("kind", EXCEPTIONS)
def test_a_commit_callback_raises_out_of_the_poll_that_called_it_and_the_consumer_works_on(
    target: Any, topic: str, kind: type[BaseException]
) -> None:
    here = headrace.TopicPartition(topic, 0)
    with headrace.Consumer(target, group=topic, enable_auto_commit=False) as consumer:
        consumer.assign({here: 0})
        consumer.commit_async({here: 0}, raising(kind, []))
        caught: list[BaseException] = []

        def polled() -> bool:
            try:
                consumer.poll(0.05)
            except BaseException as error:  # noqa: BLE001 - it is compared below
                caught.append(error)
            return bool(caught)

        until(polled)
        consumer.commit({here: 0})
        assert consumer.committed([here])[here] is not None
    assert [type(each) for each in caught] in ([kind], [RuntimeError]), caught


class Listener:
    def __init__(self, kind: type[BaseException]) -> None:
        self.kind: type[BaseException] | None = kind

    def on_assigned(self, _: object) -> None:
        kind, self.kind = self.kind, None
        if kind is not None:
            raise kind("by a listener")


@pytest.mark.parametrize("kind", EXCEPTIONS)
def test_a_listener_raises_out_of_the_poll_that_called_it_and_the_consumer_works_on(
    target: Any, topic: str, kind: type[BaseException]
) -> None:
    with headrace.Producer(target) as producer:
        producer.send(topic, b"x")
    with headrace.Consumer(target, group=topic, auto_offset_reset="earliest") as consumer:
        consumer.subscribe([topic], listener=Listener(kind))
        caught: list[BaseException] = []
        values: list[Any] = []

        def polled() -> bool:
            try:
                values.extend(record.value for record in consumer.poll(0.2))
            except BaseException as error:  # noqa: BLE001 - it is compared below
                caught.append(error)
            return bool(values)

        until(polled)
    # A generator cannot let a StopIteration pass.
    assert [type(each) for each in caught] in ([kind], [RuntimeError]), caught
    assert "by a listener" in repr(caught[0]) or "by a listener" in repr(caught[0].__cause__)


class Partitioner:
    def __init__(self, kind: type[BaseException]) -> None:
        self.kind: type[BaseException] | None = kind

    def partition(self, *_: object) -> int:
        kind, self.kind = self.kind, None
        if kind is not None:
            raise kind("by a partitioner")
        return 0


class Serde(Partitioner):
    def serialize(self, value: Any) -> bytes:
        self.partition()
        return bytes(value)

    def deserialize(self, data: Any) -> Any:
        self.partition()
        return bytes(data)


@pytest.mark.parametrize("kind", EXCEPTIONS)
@pytest.mark.parametrize("way", ["partitioner", "serde"])
def test_a_partitioner_or_serde_raises_out_of_the_send_that_called_it(
    target: Any, topic: str, way: str, kind: type[BaseException]
) -> None:
    given: dict[str, Any] = {way: Partitioner(kind) if way == "partitioner" else Serde(kind)}
    with headrace.Producer(target, linger_ms=50, **given) as producer:
        with pytest.raises((kind, headrace.HeadraceError)):
            producer.send(topic, b"x")
        told: list[Any] = []
        producer.send(topic, b"y", on_delivery=told.append)
        until(lambda: told)
        assert told[0].exception() is None
        assert producer.delivered == 1


@pytest.mark.parametrize("kind", EXCEPTIONS)
def test_a_delivery_callback_of_asyncio_raises(
    target: Any, topic: str, caplog: pytest.LogCaptureFixture, kind: type[BaseException]
) -> None:
    seen: list[str] = []

    async def main() -> None:
        async with headrace.aio.Producer(target, linger_ms=50) as producer:
            await (await producer.send(topic, b"first"))
            _ = await producer.send(topic, b"x", on_delivery=raising(kind, seen))
            async with asyncio.timeout(WITHIN_S):
                while not seen:  # noqa: ASYNC110 - callbacks are not asynchronous
                    await asyncio.sleep(0.01)
                metadata = await (await producer.send(topic, b"y"))
            assert metadata.offset == 2

    if kind is KeyboardInterrupt:  # ends the loop, as asyncio has it
        with pytest.raises(KeyboardInterrupt):
            asyncio.run(main())
    else:
        asyncio.run(main())
    assert was_logged(caplog, kind)
