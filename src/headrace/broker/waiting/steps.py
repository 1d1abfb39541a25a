"""Requests whose answer takes longer than one turn of the event loop, worked on in steps.

The work is a generator. It yields after each piece how much the piece cost, as bytes that are decompressed, and returns
the answer. Its first step is done at once, and most requests need no other. The rest is done by `tick`, a step for
each, in turn. A generator may also yield a deferred, and goes on with its value when that is resolved.

The broker is called in between: a generator looks up again, after a `yield`, what another request may change. The
order of the requests of one connection is kept by `Session.busy`: the next one waits until the work is done.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator
from functools import partial
from typing import Any, Final, NamedTuple, Protocol, TypeAlias, TypeVar

from headrace.broker.session import LOCAL, Session
from headrace.broker.waiting.purgatory import Purgatory
from headrace.core.coordinator.runtime import Reply
from headrace.core.deferred import Deferred

STEP_COST: Final = 4 << 20
"""After how much work a step ends: some 15 milliseconds, and the last piece of work."""
ENTRY_COST: Final = STEP_COST // 1_000
"""What it costs to look something up by its name, and to describe it: some ten microseconds."""
ENCODING_COST: Final = ENTRY_COST // 3
"""What it costs to encode an element of a list."""
OFFSET_COST: Final = ENTRY_COST // 4
"""What it costs to forget a committed offset."""
GROUP_COST: Final = 3 * ENTRY_COST
"""What a question to the coordinator of one group, or of one transactional id, costs."""
_COST_OF_US: Final = STEP_COST // 15_000
"""How much work is done in a microsecond."""
CREATION_COST: Final = STEP_COST // 4
"""What a commit to the metadata store and the files of a new topic cost."""
PARTITION_OPENING_COST: Final = 5 * ENTRY_COST
"""What it costs to open the log of a new partition, which has no files yet."""
PARTITION_FILES_COST: Final = 20 * ENTRY_COST
"""What it costs to create, or to delete, the files of one partition."""
FIRST_BATCH_COST: Final = 2 * PARTITION_FILES_COST
"""What the first batch of a partition costs, for which the partition's directory and files are created."""
CHECK_COST: Final = 5 * ENTRY_COST
"""What it costs to check a change of a topic, of settings or of rights."""
_CROWDED: Final = 16
"""By which the first step of a request is smaller while others wait for theirs: requests may come by the hundred."""
T = TypeVar("T")

Work: TypeAlias = Generator[int | Deferred[Any], Any, T]


class _Waiting:
    """A request that is worked on.

    Args:
        work: The work.
        session: The connection that it is for.
        finishes: Whether the work is done to its end also when nobody wants its outcome any more.
    """

    __slots__ = ("abandoned", "answer", "awaited", "session", "value", "work")

    def __init__(self, work: Work[Any], session: Session, *, finishes: bool) -> None:
        self.work = work
        self.session = session
        self.answer: Deferred[Any] = Deferred(None if finishes else self._abandon)
        self.awaited: Deferred[Any] | None = None
        """What has to be there before the next step."""
        self.value: Any = None
        """What the work has waited for, for its next step; None at other times."""
        self.abandoned = False
        session.busy = True

    def _abandon(self) -> None:
        """Hold nothing more: nobody wants the outcome."""
        self.abandoned = True
        self.work.close()
        if self.awaited is not None:
            self.awaited.cancel()
        self.release()

    def release(self) -> None:
        """Let the connection go on with its next request."""
        self.session.in_its_thread(self.session.idle)


class Quotas(Protocol):
    """The quotas of clients, as far as `Steps` needs them."""

    @property
    def active(self) -> bool:
        """Whether there are any quotas."""


class Steps:
    """The requests that are worked on."""

    __slots__ = ("_purgatory", "_quotas", "_resume_left", "_waiting", "has_resumed")

    def __init__(self, purgatory: Purgatory, quotas: Quotas | None = None) -> None:
        """Begin without any.

        Args:
            purgatory: Delivers the answers.
            quotas: While there are some, the connection's next request pays for what the steps have cost; None if
                nobody pays.
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
        self, work: Work[T], session: Session = LOCAL, *, finishes: bool = False
    ) -> T | Deferred[T]:
        """Do the first step of some work; return its outcome, deferred if there is more to do.

        The deferred is resolved with an exception if a later step raises it. When the deferred is cancelled, the work
        ends before its next step.

        Args:
            work: The work.
            session: The connection that it is for.
            finishes: Whether the work is done to its end also when the deferred is cancelled.
        """
        step = _step(work, STEP_COST // (_CROWDED if self._waiting else 1))
        if step.outcome is not None:
            outcome: T | Deferred[T] = step.outcome[0]
            return outcome
        waiting = _Waiting(work, session, finishes=finishes)
        self._postpone(waiting, step.awaited)
        return waiting.answer

    @property
    def next_deadline_ms(self) -> int | None:
        """When `tick` has something to do next: at once, or None."""
        return 0 if self._waiting else None

    def begin_round(self) -> None:
        """Allow as much work as one round of the broker may do when values come that were waited for."""
        self.has_resumed = False
        self._resume_left = STEP_COST

    def tick(self) -> None:
        """Work on those that wait, the first ones first, until that was a step."""
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
        """Go on with what some work has waited for; by `tick` if this round has done enough.

        One sync may bring the values of hundreds.
        """
        waiting.value = value
        self.has_resumed = True
        if self._resume_left > 0:
            self._resume_left -= self._go_on(waiting, self._resume_left)
        else:
            self._waiting.append(waiting)

    def _go_on(self, waiting: _Waiting, budget: int) -> int:
        """Do a step of some work; return how much work it was."""
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
        """Note what a step, or work in a thread, took: the shell measures the first step only."""
        if self._quotas is not None and self._quotas.active:
            session.unpaid_us += done // _COST_OF_US

    def _finish(self, waiting: _Waiting, outcome: Any) -> None:
        waiting.release()
        if isinstance(outcome, Deferred):
            waiting.answer.follow(outcome)
        else:
            self._purgatory.deliver_later(lambda: waiting.answer.resolve(outcome))


def finished(work: Work[T]) -> T:
    """Do all of some work at once, which waits for nothing; for programs that serve nobody meanwhile."""
    while True:
        try:
            next(work)
        except StopIteration as end:
            outcome: T = end.value
            return outcome


def value_of(reply: Reply[T]) -> Work[T]:
    """Return a value that may have to be waited for; for use with `yield from`.

    Raises:
        Exception: What work in steps has raised, of which the reply is.
    """
    if isinstance(reply, Deferred):
        value: T = yield reply
        if isinstance(value, Exception):
            raise value
        return value
    return reply


class _Step(NamedTuple):
    """What a step has come to."""

    done: int
    """How much work it was."""
    awaited: Deferred[Any] | None = None
    """What has to be waited for before the next step."""
    outcome: tuple[Any] | None = None
    """What the work has returned; None while there is more to do."""


def _step(work: Work[Any], budget: int, value: Any = None) -> _Step:
    """Work until a budget is used up, until there is something to wait for, or to the end.

    Args:
        work: The work.
        budget: How much to do at most, and the last piece.
        value: What the work has waited for; None at other times.
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
