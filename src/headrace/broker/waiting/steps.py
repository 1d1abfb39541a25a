"""Requests that take longer than one iteration of the event loop: the broker handles them in steps.

The work is a generator. After each piece of work it yields the cost of the piece; the unit of cost is one decompressed
byte. It returns the response. The broker does the first step at once, and most requests need no other. The first step
of a large request waits for the next iteration. `tick` does the later steps, one step of each request in turn. A
generator may also yield a deferred; it continues with the value when the deferred is resolved.

The broker handles other requests between two steps. After a `yield` a generator therefore looks up again what another
request may have changed. `Session.busy` keeps the requests of one connection in order: the next one waits until the
work is done.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator
from functools import partial
from typing import Any, Final, NamedTuple, Protocol, TypeAlias, TypeVar

from headrace.broker.session import LOCAL, Session
from headrace.broker.waiting.purgatory import Purgatory
from headrace.core.coordinator.runtime import Reply
from headrace.deferred import Deferred
from headrace.ports import Journal

STEP_COST: Final = 4 << 20
"""The cost after which a step ends: some 15 milliseconds, and the last piece of work."""
ENTRY_COST: Final = STEP_COST // 1_000
"""The cost of a lookup by name, and of a description in a response: some ten microseconds."""
ENCODING_COST: Final = ENTRY_COST // 3
"""The cost of encoding an element of a list."""
OFFSET_COST: Final = ENTRY_COST // 4
"""The cost of deleting a committed offset."""
GROUP_COST: Final = 3 * ENTRY_COST
"""The cost of a request to the coordinator of one group, or of one transactional id."""
LARGE_REQUEST_BYTES: Final = 32 << 10
"""The size of a request above which its first step waits for the next iteration: decoding has used some of this one."""
_COST_OF_US: Final = STEP_COST // 15_000
"""The cost of one microsecond of work."""
CREATION_COST: Final = STEP_COST // 4
"""The cost of a commit to the metadata store, and of the files of a new topic."""
PARTITION_OPENING_COST: Final = 5 * ENTRY_COST
"""The cost of opening the log of a new partition, which has no files yet."""
PARTITION_FILES_COST: Final = 20 * ENTRY_COST
"""The cost of creating or deleting the files of one partition."""
FIRST_BATCH_COST: Final = 4 * PARTITION_FILES_COST
"""The cost of the first batch of a partition, which creates the directory and the files."""
CHECK_COST: Final = 5 * ENTRY_COST
"""The cost of checking a change of a topic, of settings or of permissions."""
_CROWDED: Final = 16
"""The divisor of the first step of a request while other requests wait for a step: hundreds of requests may come."""
T = TypeVar("T")

Work: TypeAlias = Generator[int | Deferred[Any], Any, T]


class _Waiting:
    """A request that is handled in steps.

    Args:
        work: The work.
        session: The connection of the request.
        finishes: Whether the work is completed also when its response was cancelled.
    """

    __slots__ = ("abandoned", "answer", "awaited", "session", "value", "work")

    def __init__(self, work: Work[Any], session: Session, *, finishes: bool) -> None:
        self.work = work
        self.session = session
        self.answer: Deferred[Any] = Deferred(None if finishes else self._abandon)
        self.awaited: Deferred[Any] | None = None
        """The deferred that has to be resolved before the next step; None if there is none."""
        self.value: Any = None
        """The value of the deferred that the work has waited for, until its next step; None at other times."""
        self.abandoned = False
        session.busy = True

    def _abandon(self) -> None:
        """Release everything: the response was cancelled."""
        self.abandoned = True
        self.work.close()
        if self.awaited is not None:
            self.awaited.cancel()
        self.release()

    def release(self) -> None:
        """Let the connection continue with its next request."""
        self.session.in_its_thread(self.session.idle)


class Quotas(Protocol):
    """The quotas of clients, as far as `Steps` needs them."""

    @property
    def active(self) -> bool:
        """Whether there are any quotas."""


class Steps:
    """The requests that are handled in steps."""

    __slots__ = ("_purgatory", "_quotas", "_resume_left", "_waiting", "has_resumed")

    def __init__(self, purgatory: Purgatory, quotas: Quotas | None = None) -> None:
        """Begin without requests.

        Args:
            purgatory: Delivers the responses.
            quotas: The quotas of clients. While there are any, the next request of a connection pays for the steps of
                the earlier ones. None if no client pays.
        """
        self._purgatory = purgatory
        self._quotas = quotas
        self._waiting: deque[_Waiting] = deque()
        self._resume_left = STEP_COST
        self.has_resumed = False
        """Whether work was resumed since `begin_round`."""

    def __len__(self) -> int:
        return len(self._waiting)

    def run(
        self,
        work: Work[T],
        session: Session = LOCAL,
        *,
        finishes: bool = False,
        postponed: bool = False,
    ) -> T | Deferred[T]:
        """Do the first step of some work. Return its outcome, or a deferred one if there is more to do.

        If a later step raises an exception, the deferred is resolved with the exception. If the deferred is cancelled,
        the work ends before its next step.

        Args:
            work: The work.
            session: The connection of the request.
            finishes: Whether the work is completed also when the deferred is cancelled.
            postponed: Whether the first step, too, is left to `tick`.
        """
        if postponed:
            first = _Waiting(work, session, finishes=finishes)
            self._waiting.append(first)
            return first.answer
        step = _step(work, STEP_COST // (_CROWDED if self._waiting else 1))
        if step.outcome is not None:
            outcome: T | Deferred[T] = step.outcome[0]
            return outcome
        waiting = _Waiting(work, session, finishes=finishes)
        self._postpone(waiting, step.awaited)
        return waiting.answer

    @property
    def next_deadline_ms(self) -> int | None:
        """The time at which `tick` has something to do: 0, which means at once, or None."""
        return 0 if self._waiting else None

    def begin_round(self) -> None:
        """Reset the budget for work that continues because its deferred was resolved."""
        self.has_resumed = False
        self._resume_left = STEP_COST

    def tick(self) -> None:
        """Continue the waiting work, the oldest first, until the cost of one step is reached."""
        left = STEP_COST
        for _ in range(len(self._waiting)):
            waiting = self._waiting.popleft()
            if not waiting.abandoned:
                left -= self._go_on(waiting, left)
            if left <= 0:
                return

    def _postpone(self, waiting: _Waiting, awaited: Deferred[Any] | None) -> None:
        waiting.awaited = awaited
        if awaited is None:
            self._waiting.append(waiting)
        else:
            awaited.on_done(partial(self._resume, waiting))

    def _resume(self, waiting: _Waiting, value: Any) -> None:
        """Continue work whose deferred was resolved; if the budget of this round is used up, in `tick`.

        One sync may resolve the deferreds of hundreds of requests.
        """
        waiting.value = value
        self.has_resumed = True
        if self._resume_left > 0:
            self._resume_left -= self._go_on(waiting, self._resume_left)
        else:
            self._waiting.append(waiting)

    def _go_on(self, waiting: _Waiting, budget: int) -> int:
        """Do a step of some work; return its cost."""
        value, waiting.value = waiting.value, None
        try:
            step = _step(waiting.work, budget, value)
        except Exception as error:  # noqa: BLE001 - the shell reports it, as it does for other requests
            self._finish(waiting, error)
            return budget // 2
        self.charge(waiting.session, step.done)
        if step.outcome is not None:
            self._finish(waiting, step.outcome[0])
            return max(step.done, budget // 2)
        self._postpone(waiting, step.awaited)
        return step.done

    def charge(self, session: Session, done: int) -> None:
        """Charge the cost of a step, or of work in a thread, to a session. The shell measures only the first step."""
        if self._quotas is not None and self._quotas.active:
            session.unpaid_us += done // _COST_OF_US

    def _finish(self, waiting: _Waiting, outcome: Any) -> None:
        waiting.release()
        if isinstance(outcome, Deferred):
            waiting.answer.follow(outcome)
        else:
            self._purgatory.deliver_later(lambda: waiting.answer.resolve(outcome))


def logged(work: Work[None], what: str, journal: Journal) -> Work[None]:
    """Do work for which no request waits. An exception is logged.

    Args:
        work: The work.
        what: What the work does, for the log.
        journal: Receives the log event.
    """
    try:
        yield from work
    except Exception as error:  # noqa: BLE001 - a fault of one work must not end the broker
        journal.error("work_failed", work=what, error=repr(error))


def finished(work: Work[T]) -> T:
    """Do all steps of some work at once. The work must not wait: it may yield deferreds that are resolved already."""
    value: Any = None
    while True:
        try:
            piece = work.send(value)
        except StopIteration as end:
            outcome: T = end.value
            return outcome
        value = None if isinstance(piece, int) else piece.value


def value_of(reply: Reply[T]) -> Work[T]:
    """Return the value of a reply, and wait for it if it is deferred; for use with `yield from`.

    Raises:
        Exception: The reply is the outcome of work in steps, which raised this exception.
    """
    if isinstance(reply, Deferred):
        value: T = reply.value if reply.done else (yield reply)
        if isinstance(value, Exception):
            raise value
        return value
    return reply


class _Step(NamedTuple):
    """The result of a step."""

    done: int
    """The cost of the step."""
    awaited: Deferred[Any] | None = None
    """The deferred that has to be resolved before the next step; None if there is none."""
    outcome: tuple[Any] | None = None
    """The value that the work has returned, in a tuple; None while there is more to do."""


def _step(work: Work[Any], budget: int, value: Any = None) -> _Step:
    """Do work until the budget is used up, until the work yields a deferred that is not resolved, or to its end.

    Args:
        work: The work.
        budget: The greatest cost, but for the last piece of work.
        value: The value of the deferred that the work has waited for; None at other times.
    """
    done = 0
    try:
        while done < budget:
            piece = work.send(value)
            value = None
            if isinstance(piece, int):
                done += piece
            elif piece.done:
                value = piece.value
            else:
                return _Step(done, awaited=piece)
    except StopIteration as end:
        return _Step(done, outcome=(end.value,))
    return _Step(done)
