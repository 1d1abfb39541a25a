"""Objects of the parent process in a forked child: the child must not use them.

A child has copies of the parent's objects, shares its sockets and epoll instances, and has none of its threads. Using
such an object would disturb the parent: two producers would use one sequence, two processes would read one socket.
Therefore every object with sockets, threads or database connections registers here, and a new child disowns it at once.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Final, Protocol

FORKED: Final = (
    "was made before a fork and belongs to the parent process, where it still works: "
    "create a new one in each process"
)


class Forkable(Protocol):
    """An object that works only in the process that created it."""

    def disown(self) -> None:
        """Become unusable in a forked child, which has one thread, without changing what the child and parent share."""


_registered: weakref.WeakSet[Forkable] = weakref.WeakSet()
_kept: list[object] = []


def disown_in_children(thing: Forkable) -> None:
    """Register an object: every child that this process forks later calls `thing.disown()`."""
    _registered.add(thing)


class WhenForked:
    """Calls a function in forked children, for an object without a public `disown`. That object keeps a reference."""

    def __init__(self, function: Callable[[], object]) -> None:
        self._function = function
        disown_in_children(self)

    def disown(self) -> None:
        """Call the function in a child."""
        self._function()


def keep_for_ever(thing: object) -> None:
    """Keep an object until the process ends, such as an SQLite connection, which writes to its file when it closes."""
    _kept.append(thing)
    import ctypes  # noqa: PLC0415 - only a forked child needs it

    # At exit the interpreter destroys the objects in lists. An additional reference prevents this.
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))


def _disown_all() -> None:
    things = list(_registered)
    _registered.clear()
    for thing in things:
        try:
            thing.disown()
        except Exception as error:  # noqa: BLE001 - the other objects must be disowned nevertheless
            sys.excepthook(type(error), error, error.__traceback__)


class _Signals:
    """Keeps signals of a child away from the parent's event loop, whose socket for signals the child shares."""

    def __init__(self) -> None:
        self.handled: frozenset[signal.Signals] = frozenset()
        self._masks = threading.local()

    def before(self) -> None:
        """Block signals, so that the child does not handle any before `in_child`."""
        if self.handled:
            self._masks.before = signal.pthread_sigmask(signal.SIG_BLOCK, self.handled)

    def in_parent(self) -> None:
        """Unblock the signals in the parent process."""
        mask = self._masks.__dict__.pop("before", None)
        if mask is not None:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)

    def in_child(self) -> None:
        """Reset the signal handlers to their defaults, and unblock the signals."""
        if self.handled:
            signal.set_wakeup_fd(-1)
            for number in self.handled:
                default = number == signal.SIGINT
                signal.signal(number, signal.default_int_handler if default else signal.SIG_DFL)
            self.handled = frozenset()
        self.in_parent()


_signals = _Signals()


@contextlib.contextmanager
def handled_by_event_loop(*numbers: signal.Signals) -> Iterator[None]:
    """Let the event loop of this process handle these signals, and forked children use the default handlers."""
    before = _signals.handled
    _signals.handled = before | set(numbers)
    try:
        yield
    finally:
        _signals.handled = before


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_signals.before,
        after_in_parent=_signals.in_parent,
        after_in_child=_signals.in_child,
    )
    os.register_at_fork(after_in_child=_disown_all)
