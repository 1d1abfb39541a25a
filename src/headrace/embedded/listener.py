"""The interface between an embedded broker and the thread that serves it over TCP (`listening.py`)."""

from __future__ import annotations

from typing import Protocol

from headrace.config import listeners


class ListenerThread(Protocol):
    """A thread that serves an embedded broker to other processes."""

    stuck: bool
    """Whether a sync was still running when `close` returned. The broker cannot be closed then."""

    def open(self, listener: listeners.Listener) -> listeners.ListenAddress:
        """Accept connections at an address.

        Returns:
            The address, with the port that the system chose.

        Raises:
            ConfigError: The address is in use, unknown or not permitted, or the certificate cannot be used.
        """

    def close(self) -> None:
        """Stop accepting, answer requests that only wait for a sync, close the connections, and end the thread."""

    def used(self) -> None:
        """Wake the event loop if the use of the broker left work to it. Call this with the lock held."""

    def clock_leapt(self) -> None:
        """Set the timer of the event loop again, because a test has moved the clock forward."""

    def peers(self) -> set[str]:
        """Return HOST:PORT of each connected client."""
