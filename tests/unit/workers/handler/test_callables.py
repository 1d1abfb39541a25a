"""Every kind of callable as a handler: it handles each record before its offset is committed, or it is refused.

`KINDS` make a handler of a function that notes what it has handled; each is tried as a coroutine function and as a
plain one, for one record and for batches, with and without the context.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import functools
import inspect
import itertools
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from headrace import App, Broker, Retry
from headrace.errors import ConfigError, WorkerFailedError

pytestmark = pytest.mark.slow  # not in `make check`

RECORDS = [f"v{number}" for number in range(4)]
DELIVERIES = ["at_least_once", "at_most_once", "exactly_once"]
POOL = concurrent.futures.ThreadPoolExecutor(4)


def traced(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapper(*args: Any, **named: Any) -> Any:
        return function(*args, **named)

    return wrapper


def run_alone(function: Callable[..., Any]) -> Callable[..., Any]:
    """Run a coroutine function on an event loop of its own, as adapters from asyncio do."""

    @functools.wraps(function)
    def wrapper(*args: Any, **named: Any) -> Any:
        result = function(*args, **named)
        return asyncio.run(_awaited(result)) if asyncio.iscoroutine(result) else result

    return wrapper


async def _awaited(coroutine: Any) -> Any:
    return await coroutine


def retrying(function: Callable[..., Any]) -> Callable[..., Any]:
    """Retry as tenacity does: a coroutine function stays one."""

    @functools.wraps(function)
    async def in_loop(*args: Any, **named: Any) -> Any:
        return await function(*args, **named)

    return in_loop if asyncio.iscoroutinefunction(function) else traced(function)


def returns_a_coroutine_twice(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    async def wrapper(*args: Any, **named: Any) -> Any:
        return function(*args, **named)

    return wrapper


def in_executor(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapper(*args: Any, **named: Any) -> Any:
        return POOL.submit(run_alone(function), *args, **named)

    return wrapper


class Called:
    def __init__(self, function: Callable[..., Any]) -> None:
        functools.update_wrapper(self, function)
        self.function = function

    def __call__(self, *args: Any, **named: Any) -> Any:
        return self.function(*args, **named)


def with_owner(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function for a class: its first parameter is the object, or the class."""

    def handle(_owner: Any, value: Any) -> Any:
        return function(value)

    def handle_with_context(_owner: Any, value: Any, context: Any) -> Any:
        return function(value, context)

    made = handle_with_context if "context" in inspect.signature(function).parameters else handle
    made.__annotations__["value"] = function.__annotations__["value"]
    return made


def method(function: Callable[..., Any]) -> Any:
    return type("Holder", (), {"handle_it": with_owner(function)})().handle_it


def class_method(function: Callable[..., Any]) -> Any:
    made: Any = classmethod(with_owner(function))
    return type("Holder", (), {"handle_it": made})().handle_it


def handle_method(function: Callable[..., Any]) -> Any:
    """Return an object whose annotation determines whether it handles batches, like the method `handle`."""
    return type("Holder", (), {"__call__": with_owner(function)})()


@contextlib.contextmanager
def around() -> Iterator[None]:
    yield


@contextlib.asynccontextmanager
async def around_async() -> Any:
    yield


KINDS: dict[str, Callable[[Callable[..., Any]], Any]] = {
    "plain": lambda function: function,
    "wrapped": traced,
    "wrapped twice": lambda function: traced(traced(function)),
    "run alone": run_alone,
    "retrying": retrying,
    "a coroutine in a coroutine": returns_a_coroutine_twice,
    "in an executor": in_executor,
    "partial": functools.partial,
    "partial of a wrapper": lambda function: functools.partial(traced(function)),
    "wrapper of a partial": lambda function: traced(functools.partial(function)),
    "called object": Called,
    "method": method,
    "class method": class_method,
    "object": handle_method,
    "static method": staticmethod,
    "static method of a wrapper": lambda function: staticmethod(traced(function)),
    "in a context manager": around(),
    "single dispatch": functools.singledispatch,
}


