"""The interface between a connection and the hub: what a connection calls, and the slot of a response.

`Connection` knows framing, order and limits, but not Kafka's protocol. Its hub knows the protocol and the broker.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Generic, Protocol, TypeVar

from headrace.ports import Journal
from headrace.server.connections.budget import MemoryBudget
from headrace.server.limits import ServerLimits
from headrace.types import Payload


class CloseConnectionError(Exception):
    """The connection has to be closed because of a request; the message is the reason."""


class SlotOwner(Protocol):
    """A connection, as a slot sees it."""

    def slot_filled(self) -> None:
        """Send the responses that are next in order."""


OwnerT = TypeVar("OwnerT", bound=SlotOwner)
ConnectionT_contra = TypeVar("ConnectionT_contra", contravariant=True)


class Slot(Generic[OwnerT]):
    """One response in a connection's order of responses. `fill` is called exactly once, or `cancel`."""

    __slots__ = ("connection", "payloads")

    def __init__(self, connection: OwnerT) -> None:
        self.connection = connection
        self.payloads: Sequence[Payload] | None = None
        """The encoded response; None until it is ready, empty if the client gets no response."""

    def fill(self, payloads: Sequence[Payload]) -> None:
        """Set the response. The connection sends it after all earlier responses."""
        self.payloads = payloads
        self.connection.slot_filled()

    def cancel(self) -> None:
        """Drop the response: the connection will not send it. Does nothing if the slot is filled."""


class Hub(Protocol[ConnectionT_contra]):
    """The part of the server that all connections share."""

    limits: ServerLimits
    budget: MemoryBudget
    client_log: Journal
    """Rate-limited: receives the events that clients can cause at will."""
    now_ms: int
    """The time at which the current wake-up of the event loop began, in milliseconds since 1970."""

    def begin(self) -> None:
        """Begin a wake-up: read the clock into `now_ms`."""

    def handle(
        self, connection: ConnectionT_contra, frame: memoryview
    ) -> Sequence[Payload] | Slot[Any] | None:
        """Handle one request.

        Returns:
            The response, or a slot that will be filled, or None if the request gets no response.

        Raises:
            CloseConnectionError: The connection has to be closed.
        """

    def end(self) -> None:
        """End a wake-up: flush other connections, start a sync, set the timer."""

    def has_output(self, connection: ConnectionT_contra) -> None:
        """Have `connection.flush` called at the end of this wake-up."""

    def opened(self, connection: ConnectionT_contra) -> str | None:
        """Register a new connection. Return None, or the reason why the connection is refused."""

    def closed(self, connection: ConnectionT_contra) -> None:
        """Remove a connection that is closed."""
