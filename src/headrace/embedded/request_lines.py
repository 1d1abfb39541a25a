"""The order of requests: a client in this process has one line of requests for each channel.

The broker may handle a request in several steps. The requests behind it wait, as they do on a connection.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable

from headrace.broker.session import Session
from headrace.clients.engine import Outcome
from headrace.clients.flows.effects import Call

OnDone = Callable[[Outcome], object]


class WaitingCall:
    """A request that waits until the broker has handled the request before it.

    Attributes:
        call: The request.
        on_done: Called with the outcome.
        given_up: Whether the client has cancelled the request.
        cancel: Cancels the request in the broker; None until the broker has the request.
    """

    __slots__ = ("call", "cancel", "given_up", "on_done")

    def __init__(self, call: Call, on_done: OnDone) -> None:
        self.call = call
        self.on_done = on_done
        self.given_up = False
        self.cancel: Callable[[], object] | None = None

    def give_up(self) -> None:
        """Cancel the request. The client needs no response."""
        self.given_up = True
        if self.cancel is not None:
            self.cancel()


class Line:
    """The requests of one client on one channel. The broker handles them in their order.

    Attributes:
        session: The session of the channel. It is busy while the broker handles a request in several steps.
        held: The requests that wait.
    """

    __slots__ = ("held", "session")

    def __init__(self) -> None:
        self.session = Session(is_local=True)
        self.held: deque[WaitingCall] = deque()


Lines = defaultdict[str, Line]
"""The lines of one client, by channel."""
