"""`delivery="exactly_once"`: results are committed with the offsets of their records, or not at all."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import Counter
from typing import Any

import pytest

import headrace
from headrace import App, DeadLetter, Retry, TopicPartition
from headrace.errors import (
    AbortableTransactionError,
    ApiError,
    ConfigError,
    ErrorCode,
    FatalTransactionError,
    HeadraceError,
    TransportError,
    WorkerFailedError,
)
from headrace.protocol.api_keys import ApiKey
from headrace.testing import Broker
from headrace.testing.faults import drop_connection, error
from headrace.testing.interception import Exchange
from headrace.workers.committing import transactor as transactor_module
from headrace.workers.deduplication.deduplication import Deduplication
from headrace.workers.deduplication.recent_keys import RecentKeys
from headrace.workers.output.outbox import HandledKey, Outbox
from headrace.workers.trial import Trial

QUICK = Retry(attempts=3, first=0.001)
ORDERS = TopicPartition("orders", 0)
SOON: dict[str, Any] = {"delivery": "exactly_once", "transaction_ms": 5, "group": "g"}


@pytest.fixture
def broker():
    with Broker(configs={"group.initial.rebalance.delay.ms": "0"}) as broker:
        for topic in ("orders", "invoices"):
            broker.create_topic(topic)
        yield broker


@pytest.fixture
def app(monkeypatch) -> App:
    monkeypatch.setattr(transactor_module, "WRITE_AGAIN_MS", 300)
    return App(commit_interval_s=0.02, retry_backoff_ms=5)


def send(trial: Trial, *values: bytes) -> None:
    for value in values:
        trial.produce("orders", value)


def values(trial: Trial, topic: str = "invoices") -> list[bytes]:
    return [message.value for message in trial.messages(topic)]


def await_values(trial: Trial, *wanted: bytes) -> None:
    """A transaction that is committed can be read a moment later."""
    deadline = time.monotonic() + 20
    while values(trial) != list(wanted):
        assert time.monotonic() < deadline, values(trial)


def test_results_are_readable_when_their_offsets_are_committed(broker: Broker, app: App) -> None:
    @app.worker("orders", **SOON)
    @app.publishes("invoices")
    async def bill(order: bytes, context: headrace.Context) -> bytes:
        written = await context.publish("invoices", b"first " + order)
        assert (written.topic, written.partition, written.offset) == ("invoices", -1, -1)
        return order

    with app.test(broker) as t:
        send(t, b"1", b"2")
        t.wait_idle()
        assert values(t) == [b"first 1", b"1", b"first 2", b"2"]
        assert broker.committed("g") == {ORDERS: 2}


def test_a_failed_attempt_writes_nothing_and_a_dead_letter_is_committed_with_its_offset(
    broker: Broker, app: App
) -> None:
    @app.worker("orders", retry=QUICK, dead_letter=True, **SOON)
    @app.publishes("invoices")
    def bill(order: bytes, context: headrace.Context) -> bytes:
        _ = context.publish("invoices", b"attempt %d of %s" % (context.attempt, order))
        if order == b"hopeless" or context.attempt == 1:
            raise ValueError
        return order

    with app.test(broker) as t:
        send(t, b"1", b"hopeless", b"2")
        t.wait_idle()
        attempts = [b"attempt 2 of 1", b"1", b"attempt 2 of 2", b"2"]
        assert values(t) == attempts
        assert values(t, "dlq.orders") == [b"hopeless"]
        everything = [record.value for record in broker.messages("invoices")]
        assert everything == attempts, "nothing of the others was ever written"


def test_records_for_a_retry_topic_are_committed_with_their_offsets(
    broker: Broker, app: App
) -> None:
    @app.worker("orders", retry=Retry(attempts=2, first=0.01, topics=True), **SOON)
    @app.publishes("invoices")
    async def bill(order: bytes, context: headrace.Context) -> bytes:
        if context.attempt == 1:
            raise ValueError
        return order

    with app.test(broker) as t:
        send(t, b"1", b"2")
        t.wait_idle()
        assert values(t) == [b"1", b"2"]
        assert len(values(t, "retry.0.01.orders")) == 2


def test_a_pending_record_delays_later_results(broker: Broker, app: App) -> None:
    gate = asyncio.Event()

    @app.worker("orders", ordering="none", **SOON)
    @app.publishes("invoices")
    async def bill(order: bytes) -> bytes:
        if order == b"slow":
            await gate.wait()
        return order

    with app.test(broker) as t:
        send(t, b"1", b"slow", b"2")
        broker.wait_until(lambda: app.counters["bill"].handled == 2)
        broker.wait_until(lambda: broker_committed(broker) == 1)
        await_values(t, b"1")
        assert t._loop is not None
        t._loop.call_soon_threadsafe(gate.set)
        t.wait_idle()
        assert values(t) == [b"1", b"slow", b"2"]


def test_many_results_behind_a_slow_record_do_not_block_its_handler(
    broker: Broker, app: App
) -> None:
    released = asyncio.Event()

    @app.worker("orders", ordering="none", transaction_records=2, **SOON)
    @app.publishes("invoices")
    async def bill(order: bytes) -> bytes:
        if order == b"slow":
            await released.wait()
        elif order == b"4":
            asyncio.get_running_loop().call_later(0.05, released.set)
        return order

    with app.test(broker) as t:
        send(t, b"slow", b"1", b"2", b"3", b"4")
        t.wait_idle()
        assert values(t) == [b"slow", b"1", b"2", b"3", b"4"]


def test_a_recreated_input_topic_is_read_from_its_beginning(broker: Broker, app: App) -> None:
    @app.worker("orders", group_protocol="classic", **SOON)
    @app.publishes("invoices")
    async def bill(order: bytes) -> bytes:
        return order

    with app.test(broker) as t:
        send(t, b"1", b"2", b"3")
        t.wait_idle()
        broker.delete_topic("orders")
        broker.create_topic("orders")
        broker.publish("orders", b"new")
        await_values(t, b"1", b"2", b"3", b"new")
        broker.wait_until(lambda: broker_committed(broker) == 1)


def broker_committed(broker: Broker) -> int:
    return broker.committed("g").get(ORDERS, 0)


REFUSALS = [
    (ApiKey.PRODUCE, error("TRANSACTION_ABORTABLE")),
    (ApiKey.PRODUCE, error("OUT_OF_ORDER_SEQUENCE_NUMBER")),
    (ApiKey.PRODUCE, error("TOPIC_AUTHORIZATION_FAILED")),
    (ApiKey.TXN_OFFSET_COMMIT, error("ILLEGAL_GENERATION")),
    (ApiKey.TXN_OFFSET_COMMIT, error("PRODUCER_FENCED")),
    (ApiKey.END_TXN, error("TRANSACTION_ABORTABLE")),
    (ApiKey.END_TXN, error("PRODUCER_FENCED")),
    (ApiKey.END_TXN, drop_connection()),
    (ApiKey.END_TXN, drop_connection(handled=True)),
]


@pytest.mark.parametrize(("api", "action"), REFUSALS)
def test_a_failed_transaction_is_repeated_and_no_record_is_handled_twice(
    broker: Broker, app: App, api: ApiKey, action: Any
) -> None:
    calls: Counter[bytes] = Counter()

    @app.worker("orders", **SOON)
    @app.publishes("invoices")
    async def bill(order: bytes) -> bytes:
        calls[order] += 1
        return order

    def is_the_workers(exchange: Any) -> bool:
        return getattr(exchange.request, "transactional_id", None) is not None

    fault = broker.faults.on(api, action, times=2, when=is_the_workers)
    with app.test(broker) as t:
        send(t, b"1", b"2", b"3")
        broker.wait_until(lambda: fault.hits == 2)
        t.wait_idle()
        assert values(t) == [b"1", b"2", b"3"]
        assert broker.committed("g") == {ORDERS: 3}
    assert calls == {b"1": 1, b"2": 1, b"3": 1}


def test_a_commit_whose_producer_is_fenced_before_it_is_confirmed_counts_once(
    broker: Broker, app: App
) -> None:
    """(1) EndTxn is done, and its answer is lost. (2) The producer is fenced.

    (3) The positions show that it was committed.
    """

    @app.worker("orders", **SOON)
    @app.publishes("invoices")
    async def bill(order: bytes) -> bytes:
        return order

    lost = broker.faults.on(ApiKey.END_TXN, once=drop_connection(handled=True))
    fenced = broker.faults.on(ApiKey.END_TXN, once=error("PRODUCER_FENCED"))
    with app.test(broker) as t:
        send(t, b"1")
        broker.wait_until(lambda: lost.hits and fenced.hits)
        send(t, b"2")
        t.wait_idle()
        assert values(t) == [b"1", b"2"]


class _Stub:
    """An outlet, and a producer that was fenced before its commit was confirmed; the next producer has no open
    transaction."""

    def __init__(self, committed: dict[TopicPartition, int]) -> None:
        self._committed = committed
        self._fails = [FatalTransactionError("fenced")]

    async def committed(self, _: str, partitions: list[TopicPartition]) -> dict[Any, int]:
        return {name: self._committed[name] for name in partitions}

    async def commit_transaction(self) -> None:
        raise self._fails.pop()

    async def begin_transaction(self) -> None:
        raise TransportError("no broker answers")

    async def abort_transaction(self, *_: Any) -> None: ...

    async def init_transactions(self, _: float = 0) -> None: ...

    async def close(self, _: float) -> None: ...


@pytest.mark.parametrize(("at", "counts"), [(5, True), (3, False)])
def test_commits_of_another_owner_do_not_decide_a_doubtful_transaction(at, counts) -> None:
    """(1) A commit of two partitions has no response. (2) One is revoked. (3) Its next owner commits there, too."""
    stays, gone = ORDERS, TopicPartition("orders", 1)
    stub: Any = _Stub({stays: at, gone: 9})
    transactor = transactor_module.Transactor(
        stub, stub, "g", lambda: stub, max_records=9, on_end=lambda *_: None
    )
    transactor._doubt = {stays: 5, gone: 7}
    transactor.drop([gone])
    assert asyncio.run(transactor.settle()) == ({stays: 5} if counts else {})
    assert transactor._doubt is None


@pytest.mark.parametrize("goes", [True, False])
def test_a_transaction_is_aborted_if_its_partition_is_revoked_before_the_commit(goes) -> None:
    """(1) The worker sends offsets. (2) The member leaves and joins again. (3) The group accepts the offsets."""
    calls: list[str] = []
    lost = [ORDERS if goes else TopicPartition("orders", 1)]

    class Producer(_Stub):
        def now_ms(self) -> int:
            return 0

        async def begin_transaction(self) -> None:
            calls.append("begin")

        async def send_offsets_to_transaction(self, *_: Any) -> None:
            transactor.drop(lost)

        async def commit_transaction(self) -> None:
            calls.append("commit")

        async def abort_transaction(self, *_: Any) -> None:
            calls.append("abort")

    stub: Any = Producer({})
    transactor = transactor_module.Transactor(
        stub, stub, "g", lambda: stub, max_records=9, on_end=lambda *_: None
    )
    if goes:
        with pytest.raises(AbortableTransactionError, match="was revoked during the transaction"):
            asyncio.run(transactor.commit({ORDERS: 1}))
    else:
        assert asyncio.run(transactor.commit({ORDERS: 1})) == {ORDERS: 1}
    assert calls == ["begin", "abort" if goes else "commit"]


def test_a_refusal_of_an_earlier_attempt_does_not_stop_a_worker_later() -> None:
    """(1) A topic refuses a result too long. (2) The partition is revoked. (3) A commit fails for another reason."""
    stub: Any = _Stub({})
    stub.now_ms = itertools.count(0, 10_000).__next__
    stub.forget = lambda _: None
    transactor = transactor_module.Transactor(
        stub, stub, "g", lambda: stub, max_records=9, on_end=lambda *_: None
    )
    kept = transactor_module._Kept("orders[0]@0", 0, 0, Outbox(stub))
    for _ in range(2):
        transactor._postpone(kept, "invoices", ApiError.for_code(ErrorCode.INVALID_TOPIC_EXCEPTION))
    assert isinstance(transactor._stop_error, WorkerFailedError)
    with pytest.raises(TransportError, match="no broker answers"):
        asyncio.run(transactor.commit({ORDERS: 1}))


def test_a_refused_result_delays_only_later_records_of_its_partition(
    broker: Broker, app: App
) -> None:
    app._pace["commit_interval_s"] = 0.5  # longer than the pause after a refusal

    @app.worker("orders", dead_letter=True, **SOON)
    @app.publishes("invoices")
    async def bill(order: bytes) -> bytes:
        if order == b"bad":
            raise DeadLetter
        return order

    broker.create_topic("dlq.orders", configs={"max.message.bytes": "100"})
    with app.test(broker) as t:
        send(t, b"1", b"bad", b"2")
        broker.wait_until(lambda: broker_committed(broker) == 1)
        await_values(t, b"1")
        with headrace.Admin(broker) as admin:
            admin.alter_configs("dlq.orders", {"max.message.bytes": None})
        t.wait_idle()
        assert values(t) == [b"1", b"2"]
        assert values(t, "dlq.orders") == [b"bad"]


@pytest.mark.slow
def test_a_deleted_topic_delays_only_its_own_results(app: App, caplog) -> None:
    """(1) Records for the topic are not delivered. (2) The transaction times out.

    (3) Its producer is fenced, and all wait.
    """
    # What is written may create no topic, or the one that is created here would be there already.
    with Broker(configs={"auto.create.topics.enable": False}) as broker:
        for name, partitions in (("many", 2), ("gone", 1), ("invoices", 1)):
            broker.create_topic(name, partitions)
        _delete_and_create_again(broker, app)
    assert "is replaced" not in caplog.text, "the producer stays"


def _delete_and_create_again(broker: Broker, app: App) -> None:

    @app.worker("many", transaction_timeout_ms=3_000, **SOON)
    async def bill(order: bytes, context: headrace.Context) -> None:
        await context.publish("gone" if context.partition else "invoices", order)

    with app.test(broker) as t:
        for partition in (0, 1):
            broker.publish("many", b"1", partition=partition)
        t.wait_idle()
        broker.delete_topic("gone")
        for partition in (1, 0):
            broker.publish("many", b"2", partition=partition)
        await_values(t, b"1", b"2")
        broker.create_topic("gone")
        t.wait_idle()
        assert values(t, "gone") == [b"2"]


def test_a_record_that_would_be_refused_raises_in_the_handler(broker: Broker, app: App) -> None:
    errors: list[HeadraceError] = []

    @app.worker("orders", **SOON)
    async def bill(order: bytes, context: headrace.Context) -> None:
        refused: list[tuple[str, bytes, Any]] = [
            ("invoices", bytes(2 << 20), ()),
            ("no/topic", b"x", ()),
            ("invoices", b"x", [("a", "text")]),
            ("invoices", b"x", [("headrace.delay-ms", b"5")]),
        ]
        for topic, value, headers in refused:
            try:
                await context.publish(topic, value, headers=headers)
            except (ApiError, ConfigError) as refusal:
                errors.append(refusal)

    with app.test(broker) as t:
        send(t, b"1")
        t.wait_idle()
        assert values(t) == []
    assert [str(each).partition(":")[0] for each in errors[:2]] == [
        "MESSAGE_TOO_LARGE",
        "INVALID_TOPIC_EXCEPTION",
    ]
    assert "pairs of text and bytes" in str(errors[2])
    assert "cannot write scheduled records" in str(errors[3])


def test_records_of_an_aborted_transaction_are_not_handled(broker: Broker, app: App) -> None:
    @app.worker("orders", **SOON)
    @app.publishes("invoices")
    async def bill(order: bytes) -> bytes:
        return order

    with (
        app.test(broker) as t,
        headrace.Producer(broker, transactional_id="source", linger_ms=0) as source,
    ):
        for value in (b"no", b"yes"):
            source.begin_transaction()
            source.send("orders", value)
            source.flush()
            (source.abort_transaction if value == b"no" else source.commit_transaction)()
        t.wait_idle()
        assert values(t) == [b"yes"]


def test_a_worker_reads_the_committed_results_of_another_worker(broker: Broker, app: App) -> None:
    @app.worker("orders", **SOON)
    @app.publishes("invoices")
    async def bill(order: bytes) -> bytes:
        return order + b"!"

    @app.worker("invoices", **{**SOON, "group": "h"})
    @app.publishes("sent")
    async def post(invoice: bytes) -> bytes:
        return invoice + b"!"

    broker.create_topic("sent")
    with app.test(broker) as t:
        send(t, b"1", b"2")
        t.wait_idle()
        assert values(t, "sent") == [b"1!!", b"2!!"]


def test_dedupe_keys_take_effect_when_they_are_committed(broker: Broker, app: App) -> None:
    seen: set[bytes] = set()

    class Seen:
        def __contains__(self, key: Any) -> bool:
            return key in seen

        def add(self, key: Any) -> None:
            seen.add(key)

    @app.worker("orders", dedupe=lambda order: order, seen=Seen(), **SOON)
    @app.publishes("invoices")
    async def bill(order: bytes) -> bytes:
        return order

    with app.test(broker) as t:
        fault = broker.faults.on(ApiKey.END_TXN, drop_connection())
        send(t, b"1", b"1", b"2")
        broker.wait_until(lambda: fault.hits)
        assert not seen
        fault.remove()
        t.wait_idle()
        assert values(t) == [b"1", b"2"]
    assert seen == {b"1", b"2"}


def test_a_key_of_a_dropped_transaction_is_new_again() -> None:
    async def main() -> None:
        deduplication = Deduplication(RecentKeys())
        no_object: Any = None  # no code uses it
        out, marks = Outbox(no_object), [HandledKey(ORDERS, 0, "a"), HandledKey(ORDERS, 1, "b")]
        assert await deduplication.begin(ORDERS, ["a", "b"]) == [True, True]
        await deduplication.hold(out, marks)
        assert out.keys == marks
        assert await deduplication.begin(ORDERS, ["a", "b"]) == [False, False]
        deduplication.release(marks[:1], handled=False)
        deduplication.release(marks[1:], handled=True)
        assert await deduplication.begin(ORDERS, ["a", "b"]) == [True, False]

    asyncio.run(main())


def test_a_worker_waits_for_a_broker_that_vanished_before_the_first_poll(
    broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    app = App(commit_interval_s=0.02, retry_backoff_ms=5, request_timeout_ms=100)

    @app.worker("orders", **SOON)
    @app.publishes("invoices")
    async def bill(order: bytes) -> bytes:
        return order

    took_over = broker.faults.on(ApiKey.INIT_PRODUCER_ID, Exchange.proceed)
    away = broker.faults.on(ApiKey.METADATA, drop_connection(), when=lambda _: took_over.hits > 0)
    with app.test(broker) as t:
        broker.wait_until(lambda: "no broker answers; the worker polls again" in caplog.text)
        away.remove()
        send(t, b"1")
        await_values(t, b"1")


def test_a_worker_without_transactional_permission_stops_with_the_reason(
    broker: Broker, app: App
) -> None:
    @app.worker("orders", transactional_id="tx", **SOON)
    async def bill(order: bytes) -> None: ...

    broker.faults.on(ApiKey.INIT_PRODUCER_ID, error("TRANSACTIONAL_ID_AUTHORIZATION_FAILED"))
    service = app.service(broker)
    with pytest.raises(FatalTransactionError, match="'tx'"):
        asyncio.run(service.run())


def test_a_broker_with_a_shorter_transaction_limit_is_reported_with_the_option(app: App) -> None:
    @app.worker("orders", **SOON)
    async def bill(order: bytes) -> None: ...

    with Broker(configs={"transaction.max.timeout.ms": "5000"}) as broker:
        broker.create_topic("orders")
        with pytest.raises(FatalTransactionError, match=r"transaction\.max\.timeout\.ms"):
            asyncio.run(app.service(broker).run())


def test_a_default_transactional_id_names_client_group_and_worker(broker) -> None:
    names: list[str] = []

    def note(exchange: Any) -> Any:
        names.append(exchange.request.transactional_id)
        return exchange.proceed()

    broker.faults.on(ApiKey.INIT_PRODUCER_ID, note)
    app = App(client_id="shop", group="g")

    @app.worker("orders", delivery="exactly_once", group_instance_id="one")
    async def bill(order: bytes) -> None: ...

    @app.worker("invoices", delivery="exactly_once", group="h")
    async def post(invoice: bytes) -> None: ...

    with app.test(broker) as t:
        t.wait_idle()
    assert "shop-g-bill-one" in names
    [random] = {name for name in names if name.startswith("shop-h-post-")}
    assert len(random) == len("shop-h-post-") + 8
