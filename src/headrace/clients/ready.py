"""Answers that are there at once, and may be awaited all the same.

In `headrace.aio` every method may be awaited, so that nobody has to know which of them wait for a broker. A method that
waits for nothing returns one of these objects: a program uses it as it is, or awaits it.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, Final, TypeVar

K = TypeVar("K")
T = TypeVar("T")


class Done:
    """What is returned by a method that has done everything when it returns."""

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
