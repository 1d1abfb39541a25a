"""One set of handlers on a topic and on a stream: order, retries, dead letters, duplicates, batches, counters."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

import headrace
from headrace.errors import WorkerFailedError
from headrace.workers.handler.context import Context
from headrace.workers.monitoring.counters import Event
from tests.integration.kinesis.group.apps import WAIT_S, Place, place_of


@pytest.fixture(params=["topic", "stream"])
def place(request: pytest.FixtureRequest) -> Iterator[Place]:
    with place_of(request.param) as place:
        yield place


def test_records_are_handled_in_order(place: Place) -> None:
    app = headrace.App(group="billing")
    handled: list[str] = []

    @app.worker(place.source)
    async def bill(order: str) -> None:
        handled.append(order)

    with place.running(app) as trial:
        for number in range(20):
            place.put(b"%d" % number)
        trial.wait_idle(WAIT_S)
    assert handled == [str(number) for number in range(20)]
    assert app.counters["bill"].handled == 20


def test_a_failed_record_is_handled_again_before_later_records(place: Place) -> None:
    app = headrace.App(group="billing")
    attempts: list[tuple[str, int]] = []

    @app.worker(place.source, retry=headrace.Retry(attempts=3, first=0.01))
    async def bill(order: str, context: Context) -> None:
        attempts.append((order, context.attempt))
        if order == "bad" and context.attempt < 3:
            raise ValueError("not yet")

    with place.running(app) as trial:
        place.put(b"bad")
        place.put(b"good")
        trial.wait_idle(WAIT_S)
    assert attempts == [("bad", 1), ("bad", 2), ("bad", 3), ("good", 1)]
    assert app.counters["bill"].retried == 2


def test_a_record_becomes_a_dead_letter_after_its_last_attempt(place: Place) -> None:
    app = headrace.App(group="billing")

    @app.worker(place.source, retry=headrace.Retry(attempts=2, first=0.01), dead_letter=True)
    async def bill(order: str) -> None:
        if order == "bad":
            raise ValueError("no such customer")

    with place.running(app) as trial:
        place.put(b"bad", "alice")
        place.put(b"good", "bob")
        trial.wait_idle(WAIT_S)
        # A topic and a stream of one name have different dead-letter topics: those of a stream cannot be replayed.
        name = "dlq.kinesis.orders" if place.kind == "stream" else "dlq.orders"
        [letter] = trial.messages(name)
    assert (letter.record.key, letter.record.value) == (b"alice", b"bad")
    assert letter.header("dlq-error-type") == "ValueError"
    assert letter.header("dlq-error-attempts") == "2"
    assert letter.header("kafka_dlt-original-topic") == "orders"
    assert (letter.header("dlq-shard") == "shardId-000000000000") == (place.kind == "stream")
    assert app.counters["bill"].dead_lettered == 1


def test_a_handled_key_is_not_handled_again(place: Place) -> None:
    app = headrace.App(group="billing")
    handled: list[str] = []

    @app.worker(place.source, dedupe=lambda order: order)
    async def bill(order: str) -> None:
        handled.append(order)

    with place.running(app) as trial:
        for order in (b"a", b"b", b"a"):
            place.put(order)
        trial.wait_idle(WAIT_S)
    assert handled == ["a", "b"]
    assert app.counters["bill"].skipped == 1


def test_batches_are_of_one_partition_and_in_order(place: Place) -> None:
    app = headrace.App(group="billing")
    batches: list[list[str]] = []

    @app.worker(place.source, batch=4)
    def bill(orders: list[str]) -> None:
        batches.append(orders)

    with place.running(app) as trial:
        for number in range(10):
            place.put(b"%d" % number)
        trial.wait_idle(WAIT_S)
    assert [order for batch in batches for order in batch] == [str(number) for number in range(10)]
    assert max(map(len, batches)) <= 4


def test_a_record_waits_only_for_records_of_its_own_key(place: Place) -> None:
    app = headrace.App(group="billing")
    handled: list[str] = []
    released = threading.Event()

    @app.worker(place.source, ordering="key", concurrency=4)
    def bill(order: str) -> None:
        if order == "slow":
            assert released.wait(WAIT_S)
        handled.append(order)
        if order == "other":
            released.set()

    with place.running(app) as trial:
        place.put(b"slow", "alice")
        place.put(b"behind", "alice")
        place.put(b"other", "bob")
        trial.wait_idle(WAIT_S)
    assert handled == ["other", "slow", "behind"]


def test_results_go_to_topics(place: Place) -> None:
    app = headrace.App(group="billing")

    @app.worker(place.source)
    @app.publishes("invoices")
    async def bill(order: str, context: Context) -> str:
        await context.publish("audit", order.upper())
        return f"invoice of {order}"

    with place.running(app) as trial:
        place.put(b"one", "alice")
        trial.wait_idle(WAIT_S)
        [invoice] = trial.messages("invoices")
        [audit] = trial.messages("audit")
    assert (invoice.record.key, invoice.record.value) == (b"alice", b"invoice of one")
    assert audit.record.value == b"ONE"


def test_a_failed_record_without_a_failure_policy_stops_the_worker(place: Place) -> None:
    app = headrace.App(group="billing")

    @app.worker(place.source, retry=1)
    async def bill(order: str) -> None:
        raise ValueError(order)

    with place.running(app) as trial:
        place.put(b"bad")
        where = {"topic": "offset 0 of orders-0", "stream": r"\d+ of shardId-0{12} of orders"}
        with pytest.raises(WorkerFailedError, match=f"the record at {where[place.kind]} failed"):
            trial.wait_idle(WAIT_S)


def test_at_most_once_handles_no_record_twice(place: Place) -> None:
    app = headrace.App(group="billing")
    handled: list[str] = []

    @app.worker(place.source, delivery="at_most_once", on_failure="skip")
    async def bill(order: str) -> None:
        handled.append(order)
        raise ValueError(order)

    for _ in range(2):
        with place.running(app) as trial:
            if not handled:
                place.put(b"one")
                place.put(b"two")
            if place.kind == "topic" and handled:
                break  # the broker in memory ended with the first run
            trial.wait_idle(WAIT_S)
    assert handled == ["one", "two"]


def test_hooks_and_the_context_contain_the_record(place: Place) -> None:
    app = headrace.App(group="billing")
    events: list[Event] = []
    app.hook(events.append)
    seen: list[Context] = []
    valid: list[bool] = []

    @app.worker(place.source)
    async def bill(order: str, context: Context) -> None:
        seen.append(context)
        valid.append(context.valid())

    with place.running(app) as trial:
        place.put(b"one", "alice")
        trial.wait_idle(WAIT_S)
    [context] = seen
    assert [event.kind for event in events] == ["handled"]
    assert (context.topic, context.partition, context.key) == ("orders", 0, b"alice")
    assert valid == [True]
    assert not context.valid()  # the worker has left the group
    if place.kind == "stream":
        assert context.shard == "shardId-000000000000"
        assert context.sequence_number is not None
        assert context.sequence_number.isdecimal()
        assert context.sub_sequence is None
    else:
        assert (context.shard, context.sequence_number) == (None, None)
    assert context.epoch >= 1
