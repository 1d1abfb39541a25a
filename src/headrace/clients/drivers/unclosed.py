"""Clients that a program does not close: a thread closes dropped clients; the end of the program closes the others.

`warn_unclosed` runs in a destructor: at any moment, in any thread, while the program may hold any lock. So it takes no
lock and does not wait.
"""

from __future__ import annotations

import _thread
import atexit
import logging
import os
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

if TYPE_CHECKING:
    import asyncio

EXIT_S: Final = 5.0
"""Seconds in which all clients together are closed at the end of a program."""

_log = logging.getLogger("headrace.clients")


class _Left(NamedTuple):
    """The way in which a client is closed at the end of a program."""

    close: Callable[[Any, float], object]
    """A function that gets the client and the seconds that it may take."""
    is_broker: bool
    """Whether the object is a broker, which is closed after all clients."""


_open: weakref.WeakKeyDictionary[object, _Left] = weakref.WeakKeyDictionary()
_closing: set[_thread.LockType] = set()
"""A lock for each dropped client that a thread is closing. The lock is released when the client is closed."""

C = TypeVar("C")


def at_exit(client: C, close: Callable[[C, float], object], *, is_broker: bool = False) -> None:
    """Register a client or a broker that is to be closed when the program ends.

    Args:
        client: A client, or a broker in this process.
        close: Called with the client and the seconds that it may take. Does nothing if the program has closed the
            client.
        is_broker: Whether `client` is a broker, which is closed after all clients.
    """
    _open[client] = _Left(close, is_broker)


def warn_unclosed(
    client: object, how: str, close: Callable[[], object] | None, *, in_thread: bool = True
) -> None:
    """Warn that a client was destroyed without being closed, and close it in a thread.

    Args:
        client: The client.
        how: The call that the program has omitted, such as "close()".
        close: Closes the client; None if it cannot be closed from here.
        in_thread: Whether a thread may close the client (default). If not, the client stays open: with a clock that the
            program moves, a thread would move the clock too, and a seed would not determine a simulation run.
    """
    if close is not None and in_thread:
        done = _thread.allocate_lock()
        done.acquire()
        _closing.add(done)
        try:
            _thread.start_new_thread(_start_closing, (close, done))
        except RuntimeError:  # the interpreter is ending
            _closing.discard(done)
    text = (
        f"a {type(client).__qualname__} of Headrace was dropped without being closed: "
        f"call its {how}, or use it in a with statement"
    )
    warnings.warn(text, ResourceWarning, stacklevel=3, source=client)


def _start_closing(close: Callable[[], object], done: _thread.LockType) -> None:
    """Start a thread of `threading`. A destructor cannot start such a thread, because that takes a lock."""
    try:
        threading.Thread(
            target=_close, args=(close, done), name="headrace-close", daemon=True
        ).start()
    except RuntimeError:  # the interpreter is ending
        _closing.discard(done)
        done.release()


def _close(close: Callable[[], object], done: _thread.LockType) -> None:
    try:
        close()
    except BaseException as error:  # noqa: BLE001 - no caller could catch it
        _log.error("a client that was dropped without close() could not be closed", exc_info=error)
    finally:
        del close
        _closing.discard(done)
        done.release()


def _end() -> None:
    """Close the clients that the program has not closed, for at most `EXIT_S` seconds."""
    left = sorted(_open.items(), key=lambda entry: entry[1].is_broker)
    _open.clear()
    if not left and not _closing:
        return
    deadline = time.monotonic() + EXIT_S
    worker = threading.Thread(target=_close_all, args=(left, deadline), daemon=True)
    try:
        worker.start()
    except RuntimeError:  # from Python 3.12 on, no thread can be started at exit
        _close_all(left, deadline)
    else:
        worker.join(EXIT_S + 1)


def _close_all(left: list[tuple[object, _Left]], deadline: float) -> None:
    for client, how in left:
        try:
            how.close(client, max(0.1, deadline - time.monotonic()))
        except Exception as error:  # noqa: BLE001 - the other clients must be closed nevertheless
            _log.error("a client that was left open at exit could not be closed", exc_info=error)
    for done in list(_closing):
        if done.acquire(timeout=max(0.1, deadline - time.monotonic())):
            done.release()


atexit.register(_end)
if hasattr(os, "register_at_fork"):
    # A forked child has no thread that would release these locks, so the end of the child would wait for them.
    os.register_at_fork(after_in_child=_closing.clear)


class ClosingTasks:
    """Closes dropped asyncio clients on their event loops."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def begin(
        self, loop: asyncio.AbstractEventLoop, close: Callable[[], Coroutine[Any, Any, None]]
    ) -> None:
        """Close a client on its event loop, if the loop still runs. Any thread and any destructor may call this."""

        def spawn() -> None:
            task = loop.create_task(close())
            self._tasks.add(task)
            task.add_done_callback(self._ended)

        if loop.is_running():
            loop.call_soon_threadsafe(spawn)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error(
                "a client that was dropped without close() could not be closed", exc_info=error
            )


closing_tasks: Final = ClosingTasks()


def report_exit(unsent: int, lost: int, reason: object = None) -> None:
    """Log the outcome of a producer's last records after the program ended or dropped the producer without `close()`.

    Args:
        unsent: The number of records that were pending at that moment.
        lost: The number of these records that were not delivered.
        reason: The reason why they were not delivered. None if it is unknown.
    """
    if lost:
        why = f": {reason}" if reason else ""
        _log.error(
            "a producer was not closed: %d of its last %d records are lost%s; call close(), or use it in a with "
            "statement",
            lost,
            unsent,
            why,
        )
    elif unsent:
        _log.warning(
            "a producer was not closed: its last %d records were delivered at the end of the program; call close(), or "
            "use it in a with statement",
            unsent,
        )
