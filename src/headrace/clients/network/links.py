"""One connection of a client, the calls that it carries, and the search for a broker that answers."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Protocol

from headrace.clients.config import ClientConfig
from headrace.clients.engine import Outcome
from headrace.clients.flows.effects import Call
from headrace.clients.network.connection import BrokerConnection
from headrace.clients.network.outages import Address, patience_ms
from headrace.errors import HeadraceError, TransportError

OnDone = Callable[[Outcome], object]


class UnsentError(TransportError):
    """The broker has not received the request: no connection could be made, or it did not become ready in time."""


class Pending:
    """One call that is pending."""

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
        """The call; None waits for a connection only."""
        self.deadline_ms = deadline_ms
        """The deadline of the caller."""
        self.limit_ms = limit_ms
        """Milliseconds that the broker may take."""
        self.silent_from_ms = 0
        """The time at which the connection of a broker without a response is closed; set when the call is sent."""
        self.sent_ms = 0
        """The time at which the call was passed to a connection."""
        self.patience_ms = None if call is None else patience_ms(call)
        """Milliseconds without a response after which the broker is reported as silent; None is never."""
        self.on_done = on_done
        self.done = False
        """Whether the caller has the outcome."""
        self.settled = False
        """Whether the connection has finished the call."""


class Link:
    """One connection, with the state that its shell needs."""

    __slots__ = (
        "address",
        "authenticating",
        "channel",
        "connection",
        "expires_ms",
        "logins",
        "lost",
        "open",
        "pending",
        "ready",
        "received_ms",
        "renew_at_ms",
        "setup_until_ms",
        "socket",
    )

    def __init__(
        self,
        address: Address,
        channel: str,
        connection: BrokerConnection[Pending],
        setup_until_ms: int,
    ) -> None:
        self.address = address
        self.channel = channel
        self.connection = connection
        self.setup_until_ms = setup_until_ms
        """The time at which the handshake must be done."""
        self.open = False
        """Whether the socket is open."""
        self.ready = False
        """Whether the handshake is done."""
        self.lost: HeadraceError | None = None
        """The error with which the connection was closed; None while it is in use."""
        self.pending: deque[Pending] = deque()
        """The calls on the connection, oldest first; finished ones are removed lazily."""
        self.received_ms = 0
        """The time at which a response was last received."""
        self.logins = 0
        """The number of logins that the pool has handled; the connection counts all of them."""
        self.expires_ms = 0
        """The time at which the broker ends the session."""
        self.renew_at_ms: int | None = None
        """The time of the next login, or the deadline of the running one; None if there is none."""
        self.authenticating = False
        """Whether a login was requested and is not finished."""
        self.socket: object = None
        """The socket or transport; only the shell uses it."""

    @property
    def peer(self) -> str:
        """HOST:PORT of the broker, with an IPv6 address in brackets."""
        return peer_name(self.address)


def new_link(
    address: Address,
    channel: str,
    config: ClientConfig,
    max_versions: Mapping[int, int],
    now_ms: int,
) -> Link:
    """Return a connection that is not open yet."""
    connection: BrokerConnection[Pending] = BrokerConnection(
        client_id=config.client_id,
        peer=peer_name(address),
        max_frame_bytes=config.receive_message_max_bytes,
        authenticates=config.authenticates,
        max_versions=max_versions,
    )
    return Link(address, channel, connection, now_ms + config.socket_connection_setup_timeout_ms)


class Shell(Protocol):
    """Performs the I/O of a pool. No method blocks. Each may report a lost connection before it returns."""

    def open(self, link: Link) -> None:
        """Begin to connect; then call `Pool.connected`, or `Pool.lost`."""

    def flush(self, link: Link) -> None:
        """Write the connection's output, now or as soon as the socket accepts it."""

    def authenticate(self, link: Link) -> None:
        """Get fresh credentials, now or later; then call `Pool.present`, or `Pool.denied`."""

    def close(self, link: Link) -> None:
        """Close the socket of the link, without a report to the pool."""


class BrokerSearch:
    """The search for any broker on one channel: one address after the other, until a handshake succeeds."""

    __slots__ = ("addresses", "failures", "link", "waiting")

    def __init__(self, addresses: Iterable[Address]) -> None:
        self.addresses = deque(addresses)
        self.link: Link | None = None
        """The connection that is being tried; None if there is none."""
        self.failures: list[str] = []
        """The reasons why earlier connections of this search failed."""
        self.waiting: list[Pending] = []
        """The calls that wait for the result of the search."""


def unsettled(link: Link) -> Iterator[Pending]:
    """Yield the calls on a connection that are not finished, oldest first."""
    while link.pending and link.pending[0].settled:
        link.pending.popleft()
    return (pending for pending in link.pending if not pending.settled)


def peer_name(address: Address) -> str:
    """Return HOST:PORT, with an IPv6 address in brackets."""
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def unsent(error: HeadraceError) -> HeadraceError:
    """Return the error of a call that was not sent because its connection has ended with an error."""
    return UnsentError(str(error)) if type(error) is TransportError else error


def late_error(link: Link, pending: Pending) -> HeadraceError:
    """Return the error of a call that has timed out on its connection."""
    error = TransportError(f"{link.peer} did not answer in time")
    return unsent(error) if link.connection.is_waiting(pending) else error