def combinations(noted: dict[str, list[Any]]) -> Iterator[tuple[str, Callable[..., Any]]]:
    """Yield a function for each combination, with the topic it reads."""
    for kind, batch, context in itertools.product(["async", "plain"], [False, True], [False, True]):
        name = f"{kind}-{'batch' if batch else 'one'}-{'context' if context else 'alone'}"
        yield name, function_of(noted.setdefault(name, []), kind, batch=batch, context=context)


def function_of(noted: list[Any], kind: str, *, batch: bool, context: bool) -> Callable[..., Any]:
    def note(value: Any, told: Any = None) -> None:
        if told is not None:
            assert told.topic
            assert told.attempt == 1
        noted.extend(value if batch else [value])

    if kind == "async":

        async def in_loop(value: Any, context: Any) -> str:
            # A worker that does not wait for it commits before it is done.
            await asyncio.sleep(0.005)
            await context.publish("noted", "x")
            note(value, context)
            return "result"

        async def in_loop_alone(value: Any) -> str:
            await asyncio.sleep(0.005)  # as above
            note(value)
            return "result"

        made: Any = in_loop if context else in_loop_alone
    else:

        def in_thread(value: Any, context: Any) -> str:
            time.sleep(0.005)  # as above
            context.publish("noted", "x")
            note(value, context)
            return "result"

        def in_thread_alone(value: Any) -> str:
            time.sleep(0.005)  # as above
            note(value)
            return "result"

        made = in_thread if context else in_thread_alone
    made.__annotations__["value"] = list[str] if batch else str
    return made  # type: ignore[no-any-return]  # one of four


@pytest.mark.parametrize(
    ("kind", "delivery"),
    [
        *((kind, "at_least_once") for kind in KINDS),
        *itertools.product(["plain", "wrapped", "in an executor"], DELIVERIES[1:]),
    ],
)
def test_each_record_is_handled_before_it_counts_as_handled(kind: str, delivery: Any) -> None:
    app = App(group="g")
    noted: dict[str, list[Any]] = {}
    with Broker(configs={"group.initial.rebalance.delay.ms": "0"}) as broker:
        for topic in ("noted", "results"):
            broker.create_topic(topic)
        names = []
        for name, function in combinations(noted):
            names.append(name)
            broker.create_topic(name)
            handler = KINDS[kind](function)
            if KINDS[kind] is not staticmethod:
                handler = app.publishes("results")(handler)
            app.worker(name, group=name, name=name, delivery=delivery, retry=1)(handler)
            broker.publish(name, RECORDS[0].encode())
        with app.test(broker) as t:
            for name, value in itertools.product(names, RECORDS[1:]):
                t.produce(name, value)
            t.wait_idle(30)
            assert noted == dict.fromkeys(names, RECORDS)
            handled = {name: app.counters[name].handled for name in names}
            assert handled == dict.fromkeys(names, len(RECORDS))
            assert t.messages("noted"), "those with a context publish"


# What is refused


def generator(value: str) -> Iterator[str]:
    yield value


async def async_generator(value: str) -> Any:
    yield value


def plain(value: str) -> None: ...


async def coroutine_function(value: str) -> None: ...


class NeedsArguments:
    def __init__(self, more: int) -> None: ...

    def handle(self, batch: Any) -> None: ...


class Generates:
    def handle(self, batch: list[str]) -> Iterator[str]:
        yield from batch


class GeneratesWhenCalled:
    async def __call__(self, value: str) -> Any:
        yield value


