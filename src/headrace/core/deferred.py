"""An answer that is not ready yet.

Not a future: it needs no event loop and no thread. A core that cannot answer at once returns a `Deferred`; whoever
learns the outcome resolves it, once; whoever waits has registered a callback. Time-outs belong to the core that made
it (through `Deadlines`), so a `Deferred` itself knows no clock.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")
U = TypeVar("U")

_PENDING = object()


class Deferred(Generic[T]):
    """A value that is resolved exactly once; callbacks run synchronously, in order of registration."""

    __slots__ = ("_callbacks", "_value")

    def __init__(self) -> None:
        self._value: object = _PENDING
        self._callbacks: list[Callable[[T], object]] = []

    @property
    def done(self) -> bool:
        """Whether it has been resolved."""
        return self._value is not _PENDING

    @property
    def value(self) -> T:
        """The value; an AssertionError while it is pending."""
        assert self._value is not _PENDING, "the deferred is not resolved yet"
        return self._value  # type: ignore[return-value]  # the sentinel is excluded by the line above

    def resolve(self, value: T) -> None:
        """Set the value and run the callbacks. Resolving twice is a bug in the caller and raises."""
        assert self._value is _PENDING, "a deferred resolves once"
        self._value = value
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback(value)

    def on_done(self, callback: Callable[[T], object]) -> None:
        """Call `callback(value)` when resolved: at once if it is already."""
        if self.done:
            callback(self.value)
        else:
            self._callbacks.append(callback)

    def map(self, function: Callable[[T], U]) -> Deferred[U]:
        """Return a deferred of `function(value)`."""
        mapped: Deferred[U] = Deferred()
        self.on_done(lambda value: mapped.resolve(function(value)))
        return mapped
