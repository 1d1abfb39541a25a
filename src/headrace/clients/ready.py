"""Results of asyncio methods that do not wait, and that may be awaited nevertheless.

In `headrace.aio` every method may be awaited, so that programs need not know which methods wait for a broker. A method
that does not wait returns one of these objects: a program uses it directly, or awaits it.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, Final, TypeVar

K = TypeVar("K")
T = TypeVar("T")


class Done:
    """The result of a method that returns nothing and has acted when it returns."""

    __slots__ = ()

    def __await__(self) -> Generator[Any, Any, None]:
        yield from ()


DONE: Final = Done()


class ReadyDict(dict[K, T]):
    """A dictionary that may be awaited."""

    __slots__ = ()

    def __await__(self) -> Generator[Any, Any, dict[K, T]]:
        yield from ()
        return dict(self)


class ReadyList(list[T]):
    """A list that may be awaited."""

    __slots__ = ()

    def __await__(self) -> Generator[Any, Any, list[T]]:
        yield from ()
        return list(self)


class ReadySet(frozenset[T]):
    """A set that may be awaited."""

    __slots__ = ()

    def __await__(self) -> Generator[Any, Any, frozenset[T]]:
        yield from ()
        return frozenset(self)
