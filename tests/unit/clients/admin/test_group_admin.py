"""An administrator creates, attaches, detaches, resets and deletes groups."""

from __future__ import annotations

import asyncio

import pytest

from headrace.clients.admin.aio import Admin as AsyncAdmin
from headrace.clients.admin.blocking import Admin
from headrace.clients.admin.offsets import waiting_since
from headrace.clients.consumer.blocking import Consumer
from headrace.clients.drivers import open_blocking_driver
from headrace.clients.flows.attachments import Attachments
from headrace.clients.producer.blocking import Producer
from headrace.embedded.clock import ManualClock
from headrace.embedded.runtime import BrokerRuntime
from headrace.errors import ApiError, ConfigError, ErrorCode, UnknownAssignorError
from headrace.types import TopicPartition
from tests.fixtures.broker_harness import BrokerHarness

T0, T1, U0 = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u", 0)


@pytest.fixture
def simulation() -> BrokerRuntime:
    harness = BrokerHarness(group_initial_rebalance_delay_ms=0)
    return BrokerRuntime(harness.broker, ManualClock(harness.now_ms))


@pytest.fixture
def admin(simulation):
    with Admin(simulation) as opened:
        opened.create_topic("t", 2)
        opened.create_topic("u")
        yield opened


def topics_of(consumer: Consumer, *others: Consumer) -> set[str]:
    """Poll with all members until the group is stable; return the topics of the first member."""
    for _ in range(4):
        for each in (consumer, *others):
            each.poll(4)
    return {topic for topic, _ in consumer.assignment()}


def fill(simulation: BrokerRuntime, partition: TopicPartition, count: int) -> None:
    with Producer(simulation, linger_ms=0) as producer:
        for number in range(count):
            producer.send(partition.topic, b"%d" % number, partition=partition.partition)
        producer.flush()


def commit(admin: Admin, group: str, **offsets: int) -> None:
    admin.reset_offsets(
        group, {TopicPartition(name[0], int(name[1])): at for name, at in offsets.items()}
    )


# Created, attached, detached


def test_create_group_attaches_the_group_to_its_topics(admin) -> None:
    admin.create_group("g", assignor="equal", topics=["t", "u"])
    assert admin.attachments("g") == Attachments(frozenset("tu"), None, "equal", configured=True)
    assert admin.describe_group("g").state == "Empty"
    assert admin.members("g") == []
    assert [listing.group_id for listing in admin.groups()] == ["g"]
    with pytest.raises(ApiError, match="attached to t, u already") as failure:
        admin.create_group("g")
    assert failure.value.code == ErrorCode.INVALID_REQUEST
    admin.delete_group("g")
    assert admin.groups() == []
    assert admin.attachments("g") == Attachments()


def test_a_group_may_be_attached_later(admin) -> None:
    admin.create_group("g")
    assert admin.attach("g", "t").topics == {"t"}
    assert admin.attach("g", ["t", "u"]).topics == {"t", "u"}
    assert admin.detach("g", ["t"]).topics == {"u"}
    assert admin.detach("g") == Attachments(configured=True)
    assert admin.attach("g", pattern="[tu]").pattern == "[tu]"
    assert admin.attach("g", pattern="t").pattern == "t"
    assert admin.detach("g") == Attachments(configured=True)


def test_impossible_attachments_are_refused(admin) -> None:
    admin.create_group("g", topics="t")
    with pytest.raises(ApiError, match="not attached to 'u' but to t") as failure:
        admin.detach("g", "u")
    assert failure.value.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    with pytest.raises(ApiError, match="not both: detach it from one first"):
        admin.attach("g", pattern=".*")
    with pytest.raises(ApiError, match="character other than"):
        admin.attach("g", "a b")
    with pytest.raises(ConfigError, match="not both"):
        admin.create_group("h", topics=["t"], pattern="t")
    for change in (admin.attach, admin.detach):
        with pytest.raises(ApiError, match="group 'missing' does not exist: create it first"):
            change("missing", "t")


def test_a_group_that_has_members_and_was_never_created_can_be_attached(admin, simulation) -> None:
    with Consumer(simulation, group="g") as member:
        member.subscribe()
        assert topics_of(member) == set()
        admin.attach("g", "t")
        assert topics_of(member) == {"t"}


