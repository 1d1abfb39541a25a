"""One connection of a client, the calls that it carries, and the search for a broker that answers."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Protocol

from headrace.clients.engine import Outcome
from headrace.clients.flows.effects import Call
from headrace.clients.network.connection import Connection
from headrace.clients.network.reach import Address, patience_ms
from headrace.errors import HeadraceError

OnDone = Callable[[Outcome], object]


class Pending:
    """One call under way."""

    __slots__ = (
        "call",
        "deadline_ms",
        "done",
        "limit_ms",
        "on_done",
        "patience_ms",
        "sent_ms",
        "settled",
        "silent_from_ms",
    )

    def __init__(self, call: Call | None, deadline_ms: int, limit_ms: int, on_done: OnDone) -> None:
        self.call = call
        """None asks for nothing but a connection."""
        self.deadline_ms = deadline_ms
        """When its caller will wait no longer."""
        self.limit_ms = limit_ms
        """How long a broker may take."""
        self.silent_from_ms = 0
        """When a broker that has not answered by then is given up; set when the call is given to a connection."""
        self.sent_ms = 0
        """When it was given to a connection."""
        self.patience_ms = None if call is None else patience_ms(call)
        """After so long without an answer its broker is reported as silent; None is never."""
        self.on_done = on_done
        self.done = False
        """Whether its caller has been told."""
        self.settled = False
        """Whether its connection is through with it."""


class Link:
    """One connection and what its shell needs to know of it."""

    __slots__ = (
        "address",
        "authenticating",
        "channel",
        "connection",
        "expires_ms",
        "heard_ms",
        "logins",
        "lost",
        "open",
        "pending",
        "ready",
        "renew_at_ms",
        "setup_until_ms",
        "socket",
    )

    def __init__(
        self, address: Address, channel: str, connection: Connection[Pending], setup_until_ms: int
    ) -> None:
        self.address = address
        self.channel = channel
        self.connection = connection
        self.setup_until_ms = setup_until_ms
        """When it must have shaken hands."""
        self.open = False
        """Whether its socket is."""
        self.ready = False
        """Whether it has shaken hands."""
        self.lost: HeadraceError | None = None
        """Why it is of no more use; None while it is."""
        self.pending: deque[Pending] = deque()
        """Calls that it carries, oldest first; those settled are dropped lazily."""
        self.heard_ms = 0
        """When it brought something last."""
        self.logins = 0
        """Of those that the connection counts, how many have been taken note of."""
        self.expires_ms = 0
        """When the broker ends the session."""
        self.renew_at_ms: int | None = None
        """When to log in again, or how long that may take; None while there is nothing to do."""
        self.authenticating = False
        """Whether credentials have been asked for and it has not been seen that we are logged in with them."""
        self.socket: object = None
        """The shell's own."""

    @property
    def peer(self) -> str:
        """HOST:PORT, an IPv6 address in brackets."""
        return peer_name(self.address)


class Shell(Protocol):
    """Acts for a pool. No method blocks; each may report a loss before it returns."""

    def open(self, link: Link) -> None:
        """Begin to connect; then call `Pool.connected`, or `Pool.lost`."""

    def flush(self, link: Link) -> None:
        """Write the connection's output, now or as soon as the socket takes it."""

    def authenticate(self, link: Link) -> None:
        """Get fresh credentials, now or later; then call `Pool.present`, or `Pool.denied`."""

    def close(self, link: Link) -> None:
        """Close what was opened for the link; reports nothing."""


class Walk:
    """The search for any broker, on one channel: address after address, until one shakes hands."""

    __slots__ = ("addresses", "failures", "link", "waiting")

    def __init__(self, addresses: Iterable[Address]) -> None:
        self.addresses = deque(addresses)
        self.link: Link | None = None
        """What is being tried."""
        self.failures: list[str] = []
        self.waiting: list[Pending] = []


def unsettled(link: Link) -> Iterator[Pending]:
    """Return the calls that a connection carries and is not through with, oldest first."""
    while link.pending and link.pending[0].settled:
        link.pending.popleft()
    return (pending for pending in link.pending if not pending.settled)


def peer_name(address: Address) -> str:
    """Return HOST:PORT, an IPv6 address in brackets."""
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
