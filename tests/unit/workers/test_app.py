"""The promises of an app, with one worker and a broker in memory."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec
import pydantic
import pytest

import headrace
import headrace.testing
from headrace import App, Broker, DeadLetter, Retry, RetryLater, Skip, TopicPartition
from headrace.errors import ApiError, ConfigError, WorkerFailedError
from headrace.kinesis import kinesis
from headrace.protocol.messages.produce import ProduceRequest
from headrace.workers.core.scheduler import Ordering
from headrace.workers.monitoring.counters import Event
from tests.fixtures.certificates import make_certificates
from tests.fixtures.client_security import tls

QUICK = Retry(attempts=3, first=0.001)
ORDERS = TopicPartition("orders", 0)


class Struct(msgspec.Struct):
    id: int


@dataclass
class Data:
    id: int


class Model(pydantic.BaseModel):
    id: int


@pytest.fixture
def broker():
    with Broker(configs={"group.initial.rebalance.delay.ms": "0"}) as broker:
        yield broker


def committed(broker: Broker, group: str = "g") -> dict[TopicPartition, int]:
    with headrace.Admin(broker) as admin:
        return {name: at.offset for name, at in admin.offsets(group).items()}


def make_app(**options) -> App:
    return App(group="g", **options)


def test_a_trial_connects_as_the_app_does(tmp_path):
    certificates = make_certificates(tmp_path)
    with Broker(configs={"ssl.keystore.location": str(certificates.server.pem)}) as broker:
        where = broker.listen("SSL://127.0.0.1:0")
        app = make_app(**tls(certificates.authority))

        @app.worker("orders")
        def take(value: str) -> None:
            pass

        with app.test(where) as t:
            t.produce("orders", "one")
            assert [message.value for message in t.messages("orders")] == [b"one"]


# Values


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        (bytes, b'{"id":1}'),
        (str, '{"id":1}'),
        (dict, {"id": 1}),
        (dict[str, int], {"id": 1}),
        (Struct, Struct(1)),
        (Data, Data(1)),
        (Model, Model(id=1)),
    ],
)
@pytest.mark.parametrize("kind", ["async", "thread"])
def test_the_annotation_is_the_schema(schema, expected, kind: str) -> None:
    seen: list[Any] = []
    app = make_app()

    async def in_loop(value):
        seen.append(value)

    def in_thread(value):
        seen.append(value)

    handler = in_loop if kind == "async" else in_thread
    handler.__annotations__["value"] = schema
    app.worker("orders")(handler)
    with app.test() as t:
        t.produce("orders", {"id": 1})
        t.wait_idle()
    assert seen == [expected]


def test_without_annotation_the_serde_of_the_topic_decodes_values(broker: Broker) -> None:
    broker.create_topic("orders", serde="json")
    broker.create_topic("raw")
    seen: list[Any] = []
    app = make_app()
    app.worker(["orders", "raw"])(seen.append)
    with app.test(broker) as t:
        t.produce("orders", {"id": 1})
        t.produce("raw", b"x")
        t.produce("raw", None)
        t.wait_idle()
    assert sorted(seen, key=str) == [None, b"x", {"id": 1}]


def test_a_serde_is_used_in_place_of_the_annotation() -> None:
    seen: list[Any] = []
    app = make_app()

    @app.worker("orders", serde=Struct)
    def handle(value: dict):
        seen.append(value)

    with app.test() as t:
        t.produce("orders", {"id": 3})
        t.wait_idle()
    assert seen == [Struct(3)]


# Results and context


@pytest.mark.parametrize("first", ["worker", "publishes"])
def test_results_have_the_key_of_the_record_or_a_computed_key(first: str) -> None:
    app = make_app()

    async def bill(order: dict):
        return None if order["id"] == 2 else Struct(order["id"] * 10)

    decorators = [
        app.worker("orders"),
        app.publishes("invoices"),
        app.publishes("audit", key=lambda invoice: f"i{invoice.id}"),
    ]
    for decorate in decorators if first == "worker" else reversed(decorators):
        assert decorate(bill) is bill
    with app.test() as t:
        for number in (1, 2, 3):
            t.produce("orders", {"id": number}, key=f"k{number}")
        t.wait_idle()
        invoices, audit = t.messages("invoices"), t.messages("audit")
    assert [(each.key, each.json()) for each in invoices] == [
        (b"k1", {"id": 10}),
        (b"k3", {"id": 30}),
    ]
    assert [each.key for each in audit] == [b"i10", b"i30"]


@pytest.mark.parametrize("kind", ["async", "thread"])
def test_the_context_has_the_origin_of_the_record_and_publishes(kind: str) -> None:
    app = make_app()

    def told(context) -> str:
        return (
            f"{context.topic} {context.partition} {context.offset} {context.attempt} {context.key}"
        )

    async def in_loop(value: str, context):
        await context.publish("out", told(context), key=1, headers=(("h", b"1"),))

    def in_thread(value: str, context):
        assert context.publish("out", told(context), key=1, headers=context.headers).offset == 0

    app.worker("orders")(in_loop if kind == "async" else in_thread)
    with app.test() as t:
        t.produce("orders", "x", key="k", headers=(("h", b"1"),))
        t.wait_idle()
        [message] = t.messages("out")
    assert message.value == b"orders 0 0 1 b'k'"
    assert (message.key, message.header("h"), message.header("g")) == (b"1", "1", None)


def test_a_decorated_function_can_be_called() -> None:
    app = make_app()

    @app.worker("orders", retry=3)
    @app.publishes("out")
    def double(value: int) -> int:
        return 2 * value

    assert double(4) == 8


def test_a_list_annotation_or_an_object_handles_batches(broker: Broker) -> None:
    app = make_app()
    batches = []

    class Sink:
        def handle(self, batch):
            batches.append(batch)
            return [value.upper() for value in batch]

    app.worker("orders", batch=4, serde="str")(app.publishes("out")(Sink()))

    @app.worker("orders", group="h", batch=100)
    async def all_at_once(values: list[bytes], context):
        assert len(values) == len(context.records)

    for number in range(10):
        broker.publish("orders", f"v{number}".encode())
    with app.test(broker) as t:
        t.wait_idle()
        out = t.messages("out")
    assert [value for batch in batches for value in batch] == [f"v{n}" for n in range(10)]
    assert max(map(len, batches)) == 4
    assert [message.value for message in out] == [f"V{n}".encode() for n in range(10)]
    assert app.counters["all_at_once"].handled == 10


# Failures


def test_a_failed_record_is_handled_again_and_order_holds_meanwhile() -> None:
    app = make_app()
    seen: list[Any] = []

    @app.worker("orders", retry=QUICK, ordering="partition")
    async def handle(value: str, context):
        seen.append((value, context.attempt))
        if value == "b" and context.attempt < 3:
            raise ValueError("not yet")

    with app.test() as t:
        for value in "abc":
            t.produce("orders", value)
        t.wait_idle()
    assert seen == [("a", 1), ("b", 1), ("b", 2), ("b", 3), ("c", 1)]
    assert app.counters["handle"].as_dict() == {
        "handled": 3,
        "failed": 2,
        "retried": 2,
        "dead_lettered": 0,
        "skipped": 0,
        "duplicates": 0,
        "passed_over": 0,
        "in_flight": 0,
        "overlaps": 0,
    }


@pytest.mark.parametrize("ordering", ["key", "partition", "none"])
def test_the_order_of_a_key_holds_through_failures(ordering: Ordering) -> None:
    app = make_app()
    seen: list[tuple[str, int]] = []
    failures: Counter[str] = Counter()

    @app.worker("orders", retry=QUICK, ordering=ordering, concurrency=8)
    def handle(value: str):
        key, number = value.split()
        if int(number) % 3 == 0 and failures[value] < 2:
            failures[value] += 1
            raise ValueError
        seen.append((key, int(number)))

    with app.test() as t:
        for number in range(30):
            for key in "abc":
                t.produce("orders", f"{key} {number}", key=key)
        t.wait_idle()
    orders = {key: [number for k, number in seen if k == key] for key in "abc"}
    if ordering == "none":
        assert orders["a"] != list(range(30)), "what fails is overtaken"
        assert sorted(orders["a"]) == list(range(30))
    else:
        assert orders == {key: list(range(30)) for key in "abc"}


def test_without_dead_letters_the_worker_stops_and_names_the_record(broker: Broker) -> None:
    app = make_app()

    @app.worker("orders", retry=QUICK)
    async def handle(value: str):
        if value == "bad":
            raise ValueError("no good")

    for value in ("good", "bad", "later"):
        broker.publish("orders", value.encode())
    failing = pytest.raises(WorkerFailedError, match=r"offset 1 of orders-0.*3 of 3.*no good")
    with failing as raised, app.test(broker) as t:
        t.wait_idle()
    assert isinstance(raised.value.__cause__, ValueError)
    assert committed(broker) == {ORDERS: 1}, "the bad record is not committed"


def test_on_failure_skip_drops_failed_records(broker: Broker) -> None:
    app = make_app()

    @app.worker("orders", retry=1, on_failure="skip")
    def handle(value: dict): ...

    with app.test(broker) as t:
        t.produce("orders", b"no json")
        t.produce("orders", {"id": 1})
        t.wait_idle()
        assert committed(broker) == {ORDERS: 2}
    assert (app.counters["handle"].skipped, app.counters["handle"].handled) == (1, 1)


def test_a_handler_that_cancels_itself_has_failed() -> None:
    app = make_app()
    seen: list[Any] = []

    @app.worker("orders", retry=QUICK)
    async def handle(value: str, context):
        seen.append(context.attempt)
        if context.attempt < 3:
            waited: asyncio.Future[None] = asyncio.Future()
            waited.cancel()
            await waited

    with app.test() as t:
        t.produce("orders", "x")
        t.wait_idle()
    assert seen == [1, 2, 3]
    assert app.counters["handle"].failed == 2


def test_dead_letters_have_the_record_and_the_reason(broker: Broker) -> None:
    broker.create_topic("orders", partitions=3)
    app = make_app()

    @app.worker("orders", retry=QUICK, dead_letter=True)
    def handle(order: dict):
        raise KeyError(order["id"])

    with app.test(broker) as t:
        t.produce("orders", {"id": 1}, key="k", headers=(("trace", b"1"),))
        t.produce("orders", b"{broken", key="l")
        t.wait_idle()
        letters = {message.key: message for message in t.messages("dlq.orders")}
        assert sum(committed(broker).values()) == 2
    assert letters[b"k"].json() == {"id": 1}
    assert letters[b"k"].header("dlq-error-type") == "KeyError"
    assert letters[b"k"].header("dlq-error-attempts") == "3"
    assert letters[b"k"].header("trace") == "1"
    assert letters[b"l"].value == b"{broken"
    assert letters[b"l"].header("dlq-error-type") == "SerializationError"
    assert letters[b"l"].header("dlq-error-attempts") == "1"
    assert letters[b"l"].header("kafka_dlt-original-offset") in {"0", "1"}
    assert app.counters["handle"].dead_lettered == 2


def test_a_handler_chooses_skip_dead_letter_or_later() -> None:
    app = make_app()
    seen: list[Any] = []

    @app.worker("orders", dead_letter="graveyard")
    async def handle(value: str, context):
        seen.append((value, context.attempt))
        if value == "skip":
            raise Skip
        if value == "dead":
            raise DeadLetter("expired")
        if value == "later" and context.attempt == 1:
            raise RetryLater(0.001)

    with app.test() as t:
        for value in ("skip", "dead", "later"):
            t.produce("orders", value)
        t.wait_idle()
        [letter] = t.messages("graveyard")
    assert seen == [("skip", 1), ("dead", 1), ("later", 1), ("later", 2)]
    assert letter.header("dlq-error-message") == "expired"
    assert (app.counters["handle"].skipped, app.counters["handle"].failed) == (1, 2)


def test_a_dead_letter_that_cannot_be_written_is_retried_before_a_commit(
    broker: Broker, monkeypatch
) -> None:
    monkeypatch.setattr("headrace.workers.failure.policy.WRITE_AGAIN_MS", 5)
    broker.create_topic("orders")
    broker.create_topic("dlq.orders", configs={"max.message.bytes": "1"})
    app = make_app(commit_interval_s=0.01)
    tries = threading.Semaphore(0)

    @app.worker("orders", retry=1, dead_letter=True)
    async def handle(value: str):
        raise ValueError

    submit = broker._runtime.submit

    def watch(client, call, on_done):
        if (
            isinstance(call.request, ProduceRequest)
            and call.request.topic_data[0].name == "dlq.orders"
        ):
            tries.release()
        submit(client, call, on_done)

    monkeypatch.setattr(broker._runtime, "submit", watch)
    with app.test(broker) as t:
        t.produce("orders", "x")
        for _ in range(3):
            assert tries.acquire(timeout=10)
        assert committed(broker).get(ORDERS, 0) == 0
        with headrace.Admin(broker) as admin:
            admin.alter_configs("dlq.orders", {"max.message.bytes": None})
        t.wait_idle()
        assert len(t.messages("dlq.orders")) == 1
        assert committed(broker) == {ORDERS: 1}
    counters = app.counters["handle"]
    assert (counters.failed, counters.dead_lettered) == (1, 1), "the handler was called once"


def test_only_the_faulty_record_of_a_batch_becomes_a_dead_letter(broker: Broker) -> None:
    app = make_app()
    handled = []

    @app.worker("orders", retry=Retry(attempts=2, first=0.001), dead_letter=True, batch=10)
    def handle(values: list[int]):
        if 3 in values:
            raise ValueError("three")
        handled.extend(values)

    for number in range(6):
        broker.publish("orders", b"%d" % number)
    broker.publish("orders", b"no number")
    broker.publish("orders", b"7")
    with app.test(broker) as t:
        t.wait_idle()
        letters = t.messages("dlq.orders")
    assert handled == [0, 1, 2, 4, 5, 7]
    assert [letter.value for letter in letters] == [b"3", b"no number"]


def test_the_result_of_a_handler_that_cannot_be_written_fails_its_attempt(broker: Broker) -> None:
    broker.create_topic("out", configs={"max.message.bytes": "1"})
    app = make_app()

    @app.worker("orders", retry=QUICK, dead_letter=True)
    @app.publishes("out")
    async def handle(value: str) -> str:
        return value

    with app.test(broker) as t:
        t.produce("orders", "x")
        t.wait_idle()
        [letter] = t.messages("dlq.orders")
    assert letter.header("dlq-error-type") == "MessageTooLargeError"


# Retry topics


def test_records_in_retry_topics_let_others_pass_and_keep_their_headers() -> None:
    app = make_app()
    seen: list[Any] = []

    @app.worker(
        "orders", retry=Retry(attempts=3, first=0.05, factor=2, topics=True), dead_letter=True
    )
    async def handle(value: str, context):
        seen.append((value, context.attempt, context.topic, context.offset))
        if value == "bad":
            raise ValueError

    with app.test() as t:
        for value in ("bad", "good"):
            t.produce("orders", value, key="k")
        t.wait_idle()
        [letter] = t.messages("dlq.orders")
        assert len(t.messages("retry.0.05.orders")) == len(t.messages("retry.0.1.orders")) == 1
    assert seen[:2] == [("bad", 1, "orders", 0), ("good", 1, "orders", 1)]
    assert seen[2:] == [("bad", 2, "orders", 0), ("bad", 3, "orders", 0)]
    assert letter.header("kafka_dlt-original-topic") == "orders"
    assert letter.header("dlq-error-attempts") == "3"


def test_a_record_of_a_retry_topic_waits_for_its_time() -> None:
    clock = headrace.ManualClock()
    with Broker(clock=clock, configs={"group.initial.rebalance.delay.ms": "0"}) as broker:
        app = make_app()
        times = []

        @app.worker("orders", retry=Retry(attempts=2, first=600, max=600, topics=True))
        async def handle(value: str, context):
            times.append(broker.now_ms())
            if context.attempt == 1:
                raise ValueError

        with app.test(broker) as t:
            t.produce("orders", "x")
            t.wait_idle()
    first, second = times
    assert 600_000 <= second - first < 602_000


def test_two_groups_do_not_handle_each_others_retries(broker: Broker) -> None:
    app = make_app()
    seen: Counter[str] = Counter()
    retry = Retry(attempts=2, first=0.01, topics=True)

    @app.worker("orders", group="a", retry=retry)
    async def failing(value: str, context):
        seen["a"] += 1
        if context.attempt == 1:
            raise ValueError

    @app.worker("orders", group="b", retry=retry)
    async def fine(value: str):
        seen["b"] += 1

    with app.test(broker) as t:
        t.produce("orders", "x")
        t.wait_idle()
    assert seen == {"a": 2, "b": 1}
    assert [app.counters[name].passed_over for name in ("failing", "fine")] == [0, 1]


# Duplicates, delivery, hooks


def test_records_with_a_key_that_was_handled_are_skipped(broker: Broker) -> None:
    app = make_app()
    seen: list[Any] = []
    attempts: Counter[int] = Counter()

    @app.worker("orders", dedupe=lambda order: order["id"], retry=QUICK, ordering="none")
    def handle(order: dict):
        attempts[order["id"]] += 1
        if attempts[order["id"]] == 1:
            raise ValueError("the key of what failed is not kept")
        seen.append(order["id"])

    with app.test(broker) as t:
        for number in (1, 2, 1, 1, 3, 2):
            t.produce("orders", {"id": number})
        t.wait_idle()
        assert committed(broker) == {ORDERS: 6}
    assert sorted(seen) == [1, 2, 3]
    assert (app.counters["handle"].handled, app.counters["handle"].skipped) == (3, 3)


def test_at_most_once_commits_before_it_handles(broker: Broker) -> None:
    app = make_app()
    seen: list[Any] = []

    @app.worker("orders", delivery="at_most_once", concurrency=1)
    def handle(value: str):
        seen.append((value, committed(broker)[ORDERS]))
        if value == "1":
            raise ValueError("not again")

    for number in range(3):
        broker.publish("orders", b"%d" % number)
    with pytest.raises(WorkerFailedError, match="does not come again"), app.test(broker) as t:
        t.wait_idle()
    assert [value for value, _ in seen] == ["0", "1", "2"], (
        "what is committed is handled before the end"
    )
    assert all(int(value) < offset for value, offset in seen)


def test_hooks_are_called_and_their_faults_do_no_harm() -> None:
    app = make_app()
    events: list[Event] = []

    @app.hook
    def broken(event):
        raise RuntimeError

    app.hook(events.append)

    @app.worker("orders", retry=Retry(attempts=2, first=0.001), dead_letter=True, name="bill")
    async def handle(value: str):
        if value == "bad":
            raise ValueError("bad")

    with app.test() as t:
        t.produce("orders", "bad")
        t.produce("orders", "good")
        t.wait_idle()
    kinds = [(event.kind, event.attempt, event.records[0].value) for event in events]
    assert kinds == [
        ("failed", 1, b"bad"),
        ("retried", 1, b"bad"),
        ("failed", 2, b"bad"),
        ("dead_lettered", 2, b"bad"),
        ("handled", 1, b"good"),
    ]
    assert repr(events[0].error) == "ValueError('bad')"
    assert {event.worker for event in events} == {"bill"}


def test_a_slow_handler_does_not_keep_other_records_waiting_and_a_full_partition_is_paused(
    broker: Broker,
) -> None:
    app = make_app(max_buffered=4)
    release = threading.Event()
    seen: list[Any] = []

    @app.worker("orders", ordering="key", concurrency=2)
    def handle(value: int):
        if value == 0:
            release.wait(10)
        seen.append(value)
        if len(seen) == 3:
            release.set()

    with app.test(broker) as t:
        for number in range(50):
            t.produce("orders", number, key="slow" if number == 0 else "quick")
        t.wait_idle()
    assert seen[:3] == [1, 2, 3]
    assert sorted(seen) == list(range(50))


def test_workers_of_one_app_feed_each_other() -> None:
    app = make_app()
    done = []

    @app.worker("a")
    @app.publishes("b")
    async def first(value: int) -> int:
        return value + 1

    @app.worker("b", group="h")
    def second(value: int) -> None:
        done.append(value)

    with app.test() as t:
        t.produce("a", 1)
        t.wait_idle()
    assert done == [2]


def test_a_pattern_takes_every_topic_that_matches(broker: Broker) -> None:
    names = ("orders.eu", "orders.us", "other", "dlq.orders.eu", "retry.1.orders.eu", "orders.dead")
    for name in names:
        broker.create_topic(name)
    app = make_app()
    seen: list[Any] = []

    @app.worker(pattern=r".*orders\..*", retry=1, dead_letter="orders.dead")
    def handle(value: str, context):
        seen.append(context.topic)
        raise ValueError

    with app.test(broker) as t:
        for name in names:
            t.produce(name, "x")
        t.wait_idle()
        assert len(t.messages("orders.dead")) == 3
    assert sorted(seen) == ["orders.eu", "orders.us"], "a pattern takes no dead letters"


# Wrong use


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "needs a topic"),
        ({"topics": "t", "attached": True}, "use one of them"),
        ({"pattern": "t", "attached": True}, "use one of them"),
        ({"topics": "a", "pattern": "b"}, "use one of them"),
        ({"topics": "a", "ordering": "random"}, "ordering is one of"),
        ({"topics": "a", "delivery": "twice"}, "delivery is one of"),
        ({"topics": "a", "batch": 5}, "list"),
        ({"topics": "a", "concurrency": 0}, "at least 1"),
        ({"topics": "a", "serde": "nonsense"}, "no serde is called"),
        ({"pattern": "a", "retry": Retry(topics=True)}, "cannot be combined with pattern"),
    ],
)
def test_incompatible_arguments_are_refused(arguments, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make_app().worker(**arguments)(lambda value: None)


def test_retry_topics_require_auto_offset_reset_earliest() -> None:
    app = make_app()
    retry = Retry(topics=True)
    app.worker("orders", retry=retry, auto_offset_reset="latest")(lambda value: None)
    with pytest.raises(ConfigError, match="earliest"), app.test():
        pass


def test_an_app_needs_a_group_and_a_worker() -> None:
    with pytest.raises(ConfigError, match="needs a group"):
        App().worker("orders")(lambda value: None)
    with pytest.raises(ConfigError, match="no workers"):
        make_app().run()


def test_an_error_of_the_group_ends_the_app(broker: Broker) -> None:
    app = make_app()
    app.worker("orders", session_timeout_ms=1)(lambda value: None)
    with pytest.raises(ApiError, match="session"), app.test(broker) as t:
        t.wait_idle()


@pytest.mark.parametrize("reset", ["earliest", "latest"])
def test_unfinished_records_come_again_wherever_reading_began(broker: Broker, reset: str) -> None:
    broker.create_topic("orders")
    broker.publish("orders", b"old")
    app = make_app()
    begun = []

    @app.worker("orders", retry=1, auto_offset_reset=reset)
    def handle(value: str):
        begun.append((value, committed(broker).get(ORDERS)))
        if len(begun) == 1 + (reset == "earliest"):
            raise ValueError

    def run_until_it_fails() -> None:
        with app.test(broker) as t:
            t.wait_idle()
            t.produce("orders", "new")
            t.wait_idle()

    with pytest.raises(WorkerFailedError):
        run_until_it_fails()
    if reset == "latest":
        assert begun == [("new", 1)], "the beginning is committed first"
    with app.test(broker) as t:
        t.wait_idle()
    assert [value for value, _ in begun[-2:]] == ["new", "new"]


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


@pytest.mark.slow
def test_a_worker_reads_the_attached_topics_of_its_group(broker: Broker) -> None:
    for topic in ("orders", "refunds"):
        broker.create_topic(topic, partitions=2)
    group = broker.create_group("g", assignor="equal", topics=["orders"])
    app = make_app()
    seen: list[tuple[str, str]] = []

    @app.worker(attached=True)
    async def handle(value: str, context: headrace.Context) -> None:
        seen.append((context.topic, value))

    with app.test(broker) as t:
        t.produce("orders", "1")
        t.wait_idle()
        assert seen == [("orders", "1")]
        group.attach("refunds")
        t.produce("refunds", "2")
        until(lambda: len(seen) == 2)
        t.wait_idle()
    assert seen[1] == ("refunds", "2")


@pytest.mark.slow
def test_a_group_that_is_attached_to_a_pattern_does_not_read_its_own_dead_letters(
    broker: Broker,
) -> None:
    broker.create_topic("orders", partitions=1)
    broker.create_group("g", pattern=".*")
    app = make_app()
    seen: list[str] = []

    @app.worker(attached=True, retry=1, dead_letter=True)
    async def handle(value: str, context: headrace.Context) -> None:
        seen.append(context.topic)
        if value == "bad":
            raise ValueError(value)

    with app.test(broker) as t:
        t.produce("orders", "bad")
        t.wait_idle()
        broker.create_topic("later", partitions=1)
        t.produce("later", "good")
        until(lambda: "later" in seen)
        t.wait_idle()
        topics = [topic for topic in broker.topics() if not topic.startswith("_")]
    assert seen == ["orders", "later"]
    assert sorted(topics) == ["dlq.orders", "later", "orders"]


def was_retried(app: App, times: int) -> bool:
    return app.counters["handle"].retried == times


def test_a_manual_clock_ends_the_pauses_between_attempts() -> None:
    app = make_app()
    attempts: list[int] = []

    @app.worker("orders", retry=Retry(attempts=3, first=30, max=30))
    async def handle(value: str, context: headrace.Context) -> None:
        attempts.append(context.attempt)
        if context.attempt < 3:
            raise RuntimeError("not yet")

    with headrace.testing.Broker() as broker, app.test(broker) as t:
        t.produce("orders", "1")
        for attempt in (1, 2):
            until(partial(was_retried, app, attempt))
            broker.advance(30_000)
        t.wait_idle()
    assert attempts == [1, 2, 3]


def test_no_worker_begins_before_the_checks_of_all_workers_succeed(broker: Broker) -> None:
    app = make_app()
    handled: list[str] = []
    app.worker("orders", serde="str")(handled.append)

    @app.worker(kinesis("missing", endpoint_url="http://127.0.0.1:1", leases="memory://check"))
    async def never(value: bytes) -> None: ...

    broker.publish("orders", b"x")
    with pytest.raises(headrace.HeadraceError), app.test(broker) as t:
        t.wait_idle(60)
    assert handled == []
    assert app.status()["never"].state == "failed"
    assert committed(broker) == {}
