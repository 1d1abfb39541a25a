"""The effects that a flow may yield, and the state that the flows of one client share.

A flow is a generator that yields effects:

* a `Call`: it receives the response, or a `TransportError` or `ApiError` is raised at the yield;
* a tuple of calls: it receives a tuple of outcomes, in which errors are values;
* a `Sleep`, or a `Wait` for a change: it receives None;
* an `Invoke`: it receives the result of the program's function.

The engine keeps the deadline of a flow. If no time is left for a `Sleep`, the engine raises the cause of the sleep.
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
"""The channel of requests to a group's coordinator: a separate connection, because they may wait for long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One request to one broker."""

    request: Message
    node: int = ANY_NODE
    channel: str = ""
    """The channel. Calls on different channels use different connections, so that they do not wait for each other."""
    timeout_ms: int | None = None
    """Milliseconds that the broker may take; None is `request.timeout.ms`."""
    answered: bool = True
    """Whether there is a response. False for Produce with acks=0, whose outcome is None as soon as it is sent."""
    max_version: int | None = None
    """The newest version that may be used, if newer ones have another meaning; None is the newest of the client."""


@dataclass(frozen=True, slots=True)
class Sleep:
    """The backoff before a retry."""

    duration_ms: int
    cause: HeadraceError
    """The error that is retried; it is raised if the deadline is before the end of the sleep."""


@dataclass(frozen=True, slots=True)
class Wait:
    """A wait until the engine is notified of a change, but at most until `until_ms`."""

    until_ms: int | None = None
    """The end of the wait on the engine's clock; None is the deadline of the flow."""


@dataclass(frozen=True, slots=True)
class Invoke:
    """A call of a function of the program. The thread or task of the program's call makes it, without a lock."""

    function: Callable[..., Any]
    arguments: tuple[Any, ...] = ()


Effect = Call | tuple[Call, ...] | Sleep | Wait | Invoke
Flow = Generator[Effect, Any, T]


@dataclass(slots=True)
class Backoff:
    """Backoffs that double from `first_ms` up to `max_ms` (KIP-580). The engine adds jitter."""

    first_ms: int
    max_ms: int
    attempts: int = 0

    def after(self, cause: HeadraceError) -> Sleep:
        """Return the sleep after a failed attempt."""
        duration_ms = min(self.first_ms << min(self.attempts, 16), self.max_ms)
        self.attempts += 1
        return Sleep(duration_ms, cause)


class GivenObjects(Protocol):
    """The classes and objects that programs have passed for topics of a broker in their own process."""

    def find(self, topic: str, config: str, named: Named) -> Named:
        """Return a name from a topic's configuration, with the object that a program passed for it, if there is one."""

    def keep(self, topic: str, strategies: Mapping[str, Named]) -> None:
        """Store the objects with which a topic was created, by the name of the setting."""

    def keep_storage(self, storage: Any) -> str:
        """Register a storage with this broker; return its name."""


@dataclass(slots=True)
class ClientState:
    """The state that the flows of one client share."""

    metadata: ClusterMetadata = field(default_factory=ClusterMetadata)
    coordinators: dict[str, int] = field(default_factory=dict)
    """The node ids of known group coordinators, by group id."""
    transaction_coordinators: dict[str, int] = field(default_factory=dict)
    """The node ids of known transaction coordinators, by transactional id."""
    stale_topics: set[str] = field(default_factory=set)
    """The topics whose metadata must be requested again before it is used."""
    topic_settings: dict[str, TopicSettings] = field(default_factory=dict)
    """The settings for Headrace's clients in topics' configurations, by topic, as far as they were requested."""
    objects: GivenObjects | None = None
    """The objects that programs gave to `create_topic`, if the broker is in this process; otherwise None."""
    retry_backoff_ms: int = 100
    retry_backoff_max_ms: int = 1000

    def backoff(self) -> Backoff:
        """Return the backoffs for the retries of one operation."""
        return Backoff(self.retry_backoff_ms, self.retry_backoff_max_ms)


def ask(call: Call, response_type: type[R]) -> Flow[R]:
    """Make one call and return its response.

    Raises:
        ProtocolError: The response has another type than expected.
    """
    response = yield call
    if not isinstance(response, response_type):
        raise ProtocolError(f"expected a {response_type.__name__}, got {type(response).__name__}")
    return response
