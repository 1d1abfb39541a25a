"""The interface between a broker in this process and the drivers of its clients."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from headrace.clients.drivers.interrupts import GuardedCondition
from headrace.clients.engine import Engine, Outcome
from headrace.clients.flows.effects import Call, GivenObjects
from headrace.errors import ConfigError

if TYPE_CHECKING:
    from headrace.clients.partitioners import Partitioner
    from headrace.registers import Named

OnDone = Callable[[Outcome], object]


class LocalClient(Protocol):
    """A client of a broker in this process: the part that the broker uses."""

    engine: Engine
    client_id: str
    inbox: deque[tuple[OnDone, Outcome]]
    """Outcomes that arrived while the broker was running; `LocalTarget.pump` passes them to their callbacks."""

    @property
    def runs_here(self) -> bool:
        """Whether the current thread may run the client's engine."""

    def wake(self) -> None:
        """Wake the calls of the client: its engine has run, or its inbox is not empty."""

    def target_closed(self) -> None:
        """Fail the pending calls, because the broker was closed."""

    def call_back(self) -> None:
        """Run the due callbacks of the program. The caller does not hold the lock."""


class LocalBroker(Protocol):
    """A broker in this process that a program passes to a client in place of an address: `headrace.Broker`."""

    @property
    def _port(self) -> LocalTarget:
        """The interface for the clients of the broker."""

    def now_ms(self) -> int:
        """Return the time of the broker, in milliseconds since 1970."""


class LocalTarget(Protocol):
    """A broker in this process, with its clock and its lock."""

    condition: GuardedCondition
    """A condition with a re-entrant lock. Every use of another member or of an engine needs the lock."""
    stirred: bool
    """Whether `pump` has work to do."""
    sleeps_until_ms: int
    """The time at which the background thread wakes next. 0 if there is no such thread, or if it is awake."""

    @property
    def objects(self) -> GivenObjects:
        """The classes and objects that programs have passed for topics, such as serdes."""

    @property
    def virtual(self) -> bool:
        """Whether the clock stands still except in `wait`, which advances it."""

    @property
    def by_hand(self) -> bool:
        """Whether the program moves the clock. Then no thread of Headrace may do anything."""

    def now_ms(self) -> int:
        """Return the broker's time, in milliseconds since 1970."""

    def attach(self, client: LocalClient) -> None:
        """Register a client.

        Raises:
            ClosedError: The broker is closed.
        """

    def detach(self, client: LocalClient) -> None:
        """Remove a registered client."""

    def start_background(self) -> None:
        """Do what is due also while no client is inside a call, unless the program moves the clock."""

    def submit(
        self, client: LocalClient, call: Call, on_done: OnDone
    ) -> Callable[[], object] | None:
        """Pass a request to the broker; call `on_done` with the outcome, at once or from `pump`.

        Returns:
            A function that cancels the request in the broker; None if there is nothing to cancel.
        """

    def share_partitioner(self, topic: str, named: Named, new: Partitioner) -> Partitioner:
        """Return the partitioner of a topic.

        All producers of the process share a partitioner that has a state. Otherwise this returns `new`.
        """

    def pump(self) -> int | None:
        """Do everything that is due.

        Returns:
            The latest time for the next call; None if nothing depends on the time.
        """

    def wait(self, until_ms: int | None) -> None:
        """Wait until a time, or until another thread has changed something. None is no limit."""


def port_of(target: object) -> LocalTarget:
    """Return the interface of a broker in this process for its clients.

    Raises:
        ConfigError: The target is not a broker.
    """
    port: LocalTarget | None = getattr(target, "_port", None)
    if port is None:
        raise ConfigError(
            f"a client's target is an address, 'HOST:PORT', or a headrace.Broker, not {target!r}"
        )
    return port
