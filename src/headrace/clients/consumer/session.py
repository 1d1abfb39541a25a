"""How long a member may count on its partitions: the session, measured from when a request was sent."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from headrace.clients.engine import Engine, Timer

MARGIN_SHARE: Final = 10
"""A member gives its partitions up when a tenth of its session is left. The clocks of member and broker may each be
five per cent off while they catch up with wall time (`headrace.clock`), and handlers need a moment to end."""


class Session:
    """The session of one member; it lasts from the last request that the coordinator acknowledged."""

    def __init__(
        self,
        engine: Engine,
        *,
        length_ms: Callable[[], int],
        exists: Callable[[], bool],
        on_end: Callable[[], object],
    ) -> None:
        """Prepare; there is no session before the first acknowledgement.

        Args:
            engine: What runs it.
            length_ms: Returns how long the coordinator keeps a member of which it hears nothing.
            exists: Whether there is a session whose end takes partitions away.
            on_end: Called when nothing was acknowledged for as long as a session lasts, less a margin.
        """
        self._engine = engine
        self._length_ms = length_ms
        self._exists = exists
        self._on_end = on_end
        self.confirmed_ms = 0
        """When the last request was sent by whose answer the coordinator counted on this member."""
        self._timer: Timer | None = None

    @property
    def ends_ms(self) -> int:
        """When the partitions are given up, unless the coordinator acknowledges another request before."""
        length_ms = self._length_ms()
        return self.confirmed_ms + length_ms - length_ms // MARGIN_SHARE

    def is_over(self, now_ms: int) -> bool:
        """Whether the session may have ended at a time, by the clock of the engine; any thread may ask."""
        return self._exists() and now_ms >= self.ends_ms

    def confirm(self, sent_ms: int) -> None:
        """Take note that the coordinator has acknowledged a request that was sent at this time."""
        self.confirmed_ms = max(self.confirmed_ms, sent_ms)
        if self._timer is None or not self._timer.pending:
            self._timer = self._engine.at(self.ends_ms, self._check)

    def length_changed(self) -> None:
        """The session has another length than was thought: it may end earlier."""
        if self._timer is not None:
            self.stop()
            self.confirm(self.confirmed_ms)

    def stop(self) -> None:
        """Watch no more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _check(self) -> None:
        self._timer = None
        if not self._exists():
            return  # the next acknowledged request begins a session
        if self._engine.now_ms < self.ends_ms:
            self._timer = self._engine.at(self.ends_ms, self._check)
        else:
            self._on_end()
