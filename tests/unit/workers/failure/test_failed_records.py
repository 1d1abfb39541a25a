"""Dead letters and records in retry topics that cannot be written: too large, refused, their topic deleted."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import headrace
from headrace import App, Retry
from headrace.errors import ConfigError, WorkerFailedError
from headrace.records.decoding import MAX_HEADERS
from headrace.testing import ApiKey, Broker, error
from headrace.workers.committing.transactions import TransactionCommitter
from headrace.workers.failure import refusals

pytestmark = pytest.mark.slow  # not in `make check`

QUICK = Retry(attempts=2, first=0.001)
LARGE = b"x" * 1_048_400  # fits a topic of default settings; its dead letter is larger than that
WAIT_S = 30.0

WRITES: dict[str, dict[str, Any]] = {
    "at least once": {"retry": QUICK},
    "at most once": {"delivery": "at_most_once"},
    "exactly once": {"delivery": "exactly_once", "retry": QUICK},
    "retry topics": {"retry": Retry(attempts=2, first=0.001, topics=True)},
    "retry topics exactly once": {
        "delivery": "exactly_once",
        "retry": Retry(attempts=2, first=0.001, topics=True),
    },
}


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker(configs={"group.initial.rebalance.delay.ms": "0"}) as broker:
        yield broker


def failing_app(**options: Any) -> tuple[App, list[bytes]]:
    """Return an app that handles the value `ok` and fails for other values."""
    app, handled = App(group="g", commit_interval_s=0.05), []

    @app.worker("orders", dead_letter=True, **options)
    async def handle(value: bytes) -> None:
        if value != b"ok":
            raise ValueError("bad record")
        handled.append(value)

    return app, handled


def write(broker: Broker, *values: bytes) -> None:
    with headrace.Producer(broker, max_request_size=10_000_000) as producer:
        for value in values:
            producer.send("orders", value, key=b"k", headers=(("own", b"1"),)).result()


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.parametrize("kind", WRITES)
@pytest.mark.parametrize(
    ("limit", "value"), [(None, LARGE), ("5000000", b"x" * 4_999_000)], ids=["default", "large"]
)
def test_a_record_that_its_topic_accepts_is_a_complete_dead_letter(
    broker: Broker, kind: str, limit: str | None, value: bytes
) -> None:
    broker.create_topic("orders", 1, configs={"max.message.bytes": limit} if limit else {})
    app, handled = failing_app(**WRITES[kind])
    write(broker, value, b"ok")
    with app.test(broker) as t:
        t.wait_idle(WAIT_S)
        [letter] = t.messages("dlq.orders")
    assert (letter.value, letter.key) == (value, b"k")
    assert letter.header("dlq-left-out") is None
    assert handled == [b"ok"]


@pytest.mark.parametrize("kind", WRITES)
def test_a_dead_letter_that_is_too_large_is_written_without_its_value(
    broker: Broker, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    broker.create_topic("orders")
    broker.create_topic("dlq.orders", 1, configs={"max.message.bytes": "10000"})
    app, handled = failing_app(**WRITES[kind])
    write(broker, b"x" * 20_000, b"ok")
    with app.test(broker) as t:
        t.wait_idle(WAIT_S)
        [letter] = t.messages("dlq.orders")
    assert (letter.value, letter.key, letter.header("own")) == (None, b"k", "1")
    assert letter.header("dlq-left-out") == "value of 20000 bytes"
    assert letter.header("kafka_dlt-original-offset") == "0"
    assert handled == [b"ok"]
    assert any("is without its value of 20000 bytes" in text for text in caplog.messages)


def test_a_dead_letter_with_a_key_that_is_too_large_names_the_origin(broker: Broker) -> None:
    broker.create_topic("orders")
    broker.create_topic("dlq.orders", 1, configs={"max.message.bytes": "10000"})
    app, _ = failing_app()
    with headrace.Producer(broker) as producer:
        producer.send("orders", b"bad", key=b"k" * 20_000).result()
    with app.test(broker) as t:
        t.wait_idle(WAIT_S)
        [letter] = t.messages("dlq.orders")
    assert (letter.value, letter.key) == (None, None)
    assert letter.header("kafka_dlt-original-offset") == "0"
    assert letter.header("dlq-left-out") == "value of 3 bytes, its key and its own headers"


@pytest.mark.parametrize("kind", WRITES)
def test_a_record_with_the_most_headers_becomes_a_dead_letter(broker: Broker, kind: str) -> None:
    """A dead letter has headers of its own. Otherwise a writer of the topic could stop its workers with such a
    record."""
    broker.create_topic("orders")
    app, handled = failing_app(**WRITES[kind])
    with headrace.Producer(broker) as producer:
        producer.send("orders", b"bad", key=b"k", headers=[("", None)] * MAX_HEADERS).result()
    write(broker, b"ok")
    with app.test(broker) as t:
        t.wait_idle(WAIT_S)
        [letter] = t.messages("dlq.orders")
    assert letter.header("kafka_dlt-original-offset") == "0"
    assert letter.header("dlq-left-out") == "value of 3 bytes, its key and its own headers"
    assert handled == [b"ok"]


def test_a_record_that_is_too_large_for_its_retry_topic_is_retried_in_place(broker: Broker) -> None:
    broker.create_topic("orders")
    broker.create_topic("retry.0.001.orders", 1, configs={"max.message.bytes": "1000"})
    app, handled = failing_app(**WRITES["retry topics"])
    write(broker, b"x" * 2_000, b"ok")
    with app.test(broker) as t:
        t.wait_idle(WAIT_S)
        assert [letter.value for letter in t.messages("dlq.orders")] == [b"x" * 2_000]
        assert t.messages("retry.0.001.orders") == []
    counters = app.counters["handle"]
    assert (counters.failed, counters.retried, handled) == (2, 1, [b"ok"])


@pytest.mark.parametrize("create", ["true", "false"])
@pytest.mark.parametrize("kind", ["at least once", "exactly once"])
def test_a_dead_letter_topic_that_is_deleted_is_created_again(create: str, kind: str) -> None:
    with Broker(
        configs={"group.initial.rebalance.delay.ms": "0", "auto.create.topics.enable": create}
    ) as broker:
        broker.create_topic("orders", 2, configs={"max.message.bytes": "2000000"})
        app, _ = failing_app(**WRITES[kind])
        with app.test(broker) as t:
            write(broker, b"first")
            t.wait_idle(WAIT_S)
            assert len(t.messages("dlq.orders")) == 1
            broker.delete_topic("dlq.orders")
            write(broker, b"second")
            until(lambda: [each.value for each in t.messages("dlq.orders")] == [b"second"])
            t.wait_idle(WAIT_S)
        with headrace.Admin(broker) as admin:
            assert len(admin.describe_topic("dlq.orders").partitions) == 2


@pytest.mark.parametrize("kind", ["retry topics", "retry topics exactly once"])
def test_a_retry_topic_that_is_deleted_is_created_again(broker: Broker, kind: str) -> None:
    broker.create_topic("orders")
    app, _ = failing_app(**WRITES[kind])
    with app.test(broker) as t:
        write(broker, b"first")
        t.wait_idle(WAIT_S)
        broker.delete_topic("retry.0.001.orders")
        write(broker, b"second")
        until(lambda: app.counters["handle"].dead_lettered == 2)
        until(lambda: len(t.messages("dlq.orders")) == 2)


@pytest.mark.parametrize("kind", ["at least once", "exactly once"])
@pytest.mark.parametrize("where", ["dead letter", "result"])
def test_a_permanent_refusal_stops_the_worker_and_names_the_record(
    broker: Broker, kind: str, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A grant may need a moment until every broker knows it, and five seconds are long for a test.
    monkeypatch.setattr(refusals, "REFUSED_FOR_MS", 500)
    monkeypatch.setattr("headrace.workers.failure.policy.WRITE_AGAIN_MS", 100)
    monkeypatch.setattr("headrace.workers.committing.transactor.WRITE_AGAIN_MS", 100)
    broker.create_topic("orders")
    broker.create_topic("out")
    app = App(group="g", commit_interval_s=0.05)
    topic = "dlq.orders" if where == "dead letter" else "out"

    @app.worker("orders", dead_letter=where == "dead letter", **WRITES[kind])
    @app.publishes("out")
    async def handle(value: bytes) -> bytes:
        if where == "dead letter":
            raise ValueError("bad record")
        return value

    def is_refused(exchange: Any) -> bool:
        return any(each.name == topic for each in exchange.request.topic_data)

    write(broker, b"bad")
    broker.faults.on(ApiKey.PRODUCE, error("TOPIC_AUTHORIZATION_FAILED"), when=is_refused)
    stopped = pytest.raises(WorkerFailedError, match=r"offset 0 of orders-0.*AUTHORIZATION_FAILED")
    with stopped as raised, app.test(broker) as t:
        t.wait_idle(WAIT_S)
    if where == "dead letter" or kind == "exactly once":
        assert f"cannot be written to '{topic}'" in str(raised.value)
        assert "Grant the worker's user Write" in str(raised.value)
    assert sum(broker.group("g").lag().values()) == 1


@pytest.mark.parametrize("kind", ["at least once", "exactly once"])
def test_failed_writes_are_repeated_for_a_bounded_time(
    broker: Broker, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The default is five minutes.
    monkeypatch.setattr(refusals, "WRITE_FOR_MS", 1_000)
    monkeypatch.setattr("headrace.workers.failure.policy.WRITE_AGAIN_MS", 100)
    monkeypatch.setattr("headrace.workers.committing.transactor.WRITE_AGAIN_MS", 100)
    broker.create_topic("orders")
    # By default the producer tries again by itself, for two minutes.
    app = App(group="g", commit_interval_s=0.05, producer={"retries": 1})

    @app.worker("orders", dead_letter=True, **WRITES[kind])
    async def handle(value: bytes) -> None:
        raise ValueError("bad record")

    def is_letter(exchange: Any) -> bool:
        return any(each.name == "dlq.orders" for each in exchange.request.topic_data)

    write(broker, b"bad")
    broker.faults.on(ApiKey.PRODUCE, error("KAFKA_STORAGE_ERROR"), when=is_letter)
    stopped = pytest.raises(WorkerFailedError, match=r"offset 0 of orders-0.*STORAGE_ERROR|deliver")
    with stopped, app.test(broker) as t:
        t.wait_idle(60)


@pytest.mark.parametrize("kind", ["at least once", "exactly once", "retry topics"])
def test_an_app_stops_in_time_while_a_dead_letter_cannot_be_written(
    broker: Broker, kind: str
) -> None:
    broker.create_topic("orders")
    app = App(group="g", drain_timeout_s=0.5)

    @app.worker("orders", dead_letter=True, **WRITES[kind])
    async def handle(value: bytes) -> None:
        raise ValueError("bad record")

    def is_aside(exchange: Any) -> bool:
        return any(each.name != "orders" for each in exchange.request.topic_data)

    with app.test(broker) as t:
        fault = broker.faults.on(ApiKey.PRODUCE, error("NOT_LEADER_OR_FOLLOWER"), when=is_aside)
        t.produce("orders", b"bad")
        until(lambda: fault.hits > 0)
        began = time.monotonic()
    assert time.monotonic() - began < 10


def test_a_result_that_is_too_large_fails_its_own_record(broker: Broker) -> None:
    broker.create_topic("out", 1, configs={"max.message.bytes": "1000"})
    for kind in ("at least once", "exactly once"):
        app = App(group=kind)

        @app.worker("orders", dead_letter=f"dlq.{kind.replace(' ', '-')}", **WRITES[kind])
        @app.publishes("out")
        async def handle(value: bytes) -> bytes:
            return value * 100

        with app.test(broker) as t:
            if kind == "at least once":
                t.produce("orders", b"x" * 20)
                t.produce("orders", b"y")
            t.wait_idle(WAIT_S)
            [letter] = t.messages(f"dlq.{kind.replace(' ', '-')}")
            assert letter.header("dlq-error-type") == "MessageTooLargeError"


@pytest.mark.parametrize("codec", ["none", "gzip"])
def test_a_value_that_is_too_large_after_compression_is_left_out_of_a_dead_letter(
    broker: Broker, codec: str
) -> None:
    broker.create_topic("orders")
    broker.create_topic("dlq.orders", 1, configs={"max.message.bytes": "10000"})
    app = App(group="g", commit_interval_s=0.05, producer={"compression.type": codec})

    @app.worker("orders", dead_letter=True, **WRITES["exactly once"])
    async def handle(value: bytes) -> None:
        raise ValueError("bad record")

    noise = random.Random(1).randbytes(20_000)
    write(broker, noise, b"x" * 20_000)
    with app.test(broker) as t:
        t.wait_idle(WAIT_S)
        first, second = t.messages("dlq.orders")
    assert (first.value, first.header("dlq-left-out")) == (None, "value of 20000 bytes")
    assert second.value == (None if codec == "none" else b"x" * 20_000)


# The producer's properties


def test_an_app_chooses_properties_of_its_producers(broker: Broker) -> None:
    app = App(group="g", producer={"compression.type": "gzip", "delivery_timeout_ms": 60_000})

    @app.worker("orders", delivery="exactly_once")
    @app.publishes("out")
    async def handle(value: bytes) -> bytes:
        return value

    with app.test(broker) as t:
        t.produce("orders", b"x" * 10_000)
        t.wait_idle(WAIT_S)
        assert len(t.messages("out")) == 1
        service = t._running()
        [worker] = service.workers
        assert service.outlet is not None
        committer = worker._committer
        assert isinstance(committer, TransactionCommitter)
        for producer in (service.outlet._producer, committer.transactor._producer):
            config = producer.config
            assert (config.compression_type, config.delivery_timeout_ms) == ("gzip", 60_000)


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ({"compresion_type": "gzip"}, "did you mean 'compression.type'"),
        ({"acks": 0}, "when its results are acknowledged"),
        ({"serde": "json"}, "@app.publishes"),
        ({"transactional.id": "mine"}, "@app.worker"),
        ({"max_poll_records": 3}, "belongs to a consumer"),
    ],
)
def test_invalid_properties_of_producers_are_refused(wrong: Any, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        App(producer=wrong)