# Members that read what their group is attached to


def test_members_wait_then_follow_every_change(admin, simulation) -> None:
    admin.create_group("g")
    with Consumer(simulation, group="g", auto_offset_reset="earliest") as member:
        member.subscribe()
        assert topics_of(member) == set(), "nothing to read yet"
        admin.attach("g", ["t"])
        assert topics_of(member) == {"t"}
        admin.attach("g", "u")
        assert topics_of(member) == {"t", "u"}
        admin.detach("g", "t")
        assert topics_of(member) == {"u"}
        fill(simulation, U0, 1)
        assert [record.topic for record in member.poll(1)] == ["u"]
        admin.detach("g")
        assert topics_of(member) == set()
        admin.attach("g", pattern="t|late")
        assert topics_of(member) == {"t"}
        admin.create_topic("late")
        assert topics_of(member) == {"t", "late"}


def test_the_next_heartbeat_notifies_of_a_change(admin, simulation) -> None:
    """Members need not wait for their own check, which they make every three seconds."""
    admin.create_group("g", topics="t")
    with Consumer(simulation, group="g", heartbeat_interval_ms=100) as member:
        member.subscribe()
        assert topics_of(member) == {"t"}
        began_ms = simulation.now_ms()
        admin.attach("g", "u")
        while {topic for topic, _ in member.assignment()} != {"t", "u"}:
            member.poll(0.05)
        assert simulation.now_ms() - began_ms <= 300


def test_seven_partitions_for_five_members_by_the_groups_assignor(admin, simulation) -> None:
    admin.create_topic("seven", 7)
    admin.create_group("g", assignor="equal", topics=["seven"])
    members = [Consumer(simulation, group="g", heartbeat_interval_ms=100) for _ in range(5)]
    for member in members:
        member.subscribe()
    for _ in range(10):
        for member in members:
            member.poll(0.2)
    assert admin.describe_group("g").protocol == "equal"
    counts = [len(found.assignment) for found in admin.members("g")]
    assert sorted(counts, reverse=True) == [2, 2, 1, 1, 1]
    given = [partition for member in members for partition in member.assignment()]
    assert sorted(given) == [TopicPartition("seven", number) for number in range(7)]
    for member in members:
        member.close()


def test_a_group_goes_over_to_another_assignor_while_its_members_run(admin, simulation) -> None:
    """Members that subscribe to nothing themselves join with all assignors between which the group can change."""
    members = [Consumer(simulation, group="g") for _ in range(2)]
    for member in members:
        member.subscribe()
    assert topics_of(*members) == set()
    assert admin.describe_group("g").protocol == "range"
    admin.create_group("g", assignor="equal", topics=["t", "u"])
    topics_of(*members)
    assert admin.describe_group("g").protocol == "equal"
    assert sorted(len(found.assignment) for found in admin.members("g")) == [1, 2]
    for member in members:
        member.close()


def test_an_assignor_that_is_not_known_is_named_where_a_member_subscribes(
    admin, simulation
) -> None:
    admin.create_group("g", assignor="nobodys", topics="t")
    member = Consumer(simulation, group="g")
    with pytest.raises(UnknownAssignorError, match="'nobodys'"):
        member.subscribe()
    member.close()


# Offsets


def test_offsets_are_moved_to_an_offset_and_by_some(admin, simulation) -> None:
    fill(simulation, T0, 10)
    fill(simulation, T1, 3)
    commit(admin, "g", t0=5, t1=2)
    assert admin.reset_offsets("g", offset=7) == {T0: 7, T1: 3}
    assert admin.reset_offsets("g", shift=-2) == {T0: 5, T1: 1}
    assert admin.reset_offsets("g", partitions=[T0], shift=100) == {T0: 10}
    assert admin.reset_offsets("g", topics=["t"], shift=-100) == {T0: 0, T1: 0}
    assert admin.reset_offsets("g", to="latest") == {T0: 10, T1: 3}
    assert {where: found.offset for where, found in admin.offsets("g").items()} == {T0: 10, T1: 3}


def test_a_dry_run_commits_nothing(admin, simulation) -> None:
    fill(simulation, T0, 10)
    commit(admin, "g", t0=5)
    assert admin.reset_offsets("g", to="earliest", dry_run=True) == {T0: 0}
    assert admin.offsets("g")[T0].offset == 5