def bad_decorator(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapper(value: Any) -> Any:
        return function(value)

    return wrapper


def unwrapped(function: Callable[..., Any]) -> Callable[..., Any]:
    def wrapper(*args: Any, **named: Any) -> Any:
        return function(*args, **named)

    return wrapper


def with_context(value: str, context: Any) -> None: ...


def positional_context(value: str, context: Any, /) -> None: ...


REFUSED: dict[str, tuple[Any, str]] = {
    "generator": (generator, "generator function"),
    "async generator": (async_generator, "generator function"),
    "wrapped generator": (traced(generator), "generator function"),
    "partial of a generator": (functools.partial(generator), "generator function"),
    "generator method": (Generates, "generator function"),
    "generator object": (GeneratesWhenCalled(), "generator function"),
    "context manager": (contextlib.contextmanager(generator), "generator function"),
    "async context manager": (contextlib.asynccontextmanager(async_generator), "generator"),
    "cache": (functools.cache(plain), "decorated with a cache"),
    "cache of a coroutine function": (functools.lru_cache(coroutine_function), "a cache"),
    "wrapped cache": (traced(functools.cache(plain)), "decorated with a cache"),
    "class with arguments": (NeedsArguments, "constructor needs arguments"),
    "class method of nothing": (classmethod(with_owner), "inside its class"),
    "decorator without wraps": (unwrapped(plain), "functools.wraps"),
    "decorator that keeps the context": (bad_decorator(with_context), "pass on the arguments"),
    "positional context": (positional_context, "cannot be called with the value, context"),
    "C function without a signature": ({}.update, "cannot be determined"),
    "type": (int, "not callable"),
    "text": ("handler", "not callable"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_callable_that_would_run_no_code_is_refused(name: str) -> None:
    target, reason = REFUSED[name]
    with pytest.raises(ConfigError, match=reason):
        App(group="g").worker("orders")(target)


def later(value: str) -> Any:
    return generator(value)


def unwrap(function: Callable[..., Any]) -> Callable[..., Any]:
    def wrapper(value: Any) -> Any:
        return function(value)

    return wrapper


def forgot_arguments(times: Any) -> Any:
    def decorate(function: Any) -> Any:
        return function

    return decorate


# Only the first result shows it: the worker stops before anything is committed.
FOUND_OUT: dict[str, Callable[[Any], Any]] = {
    "generator behind a function": later,
    "async generator behind a function": unwrap(async_generator),
    "coroutine function that returns a generator": returns_a_coroutine_twice(later),
    "lazy map": lambda value: map(print, value),
    "lazy filter": lambda value: filter(None, value),
    "context manager behind a function": lambda _value: around(),
    "async context manager behind a function": lambda _value: around_async(),
    "decorator without its arguments": forgot_arguments,
    "partial that is not called": lambda value: functools.partial(plain, value),
    "method that is not called": lambda value: value.upper,
}


@pytest.mark.parametrize("delivery", DELIVERIES)
@pytest.mark.parametrize("name", FOUND_OUT)
def test_a_worker_stops_at_the_first_result_of_a_handler_that_has_not_run(
    name: str, delivery: Any
) -> None:
    app = App(group="g")
    app.worker("orders", dead_letter=True, delivery=delivery, retry=Retry(attempts=3), serde="str")(
        FOUND_OUT[name]
    )
    with Broker(configs={"group.initial.rebalance.delay.ms": "0"}) as broker:
        broker.publish("orders", b"v0")
        stopped = pytest.raises(WorkerFailedError, match=r"offset 0 of orders-0 was not handled")
        with stopped, app.test(broker) as t:
            t.wait_idle()
        assert "dlq.orders" not in broker.topics()
        if delivery != "at_most_once":
            assert sum(broker.group("g").lag().values()) == 1


@pytest.mark.parametrize(
    ("result", "published"),
    [
        (["a", "b"], ["a", "b"]),
        (("a", "b"), ["a", "b"]),
        ({"a"}, ["a"]),
        (frozenset("a"), ["a"]),
        ("ab", ["ab"]),
        ({"a": 1}, ['{"a":1}']),
    ],
)
def test_each_item_in_the_result_of_a_handler_of_batches_is_published(result, published) -> None:
    app = App(group="g")

    @app.worker("orders")
    @app.publishes("out")
    def handle(values: list[str]) -> Any:
        return result

    with app.test() as t:
        t.produce("orders", "x")
        t.wait_idle()
        assert [message.value.decode() for message in t.messages("out")] == published
