"""The session of a member, measured from the time at which an acknowledged request was sent."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from headrace.clients.engine import Engine, Timer

MARGIN_SHARE: Final = 10
"""The part of a session, one tenth, that a member does not use. The clocks of member and broker may each be off by five
percent while they follow the wall clock (`headrace.clock`), and handlers need a moment to end."""


class MemberSession:
    """The session of one member. Each acknowledged request renews it."""

    def __init__(
        self,
        engine: Engine,
        *,
        length_ms: Callable[[], int],
        exists: Callable[[], bool],
        on_end: Callable[[], object],
    ) -> None:
        """Prepare a session. It begins with the first acknowledged request.

        Args:
            engine: The consumer's engine.
            length_ms: Returns the length of the session in milliseconds.
            exists: Returns whether there is a session whose end revokes partitions.
            on_end: Called nine tenths of a session after the last acknowledged request was sent.
        """
        self._engine = engine
        self._length_ms = length_ms
        self._exists = exists
        self._on_end = on_end
        self.confirmed_ms = 0
        """The time at which the last acknowledged request was sent."""
        self._timer: Timer | None = None

    @property
    def ends_ms(self) -> int:
        """The time at which the partitions are lost, unless another request is acknowledged before."""
        length_ms = self._length_ms()
        return self.confirmed_ms + length_ms - length_ms // MARGIN_SHARE

    def is_over(self, now_ms: int) -> bool:
        """Return whether the session may have expired at a time of the engine's clock. Any thread may call it."""
        return self._exists() and now_ms >= self.ends_ms

    def confirm(self, sent_ms: int) -> None:
        """Renew the session: the coordinator has acknowledged a request that was sent at this time."""
        self.confirmed_ms = max(self.confirmed_ms, sent_ms)
        if self._timer is None or not self._timer.pending:
            self._timer = self._engine.at(self.ends_ms, self._check)

    def length_changed(self) -> None:
        """Set the timer again, because the length of the session has changed."""
        if self._timer is not None:
            self.stop()
            self.confirm(self.confirmed_ms)

    def stop(self) -> None:
        """Stop the timer of the session."""
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
