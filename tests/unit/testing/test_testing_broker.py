"""The broker for tests: waiting, inspecting, moving the clock, resetting."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from headrace.errors import ApiError, ConfigError
from headrace.testing import ApiKey, Broker, Clients, ManualClock, delay, error
from headrace.types import TopicPartition

RESET_S = 0.005
READY_S = 0.05


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker(clock=ManualClock()) as opened:
        opened.create_topic("orders", partitions=2, serde="json")
        yield opened


@pytest.fixture
def clients(broker) -> Iterator[Clients]:
    with Clients(broker) as made:
        yield made


def consume(consumer, count) -> None:
    for _ in range(100):
        count -= len(consumer.poll(0.5))
        if count <= 0:
            return
    raise AssertionError("too few records")


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_group_is_waited_for(broker, clients, protocol: str) -> None:
    broker.publish("orders", 1)
    consumer = clients.consumer("orders", group="g", group_protocol=protocol)
    consume(consumer, 1)
    broker.wait_for(group="g")
    broker.wait_for(group="g", state="Stable", members=1)
    consumer.close()
    broker.wait_for(group="g", state="Empty", members=0)


def test_an_expired_wait_reports_the_last_state(broker, clients) -> None:
    consumer = clients.consumer("orders", group="g")
    consumer.poll(0.1)
    with pytest.raises(
        TimeoutError, match=r"after 5 s group 'g' is Stable, 1 member, lag .*'Empty'"
    ):
        broker.wait_for(group="g", state="Empty", timeout_s=5)
    with pytest.raises(TimeoutError, match=r"group 'other' is Dead, 0 members"):
        broker.wait_for(group="other", timeout_s=1)
    with pytest.raises(TimeoutError, match=r"topic 'orders' has 0 of 3 records"):
        broker.wait_for(topic="orders", records=3, timeout_s=1)
    broker.publish("orders", 1, partition=1)
    with pytest.raises(TimeoutError, match=r"orders-1: 1.*waited for a lag of 0"):
        broker.wait_caught_up("g", timeout_s=1)


def test_a_group_has_caught_up_when_it_has_committed_everything(broker, clients) -> None:
    for number in range(4):
        broker.publish("orders", number, partition=number % 2)
    consumer = clients.consumer("orders", group="g", enable_auto_commit=False)
    consume(consumer, 4)
    with pytest.raises(TimeoutError):
        broker.wait_caught_up("g", timeout_s=1)
    assert broker.committed("g") == {}
    consumer.commit()
    broker.wait_caught_up("g")
    broker.wait_caught_up("g", "orders")
    assert broker.committed("g") == {TopicPartition("orders", 0): 2, TopicPartition("orders", 1): 2}
    consumer.close()
    broker.wait_caught_up("g")
    broker.publish("orders", 5)
    with pytest.raises(TimeoutError):
        broker.wait_caught_up("g", "orders", timeout_s=1)


def test_waiting_sees_changes_of_other_threads() -> None:
    with Broker() as broker, Clients(broker) as clients:
        broker.create_topic("orders")
        begin = threading.Event()

        def work() -> None:
            begin.wait(10)
            clients.producer().send("orders", b"a").result()

        thread = threading.Thread(target=work)
        thread.start()
        begin.set()
        broker.wait_for(topic="orders")
        thread.join()
        fault = broker.faults.on(ApiKey.PRODUCE, once=error("NOT_LEADER_OR_FOLLOWER"))
        thread = threading.Thread(target=work)
        thread.start()
        broker.wait_until(lambda: fault.hits == 1)
        thread.join()


def test_messages_are_merged_by_time_and_keep_the_order_of_their_partitions(broker) -> None:
    for timestamp_ms, partition, value in [(10, 0, 1), (30, 0, 2), (20, 1, 3), (25, 0, 4)]:
        broker.publish(
            "orders", value, partition=partition, timestamp_ms=broker.now_ms() + timestamp_ms
        )
    assert [record.value for record in broker.messages("orders")] == [1, 3, 2, 4]
    assert [record.value for record in broker.messages("orders", 0)] == [1, 2, 4]
    assert broker.messages("orders", serde="bytes")[0].value == b"1"
    clients_admin = Clients(broker)
    clients_admin.admin().truncate("orders", {0: 1})
    clients_admin.close()
    assert [record.value for record in broker.messages("orders")] == [3, 2, 4]
    with pytest.raises(ApiError, match="nowhere"):
        broker.messages("nowhere")


def test_advancing_the_clock_moves_broker_time_and_record_timestamps() -> None:
    with (
        Broker(configs={"group.min.session.timeout.ms": "1000"}) as broker,
        Clients(broker) as clients,
    ):
        broker.create_topic("orders")
        before_ms = broker.now_ms()
        broker.advance(3_600_000)
        assert 0 <= broker.now_ms() - before_ms - 3_600_000 < 60_000
        sent = clients.producer().send("orders", b"a").result()
        assert sent.timestamp_ms >= before_ms + 3_600_000


def test_work_that_is_due_after_an_advance_does_not_wait_for_an_older_timer() -> None:
    with Broker() as broker, Clients(broker.bootstrap) as clients:
        admin = clients.admin()
        slow = broker.faults.on(ApiKey.METADATA, once=delay(6))
        thread = threading.Thread(target=admin.topics)
        thread.start()
        broker.wait_until(lambda: slow.hits)
        broker.advance(60_000)
        thread.join()
        broker.faults.on(ApiKey.METADATA, once=delay(0.05))
        began = time.perf_counter()
        admin.topics()
        assert 0.04 < time.perf_counter() - began < 3


def test_advancing_the_clock_expires_members_that_do_not_poll(broker, clients) -> None:
    consumer = clients.consumer(
        "orders", group="g", session_timeout_ms=10_000, max_poll_interval_ms=60_000
    )
    consumer.poll(0.1)
    broker.wait_for(group="g", state="Stable")
    broker.advance(30_000)
    broker.wait_for(group="g", members=1)  # its heartbeats went on
    broker.advance(60_000)
    broker.wait_for(group="g", members=0, timeout_s=1)


def test_a_broker_with_a_manual_clock_has_no_address(broker) -> None:
    with pytest.raises(ConfigError, match="by hand"):
        _ = broker.bootstrap


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_reset_deletes_all_topics_groups_and_faults(broker, clients, protocol: str) -> None:
    broker.publish("orders", 1)
    consume(clients.consumer("orders", group="g", group_protocol=protocol), 1)
    broker.faults.on(ApiKey.PRODUCE, error("NOT_LEADER_OR_FOLLOWER"))
    broker.faults.move_leader("orders")
    broker.faults.max_versions("2.8")
    broker.reset()
    assert broker.topics() == []
    assert not broker.snapshot().groups
    assert broker._core.intercept is None
    broker.create_topic("orders")
    broker.publish("orders", b"new")
    assert [record.value for record in broker.messages("orders")] == [b"new"]


def test_a_reset_to_a_snapshot_restores_the_state_of_the_snapshot(broker, clients) -> None:
    consume_one = clients.consumer("orders", group="before")
    broker.publish("orders", 1)
    consume(consume_one, 1)
    consume_one.close()
    snapshot = broker.snapshot()
    broker.create_topic("later")
    broker.publish("later", b"x")
    consume(clients.consumer("later", group="after"), 1)
    broker.reset(snapshot)
    assert broker.snapshot() == snapshot
    assert broker.topics() == ["orders"]


def test_a_broker_is_ready_and_listens_at_once() -> None:
    took = []
    for _ in range(5):
        began = time.perf_counter()
        with Broker() as broker:
            assert broker.bootstrap.startswith("127.0.0.1:")
            took.append(time.perf_counter() - began)
    assert min(took) < READY_S, took


def test_a_reset_is_quick() -> None:
    took = []
    with Broker() as broker:
        for _ in range(7):
            with Clients(broker) as clients:
                for name in ("a", "b", "c"):
                    broker.create_topic(name, partitions=3)
                    broker.publish(name, b"x")
                    consume(clients.consumer(name, group=name), 1)
                began = time.perf_counter()
                broker.reset()
                took.append(time.perf_counter() - began)
    assert min(took) < RESET_S, took


def test_a_wait_is_for_one_thing(broker) -> None:
    with pytest.raises(AssertionError, match="a group or a topic"):
        broker.wait_for()
