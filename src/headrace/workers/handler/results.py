"""The results of handlers. Awaitable results are awaited. A result such as a generator is an error: no code has run."""

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

from headrace.workers.failure.outcomes import UnusableHandlerError

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
    """Return the final result of a handler: as long as a result is awaitable, it is awaited.

    Raises:
        UnusableHandlerError: The result is a generator or a function, so the handler's code has not run.
    """
    while (kind := _kind_of(result.__class__)) is not None:
        if kind is UnusableHandlerError:
            text = (
                f"the handler returned {type(result).__name__}, so its code has not run and the records are not "
                "handled. Does the handler have a decorator that needs arguments, or is it a generator function?"
            )
            raise UnusableHandlerError(text)
        result = await (asyncio.wrap_future(result) if kind is Future else result)
    return result


@functools.lru_cache(512)
def _kind_of(kind: Any) -> type | None:
    """Return the class that says how to treat results of a type; None if they are final."""
    if issubclass(kind, _NOT_RUN):
        return UnusableHandlerError
    if issubclass(kind, Future):
        return Future
    return abc.Awaitable if issubclass(kind, abc.Awaitable) else None


def ready(what: str, value: Any) -> Any:
    """Return the result of a plain function of the program.

    Args:
        what: The name of the function for messages.
        value: Its result.

    Raises:
        UnusableHandlerError: The result is awaitable. The function is called without `await`.
    """
    if hasattr(type(value), "__await__"):
        if inspect.iscoroutine(value):
            value.close()  # or Python warns that it was never awaited
        raise UnusableHandlerError(
            f"{what} is called without `await`, and returned {type(value).__name__}"
        )
    return value


def each_of(result: Any) -> Sequence[Any]:
    """Return the results of a handler of batches: the items of a list, a tuple or a set, or one other result."""
    if isinstance(result, _MANY) and not hasattr(result, "_fields"):
        return list(result)
    return [result]
