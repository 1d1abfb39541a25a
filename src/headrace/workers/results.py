"""The results of handlers: awaited if they are awaitable, refused if the handler's code has not run."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import itertools
import types
from collections import abc, deque
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any, Final

from headrace.workers.outcomes import UnusableHandlerError

_MANY: Final = (list, tuple, set, frozenset, deque)


@contextlib.contextmanager
def _nothing() -> abc.Iterator[None]:
    yield


@contextlib.asynccontextmanager
async def _nothing_async() -> abc.AsyncIterator[None]:
    yield


_NOT_RUN: Final = (
    abc.Generator,
    abc.AsyncGenerator,
    map,
    filter,
    itertools.starmap,
    type(_nothing()),
    type(_nothing_async()),
    types.FunctionType,
    types.BuiltinFunctionType,
    types.MethodType,
    functools.partial,
)
"""The types of results that show that the handler's code has not run."""


async def finished(result: Any) -> Any:
    """Return what a handler's result leads to in the end: what can be awaited is awaited.

    Raises:
        Unusable: It is a generator, a function or the like, so the handler has not run.
    """
    while (kind := _kind_of(result.__class__)) is not None:
        if kind is UnusableHandlerError:
            text = (
                f"the handler returned {type(result).__name__}, so it has not run: is a decorator used without its "
                "arguments, or is it a generator behind one? The records are not handled"
            )
            raise UnusableHandlerError(text)
        result = await (asyncio.wrap_future(result) if kind is Future else result)
    return result


@functools.lru_cache(512)
def _kind_of(kind: Any) -> type | None:
    """Return what has to be done with results of a type; None for nothing."""
    if issubclass(kind, _NOT_RUN):
        return UnusableHandlerError
    if issubclass(kind, Future):
        return Future
    return abc.Awaitable if issubclass(kind, abc.Awaitable) else None


def ready(what: str, value: Any) -> Any:
    """Return what a function of the program returned, which is no coroutine.

    Raises:
        Unusable: It is one, and nobody would await it.
    """
    if hasattr(type(value), "__await__"):
        if inspect.iscoroutine(value):
            value.close()  # or Python warns that it was never awaited
        raise UnusableHandlerError(
            f"{what} is called without `await`, and returned {type(value).__name__}"
        )
    return value


def each_of(result: Any) -> Sequence[Any]:
    """Return the results of a handler of batches, one by one: of a list, a tuple or a set each item."""
    if isinstance(result, _MANY) and not hasattr(result, "_fields"):
        return list(result)
    return [result]
