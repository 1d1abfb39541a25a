"""Sessions on shared metadata over a simulated network, for simulations and clusters in one process.

Messages between a session and the metadata take time, and can be lost:

1. A commit travels to the metadata. It is applied when it arrives, in one atomic step.
2. The outcome travels back. If the connection breaks before it arrives, the outcome is Unknown.
3. The change travels to every session with a watch, on its own way.

Commits of one session arrive in the order in which they were sent, and so do outcomes and notifications.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from functools import partial
from typing import Literal, TypeVar

from headrace.deferred import Deferred, resolved
from headrace.metadata_stores.limits import check_commit
from headrace.metadata_stores.memory import MemoryMetadata
from headrace.metadata_stores.watches import Callback, Watches
from headrace.ports import (
    Check,
    CommitOutcome,
    Delete,
    MetadataSession,
    Put,
    SessionLost,
    Unavailable,
    Unknown,
)

T = TypeVar("T")

Fault = Literal[
    "none", "unavailable", "unknown and void", "unknown and applied", "unknown and late", "doubled"
]
"""The fate of a commit.

`unavailable`: it is not sent. `unknown and void`: the commit is lost on the way. `unknown and applied`: the outcome is
lost on the way. `unknown and late`: the commit arrives when the session's `land` is called. `doubled`: the commit
arrives twice."""


class Timeline:
    """The messages on the way, and other events of the future. The owner of the clock calls `run`."""

    __slots__ = ("_clock", "_events", "_number")

    def __init__(self, clock: Callable[[], int] = lambda: 0) -> None:
        """Begin without events.

        Args:
            clock: Returns the time in milliseconds.
        """
        self._clock = clock
        self._events: list[tuple[int, int, Callable[[], object]]] = []
        self._number = 0

    @property
    def now_ms(self) -> int:
        """The time in milliseconds."""
        return self._clock()

    @property
    def next_deadline_ms(self) -> int | None:
        """The time at which `run` has something to do; None if there are no events."""
        return self._events[0][0] if self._events else None

    def at(self, when_ms: int, event: Callable[[], object]) -> None:
        """Call `event` at a time. Events with the same time run in the order of these calls."""
        self._number += 1
        heapq.heappush(self._events, (when_ms, self._number, event))

    def run(self) -> None:
        """Run all events up to now."""
        while self._events and self._events[0][0] <= self.now_ms:
            self.run_next()

    def run_next(self) -> None:
        """Run the next event, even if it is not due."""
        heapq.heappop(self._events)[2]()


class _Way:
    """One direction of a connection: messages arrive in the order in which they were sent."""

    __slots__ = ("_arrives_ms", "_delay_ms", "_pending", "_timeline")

    def __init__(self, timeline: Timeline, delay_ms: Callable[[], int]) -> None:
        self._timeline = timeline
        self._delay_ms = delay_ms
        self._arrives_ms = 0
        """The time at which the last message arrives."""
        self._pending = 0

    def send(self, arrive: Callable[[], object]) -> None:
        """Call `arrive` after the delay: at once if there is none, and no earlier message is on the way."""
        now_ms = self._timeline.now_ms
        self._arrives_ms = max(now_ms + self._delay_ms(), self._arrives_ms)
        if self._arrives_ms <= now_ms and not self._pending:
            arrive()
            return
        self._pending += 1

        def arrived() -> None:
            self._pending -= 1
            arrive()

        self._timeline.at(self._arrives_ms, arrived)


def _call(function: Callable[[], object]) -> None:
    function()


def at_once() -> int:
    """Return 0, the delay of messages that take no time."""
    return 0


class SimulatedMetadataStore:
    """A session on shared metadata, with the semantics of `headrace.ports.MetadataStore` over a network."""

    def __init__(
        self,
        content: MemoryMetadata | None = None,
        timeline: Timeline | None = None,
        *,
        delay_ms: Callable[[], int] = at_once,
        timeout_ms: int | None = None,
        post: Callable[[Callable[[], object]], object] = _call,
    ) -> None:
        """Begin a session.

        Args:
            content: The metadata, which sessions share. None for a content of its own.
            timeline: The events of all sessions. None for a timeline of its own, without a clock.
            delay_ms: Returns the time in milliseconds that the next message takes.
            timeout_ms: The time in milliseconds after which the session of a broken connection expires. None if it
                never expires by itself.
            post: Calls a function in the thread of this session, if sessions of other threads share the metadata.
        """
        self._content = content if content is not None else MemoryMetadata()
        self.timeline = timeline if timeline is not None else Timeline()
        """The events of all sessions."""
        self._timeout_ms = timeout_ms
        self._requests, self._responses, self._notifications = (
            _Way(self.timeline, delay_ms) for _ in range(3)
        )
        self._watches = Watches(self._content)
        self._is_notified = False
        """Whether a notification is on the way."""
        self._in_flight: dict[Deferred[CommitOutcome], None] = {}
        self._late: list[Callable[[], CommitOutcome]] = []
        self._renewal: Deferred[Unavailable | None] | None = None
        self._outages = 0
        self._is_down = False
        self._begin(self._content.begin_session(), self.timeline.now_ms)
        self._content.listeners[self] = partial(post, self._notify)
        self.faults: list[Fault] = []
        """The fates of the next commits."""

    def _begin(self, number: int, sent_ms: int) -> None:
        self._number = number
        self._acknowledged_ms = sent_ms

    # The network

    @property
    def down(self) -> bool:
        """Whether the connection is broken: no message of this session arrives, in either direction."""
        return self._is_down

    @down.setter
    def down(self, down: bool) -> None:
        if down == self._is_down:
            return
        self._is_down = down
        if not down:
            self._notify()
            return
        self._outages += 1
        if self._timeout_ms is not None:
            expire = self._expiry(self._outages)
            self.timeline.at(self.timeline.now_ms + self._timeout_ms, expire)
        if self._renewal is not None:
            renewal, self._renewal = self._renewal, None
            renewal.resolve(Unavailable("the connection broke"))
        unanswered, self._in_flight = self._in_flight, {}
        for outcome in unanswered:
            outcome.resolve(Unknown("the connection broke"))

    def _expiry(self, outage: int) -> Callable[[], object]:
        def expire() -> None:
            if self._is_down and self._outages == outage:
                self.lose_session()

        return expire

    def lose_session(self) -> None:
        """End the session, as a server does that has received no message of its client for too long."""
        self._content.end_session(self._number)

    def land(self) -> int:
        """Let late commits arrive, and return how many were applied."""
        late, self._late = self._late, []
        return sum(isinstance(apply(), dict) for apply in late)

    # The session

    @property
    def session(self) -> MetadataSession:
        """The current session, whose end the client may not know yet."""
        if self._timeout_ms is None:
            return MetadataSession(self._number, self._acknowledged_ms)
        return MetadataSession(self._number, self._acknowledged_ms, self._timeout_ms)

    def renew(self) -> Deferred[Unavailable | None]:
        """Begin another session after SessionLost. Does nothing if the session is alive."""
        if self._is_down:
            return resolved(Unavailable("the store is down"))
        if self._content.has_session(self._number):
            return resolved(None)
        if self._renewal is not None:
            return self._renewal
        renewal = self._renewal = Deferred[Unavailable | None]()
        sent_ms = self.timeline.now_ms

        def renewed(number: int) -> None:
            if renewal.done:  # the connection broke, and the new session remains without entries
                return
            self._renewal = None
            self._begin(number, sent_ms)
            self._notify()
            renewal.resolve(None)

        def arrive() -> None:
            number = self._content.begin_session()
            self._responses.send(lambda: renewed(number))

        self._requests.send(arrive)
        return renewal

    def wait(self, deferred: Deferred[T]) -> T:
        """Run the events of all sessions, also future events, until the deferred is resolved.

        Raises:
            Unavailable: There are no events left.
        """
        while not deferred.done:
            if self.timeline.next_deadline_ms is None:
                raise Unavailable("the store is down")
            self.timeline.run_next()
        return deferred.value

    def close(self) -> None:
        """End the session and all watches, and delete the ephemeral entries. The other entries stay.

        Without a connection the metadata do not learn of the end: the session expires like any other.
        """
        self._watches.clear()
        self._content.listeners.pop(self, None)
        if not self._is_down:
            self._content.end_session(self._number)

    # Commits

    def commit(
        self, checks: Sequence[Check], operations: Sequence[Put | Delete]
    ) -> Deferred[CommitOutcome]:
        """Send a commit, and apply it when it arrives, unless `faults` has another fate for it."""
        check_commit(checks, operations)
        error = self._failure()
        fault = self.faults.pop(0) if error is None and self.faults else "none"
        if error is not None or fault == "unavailable":
            return resolved(error or Unavailable(fault))
        outcome: Deferred[CommitOutcome] = Deferred()
        self._in_flight[outcome] = None
        number, sent_ms = self._number, self.timeline.now_ms
        sent = list(checks), list(operations)

        def apply() -> CommitOutcome:
            return self._content.commit(*sent, number)

        def arrive() -> None:
            applied = apply()
            if fault == "doubled":
                apply()
            self._answer(
                outcome, Unknown(fault) if fault == "unknown and applied" else applied, sent_ms
            )

        if fault == "unknown and late":
            self._late.append(apply)
        if fault in {"unknown and late", "unknown and void"}:
            self._answer(outcome, Unknown(fault), sent_ms)
        else:
            self._requests.send(arrive)
        return outcome

    def _answer(self, outcome: Deferred[CommitOutcome], value: CommitOutcome, sent_ms: int) -> None:
        def arrive() -> None:
            if outcome not in self._in_flight:  # the connection broke, and the outcome is Unknown
                return
            del self._in_flight[outcome]
            if isinstance(value, dict):
                self._acknowledged_ms = max(self._acknowledged_ms, sent_ms)
            outcome.resolve(value)

        self._responses.send(arrive)

    def _failure(self) -> Unavailable | SessionLost | None:
        if self._is_down:
            return Unavailable("the store is down")
        if not self._content.has_session(self._number):
            return SessionLost("the session is lost")
        return None

    # Watches

    def watch(self, callback: Callback) -> Callable[[], object]:
        """Call `callback` with a snapshot of all entries, and then with every change."""
        end = self._watches.add(callback)
        self._notify()
        return end

    def _notify(self) -> None:
        """Send a notification, unless one is on the way that will report this change as well."""
        if self._is_notified:
            return
        self._is_notified = True
        self._notifications.send(self._notified)

    def _notified(self) -> None:
        self._is_notified = False
        if self._failure() is None:
            self._watches.deliver()
