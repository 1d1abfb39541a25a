"""An answer that is not ready yet.

Not a future: it needs no event loop and no thread. A core that cannot answer at once returns a `Deferred`; whoever
learns the outcome resolves it, once; whoever waits has registered a callback. Time-outs belong to the core that made
it (through `Deadlines`), so a `Deferred` itself knows no clock.

When nobody wants the value any more, because the connection that asked for it has closed, the deferred is cancelled:
it forgets its callbacks, and whoever was to resolve it is told to give up and to release what it holds for the answer.
What a request has begun goes on: records that were appended stay, a member that joined stays. Only the answer is
dropped.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Generic, TypeVar

T = TypeVar("T")
U = TypeVar("U")

_PENDING: Final = object()
_CANCELLED: Final = object()


class Deferred(Generic[T]):
    """A value that is resolved exactly once, or cancelled; callbacks run synchronously, in order of registration."""

    __slots__ = ("_callbacks", "_give_up", "_value")

    def __init__(self, give_up: Callable[[], object] | None = None) -> None:
        """Begin to wait.

        Args:
            give_up: See `on_cancel`; None if there is nothing to give up.
        """
        self._value: object = _PENDING
        self._callbacks: list[Callable[[T], object]] = []
        self._give_up = give_up

    @property
    def done(self) -> bool:
        """Whether it has been resolved."""
        return self._value is not _PENDING and self._value is not _CANCELLED

    @property
    def cancelled(self) -> bool:
        """Whether nobody wants the value any more."""
        return self._value is _CANCELLED

    @property
    def value(self) -> T:
        """The value; an AssertionError while it is pending, or when it was cancelled."""
        assert self.done, "the deferred is not resolved"
        return self._value  # type: ignore[return-value]  # the sentinels are excluded by the line above

    def resolve(self, value: T) -> None:
        """Set the value and run the callbacks; ignored if it was cancelled.

        Resolving twice is a bug in the caller and raises.
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
        """Give the value up: no callback will run. Does nothing if it is resolved or cancelled already."""
        if self._value is not _PENDING:
            return
        self._value = _CANCELLED
        self._callbacks = []
        give_up, self._give_up = self._give_up, None
        if give_up is not None:
            give_up()

    def on_cancel(self, give_up: Callable[[], object]) -> None:
        """Say what releases what is held for the answer, instead of what was said before.

        Args:
            give_up: Called when the value is cancelled, at once if it is already. It must end nothing that the request
                has begun, and resolve no other deferred.
        """
        if self._value is _CANCELLED:
            give_up()
        elif self._value is _PENDING:
            self._give_up = give_up

    def on_done(self, callback: Callable[[T], object]) -> None:
        """Call `callback(value)` when resolved: at once if it is already, never if it was cancelled."""
        if self._value is _PENDING:
            self._callbacks.append(callback)
        elif self._value is not _CANCELLED:
            callback(self._value)  # type: ignore[arg-type]  # the sentinels are excluded

    def map(self, function: Callable[[T], U]) -> Deferred[U]:
        """Return a deferred of `function(value)`; to cancel it cancels this one.

        The function must do nothing but make a value: it is not called when nobody wants that. What has to happen in
        any case belongs into `on_done` of a deferred that nobody cancels.
        """
        mapped: Deferred[U] = Deferred(self.cancel)
        self.on_done(lambda value: mapped.resolve(function(value)))
        return mapped

    def follow(self, other: Deferred[T]) -> None:
        """Resolve as `other` does; to cancel this one cancels `other`."""
        self.on_cancel(other.cancel)
        other.on_done(self.resolve)
