"""Which brokers of one client do not answer, and when to say so: soon, once, and again when they are back."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Final

from headrace.clients.flows.effects import Call
from headrace.protocol.messages.fetch import FetchRequest
from headrace.protocol.messages.join_group import JoinGroupRequest
from headrace.protocol.messages.sync_group import SyncGroupRequest

Address = tuple[str, int]

REPORT_AFTER_MS: Final = 1_500
"""How long a broker may be away, or take for an answer, before that is reported."""
REPORT_AGAIN_MS: Final = 60_000
"""How often it is reported that a broker is still away."""
_LONG: Final = (JoinGroupRequest, SyncGroupRequest)
"""Requests whose answers wait for other members."""


def patience_ms(call: Call) -> int | None:
    """Return how long an answer may take before its broker counts as silent; None where that cannot be said."""
    if not call.answered or isinstance(call.request, _LONG):
        return None
    waits_ms = call.request.max_wait_ms if isinstance(call.request, FetchRequest) else 0
    return REPORT_AFTER_MS + waits_ms


class Outage:
    """A broker that does not answer."""

    __slots__ = ("due_ms", "is_needed", "reason", "since_ms", "told", "tried_ms")

    def __init__(self, since_ms: int) -> None:
        self.since_ms = since_ms
        self.due_ms: int | None = since_ms + REPORT_AFTER_MS
        """When it is to be reported; None while that waits for another failure."""
        self.reason = "it does not answer"
        self.is_needed = False
        """Whether it is the client's matter although others answer: it was tried again, or has a request to answer."""
        self.told = False
        self.tried_ms = since_ms
        """When a connection was last opened, or an answer last missed."""


class Reach:
    """Keeps the outages of brokers."""

    def __init__(self, report: Callable[[Address, str], object]) -> None:
        """Begin without outages.

        Args:
            report: Logs a warning about a broker.
        """
        self._report = report
        self._outages: dict[Address, Outage] = {}

    def trying(self, address: Address, now_ms: int) -> None:
        """A connection is being opened."""
        self._outages.setdefault(address, Outage(now_ms)).tried_ms = now_ms

    def failed(self, address: Address, reason: str, now_ms: int) -> None:
        """A connection could not be opened."""
        outage = self._outages.setdefault(address, Outage(now_ms))
        outage.reason = reason
        outage.tried_ms = now_ms
        if outage.due_ms is None:
            outage.due_ms = now_ms
            outage.is_needed = True

    def silent(self, address: Address, since_ms: int, now_ms: int) -> None:
        """A broker to which there is a connection has not answered since a time."""
        outage = self._outages.setdefault(address, Outage(since_ms))
        outage.is_needed = True
        if not outage.told:
            outage.due_ms = now_ms

    def answered(self, address: Address, now_ms: int) -> None:
        """A broker has sent something."""
        outage = self._outages.pop(address, None)
        if outage is not None and outage.told:
            away_s = (now_ms - outage.since_ms) / 1000
            self._report(address, f"answers again, after {away_s:.1f} s")

    def clear(self) -> None:
        """Forget everything: the client is closed."""
        self._outages.clear()

    @property
    def next_deadline_ms(self) -> int | None:
        """When `expire` should be called at the latest; None when there is nothing to report."""
        dues = [outage.due_ms for outage in self._outages.values() if outage.due_ms is not None]
        return min(dues, default=None)

    def expire(self, now_ms: int, answering: Collection[Address]) -> None:
        """Report the outages that have lasted long enough.

        Args:
            now_ms: The time.
            answering: Brokers that answer. Where there are others, one that was tried once is of no interest.
        """
        for address, outage in list(self._outages.items()):
            if outage.due_ms is None or outage.due_ms > now_ms:
                continue
            is_elsewhere = not outage.is_needed and any(other != address for other in answering)
            # A broker that left the cluster is not tried any more, so there is nothing to say of it.
            is_given_up = outage.told and outage.tried_ms <= now_ms - REPORT_AGAIN_MS
            if is_elsewhere or is_given_up:
                outage.due_ms = None
                continue
            outage.told = True
            outage.due_ms = now_ms + REPORT_AGAIN_MS
            self._report(address, self._text(outage, now_ms))

    def is_away(self, address: Address) -> bool:
        """Whether it was reported that a broker is away."""
        outage = self._outages.get(address)
        return outage is not None and outage.told

    def reason(self, now_ms: int) -> str | None:
        """Return what was reported of a broker that is away; None where there is none."""
        told = [outage for outage in self._outages.values() if outage.told]
        if not told:
            return None
        # Those that are not tried any more say least.
        first = next((outage for outage in told if outage.due_ms is not None), told[0])
        return self._text(first, now_ms)

    @staticmethod
    def _text(outage: Outage, now_ms: int) -> str:
        away_s = (now_ms - outage.since_ms) / 1000
        return f"{outage.reason}; it has been away for {away_s:.1f} s, and is tried again"
