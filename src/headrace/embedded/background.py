"""The thread that performs due work of an embedded broker while no client of the program is inside a call."""

from __future__ import annotations

import threading
import weakref
from typing import Final, Protocol

from headrace.clients.drivers.common import report

FAULT_PAUSE_S: Final = 0.1
"""The pause of the thread after an unexpected exception, in seconds."""


class HasWork(Protocol):
    """An object whose due work a thread performs."""

    @property
    def closed(self) -> bool:
        """Whether there is no further work, so that the thread ends."""

    def work(self) -> float | None:
        """Perform due work, with the lock held.

        Returns:
            The seconds until more work is due; None once the object is closed.
        """


def start(owner: HasWork, condition: threading.Condition) -> threading.Thread:
    """Start the thread. It ends when `owner` is closed or garbage-collected: the thread has a weak reference."""
    thread = threading.Thread(
        target=_run, args=(weakref.ref(owner), condition), name="headrace-embedded", daemon=True
    )
    thread.start()
    return thread


def _run(reference: weakref.ref[HasWork], condition: threading.Condition) -> None:
    with condition:
        while (owner := reference()) is not None and not owner.closed:
            try:
                wait_s = owner.work()
            except BaseException as error:  # noqa: BLE001 - all clients depend on this thread, so it must not end
                report(error)
                wait_s = FAULT_PAUSE_S
            del owner  # no strong reference while the thread waits
            if wait_s is not None:
                condition.wait(wait_s)
