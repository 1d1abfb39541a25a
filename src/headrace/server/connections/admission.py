"""The limits on the number of connections, and on the names in one request."""

from __future__ import annotations

import ipaddress
from collections import Counter
from typing import Final

from headrace.protocol.codec import Message
from headrace.server.limits import ServerLimits

_WINDOW_MS: Final = 1_000
"""The time over which new connections are counted, in milliseconds."""


class Admission:
    """Counts connections, in all and by address. For loopback addresses only the total is limited."""

    __slots__ = (
        "_highest",
        "_max_connections",
        "_max_per_address",
        "_max_rate",
        "_open",
        "_per_address",
        "_recent",
        "_window",
    )

    def __init__(self, limits: ServerLimits) -> None:
        """Begin with these limits. Later limits cannot exceed `limits.max_connections`."""
        self._highest = self._max_connections = limits.max_connections
        self._max_per_address = limits.max_connections_per_address
        self._max_rate = limits.max_connection_rate_per_address
        self._open = 0
        self._per_address: Counter[str] = Counter()
        self._recent: Counter[str] = Counter()
        self._window = -1

    def limit(self, max_connections: int, max_per_address: int) -> None:
        """Set the limits for new connections. Open connections stay open."""
        self._max_connections = min(max_connections, self._highest)
        self._max_per_address = max_per_address

    def enter(self, address: str, now_ms: int, rate: float | None = None) -> str | None:
        """Count a new connection. Return None, or the reason why the connection is refused.

        Args:
            address: The address of the client.
            now_ms: The time.
            rate: The quota of the address in connections per second; None if the address has no quota.
        """
        if self._open >= self._max_connections:
            return f"there are {self._open} connections already"
        if rate is not None and self._arrivals(address, now_ms) > rate:
            return f"{address} opens more than {rate:g} connections a second, which is its quota"
        if not _is_loopback(address):
            if self._per_address[address] >= self._max_per_address:
                return f"{address} has {self._per_address[address]} connections already"
            if rate is None and self._arrivals(address, now_ms) > self._max_rate:
                return f"{address} opens more than {self._max_rate} connections a second"
        self._open += 1
        self._per_address[address] += 1
        return None

    def _arrivals(self, address: str, now_ms: int) -> int:
        window = now_ms // _WINDOW_MS
        if (
            window != self._window
        ):  # forgets the addresses of the previous second, which bounds the memory
            self._window = window
            self._recent.clear()
        self._recent[address] += 1
        return self._recent[address]

    def leave(self, address: str) -> None:
        """Count the end of a connection that `enter` has admitted."""
        self._open -= 1
        self._per_address[address] -= 1
        if self._per_address[address] <= 0:
            del self._per_address[address]


def longest_list(request: Message) -> int:
    """Return the length of the longest list of a request: how many topics, groups or resources it names."""
    longest = 0
    fields: tuple[str, ...] = request.__slots__
    for name in fields:
        value = getattr(request, name)
        if type(value) is list and len(value) > longest:
            longest = len(value)
    return longest


def _is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False
