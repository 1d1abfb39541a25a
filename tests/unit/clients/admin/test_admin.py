"""The admin client with an embedded broker. Most tests use the blocking client, because both clients share a core."""

from __future__ import annotations

import asyncio

import pytest

from headrace.clients.admin.aio import Admin as AsyncAdmin
from headrace.clients.admin.blocking import Admin
from headrace.clients.consumer.blocking import Consumer
from headrace.clients.drivers import open_blocking_driver
from headrace.clients.flows.produce import produce
from headrace.embedded.clock import ManualClock
from headrace.embedded.runtime import BrokerRuntime
from headrace.errors import ApiError, ConfigError, ErrorCode
from headrace.records.builder import build_batch
from headrace.types import TopicPartition
from tests.fixtures.broker_harness import BrokerHarness

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


@pytest.fixture
def simulation() -> BrokerRuntime:
    harness = BrokerHarness()
    return BrokerRuntime(harness.broker, ManualClock(harness.now_ms))


@pytest.fixture
def admin(simulation):
    with Admin(simulation) as opened:
        yield opened


def write(simulation: BrokerRuntime, where: TopicPartition, *timestamps_ms: int) -> None:
    with Admin(simulation) as other:
        driver = open_blocking_driver(simulation, other.config)
    for timestamp_ms in timestamps_ms:
        batch = build_batch([(None, b"v", (), timestamp_ms)])
        driver.run(produce(driver.engine.state, where, batch, -1, 30_000))
    driver.close()


def code_of(failure: pytest.ExceptionInfo[ApiError]) -> ErrorCode:
    return failure.value.code


def test_topics_come_grow_and_go(admin) -> None:
    admin.create_topic("t", 2, configs={"cleanup.policy": "compact"})
    admin.create_topic("one")
    assert admin.topics() == ["one", "t"]
    assert list(admin.describe_topic("t").partitions) == [0, 1]
    admin.add_partitions("t", 3)
    assert list(admin.describe_topic("t").partitions) == [0, 1, 2]
    admin.delete_topic("one")
    assert admin.topics() == ["t"]


def test_a_refusal_is_raised_with_its_error_code(admin) -> None:
    admin.create_topic("t", 2)
    with pytest.raises(ApiError) as failure:
        admin.create_topic("t")
    assert code_of(failure) == ErrorCode.TOPIC_ALREADY_EXISTS
    with pytest.raises(ApiError) as failure:
        admin.delete_topic("missing")
    assert code_of(failure) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    with pytest.raises(ApiError) as failure:
        admin.add_partitions("t", 1)
    assert code_of(failure) == ErrorCode.INVALID_PARTITIONS
    with pytest.raises(ApiError) as failure:
        admin.describe_topic("missing")
    assert code_of(failure) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    with pytest.raises(ApiError) as failure:
        admin.create_topic("u", configs={"no.such.config": "1"})
    assert code_of(failure) == ErrorCode.INVALID_CONFIG


def test_configs_are_set_and_taken_back(admin) -> None:
    admin.create_topic("t")
    default = admin.configs("t")["retention.ms"].value
    admin.alter_configs("t", {"retention.ms": "60000", "cleanup.policy": "compact"})
    assert admin.configs("t")["retention.ms"].value == "60000"
    admin.alter_configs("t", {"retention.ms": None})
    assert admin.configs("t")["retention.ms"].value == default
    assert admin.configs("t")["cleanup.policy"].value == "compact"
    with pytest.raises(ApiError) as failure:
        admin.alter_configs("t", {"retention.ms": "soon"})
    assert code_of(failure) == ErrorCode.INVALID_CONFIG


def test_a_topic_stores_its_serdes_and_its_partitioner(admin) -> None:
    admin.create_topic("t", partitioner="sticky", serde="json", key_serde="str")
    configs = admin.configs("t")
    assert configs["headrace.serde"].value == "json"
    assert configs["headrace.key.serde"].value == "str"
    assert configs["headrace.partitioner"].value == "sticky"


def test_records_are_deleted_below_an_offset_or_all(admin, simulation) -> None:
    admin.create_topic("t", 2)
    now_ms = simulation.now_ms()
    write(simulation, T0, now_ms, now_ms, now_ms)
    write(simulation, T1, now_ms)
    assert admin.truncate("t", {0: 2}) == {T0: 2}
    assert admin.truncate("t") == {T0: 3, T1: 1}
    with pytest.raises(ApiError) as failure:
        admin.truncate("t", 9)
    assert code_of(failure) == ErrorCode.OFFSET_OUT_OF_RANGE


def test_offsets_of_a_group_are_moved(admin, simulation) -> None:
    admin.create_topic("t", 2)
    start_ms = simulation.now_ms()
    write(simulation, T0, start_ms, start_ms + 10, start_ms + 20)
    assert admin.reset_offsets("g", {T0: 1}) == {T0: 1}
    assert {where: found.offset for where, found in admin.offsets("g").items()} == {T0: 1}
    assert admin.reset_offsets("g", topics=["t"], to="latest") == {T0: 3, T1: 0}
    assert admin.reset_offsets("g", topics=["t"], to="earliest") == {T0: 0, T1: 0}
    assert admin.reset_offsets("g", topics=["t"], to=start_ms + 5) == {T0: 1, T1: 0}
    assert admin.reset_offsets("g", topics=["t"], to=start_ms + 1000) == {T0: 3, T1: 0}
    for wrong in ({}, {"offsets": {T0: 1}, "to": "latest"}, {"topics": ["t"]}):
        with pytest.raises(ConfigError, match="by exactly one of offsets, to, offset and shift"):
            admin.reset_offsets("g", **wrong)
    with pytest.raises(ConfigError, match="'earliest' or 'latest' or a whole number"):
        admin.reset_offsets("g", topics=["t"], to="tomorrow")


def test_groups_and_members_are_described_removed_and_deleted(admin, simulation) -> None:
    admin.create_topic("t")
    with Consumer(simulation, group="g") as member:
        member.subscribe(["t"])
        member.poll(10)
        assert [listing.group_id for listing in admin.groups()] == ["g"]
        [found] = admin.members("g")
        assert found.assignment == (T0,)
        with pytest.raises(ApiError) as failure:
            admin.delete_group("g")
        assert code_of(failure) == ErrorCode.NON_EMPTY_GROUP
        admin.remove_member("g", found.member_id)
        assert admin.members("g") == []
        with pytest.raises(ApiError) as failure:
            admin.remove_member("g", found.member_id)
        assert code_of(failure) == ErrorCode.UNKNOWN_MEMBER_ID
        assert admin.describe_group("g").state == "Empty"
        admin.delete_group("g")
        assert admin.groups() == []
        with pytest.raises(ApiError) as failure:
            admin.describe_group("g")
        assert code_of(failure) == ErrorCode.GROUP_ID_NOT_FOUND


def test_the_asyncio_client_does_the_same(simulation) -> None:
    async def main() -> None:
        async with AsyncAdmin(simulation) as admin:
            await admin.create_topic("t", 2)
            assert await admin.topics() == ["t"]
            assert (await admin.describe_cluster()).brokers
            assert await admin.reset_offsets("g", topics=["t"], to="earliest") == {T0: 0, T1: 0}
            assert set(await admin.offsets("g")) == {T0, T1}
            assert await admin.groups() != []
            with pytest.raises(ApiError):
                await admin.create_topic("t")

    asyncio.run(main())


def test_unknown_properties_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"retry\.backof"):
        Admin("127.0.0.1:1", retry_backof_ms=1)  # type: ignore[call-arg]  # it is mistyped on purpose
