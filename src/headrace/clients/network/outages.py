"""The brokers that do not answer one client. The client reports an outage soon and seldom, and reports its end."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Final

from headrace.clients.flows.effects import Call
from headrace.protocol.messages.fetch import FetchRequest
from headrace.protocol.messages.join_group import JoinGroupRequest
from headrace.protocol.messages.sync_group import SyncGroupRequest

Address = tuple[str, int]
"""The host and the port of a broker."""

REPORT_AFTER_MS: Final = 1_500
"""Milliseconds without a connection or a response after which an outage is reported."""
REPORT_AGAIN_MS: Final = 60_000
"""Milliseconds between two reports of the same outage."""
_LONG: Final = (JoinGroupRequest, SyncGroupRequest)
"""Requests whose responses wait for other members of a group."""


def patience_ms(call: Call) -> int | None:
    """Return the milliseconds without a response after which a broker counts as silent; None if there is no limit."""
    if not call.answered or isinstance(call.request, _LONG):
        return None
    waits_ms = call.request.max_wait_ms if isinstance(call.request, FetchRequest) else 0
    return REPORT_AFTER_MS + waits_ms


class Outage:
    """The outage of one broker."""

    __slots__ = ("due_ms", "is_needed", "reason", "reported", "since_ms", "tried_ms")

    def __init__(self, since_ms: int) -> None:
        self.since_ms = since_ms
        self.due_ms: int | None = since_ms + REPORT_AFTER_MS
        """The time of the next report; None if the next report follows the next failure."""
        self.reason = "it does not answer"
        """The reason in the report: the error of the last attempt to connect."""
        self.is_needed = False
        """Whether the outage is reported although other brokers answer: the client has tried the broker again, or waits
        for its response."""
        self.reported = False
        """Whether the outage was reported."""
        self.tried_ms = since_ms
        """The time of the last attempt to connect."""


class Outages:
    """The outages of the brokers of one client."""

    def __init__(self, report: Callable[[Address, str], object]) -> None:
        """Create an empty collection.

        Args:
            report: Logs a warning about a broker.
        """
        self._report = report
        self._outages: dict[Address, Outage] = {}

    def trying(self, address: Address, now_ms: int) -> None:
        """Note that the client tries to connect to a broker."""
        self._outages.setdefault(address, Outage(now_ms)).tried_ms = now_ms

    def failed(self, address: Address, reason: str, now_ms: int) -> None:
        """Note that a connection could not be opened."""
        outage = self._outages.setdefault(address, Outage(now_ms))
        outage.reason = reason
        outage.tried_ms = now_ms
        if outage.due_ms is None:
            outage.due_ms = now_ms
            outage.is_needed = True

    def silent(self, address: Address, since_ms: int, now_ms: int) -> None:
        """Note that a connected broker has not answered since a time."""
        outage = self._outages.setdefault(address, Outage(since_ms))
        outage.is_needed = True
        if not outage.reported:
            outage.due_ms = now_ms

    def answered(self, address: Address, now_ms: int) -> None:
        """End the outage of a broker that has sent a response; report the end if the outage was reported."""
        outage = self._outages.pop(address, None)
        if outage is not None and outage.reported:
            away_s = (now_ms - outage.since_ms) / 1000
            self._report(address, f"answers again, after {away_s:.1f} s")

    def clear(self) -> None:
        """Remove all outages, because the client is closed."""
        self._outages.clear()

    @property
    def next_deadline_ms(self) -> int | None:
        """The latest time for the next `expire`; None if no report is pending."""
        dues = [outage.due_ms for outage in self._outages.values() if outage.due_ms is not None]
        return min(dues, default=None)

    def expire(self, now_ms: int, answering: Collection[Address]) -> None:
        """Report the outages that have lasted long enough.

        Args:
            now_ms: The time.
            answering: The brokers that respond. If there are any, a broker that was tried only once is not reported.
        """
        for address, outage in list(self._outages.items()):
            if outage.due_ms is None or outage.due_ms > now_ms:
                continue
            is_elsewhere = not outage.is_needed and any(other != address for other in answering)
            # The client has stopped trying this broker, for example because it has left the cluster.
            is_given_up = outage.reported and outage.tried_ms <= now_ms - REPORT_AGAIN_MS
            if is_elsewhere or is_given_up:
                outage.due_ms = None
                continue
            outage.reported = True
            outage.due_ms = now_ms + REPORT_AGAIN_MS
            self._report(address, self._text(outage, now_ms))

    def is_away(self, address: Address) -> bool:
        """Return whether the outage of a broker was reported."""
        outage = self._outages.get(address)
        return outage is not None and outage.reported

    def reason(self, now_ms: int) -> str | None:
        """Return the text of a reported outage; None if there is none."""
        reported = [outage for outage in self._outages.values() if outage.reported]
        if not reported:
            return None
        # Prefer a broker that the client still tries.
        first = next((outage for outage in reported if outage.due_ms is not None), reported[0])
        return self._text(first, now_ms)

    @staticmethod
    def _text(outage: Outage, now_ms: int) -> str:
        away_s = (now_ms - outage.since_ms) / 1000
        return f"{outage.reason}; it has been away for {away_s:.1f} s, and is tried again"
