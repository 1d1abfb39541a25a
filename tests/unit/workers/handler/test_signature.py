"""The facts that the signature of a handler shows."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import pytest

from headrace.errors import ConfigError
from headrace.workers.handler.signature import read_handler


@dataclass
class Order:
    id: int


async def one(order: Order) -> None: ...


def many(orders: list[Order], context: Any) -> None: ...


def bare(value): ...


def anything(value: Any, more: int = 3): ...


class Sink:
    def handle(self, batch):
        return batch


class Typed:
    async def handle(self, orders: list[dict], context): ...


class Callable:
    async def __call__(self, order: Order): ...


def test_a_coroutine_function_is_read_with_its_schema() -> None:
    handler = read_handler(one)
    assert (handler.name, handler.is_async, handler.wants_batches) == ("one", True, False)
    assert handler.schema is Order
    assert handler.context is None


def test_a_list_asks_for_batches_of_its_items() -> None:
    handler = read_handler(many)
    assert (handler.is_async, handler.wants_batches, handler.schema) == (False, True, Order)
    assert handler.context == "context"


@pytest.mark.parametrize("function", [bare, anything, lambda value: value])
def test_a_handler_without_annotation_has_no_schema(function) -> None:
    handler = read_handler(function)
    assert (handler.schema, handler.wants_batches, handler.context) == (None, False, None)


@pytest.mark.parametrize("given", [Sink, Sink()])
def test_an_object_or_its_class_handles_batches(given) -> None:
    handler = read_handler(given)
    assert (handler.name, handler.is_async, handler.wants_batches) == ("Sink", False, True)
    assert handler.call([1, 2]) == [1, 2]


def test_the_method_of_an_object_may_have_an_annotation() -> None:
    handler = read_handler(Typed())
    assert (handler.is_async, handler.schema, handler.context) == (True, dict, "context")


def test_a_callable_object_is_read_by_its_call() -> None:
    handler = read_handler(Callable())
    assert (handler.is_async, handler.wants_batches, handler.schema) == (True, False, Order)


def test_a_partial_is_read_as_its_function() -> None:
    def base(prefix: str, order: Order): ...

    handler = read_handler(functools.partial(base, "x"))
    assert handler.schema is Order


def test_a_handler_annotation_can_name_a_local_type() -> None:
    @dataclass
    class Local:
        id: int

    def handler(value: Local) -> Local:
        return Local(value.id)

    assert read_handler(handler).schema is Local


def test_an_unreadable_annotation_raises_an_error_with_a_remedy() -> None:
    def handler(value: Missing): ...  # type: ignore[name-defined]  # noqa: F821 - that is the case

    with pytest.raises(ConfigError, match=r"'Missing'.*top of the module"):
        read_handler(handler)


@pytest.mark.parametrize(
    "function", [lambda: None, lambda value, other: None, lambda *, value: None]
)
def test_other_parameters_are_refused(function) -> None:
    with pytest.raises(ConfigError, match="may have one named `context`"):
        read_handler(function)


def test_an_object_that_is_not_callable_is_refused() -> None:
    with pytest.raises(ConfigError, match="no handler"):
        read_handler(object())
