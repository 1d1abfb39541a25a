"""What keeps the requests of a client in this process in order while the broker works on one of them in steps."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable

from headrace.broker.session import Session
from headrace.clients.engine import Outcome
from headrace.clients.flows.effects import Call

OnDone = Callable[[Outcome], object]


class WaitingCall:
    """A request that waits until the one before it has been handled.

    Attributes:
        call: The request.
        on_done: Told the outcome.
        given_up: Whether nobody wants the answer any more.
        cancel: What gives the answer up; None until the broker has the request.
    """

    __slots__ = ("call", "cancel", "given_up", "on_done")

    def __init__(self, call: Call, on_done: OnDone) -> None:
        self.call = call
        self.on_done = on_done
        self.given_up = False
        self.cancel: Callable[[], object] | None = None

    def give_up(self) -> None:
        """Do without the answer: nobody wants it any more."""
        self.given_up = True
        if self.cancel is not None:
            self.cancel()


class Line:
    """The requests of one client on one channel, which are handled in their order, as those of one connection are.

    Attributes:
        session: Says whether a request is being handled that takes several steps.
        held: The requests behind it.
    """

    __slots__ = ("held", "session")

    def __init__(self) -> None:
        self.session = Session(is_local=True)
        self.held: deque[WaitingCall] = deque()


Lines = defaultdict[str, Line]
"""Of one client, by channel."""
