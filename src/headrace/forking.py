"""What a forked child does with objects that belong to its parent process.

A child has copies of the parent's objects, the parent's sockets and epoll instances themselves, and none of the
parent's threads. Using such an object would disturb the parent: two producers with one sequence, two readers of one
socket. So every object with sockets, threads or database connections registers here, and a child disowns it at birth.
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
    "was made before a fork and belongs to the parent process, where it works on: "
    "make a new one in each process"
)


class Forkable(Protocol):
    """An object that works only in the process that made it."""

    def disown(self) -> None:
        """Become unusable, in a forked child that has one thread; leave alone what the parent shares."""


_registered: weakref.WeakSet[Forkable] = weakref.WeakSet()
_kept: list[object] = []


def disown_in_children(thing: Forkable) -> None:
    """Have `thing.disown()` called in every child that this process forks from now on."""
    _registered.add(thing)


class WhenForked:
    """Calls a function in children, for an object without a public `disown`, which has to keep this one."""

    def __init__(self, function: Callable[[], object]) -> None:
        self._function = function
        disown_in_children(self)

    def disown(self) -> None:
        """Call the function."""
        self._function()


def keep_for_ever(thing: object) -> None:
    """Never let this process destroy an object, such as an SQLite connection, whose end would write to its file."""
    _kept.append(thing)
    import ctypes  # noqa: PLC0415 - only a forked child needs it

    # At its end the interpreter destroys what lists hold; an additional reference outlives that.
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))


def _disown_all() -> None:
    things = list(_registered)
    _registered.clear()
    for thing in things:
        try:
            thing.disown()
        except Exception as error:  # noqa: BLE001 - the other objects are to be disowned all the same
            sys.excepthook(type(error), error, error.__traceback__)


class _Signals:
    """Keeps signals to a child from an event loop of the parent, whose socket for signals the child shares."""

    def __init__(self) -> None:
        self.handled: frozenset[signal.Signals] = frozenset()
        self._masks = threading.local()

    def before(self) -> None:
        """Hold signals back: in the child they are not to be handled before `in_child`."""
        if self.handled:
            self._masks.before = signal.pthread_sigmask(signal.SIG_BLOCK, self.handled)

    def in_parent(self) -> None:
        """Let signals come again."""
        mask = self._masks.__dict__.pop("before", None)
        if mask is not None:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)

    def in_child(self) -> None:
        """Handle signals as a new process does, and let them come again."""
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
    """Have forked children handle these signals by default; the event loop of this process handles them meanwhile."""
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
