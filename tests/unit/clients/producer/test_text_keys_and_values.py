"""Keys and values may be text: every way to send accepts text, and errors about others name the right parameter."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import headrace
from headrace.errors import SerializationError

Send = Callable[[headrace.Broker, str, Any, Any], object]


def send(broker: headrace.Broker, topic: str, key: Any, value: Any) -> object:
    with headrace.Producer(broker) as producer:
        return producer.send(topic, value, key=key).result(10)


def send_many(broker: headrace.Broker, topic: str, key: Any, value: Any) -> object:
    with headrace.Producer(broker) as producer:
        return [each.result(10) for each in producer.send_many(topic, [value], keys=[key])]


def send_in_transaction(broker: headrace.Broker, topic: str, key: Any, value: Any) -> object:
    with headrace.Producer(broker, transactional_id="x") as producer, producer.transaction():
        return producer.send(topic, value, key=key)


def send_with_asyncio(broker: headrace.Broker, topic: str, key: Any, value: Any) -> object:
    async def run() -> object:
        async with headrace.aio.Producer(broker) as producer:
            return await (await producer.send(topic, value, key=key))

    return asyncio.run(run())


def send_many_with_asyncio(broker: headrace.Broker, topic: str, key: Any, value: Any) -> object:
    async def run() -> object:
        async with headrace.aio.Producer(broker) as producer:
            return [await each for each in await producer.send_many(topic, [value], keys=[key])]

    return asyncio.run(run())


def publish(broker: headrace.Broker, topic: str, key: Any, value: Any) -> object:
    return broker.publish(topic, value, key=key)


WAYS = [
    send,
    send_many,
    send_in_transaction,
    send_with_asyncio,
    send_many_with_asyncio,
    publish,
]


@pytest.fixture
def broker() -> Iterator[headrace.Broker]:
    with headrace.Broker() as broker:
        broker.create_topic("plain")
        broker.create_topic("orders", serde="json")
        yield broker


@pytest.mark.parametrize("way", WAYS)
def test_text_is_written_as_utf_8(broker: headrace.Broker, way: Send) -> None:
    way(broker, "plain", "Zoë", "naïve")
    (record,) = broker.read("plain", 0, 0)
    assert (record.key, record.value) == ("Zoë".encode(), "naïve".encode())


@pytest.mark.parametrize("way", WAYS)
def test_the_key_is_text_where_the_value_is_json(broker: headrace.Broker, way: Send) -> None:
    way(broker, "orders", "alice", {"id": 1})
    (record,) = broker.read("orders", 0, 0)
    assert (record.key, record.value) == (b"alice", {"id": 1})


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("key", "value", "remedy"),
    [(7, "v", " key_serde='json'"), ("k", 7, " serde='json'"), ("k", ["v"], " serde='json'")],
)
def test_other_types_are_refused_with_the_parameter_that_helps(
    broker: headrace.Broker, way: Send, key: object, value: object, remedy: str
) -> None:
    with pytest.raises(SerializationError, match="bytes or text are wanted") as told:
        way(broker, "plain", key, value)
    assert str(told.value).endswith(f"choose a serde, for example{remedy}")


def test_a_worker_publishes_text_as_it_is(broker: headrace.Broker) -> None:
    app = headrace.App(broker)

    @app.worker("plain", group="plain-function")
    def plain(value: str, context: headrace.SyncContext) -> None:
        context.publish("from-plain", "text", key="alice")

    @app.worker("plain", group="coroutine")
    async def coroutine(value: str, context: headrace.Context) -> None:
        await context.publish("from-coroutine", "text", key="alice")

    with app.test(broker) as trial:
        trial.produce("plain", "go", key="bob")
        trial.wait_idle()
        for topic in ("from-plain", "from-coroutine"):
            assert [(m.key, m.value) for m in trial.messages(topic)] == [(b"alice", b"text")]
