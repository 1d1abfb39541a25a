"""All workers of an app are checked before any of them starts, and all errors are reported at once."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import headrace
from headrace import App, Broker
from headrace.errors import (
    ConfigError,
    HeadraceError,
    StartError,
    StreamNotFoundError,
    TransportError,
)
from headrace.protocol.api_keys import ApiKey
from headrace.security.acls import AclBinding, Operation, PatternType, Permission, ResourceType
from headrace.testing import Broker as FaultyBroker
from headrace.testing.interception import Exchange
from headrace.types import TopicPartition
from tests.integration.kinesis.group.apps import fake_aws, quick

PASSWORD = "correct horse"
LOGIN: dict[str, Any] = {
    "security_protocol": "SASL_PLAINTEXT",
    "sasl_mechanism": "PLAIN",
    "sasl_username": "alice",
    "sasl_password": PASSWORD,
}


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker() as broker:
        broker.create_topic("orders", 1)
        with headrace.Producer(broker) as producer:
            producer.send("orders", b"one")
        yield broker


def problems_of(app: App) -> list[HeadraceError]:
    with pytest.raises(HeadraceError) as refused:
        asyncio.run(app.serve())
    error = refused.value
    return list(error.problems) if isinstance(error, StartError) else [error]


def test_all_errors_are_reported_and_nothing_is_handled(broker: Broker, tmp_path: Path) -> None:
    handled: list[bytes] = []
    (tmp_path / "text").write_text("no database, but a file with text in it")
    with fake_aws() as aws:
        app = App(broker, group="g")
        app.worker("orders", name="well")(handled.append)
        app.worker(quick(aws, "nowhere"), name="stream", dead_letter="kinesis://missing", retry=1)(
            handled.append
        )
        seen = headrace.SeenFile(tmp_path / "text")
        app.worker("orders", name="keys", group="keys", dedupe=bytes, seen=seen)(handled.append)
        app.worker("or/ders", name="named", group="named", dead_letter="dlq/orders")(handled.append)
        app.worker("orders", name="late", group="late", max_poll_records=-1)(handled.append)
        found = problems_of(app)
    text = "\n".join(map(str, found))
    for words in (
        "stream nowhere",
        "stream missing",
        "is no file for seen=",
        "the worker 'named' cannot read 'or/ders': this is not a valid topic name",
        "the worker 'named' cannot write to 'dlq/orders': this is not a valid topic name",
        "'max.poll.records' must not be negative",
    ):
        assert words in text, text
    assert len(found) == 6
    assert any(isinstance(each, StreamNotFoundError) for each in found)
    assert handled == []
    with headrace.Admin(broker) as admin:
        assert not admin.groups()


def test_each_reason_has_a_line() -> None:
    error = StartError([ConfigError("one"), TransportError("two")])
    assert error.lines == ("the app cannot start, for 2 reasons:", "  one", "  two")
    assert "one; two" in str(error)


def test_equal_problems_of_several_workers_are_reported_once(tmp_path: Path) -> None:
    app = App("127.0.0.1:1", group="g", request_timeout_ms=50)
    for number in range(3):
        app.worker("orders", name=f"w{number}")(lambda _: None)
    [found] = problems_of(app)
    assert isinstance(found, TransportError)
    assert "cannot connect" in str(found)


def test_a_worker_waits_for_a_missing_topic(broker: Broker) -> None:
    handled = threading.Event()
    app = App(broker, group="g", metadata_max_age_ms=20)

    @app.worker("later", dead_letter=True)
    @app.publishes("much-later")
    async def handle(value: bytes) -> None:
        handled.set()

    async def main() -> None:
        running = asyncio.create_task(app.serve())
        while app.status()["handle"].state != "waiting":
            assert not running.done()
            await asyncio.sleep(0.01)
        broker.create_topic("later", 1)
        broker.publish("later", b"one")
        await asyncio.to_thread(handled.wait, 30)
        app.stop()
        await running

    asyncio.run(main())
    assert handled.is_set()


def test_an_app_that_cannot_start_fences_no_running_worker(broker: Broker) -> None:
    """A takeover of a transactional id fences its process, so only an app that can start does it."""
    handled = threading.Event()

    def app_of(*topics: str) -> App:
        app = App(broker, group="g")

        @app.worker("orders", name="bill", delivery="exactly_once", transactional_id="bill")
        async def bill(value: bytes) -> None:
            if value == b"two":
                handled.set()

        for topic in topics:
            app.worker(topic, name="other", group="other")(lambda _: None)
        return app

    async def main() -> None:
        app = app_of()
        running = asyncio.create_task(app.serve())
        while not app.counters["bill"].handled:
            assert not running.done(), running.result()
            await asyncio.sleep(0.01)
        with pytest.raises(HeadraceError, match="not a valid topic name"):
            await app_of("or/ders").serve()
        broker.publish("orders", b"two")
        while not handled.is_set():
            assert not running.done(), running.result()
            await asyncio.sleep(0.01)
        with headrace.Admin(broker) as admin:
            while not (at := admin.offsets("g").get(TopicPartition("orders", 0))) or at.offset < 2:
                assert not running.done(), running.result()
                await asyncio.sleep(0.01)
        app.stop()
        await running

    asyncio.run(main())


def test_an_app_that_is_stopped_while_it_is_checked_ends_in_order() -> None:
    with FaultyBroker() as broker:
        asked = threading.Event()

        def hang(exchange: Exchange) -> Any:
            asked.set()
            return exchange.later(exchange.proceed(), 3600)

        broker.create_topic("orders", 1)
        broker.faults.on(ApiKey.METADATA, hang)
        app = App(broker, group="g")
        app.worker("orders", name="bill")(lambda _: None)

        async def main() -> None:
            running = asyncio.create_task(app.serve())
            await asyncio.to_thread(asked.wait, 30)
            app.stop()
            await asyncio.wait_for(running, 30)

        asyncio.run(main())
        assert app.status()["bill"].state != "running"


# Permissions


@pytest.fixture
def guarded() -> Iterator[Broker]:
    configs = {"sasl.enabled.mechanisms": "PLAIN", "authorizer.class.name": "headrace"}
    with Broker(configs=configs) as broker:
        for topic in ("orders", "invoices", "dlq.orders"):
            broker.create_topic(topic, 1)
        with headrace.Admin(broker) as admin:
            admin.set_user("alice", PASSWORD)
        yield broker


def allow(broker: Broker, kind: ResourceType, name: str, operation: Operation) -> None:
    with headrace.Admin(broker) as admin:
        entry = AclBinding(
            kind, name, PatternType.LITERAL, "User:alice", "*", operation, Permission.ALLOW
        )
        admin.create_acls([entry])


def guarded_app(broker: Broker, **options: Any) -> App:
    app = App(broker.listen("SASL_PLAINTEXT://127.0.0.1:0"), group="billing", **LOGIN)

    @app.worker("orders", dead_letter=True, **options)
    @app.publishes("invoices")
    async def bill(order: bytes) -> bytes:
        return order

    return app


GRANT = "Grant the permission with headrace acl create"


def test_missing_permissions_are_reported_with_the_command_that_grants_them(
    guarded: Broker,
) -> None:
    allow(guarded, ResourceType.TOPIC, "orders", Operation.DESCRIBE)
    allow(guarded, ResourceType.TOPIC, "invoices", Operation.READ)
    text = "\n".join(map(str, problems_of(guarded_app(guarded))))
    for words in (
        f"'bill' is not permitted to read the topic 'orders'. {GRANT} --consumer",
        f"'bill' is not permitted to write to the topic 'invoices'. {GRANT} --producer",
        f"'bill' is not permitted to write to the topic 'dlq.orders'. {GRANT} --producer",
        f"'bill' is not permitted to join the group 'billing'. {GRANT} --consumer --group",
    ):
        assert words in text, text


def test_a_group_that_may_be_described_and_not_joined_is_reported(guarded: Broker) -> None:
    allow(guarded, ResourceType.TOPIC, "orders", Operation.READ)
    for topic in ("invoices", "dlq.orders"):
        allow(guarded, ResourceType.TOPIC, topic, Operation.WRITE)
    allow(guarded, ResourceType.GROUP, "billing", Operation.DESCRIBE)
    [problem] = problems_of(guarded_app(guarded))
    assert "is not permitted to join the group 'billing'" in str(problem)


def test_the_permission_to_read_the_key_topic_is_checked(guarded: Broker) -> None:
    guarded.create_topic("keys", 1)
    allow(guarded, ResourceType.TOPIC, "orders", Operation.READ)
    for topic in ("invoices", "dlq.orders", "keys"):
        allow(guarded, ResourceType.TOPIC, topic, Operation.WRITE)
    allow(guarded, ResourceType.GROUP, "billing", Operation.READ)
    seen = headrace.SeenTopic("keys")
    [problem] = problems_of(guarded_app(guarded, dedupe=bytes, seen=seen))
    assert "is not permitted to read the topic 'keys'" in str(problem)


def test_an_app_with_all_permissions_starts(guarded: Broker) -> None:
    allow(guarded, ResourceType.TOPIC, "orders", Operation.READ)
    for topic in ("invoices", "dlq.orders"):
        allow(guarded, ResourceType.TOPIC, topic, Operation.WRITE)
    allow(guarded, ResourceType.GROUP, "billing", Operation.READ)
    guarded.publish("orders", b"one")
    app = guarded_app(guarded)

    async def main() -> None:
        running = asyncio.create_task(app.serve())
        while not app.counters["bill"].handled:
            assert not running.done(), running.result()
            await asyncio.sleep(0.01)
        app.stop()
        await running

    asyncio.run(main())
