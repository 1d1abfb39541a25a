"""Faults of an embedded broker, with Headrace's clients in the same process."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from headrace.errors import ApiError, ConfigError, ErrorCode, TransportError
from headrace.testing import ApiKey, Broker, Clients, ManualClock, delay, drop_connection, error


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker(clock=ManualClock()) as opened:
        opened.create_topic("orders", partitions=2)
        yield opened


@pytest.fixture
def clients(broker) -> Iterator[Clients]:
    with Clients(broker) as made:
        yield made


def values(broker, topic="orders") -> list[bytes]:
    return [record.value for record in broker.messages(topic)]


def consume(consumer, count=1) -> list[bytes]:
    found: list[bytes] = []
    for _ in range(100):
        found += [record.value for record in consumer.poll(1.0)]
        if len(found) >= count:
            break
    return found


def test_a_refusal_happens_once_and_the_client_tries_again(broker, clients) -> None:
    fault = broker.faults.on(ApiKey.PRODUCE, once=error("NOT_LEADER_OR_FOLLOWER"))
    sent = clients.producer().send("orders", b"a").result()
    assert (sent.offset, fault.hits) == (0, 1)
    assert values(broker) == [b"a"]
    assert broker._core.intercept is None, "a fault that is over must cost nothing"


def test_a_refusal_that_is_final_reaches_the_program(broker, clients) -> None:
    broker.faults.on(ApiKey.PRODUCE, error("TOPIC_AUTHORIZATION_FAILED"))
    with pytest.raises(ApiError) as raised:
        clients.producer().send("orders", b"a").result()
    assert raised.value.code is ErrorCode.TOPIC_AUTHORIZATION_FAILED
    assert values(broker) == []


def test_faults_take_their_turns_and_end(broker, clients) -> None:
    first = broker.faults.on(ApiKey.PRODUCE, error("NOT_LEADER_OR_FOLLOWER"), times=2)
    second = broker.faults.on(ApiKey.PRODUCE, once=error("REQUEST_TIMED_OUT"))
    clients.producer().send("orders", b"a").result()
    assert (first.hits, first.left, second.hits) == (2, 0, 1)
    clients.producer().send("orders", b"b").result()
    assert (first.hits, second.hits) == (2, 1)


def test_a_fault_may_be_for_one_client_or_for_some_requests(broker, clients) -> None:
    for_one = broker.faults.on(ApiKey.PRODUCE, error("REQUEST_TIMED_OUT"), times=1, client_id="b")
    for_none = broker.faults.on(
        None, error("REQUEST_TIMED_OUT"), when=lambda exchange: exchange.version > 90
    )
    clients.producer(client_id="a").send("orders", b"a").result()
    assert for_one.hits == 0
    clients.producer(client_id="b").send("orders", b"b").result()
    assert (for_one.hits, for_none.hits) == (1, 0)


def test_a_fault_lasts_no_longer_than_its_block(broker, clients) -> None:
    producer = clients.producer(delivery_timeout_ms=1000, request_timeout_ms=500)
    with broker.faults.on(ApiKey.PRODUCE, error("NOT_LEADER_OR_FOLLOWER")) as fault:
        with pytest.raises((ApiError, TransportError)):
            producer.send("orders", b"a").result()
        assert fault.hits > 1
    producer.send("orders", b"b").result()
    assert values(broker) == [b"b"]


def test_a_lost_connection_and_a_lost_answer(broker, clients) -> None:
    lost = broker.faults.on(ApiKey.PRODUCE, once=drop_connection())
    unheard = broker.faults.on(ApiKey.PRODUCE, once=drop_connection(handled=True))
    clients.producer().send("orders", b"a").result()
    assert (lost.hits, unheard.hits) == (1, 1)
    assert values(broker) == [b"a"], "an idempotent producer writes no record twice"


def test_a_slow_answer_takes_the_broker_s_time_and_not_ours(broker, clients) -> None:
    began_ms = broker.now_ms()
    broker.faults.on(ApiKey.PRODUCE, once=delay(7.5))
    clients.producer().send("orders", b"a").result()
    assert broker.now_ms() - began_ms >= 7500


def test_a_request_with_a_delayed_response_is_executed_at_once(broker, clients) -> None:
    broker.faults.on(ApiKey.PRODUCE, once=delay(60))
    sent = clients.producer(request_timeout_ms=20_000, delivery_timeout_ms=200_000).send(
        "orders", b"a"
    )
    assert sent.result().offset == 0
    assert values(broker) == [b"a"]


def test_a_fault_may_be_a_function(broker, clients) -> None:
    seen = []

    def watch(exchange):
        seen.append((exchange.api, exchange.client_id, exchange.request.acks))
        return exchange.proceed()

    broker.faults.on(ApiKey.PRODUCE, watch)
    clients.producer(client_id="mine").send("orders", b"a").result()
    assert seen == [(ApiKey.PRODUCE, "mine", -1)]


def test_a_moved_leader_is_found_again(broker, clients) -> None:
    producer = clients.producer()
    producer.send("orders", b"a", partition=0).result()
    broker.faults.move_leader("orders", 0)
    metadata = broker.faults.on(ApiKey.METADATA, lambda exchange: exchange.proceed())
    producer.send("orders", b"b", partition=0).result()
    assert metadata.hits >= 1, "the producer did not ask who leads now"
    assert [record.leader_epoch for record in broker.messages("orders")] == [0, 1]
    consumer = clients.consumer("orders", group="g")
    assert consume(consumer, 2) == [b"a", b"b"]
    broker.faults.move_leader("orders")
    producer.send("orders", b"c", partition=0).result()
    assert consume(consumer) == [b"c"]


def test_moving_the_leader_of_a_missing_partition_is_refused(broker) -> None:
    with pytest.raises(ApiError, match="nowhere"):
        broker.faults.move_leader("nowhere")
    with pytest.raises(ApiError, match="no partition 2"):
        broker.faults.move_leader("orders", 2)


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_member_that_expires_joins_again(broker, clients, protocol: str) -> None:
    broker.publish("orders", b"a")
    lost = []
    consumer = clients.consumer(group="g", group_protocol=protocol)

    class Listener:
        def on_lost(self, partitions):
            lost.extend(partitions)

    consumer.subscribe(["orders"], listener=Listener())
    consume(consumer)
    broker.wait_for(group="g", state="Stable", members=1)
    before = consumer.group_metadata()
    broker.faults.expire_member("g")
    broker.publish("orders", b"b")
    assert b"b" in consume(consumer, 2)
    after = consumer.group_metadata()
    assert (after.member_id != before.member_id) == (protocol == "classic")
    assert after.generation_id > before.generation_id or protocol == "classic"
    assert len(lost) == 2


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_expire_member_needs_a_name_if_there_are_several_members(
    broker, clients, protocol: str
) -> None:
    options = {"group": "g", "group_protocol": protocol}
    consumers = [
        clients.consumer("orders", group_instance_id=name, **options) for name in ("x", "y")
    ]
    for _ in range(50):
        for consumer in consumers:
            consumer.poll(0.1)
        if all(len(consumer.assignment()) == 1 for consumer in consumers):
            break
    with pytest.raises(ConfigError, match="exactly one member"):
        broker.faults.expire_member("g")
    with pytest.raises(ConfigError, match="a member 'z'"):
        broker.faults.expire_member("g", "z")
    broker.faults.expire_member("g", "x")
    with pytest.raises(ConfigError, match="its members: none"):
        broker.faults.expire_member("no such group")


def test_an_older_release_is_spoken_until_the_faults_end(broker, clients) -> None:
    versions: dict[ApiKey, int] = {}

    def note(exchange):
        versions[exchange.api] = exchange.version
        return exchange.proceed()

    broker.faults.on(None, note)
    broker.faults.max_versions("2.8")
    clients.producer().send("orders", b"a").result()
    assert consume(clients.consumer("orders", group="g")) == [b"a"]
    assert versions[ApiKey.METADATA] == 11
    assert versions[ApiKey.FIND_COORDINATOR] == 3
    broker.faults.clear()
    broker.faults.on(None, note)
    clients.admin().describe_topic("orders")
    assert versions[ApiKey.METADATA] == 12


def test_an_unknown_error_name_is_refused_with_the_closest_known_name() -> None:
    with pytest.raises(ConfigError, match="did you mean NOT_LEADER_OR_FOLLOWER"):
        error("NOT_LEADER_FOR_FOLLOWER")


@pytest.mark.parametrize("given", [{}, {"action": delay(1), "once": delay(1)}])
def test_a_fault_does_one_thing(broker, given) -> None:
    with pytest.raises(ConfigError, match="pass exactly one action"):
        broker.faults.on(ApiKey.PRODUCE, **given)
