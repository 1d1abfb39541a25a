"""A value that is not ready yet, such as the response to a request.

A `Deferred` is not a future: it needs no event loop and no thread. A core that cannot answer at once returns one. The
code that learns the outcome resolves it, once. The code that waits has registered a callback. The core that made it is
responsible for time-outs (through `Deadlines`), so a `Deferred` itself knows no clock.

When the connection that waits for the value has closed, the deferred is cancelled. It drops its callbacks, and calls
`give_up` to release what is held for the response. The effects of the request stay: appended records stay, and a member
that joined stays. Only the response is dropped.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Generic, TypeVar

T = TypeVar("T")
U = TypeVar("U")

_PENDING: Final = object()
_CANCELLED: Final = object()


class Deferred(Generic[T]):
    """A value that is resolved exactly once, or cancelled. Callbacks run synchronously, in order of registration."""

    __slots__ = ("_callbacks", "_give_up", "_value")

    def __init__(self, give_up: Callable[[], object] | None = None) -> None:
        """Begin to wait for the value.

        Args:
            give_up: See `on_cancel`. None if nothing is held for the response.
        """
        self._value: object = _PENDING
        self._callbacks: list[Callable[[T], object]] = []
        self._give_up = give_up

    @property
    def done(self) -> bool:
        """Whether the value is resolved."""
        return self._value is not _PENDING and self._value is not _CANCELLED

    @property
    def cancelled(self) -> bool:
        """Whether the value was cancelled."""
        return self._value is _CANCELLED

    @property
    def value(self) -> T:
        """The value. Raises AssertionError while it is pending, and after it was cancelled."""
        assert self.done, "the deferred is not resolved"
        return self._value  # type: ignore[return-value]  # the sentinels are excluded by the line above

    def resolve(self, value: T) -> None:
        """Set the value and run the callbacks. Does nothing if the value was cancelled.

        To resolve twice is a bug of the caller, and raises.
        """
        if self._value is _CANCELLED:
            return
        assert self._value is _PENDING, "a deferred resolves once"
        self._value = value
        self._give_up = None
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback(value)

    def cancel(self) -> None:
        """Cancel the value: no callback will run. Does nothing if the value is resolved or cancelled already."""
        if self._value is not _PENDING:
            return
        self._value = _CANCELLED
        self._callbacks = []
        give_up, self._give_up = self._give_up, None
        if give_up is not None:
            give_up()

    def on_cancel(self, give_up: Callable[[], object]) -> None:
        """Set the function that releases what is held for the response, in place of an earlier one.

        Args:
            give_up: Called when the value is cancelled, at once if it is cancelled already. It must end nothing that
                the request has begun, and resolve no other deferred.
        """
        if self._value is _CANCELLED:
            give_up()
        elif self._value is _PENDING:
            self._give_up = give_up

    def on_done(self, callback: Callable[[T], object]) -> None:
        """Call `callback(value)` when the value is resolved: at once if it is already, never if it was cancelled."""
        if self._value is _PENDING:
            self._callbacks.append(callback)
        elif self._value is not _CANCELLED:
            callback(self._value)  # type: ignore[arg-type]  # the sentinels are excluded

    def map(self, function: Callable[[T], U]) -> Deferred[U]:
        """Return a deferred of `function(value)`. To cancel the new deferred cancels this one.

        The function must do nothing but make a value, because it is not called after a cancellation. What has to happen
        in any case belongs into `on_done` of a deferred that is never cancelled.
        """
        mapped: Deferred[U] = Deferred(self.cancel)
        self.on_done(lambda value: mapped.resolve(function(value)))
        return mapped

    def follow(self, other: Deferred[T]) -> None:
        """Resolve as `other` does. To cancel this deferred cancels `other`."""
        self.on_cancel(other.cancel)
        other.on_done(self.resolve)


def resolved(value: T) -> Deferred[T]:
    """Return a deferred that has its value already."""
    deferred: Deferred[T] = Deferred()
    deferred.resolve(value)
    return deferred
