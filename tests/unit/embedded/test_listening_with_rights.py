"""A listening embedded broker with an authorizer: only remote clients need permissions."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest
from click.testing import CliRunner

import headrace
import headrace.aio
from headrace.cli import main
from headrace.errors import ApiError, ErrorCode
from headrace.security.acls import (
    AclBinding,
    AclFilter,
    Operation,
    PatternType,
    Permission,
    ResourceType,
)

HIDDEN = "cannot be read, so its"
STRANGER = "User:ANONYMOUS"


def may(operation: Operation, name: str, kind: ResourceType = ResourceType.TOPIC) -> AclBinding:
    return AclBinding(
        kind, name, PatternType.LITERAL, STRANGER, "*", operation, Permission.ALLOW
    )  # fmt: skip


@pytest.fixture
def broker() -> Iterator[headrace.Broker]:
    configs = {"authorizer.class.name": "headrace", "group.initial.rebalance.delay.ms": "0"}
    with headrace.Broker(configs=configs) as broker:
        broker.create_topic("t", partitions=1, serde="json", partitioner="round_robin")
        with headrace.Admin(broker) as admin:
            admin.create_acls(
                [
                    may(Operation.READ, "t"),
                    may(Operation.WRITE, "t"),
                    may(Operation.READ, "g", ResourceType.GROUP),
                ]
            )
        yield broker


@pytest.fixture
def address(broker: headrace.Broker) -> str:
    return broker.listen()


@pytest.fixture
def warnings(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.WARNING, "headrace.clients")
    return caplog


def told(warnings: pytest.LogCaptureFixture) -> list[str]:
    return [text for text in warnings.messages if HIDDEN in text]


def test_local_clients_need_no_permissions(broker: headrace.Broker, address: str):
    with headrace.Admin(broker) as admin:
        admin.create_topic("mine", 1)
        assert set(admin.topics()) == {"t", "mine"}
    with headrace.Admin(address) as admin:
        assert set(admin.topics()) == {"t"}
        with pytest.raises(ApiError) as caught:
            admin.delete_topic("mine")
        assert caught.value.code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
        with pytest.raises(ApiError) as caught:
            admin.describe_acls()
        assert caught.value.code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED


def test_a_producer_without_permission_warns_once_about_the_settings_of_the_topic(
    address: str, warnings: pytest.LogCaptureFixture
):
    with headrace.Producer(address, serde="bytes") as producer:
        for _ in range(3):
            producer.send("t", b"1").result(10)
    [text] = told(warnings)
    assert "'t'" in text
    assert "partitioner, key_serde" in text
    assert "acl create --producer" in text


def test_the_asyncio_producer_raises_the_same_error(
    address: str, warnings: pytest.LogCaptureFixture
):
    async def send() -> None:
        async with headrace.aio.Producer(address) as producer:
            await (await producer.send("t", b"1"))

    asyncio.run(send())
    [text] = told(warnings)
    assert "partitioner, serde, key_serde" in text


def test_a_consumer_without_permission_warns_once_about_the_settings_of_the_topic(
    address: str, warnings: pytest.LogCaptureFixture
):
    with headrace.Producer(
        address, partitioner="key_hash", serde="json", key_serde="bytes"
    ) as producer:
        for number in range(2):
            producer.send("t", number).result(10)
    assert not told(warnings), "nothing is missing where the program says all"
    with headrace.Consumer(address, group="g", auto_offset_reset="earliest") as consumer:
        consumer.subscribe(["t"])
        values: list[object] = []
        while len(values) < 2:
            values += [record.value for record in consumer.poll(10)]
    assert values == [b"0", b"1"]
    [text] = told(warnings)
    assert "key_serde, serde" in text
    assert "acl create --consumer" in text


def test_a_client_with_permission_is_not_warned(
    broker: headrace.Broker, address: str, warnings: pytest.LogCaptureFixture
):
    with headrace.Admin(broker) as admin:
        admin.create_acls([may(Operation.DESCRIBE_CONFIGS, "t")])
    with headrace.Producer(address) as producer:
        producer.send("t", {"a": 1}).result(10)
    assert not told(warnings)


def test_an_attached_consumer_gets_the_missing_permission(broker: headrace.Broker, address: str):
    broker.create_group("g", topics=["t"])
    with (
        headrace.Consumer(address, group="g") as consumer,
        pytest.raises(ApiError, match="DescribeConfigs --group g") as caught,
    ):
        consumer.subscribe()
    assert caught.value.code == ErrorCode.GROUP_AUTHORIZATION_FAILED


def read_until_refused(consumer: headrace.Consumer) -> tuple[list[str], ApiError]:
    """Return the topics of which records came, and the error that a poll raised."""
    seen: list[str] = []
    for _ in range(10):
        try:
            seen += [record.topic for record in consumer.poll(1)]
        except ApiError as error:
            return seen, error
    raise AssertionError("no poll was refused")


@pytest.mark.parametrize("topics", [["secret"], ["t", "secret"]])
def test_a_subscriber_gets_the_topics_that_it_may_not_read(
    broker: headrace.Broker, address: str, topics: list[str]
):
    broker.create_topic("secret", partitions=1)
    with headrace.Consumer(address, group="g", auto_offset_reset="earliest") as consumer:
        consumer.subscribe(topics)
        _, error = read_until_refused(consumer)
        assert error.code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
        assert "topic 'secret'" in str(error)
        with headrace.Admin(broker) as admin:
            admin.create_acls([may(Operation.READ, "secret")])
        broker.publish("secret", b"s")
        seen: list[str] = []
        while not seen:  # the consumer need not be created again
            with contextlib.suppress(ApiError):
                seen += [record.topic for record in consumer.poll(10)]
        assert seen == ["secret"]


def test_the_asyncio_consumer_gets_the_missing_permissions(broker: headrace.Broker, address: str):
    broker.create_topic("secret", partitions=1)

    async def read() -> None:
        async with headrace.aio.Consumer(address, group="g") as consumer:
            await consumer.subscribe(["secret"])
            await consumer.poll(10)

    with pytest.raises(ApiError, match="topic 'secret'"):
        asyncio.run(read())


@pytest.mark.parametrize("options", [{}, {"enable_auto_commit": False}])
def test_a_member_without_permission_on_its_group_gets_an_error(
    broker: headrace.Broker, address: str, options: dict[str, Any]
):
    # Others get its partitions when its session ends, and what it finishes is committed no more.
    group = may(Operation.READ, "g", ResourceType.GROUP)
    broker.publish("t", 1)
    often = {"auto_offset_reset": "earliest", "heartbeat_interval_ms": 50, **options}
    with (
        headrace.Admin(broker) as admin,
        headrace.Consumer(address, group="g", **often) as consumer,
    ):
        consumer.subscribe(["t"])
        while not consumer.poll(10):
            pass
        admin.create_acls([group._replace(permission=Permission.DENY)])
        _, error = read_until_refused(consumer)
        assert error.code == ErrorCode.GROUP_AUTHORIZATION_FAILED
        assert "'g'" in str(error)
        admin.delete_acls([AclFilter(permission=Permission.DENY)])
        broker.publish("t", 2)
        seen: list[str] = []
        while not seen:  # the consumer continues
            with contextlib.suppress(ApiError):
                seen += [record.topic for record in consumer.poll(10)]


def test_attached_topics_give_no_permission(broker: headrace.Broker, address: str):
    broker.create_topic("secret", partitions=1)
    broker.create_group("g", topics=["t", "secret"])
    with headrace.Admin(broker) as admin:
        admin.create_acls([may(Operation.DESCRIBE_CONFIGS, "g", ResourceType.GROUP)])
    with headrace.Producer(broker) as producer:
        producer.send("secret", b"s").result(10)
        producer.send("t", {"a": 1}).result(10)
    with headrace.Consumer(address, group="g", auto_offset_reset="earliest") as consumer:
        consumer.subscribe()
        seen, error = read_until_refused(consumer)
    assert "topic 'secret'" in str(error)
    assert "secret" not in seen


def test_a_group_description_omits_fields_that_need_further_permissions(
    broker: headrace.Broker, address: str
):
    broker.create_group("g", topics=["t"])
    described = CliRunner().invoke(
        main, ["group", "describe", "g", "--bootstrap", address, "--format", "json"]
    )
    assert described.exit_code == 0, described.output
    [document] = json.loads(described.output)
    assert document["attached"] is None
    with headrace.Admin(broker) as admin:
        admin.create_acls([may(Operation.DESCRIBE_CONFIGS, "t")])
    topic = CliRunner().invoke(
        main, ["topic", "describe", "t", "--bootstrap", address, "--format", "json"]
    )
    assert topic.exit_code == 0, topic.output