def test_impossible_resets_are_refused(admin, simulation) -> None:
    with pytest.raises(ConfigError, match="has no committed offsets: name topics"):
        admin.reset_offsets("g", to="earliest")
    with pytest.raises(ConfigError, match="has no committed offset for t-0"):
        admin.reset_offsets("g", topics=["t"], shift=1)
    with pytest.raises(ConfigError, match="topics or partitions"):
        admin.reset_offsets("g", topics=["t"], partitions=[T0], shift=1)
    with pytest.raises(ConfigError, match="pass neither topics nor partitions"):
        admin.reset_offsets("g", {T0: 1}, topics=["t"])
    with pytest.raises(ApiError, match="no partition 7"):
        admin.reset_offsets("g", partitions=[TopicPartition("t", 7)], to="latest")
    with Consumer(simulation, group="g") as member:
        member.subscribe(["t"])
        member.poll(1)
        with pytest.raises(ApiError, match="has members") as failure:
            admin.reset_offsets("g", topics=["t"], to="latest")
        assert failure.value.code == ErrorCode.UNKNOWN_MEMBER_ID


def test_lag_is_the_end_offset_minus_the_committed_offset(admin, simulation) -> None:
    fill(simulation, T0, 10)
    commit(admin, "g", t0=4, t1=0, u0=0)
    assert admin.lag("g") == {T0: 6, T1: 0, U0: 0}
    admin.delete_topic("u")
    assert admin.lag("g") == {T0: 6, T1: 0}
    assert admin.lag("nobody") == {}


def test_the_oldest_waiting_record_gives_the_lag_in_time(simulation, admin) -> None:
    start_ms = simulation.now_ms()
    for partition, ages in ((0, (1, 2, 3)), (1, (9,))):
        with Producer(simulation, linger_ms=0) as producer:
            for age in ages:
                producer.send("t", b"v", partition=partition, timestamp_ms=start_ms - 1000 * age)
            producer.flush()
    driver = open_blocking_driver(simulation, admin.config)
    found = {T0: (1, 3), T1: (1, 1), U0: (0, 0)}
    assert driver.run(waiting_since(driver.engine.state, found)) == {T0: start_ms - 2000}
    assert driver.run(waiting_since(driver.engine.state, {T0: (99, 100)})) == {}
    driver.close()


def test_the_asyncio_client_does_the_same(simulation) -> None:
    async def main() -> None:
        async with AsyncAdmin(simulation) as admin:
            await admin.create_topic("t", 2)
            await admin.create_group("g", assignor="equal")
            assert (await admin.attach("g", "t")).topics == {"t"}
            assert (await admin.attachments("g")).assignor == "equal"
            assert await admin.reset_offsets("g", topics=["t"], to="latest") == {T0: 0, T1: 0}
            assert await admin.lag("g") == {T0: 0, T1: 0}
            assert (await admin.detach("g")).topics == frozenset()
            await admin.delete_group("g")

    asyncio.run(main())


# --- coordinators that are loading ---


@pytest.mark.parametrize(
    "error", [ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.COORDINATOR_NOT_AVAILABLE]
)
def test_lists_wait_until_the_coordinator_is_loaded(admin, simulation, monkeypatch, error):
    admin.create_group("g", topics=["t"])
    services = simulation.broker.services
    asked = []

    def later(name, coordinator, list_now, refusal):
        def listed(*arguments):
            asked.append(name)
            return refusal if asked.count(name) < 4 else list_now(*arguments)

        monkeypatch.setattr(coordinator, name, listed)

    groups, transactions = services.groups, services.transactions.coordinator
    later("list_groups", groups, groups.list_groups, (error, []))
    later("each_shard", transactions, transactions.each_shard, [error])
    assert [each.group_id for each in admin.groups()] == ["g"]
    assert admin.transactions() == []
    assert asked == ["list_groups"] * 4 + ["each_shard"] * 4


def test_other_errors_of_lists_are_raised_at_once(admin, simulation, monkeypatch):
    code = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    monkeypatch.setattr(simulation.broker.services.groups, "list_groups", lambda *_: (code, []))
    with pytest.raises(ApiError, match="cannot list its groups"):
        admin.groups()
