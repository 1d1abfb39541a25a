"""Clients that a program does not close: those it drops are closed in a thread, those left at its end are flushed.

`warn_unclosed` runs in a destructor: at any moment, in any thread, with any lock of the program held. So it takes no
lock and waits for nothing.
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
"""How long the end of a program may take, for all of its clients together."""

_log = logging.getLogger("headrace.clients")


class _Left(NamedTuple):
    """How a client is closed at the end of a program."""

    close: Callable[[Any, float], object]
    is_broker: bool


_open: weakref.WeakKeyDictionary[object, _Left] = weakref.WeakKeyDictionary()
_closing: set[_thread.LockType] = set()
"""A lock for each dropped client that is being closed; it is released at the end of that."""

C = TypeVar("C")


def at_exit(client: C, close: Callable[[C, float], object], *, is_broker: bool = False) -> None:
    """Have something closed when the program ends.

    Args:
        client: A client, or a broker in this process.
        close: Called with it and with how many seconds it may take; does nothing if the program has closed it.
        is_broker: Whether its clients are to be closed before it.
    """
    _open[client] = _Left(close, is_broker)


def warn_unclosed(
    client: object, how: str, close: Callable[[], object] | None, *, in_thread: bool = True
) -> None:
    """Warn of a client that is destroyed open, and close it in a thread.

    Args:
        client: The client.
        how: What the program should have called, as "close()".
        close: Closes it; None if it cannot be closed from here.
        in_thread: Whether a thread may close it (default). If not, it stays open: with a clock that the program moves,
            a thread would move the clock too, and one seed of a simulation would no longer give one result.
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
        f"a {type(client).__qualname__} of Headrace was dropped open: "
        f"call its {how}, or use it in a with statement"
    )
    warnings.warn(text, ResourceWarning, stacklevel=3, source=client)


def _start_closing(close: Callable[[], object], done: _thread.LockType) -> None:
    """Start a thread that `threading` knows: it cannot be started in a destructor, for it takes a lock."""
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
    except BaseException as error:  # noqa: BLE001 - no caller could get it
        _log.error("a client that was dropped open could not be closed in order", exc_info=error)
    finally:
        del close
        _closing.discard(done)
        done.release()


def _end() -> None:
    """Close what the program left open, but end in time whatever happens."""
    left = sorted(_open.items(), key=lambda entry: entry[1].is_broker)
    _open.clear()
    if not left and not _closing:
        return
    deadline = time.monotonic() + EXIT_S
    worker = threading.Thread(target=_close_all, args=(left, deadline), daemon=True)
    try:
        worker.start()
    except RuntimeError:  # from Python 3.12 on no thread is started any more
        _close_all(left, deadline)
    else:
        worker.join(EXIT_S + 1)


def _close_all(left: list[tuple[object, _Left]], deadline: float) -> None:
    for client, how in left:
        try:
            how.close(client, max(0.1, deadline - time.monotonic()))
        except Exception as error:  # noqa: BLE001 - the others are to be closed all the same
            _log.error("a client that was left open could not be closed in order", exc_info=error)
    for done in list(_closing):
        if done.acquire(timeout=max(0.1, deadline - time.monotonic())):
            done.release()


atexit.register(_end)
if hasattr(os, "register_at_fork"):
    # A forked child has no thread that would release these locks, and its end would wait for them.
    os.register_at_fork(after_in_child=_closing.clear)


class ClosingTasks:
    """Closes dropped clients of asyncio on their event loops."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def begin(
        self, loop: asyncio.AbstractEventLoop, close: Callable[[], Coroutine[Any, Any, None]]
    ) -> None:
        """Have the loop close a client, if it still runs; from any thread and any destructor."""

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
                "a client that was dropped open could not be closed in order", exc_info=error
            )


closing_tasks: Final = ClosingTasks()


def report_exit(unsent: int, lost: int, reason: object = None) -> None:
    """Tell what became of a producer's last records when the program ended, or dropped it, without `close()`.

    Args:
        unsent: Records that were neither delivered nor given up at that moment.
        lost: Those of them that were not delivered.
        reason: Why not.
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
