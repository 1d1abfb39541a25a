"""Objects of the program raise or hang: other partitions continue, and messages name each failed record.

`Faulty` is every object that a program can give: the handler, `dedupe=`, `seen=`, a serde, `key=`, a hook. Each raises
at one place, exceptions of every kind, those included whose text cannot be read.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
import logging
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from headrace import App, Broker, DeadLetter, Retry, RetryLater
from headrace.errors import ConfigError, WorkerFailedError

pytestmark = pytest.mark.slow  # not in `make check`

QUICK = Retry(attempts=3, first=0.001)
RECORDS = ["v0", "v1", "v2"]
WAIT_S = 20.0


class Unreadable(Exception):  # noqa: N818 - the name describes the exception
    """An exception whose text cannot be read."""

    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__


RAISED: dict[str, Callable[[], BaseException]] = {
    "an error": lambda: ValueError("as it was asked to"),
    "an unreadable error": Unreadable,
    "an exit": lambda: SystemExit(3),
    "a cancellation": asyncio.CancelledError,
    "the end of an iterator": StopIteration,
}


class Faulty:
    """The code that a program gives to a worker; one part of it raises a given number of times."""

    def __init__(self, place: str, times: float, make: Callable[[], BaseException]) -> None:
        self._place = place
        self._left = times
        self._make = make
        self.keys: set[Any] = set()
        self.handled: list[str] = []

    def _pass(self, place: str) -> None:
        if place == self._place and self._left > 0:
            self._left -= 1
            raise self._make()

    def __contains__(self, key: Any) -> bool:
        self._pass("seen.__contains__")
        return key in self.keys

    def add(self, key: Any) -> None:
        self._pass("seen.add")
        self.keys.add(key)

    def dedupe(self, value: str) -> str:
        self._pass("dedupe=")
        return value

    def key(self, value: str) -> str:
        self._pass("key=")
        return value

    def deserialize(self, data: bytes) -> str:
        self._pass("deserialize")
        return data.decode()

    def serialize(self, value: str) -> bytes:
        self._pass("serialize")
        return value.encode()

    def hook(self, event: Any) -> None:
        self._pass("hook")

    def handle(self, values: list[str]) -> list[str]:
        self._pass("handler")
        self.handled += values
        return values


PLACES = ["seen.__contains__", "seen.add", "dedupe=", "key=", "deserialize", "serialize", "handler"]


def add_worker(app: App, topic: str, faulty: Faulty, *, batch: bool, **options: Any) -> None:
    async def handle(value: str) -> str:
        return faulty.handle([value])[0]

    @app.worker(
        topic,
        group=topic,
        name=topic,
        serde=faulty,
        dedupe=faulty.dedupe,
        seen=faulty,
        **options,
    )
    @app.publishes("out", key=faulty.key, serde=faulty)
    def handle_many(values: list[str]) -> list[str]:
        return faulty.handle(values)

    if not batch:
        app._workers.pop()
        app.counters.pop(topic)
        app.worker(
            topic,
            group=topic,
            name=topic,
            serde=faulty,
            dedupe=faulty.dedupe,
            seen=faulty,
            **options,
        )(app.publishes("out", key=faulty.key, serde=faulty)(handle))


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker(configs={"group.initial.rebalance.delay.ms": "0"}) as broker:
        broker.create_topic("out")
        yield broker


@pytest.mark.parametrize(
    ("raised", "delivery"),
    [*((raised, "at_least_once") for raised in RAISED), ("a cancellation", "exactly_once")],
)
@pytest.mark.parametrize("place", PLACES)
def test_with_dead_letters_every_record_is_handled_or_dead_lettered(
    broker: Broker, place: str, raised: str, delivery: Any
) -> None:
    app = App()
    cases: dict[str, tuple[Faulty, float]] = {}
    for batch, times in itertools.product([False, True], [1, float("inf")]):
        topic = f"{'batches' if batch else 'records'}-{times}"
        faulty = Faulty(place, times, RAISED[raised])
        cases[topic] = faulty, times
        add_worker(
            app, topic, faulty, batch=batch, delivery=delivery, dead_letter=True, retry=QUICK
        )
        for value in RECORDS:
            broker.publish(topic, value.encode())
    with app.test(broker) as t:
        t.wait_idle(WAIT_S)
        for topic, (faulty, times) in cases.items():
            letters = [message.value.decode() for message in t.messages(f"dlq.{topic}")]
            # A key that cannot be kept after a commit is known all the same, as long as the process runs.
            committed_first = place == "seen.add" and delivery == "exactly_once"
            if times > 1:
                assert letters == ([] if committed_first else RECORDS)
            elif place == "deserialize" and letters:
                assert letters == RECORDS[:1], "bytes that do not decode are not tried again"
            else:
                assert letters == []
            if place != "seen.add":
                assert faulty.handled[-1:] == ([] if times > 1 and place not in AFTER else ["v2"])
            assert sum(broker.group(topic).lag().values()) == 0
            counters = app.counters[topic]
            assert counters.handled + counters.skipped + counters.dead_lettered == len(RECORDS)


AFTER = ["key=", "serialize", "seen.add"]
"""Places that come after the handler."""


@pytest.mark.parametrize("delivery", ["at_least_once", "at_most_once", "exactly_once"])
@pytest.mark.parametrize("batch", [False, True])
@pytest.mark.parametrize("place", PLACES)
def test_without_dead_letters_the_worker_stops_and_names_the_record(
    broker: Broker, place: str, *, batch: bool, delivery: Any
) -> None:
    if place == "seen.add" and delivery == "exactly_once":
        pytest.skip("the record is committed by then")
    app = App()
    faulty = Faulty(place, float("inf"), Unreadable)
    add_worker(app, "orders", faulty, batch=batch, delivery=delivery, retry=QUICK)
    broker.publish("orders", b"v0")
    with (
        pytest.raises(WorkerFailedError, match=r"'orders' stopped: .*offset 0 of orders-0"),
        app.test(broker) as t,
    ):
        t.wait_idle(WAIT_S)


@pytest.mark.parametrize("raised", RAISED)
def test_a_hook_that_raises_is_logged_and_changes_nothing(
    broker: Broker, raised: str, caplog: pytest.LogCaptureFixture
) -> None:
    app, faulty = App(), Faulty("hook", float("inf"), RAISED[raised])
    app.hook(faulty.hook)
    add_worker(app, "orders", faulty, batch=False)
    with app.test(broker) as t:
        for value in RECORDS:
            t.produce("orders", value)
        t.wait_idle(WAIT_S)
    assert faulty.handled == RECORDS
    assert caplog.messages.count("orders: a hook failed (logged once)") == 1


@pytest.mark.parametrize("pause", [float("inf"), float("nan"), "soon", None])
def test_an_invalid_pause_counts_as_a_failure(broker: Broker, pause: Any) -> None:
    app = App(group="g")

    class Later(RetryLater):
        def __init__(self) -> None:
            """Leave out what the class needs."""

    @app.worker("orders", dead_letter=True, retry=QUICK)
    async def handle(value: str) -> None:
        if value == "own":
            raise Later
        raise RetryLater(pause)

    with app.test(broker) as t:
        t.produce("orders", "plain")
        t.produce("orders", "own")
        t.wait_idle(WAIT_S)
        assert [message.value for message in t.messages("dlq.orders")] == [b"plain", b"own"]


def test_coroutine_functions_are_refused_as_plain_arguments() -> None:
    app = App(group="g")

    async def coroutine_function(value: Any) -> Any: ...

    def generator(value: Any) -> Any:
        yield

    class Keys:
        async def __contains__(self, key: Any) -> bool:
            return False

        def add(self, key: Any) -> None: ...

    class Adds(set[Any]):
        async def add(self, key: Any) -> None: ...  # type: ignore[override]  # that is the case

    class Reads:
        async def deserialize(self, data: bytes) -> Any: ...

        def serialize(self, value: Any) -> bytes:
            return b""

    functions: list[Any] = [coroutine_function, generator]
    for wrong in functions:
        with pytest.raises(ConfigError, match="dedupe= is called without `await`"):
            app.worker("orders", dedupe=wrong)
        with pytest.raises(ConfigError, match="key= is called without `await`"):
            app.publishes("out", key=wrong)
        with pytest.raises(ConfigError, match="a hook is called without `await`"):
            app.hook(wrong)
    wrong_keys: list[Any] = [Keys(), Adds()]
    for keys in wrong_keys:
        with pytest.raises(ConfigError, match="seen= is called without `await`"):
            app.worker("orders", dedupe=str, seen=keys)
    wrong_serde: Any = Reads()
    with pytest.raises(ConfigError, match="a serde is called without `await`"):
        app.worker("orders", serde=wrong_serde)
    no_keys: Any = object()
    with pytest.raises(ConfigError, match="keeps no keys"):
        app.worker("orders", dedupe=str, seen=no_keys)


async def hidden(value: Any) -> Any: ...


class Hides(set[Any]):
    def __init__(self, place: str) -> None:
        super().__init__()
        self._place = place

    def __contains__(self, key: Any) -> Any:
        return hidden(key) if self._place == "__contains__" else super().__contains__(key)

    def add(self, key: Any) -> Any:
        return hidden(key) if self._place == "add" else super().add(key)


@pytest.mark.parametrize("place", ["dedupe", "__contains__", "add", "key"])
def test_a_coroutine_from_a_plain_argument_stops_the_worker(broker: Broker, place: str) -> None:
    app = App(group="g")

    def chosen(what: str, value: str) -> Any:
        return hidden(value) if what == place else value

    @app.worker(
        "orders",
        dedupe=functools.partial(chosen, "dedupe"),
        seen=Hides(place),
        dead_letter=True,
    )
    @app.publishes("out", key=functools.partial(chosen, "key"))
    async def handle(value: str) -> str:
        return value

    broker.publish("orders", b"v0")
    stopped = pytest.raises(
        WorkerFailedError, match=r"offset 0 of orders-0 was not handled: .*await"
    )
    with stopped, app.test(broker) as t:
        t.wait_idle(WAIT_S)
    assert sum(broker.group("g").lag().values()) == 1


@pytest.mark.parametrize("place", ["handler", "plain handler", "__contains__", "add"])
@pytest.mark.parametrize("delivery", ["at_least_once", "exactly_once"])
def test_hanging_code_does_not_keep_an_app_from_stopping(
    broker: Broker, place: str, delivery: Any
) -> None:
    app = App(group="g", drain_timeout_s=0.2)
    begun, free = threading.Event(), threading.Event()

    def hang() -> None:
        begun.set()
        free.wait(WAIT_S)

    class Keys(set[Any]):
        def __contains__(self, key: Any) -> bool:
            if place == "__contains__":
                hang()
            return super().__contains__(key)

        def add(self, key: Any) -> None:
            if place == "add":
                hang()
            super().add(key)

    async def handle(value: str) -> None:
        if place == "handler":
            begun.set()
            await asyncio.Event().wait()

    def handle_in_thread(value: str) -> None:
        if place == "plain handler":
            hang()

    app.worker("orders", dedupe=str, seen=Keys(), delivery=delivery)(
        handle_in_thread if place == "plain handler" else handle
    )
    try:
        with app.test(broker) as t:
            t.produce("orders", "v0")
            assert begun.wait(WAIT_S)
            began = time.monotonic()
        assert time.monotonic() - began < 5
    finally:
        free.set()


def test_a_record_with_the_key_none_is_always_new(broker: Broker) -> None:
    app = App(group="g")
    handled: list[dict[str, Any]] = []

    @app.worker("orders", dedupe=lambda order: order.get("id"))
    async def handle(order: dict[str, Any]) -> None:
        handled.append(order)

    with app.test(broker) as t:
        for order in ({"id": 1}, {"n": 1}, {"id": 1}, {"n": 2}):
            t.produce("orders", order)
        t.wait_idle(WAIT_S)
    assert handled == [{"id": 1}, {"n": 1}, {"n": 2}]


def test_an_unhashable_key_is_refused(broker: Broker) -> None:
    app = App(group="g")

    no_key: Any = lambda _order: [1]  # noqa: E731 - a list cannot be a key, and the type checker knows it

    @app.worker("orders", dedupe=no_key, dead_letter=True, retry=1)
    async def handle(order: str) -> None: ...

    with app.test(broker) as t:
        t.produce("orders", "v0")
        t.wait_idle(WAIT_S)
        [letter] = t.messages("dlq.orders")
    assert "dedupe= returned a value that cannot be a key" in (
        letter.header("dlq-error-message") or ""
    )


def test_a_dead_letter_of_an_unreadable_error_names_its_type(
    broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "headrace.workers")
    app = App(group="g")

    @app.worker("orders", dead_letter=True)
    async def handle(value: str) -> None:
        raise DeadLetter(Unreadable())

    @app.worker("others", group="h", dead_letter=True, retry=1)
    async def other(value: str) -> None:
        raise Unreadable

    with app.test(broker) as t:
        t.produce("orders", "v0")
        t.produce("others", "v0")
        t.wait_idle(WAIT_S)
        [letter] = t.messages("dlq.others")
        assert len(t.messages("dlq.orders")) == 1
    assert letter.header("dlq-error-type") == "Unreadable"
    assert letter.header("dlq-error-message") == (
        "Unreadable (its text cannot be read: RuntimeError)"
    )


@pytest.mark.parametrize("kind", ["async", "thread"])
def test_a_handler_that_runs_for_long_is_logged(
    broker: Broker, kind: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    # By default it is reported after a minute.
    monkeypatch.setattr("headrace.workers.running.job_runner.SLOW_HANDLER_S", 0.1)
    monkeypatch.setattr("headrace.workers.running.job_runner.LOOK_SLOW_S", 0.05)
    app = App(group="g")

    def told() -> bool:
        return any("has been running for" in text for text in caplog.messages)

    async def in_loop(value: str) -> None:
        async with asyncio.timeout(WAIT_S):
            while not told():  # noqa: ASYNC110 - a log line wakes no task
                await asyncio.sleep(0.01)

    def in_thread(value: str) -> None:
        deadline = time.monotonic() + WAIT_S
        while not told() and time.monotonic() < deadline:
            time.sleep(0.01)

    app.worker("orders", name="handle")(in_loop if kind == "async" else in_thread)
    with app.test(broker) as t:
        t.produce("orders", "v0")
        t.wait_idle(WAIT_S)
    [text] = [text for text in caplog.messages if "has been running for" in text][:1]
    assert text.startswith("handle: the handler of the record at offset 0 of orders-0 has been")
    assert (" in its thread;" if kind == "thread" else f" at {asyncio.__file__[:-11]}") in text


@pytest.mark.parametrize(
    "place", ["dedupe=", "key=", "deserialize", "serialize", "hook", "handler"]
)
def test_a_handler_that_blocks_the_event_loop_is_logged_with_its_line(
    broker: Broker, place: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    # By default the worker looks every second, and reports after five.
    monkeypatch.setattr("headrace.workers.monitoring.loop_watch.LOOK_S", 0.05)
    monkeypatch.setattr("headrace.workers.monitoring.loop_watch.BLOCKED_S", 0.2)
    app = App()

    class Blocking(Faulty):
        def _pass(self, where: str) -> None:
            deadline = time.monotonic() + WAIT_S
            while where == self._place and self._left > 0 and time.monotonic() < deadline:
                if any("has been blocked for" in text for text in caplog.messages):
                    self._left = 0
                time.sleep(0.01)

    blocking = Blocking(place, 1, ValueError)
    app.hook(blocking.hook)
    add_worker(app, "orders", blocking, batch=False)
    with app.test(broker) as t:
        t.produce("orders", "v0")
        t.wait_idle(2 * WAIT_S)
    [text] = [text for text in caplog.messages if "has been blocked for" in text][:1]
    assert f'File "{__file__}"' in text
    assert "in _pass" in text
