"""Workers that process exactly once and are fenced: by another member, or because the transaction timed out."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

import headrace
from headrace import App
from headrace.clients.producer import core
from headrace.errors import ConfigError, ProducerFencedError, WorkerFailedError
from headrace.protocol.api_keys import ApiKey
from headrace.testing import Broker
from headrace.testing.faults import drop_connection
from headrace.testing.interception import Exchange, Reply

SOON: dict[str, Any] = {"delivery": "exactly_once", "group": "g"}
SOON_TOLD = {
    "group.initial.rebalance.delay.ms": "0",
    "group.consumer.min.heartbeat.interval.ms": "20",
    "group.consumer.heartbeat.interval.ms": "20",
}


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker(configs={"group.initial.rebalance.delay.ms": "0"}) as broker:
        for topic in ("orders", "invoices"):
            broker.create_topic(topic)
        yield broker


def make_app(client_id: str = "app", **options: Any) -> App:
    app = App(
        client_id=client_id, commit_interval_s=0.02, retry_backoff_ms=5, request_timeout_ms=300
    )

    @app.worker("orders", **{"transaction_ms": 5, **SOON, **options})
    @app.publishes("invoices")
    async def bill(order: bytes) -> bytes:
        return order

    return app


def await_invoices(broker: Broker, *wanted: bytes) -> None:
    """A transaction that is committed can be read a moment later."""
    with headrace.Consumer(
        broker, auto_offset_reset="earliest", isolation_level="read_committed", fetch_max_wait_ms=1
    ) as consumer:
        consumer.assign([headrace.TopicPartition("invoices", 0)])
        found: list[bytes] = []
        deadline = time.monotonic() + 20
        while len(found) < len(wanted):
            assert time.monotonic() < deadline, found
            found += [record.value for record in consumer.poll(0.1)]
    assert sorted(found) == list(wanted)


def test_a_second_worker_with_the_same_transactional_id_fences_the_first(
    broker: Broker,
) -> None:
    def run() -> None:
        with make_app(transactional_id="tx", heartbeat_interval_ms=20).test(broker) as older:
            broker.publish("orders", b"1")
            older.wait_idle()
            takes_over = broker.faults.on(ApiKey.INIT_PRODUCER_ID, Exchange.proceed)
            with make_app(transactional_id="tx", heartbeat_interval_ms=20).test(broker):
                broker.wait_until(lambda: takes_over.hits)
                broker.publish("orders", b"2")
                await_invoices(broker, b"1", b"2")

    with pytest.raises(ProducerFencedError, match=r"'tx'.* a transactional_id of its own"):
        run()


def test_a_worker_with_a_timed_out_transaction_continues_with_a_new_producer(
    broker: Broker,
) -> None:
    """(1) EndTxn does not get through, (2) the coordinator ends the transaction, (3) and refuses the next attempt."""
    app = make_app(transactional_id="tx", transaction_timeout_ms=1_000)
    with app.test(broker) as t:
        t.wait_idle()
        with broker.faults.on(ApiKey.END_TXN, drop_connection()) as lost:
            broker.publish("orders", b"1")
            broker.wait_until(lambda: lost.hits)
            broker.advance(30_000)
        t.wait_idle()
        await_invoices(broker, b"1")
        assert app.counters["bill"].handled == 1


def test_the_broker_gets_the_transaction_time_out(broker: Broker) -> None:
    asked: list[int] = []

    def note(exchange: Exchange) -> Reply:
        asked.append(exchange.request.transaction_timeout_ms)
        return exchange.proceed()

    def is_transactional(exchange: Exchange) -> bool:
        return exchange.request.transactional_id is not None

    broker.faults.on(ApiKey.INIT_PRODUCER_ID, note, when=is_transactional)
    given: list[dict[str, Any]] = [{}, {"transaction_timeout_ms": 3_000}]
    for options in given:
        with make_app(**options).test(broker) as t:
            t.wait_idle()
    assert asked == [10_000, 3_000]


def test_a_transaction_without_time_for_a_commit_is_refused_at_once() -> None:
    with pytest.raises(ConfigError, match="transaction_timeout_ms=999 leaves no time"):
        make_app(transaction_timeout_ms=999)


def test_two_workers_of_one_app_with_one_transactional_id_are_refused_at_once() -> None:
    app = make_app(transactional_id="tx")
    with pytest.raises(ConfigError, match=r"'bill' and 'post' have one transactional_id='tx'"):

        @app.worker("invoices", transactional_id="tx", **SOON)
        async def post(invoice: bytes) -> None: ...


@pytest.mark.parametrize(
    ("protocol", "lose"),
    [
        ("classic", drop_connection()),
        ("consumer", drop_connection()),
        ("consumer", drop_connection(handled=True)),
    ],
    ids=["classic, not done", "KIP-848, not done", "KIP-848, done"],
)
def test_results_that_a_revocation_could_not_commit_are_written_once_by_the_next_owner(
    protocol: str, lose: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """(1) The last commit gets no response. (2) The partition is revoked. (3) The next owner waits for the outcome."""
    monkeypatch.setattr(core, "LAST_ABORT_MS", 100)
    options: dict[str, Any] = {"group_protocol": protocol, "transaction_timeout_ms": 1_000}
    if protocol == "classic":
        options["heartbeat_interval_ms"] = 20

    def run(broker: Broker) -> None:
        with make_app("older", transaction_ms=60_000, **options).test(broker) as older:
            for number in range(4):
                broker.publish("orders", b"%d" % number, partition=number)
            broker.wait_until(lambda: older._running().counters["bill"].handled == 4)
            lost = broker.faults.on(ApiKey.END_TXN, lose, client_id="older")
            with make_app("newer", **options).test(broker) as newer:
                broker.wait_until(lambda: lost.hits)
                assert older._thread is not None
                older._thread.join(20)
                broker.advance(30_000)  # the coordinator aborts the open transaction
                wanted = [b"%d" % number for number in range(4)]
                await_invoices(broker, *wanted)
                newer.wait_idle()
                await_invoices(broker, *wanted)

    with Broker(configs=SOON_TOLD) as broker:
        broker.create_topic("orders", partitions=4)
        broker.create_topic("invoices")
        with pytest.raises(WorkerFailedError, match="could not be committed"):
            run(broker)
