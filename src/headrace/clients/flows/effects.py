"""What a flow may ask of its driver, and the state that the flows of one client share.

A flow is a generator. It yields a `Call` and receives the response message (or has a `TransportError` or an
`ApiError` raised at the yield); it yields a tuple of calls and receives a tuple of outcomes, in which errors are
values; it yields a `Sleep`, or a `Wait` for something to change, and receives None; it yields an `Invoke` and receives
what the program's function returned. Its deadline is the engine's: when no time is left for a `Sleep`, the engine ends
the flow by raising the cause that the sleep carries.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, TypeVar

from headrace.clients.flows.cluster import ClusterMetadata, TopicSettings
from headrace.errors import HeadraceError, ProtocolError
from headrace.protocol.codec import Message
from headrace.registers import Named

T = TypeVar("T")
R = TypeVar("R", bound=Message)

ANY_NODE: Final = -1
"""A `Call` to any broker: a connected one, or the first of the bootstrap servers that answers."""

GROUP_CHANNEL: Final = "group"
"""Connection of its own for a group's coordinator, whose long waits must not hold up fetches."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One request to one broker."""

    request: Message
    node: int = ANY_NODE
    channel: str = ""
    """Calls on different channels use different connections, so that one does not wait behind the other."""
    timeout_ms: int | None = None
    """How long the broker may take; None is the client's `request.timeout.ms`."""
    answered: bool = True
    """False for Produce with acks=0, which has no response; the outcome is then None as soon as it is sent."""
    max_version: int | None = None
    """The newest version that says what is meant, where a newer one would say more; None is the client's newest."""


@dataclass(frozen=True, slots=True)
class Sleep:
    """A pause before another attempt."""

    duration_ms: int
    cause: HeadraceError
    """Why it is needed: raised instead when the deadline comes first."""


@dataclass(frozen=True, slots=True)
class Wait:
    """A pause until the engine is notified that something changed, or until `until_ms`, whichever comes first."""

    until_ms: int | None = None
    """By the engine's clock; None waits for a change alone, or for the end of the operation's time."""


@dataclass(frozen=True, slots=True)
class Invoke:
    """A call of the program's own code, made where the program started the operation and with no lock held."""

    function: Callable[..., Any]
    arguments: tuple[Any, ...] = ()


Effect = Call | tuple[Call, ...] | Sleep | Wait | Invoke
Flow = Generator[Effect, Any, T]


@dataclass(slots=True)
class Backoff:
    """Pauses that double from `first_ms` to at most `max_ms` (KIP-580); the driver adds the jitter."""

    first_ms: int
    max_ms: int
    attempts: int = 0

    def after(self, cause: HeadraceError) -> Sleep:
        """Return the pause that follows a failed attempt."""
        duration_ms = min(self.first_ms << min(self.attempts, 16), self.max_ms)
        self.attempts += 1
        return Sleep(duration_ms, cause)


class GivenObjects(Protocol):
    """Classes and objects that programs gave to topics of a broker in their own process."""

    def find(self, topic: str, config: str, named: Named) -> Named:
        """Return what a topic's metadata name, with the object behind it if one was given."""

    def keep(self, topic: str, strategies: Mapping[str, Named]) -> None:
        """Remember what a topic was created with, by the name of the config."""

    def keep_storage(self, storage: Any) -> str:
        """Make a storage known to this broker; return its name."""


@dataclass(slots=True)
class ClientState:
    """What the flows of one client know between calls."""

    metadata: ClusterMetadata = field(default_factory=ClusterMetadata)
    coordinators: dict[str, int] = field(default_factory=dict)
    """Group id to the node that coordinates it, as far as known."""
    transaction_coordinators: dict[str, int] = field(default_factory=dict)
    """Transactional id to the node that coordinates it, likewise."""
    stale_topics: set[str] = field(default_factory=set)
    """Topics whose leaders must be asked for again before they are used."""
    topic_settings: dict[str, TopicSettings] = field(default_factory=dict)
    """What the metadata of topics says to Headrace's clients, as far as asked for."""
    objects: GivenObjects | None = None
    """Where the broker is in this process: what programs gave to `create_topic` as classes and objects."""
    retry_backoff_ms: int = 100
    retry_backoff_max_ms: int = 1000

    def backoff(self) -> Backoff:
        """Return the pauses for one operation's attempts."""
        return Backoff(self.retry_backoff_ms, self.retry_backoff_max_ms)


def ask(call: Call, response_type: type[R]) -> Flow[R]:
    """Make one call and return its response, checked to be of the type that belongs to the request."""
    response = yield call
    if not isinstance(response, response_type):
        raise ProtocolError(f"expected a {response_type.__name__}, got {type(response).__name__}")
    return response
