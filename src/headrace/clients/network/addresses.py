"""The addresses of brokers that a client may connect to, and the failures at each address."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final

from headrace.clients.flows.effects import ClientState
from headrace.clients.network.outages import Address
from headrace.errors import AuthenticationError

HANG_UPS: Final = 3
"""The number of connections that a broker closes on the first request before the pool reports a wrong protocol."""


class Addresses:
    """The addresses that one client may connect to."""

    def __init__(
        self,
        state: ClientState,
        bootstrap: Iterable[Address],
        shuffle: Callable[[list[Address]], None],
    ) -> None:
        self._state = state
        self._bootstrap = list(bootstrap)
        self._shuffle = shuffle
        self._failed_ms: dict[Address, int] = {}
        """The time of the last failure of an address, until a connection succeeds."""
        self._hang_ups: dict[Address, int] = {}
        """The number of connections that a broker has closed on the first request, by address."""
        self._refusals: dict[Address, tuple[AuthenticationError, int]] = {}
        """The error of a refused login, and the time until which calls fail with it, by address."""

    def in_order(self) -> Sequence[Address]:
        """Return all addresses: known brokers, then bootstrap servers, and at the end the addresses that failed."""
        known = [(broker.host, broker.port) for broker in self._state.metadata.brokers.values()]
        self._shuffle(known)
        every = dict.fromkeys(known + self._bootstrap)
        return sorted(every, key=lambda address: self._failed_ms.get(address, 0))

    def failed(self, address: Address, now_ms: int) -> None:
        """Note that a connection to an address has failed before the end of its handshake."""
        self._failed_ms[address] = now_ms

    def succeeded(self, address: Address) -> None:
        """Note that a handshake at an address has succeeded."""
        self._failed_ms.pop(address, None)

    def refuses_first_requests(self, address: Address) -> bool:
        """Count a connection that the broker has closed on the first request. Return whether this happens each time."""
        self._hang_ups[address] = count = self._hang_ups.get(address, 0) + 1
        return count >= HANG_UPS

    def refused(self, address: Address, error: AuthenticationError, until_ms: int) -> None:
        """Store the error of a refused login. New connections to the address fail with it until a time."""
        self._refusals[address] = (error, until_ms)

    def refusal(self, address: Address, now_ms: int) -> AuthenticationError | None:
        """Return the error of a recently refused login; None if the client may connect."""
        error, until_ms = self._refusals.get(address, (None, 0))
        if error is not None and now_ms >= until_ms:
            del self._refusals[address]
            return None
        return error
