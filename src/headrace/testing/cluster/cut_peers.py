"""The connections of a broker to the other brokers of its cluster, which a test can cut."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from headrace.deferred import Deferred
from headrace.errors import ApiError, ErrorCode
from headrace.ports import Peers
from headrace.protocol.codec import Message


class CutPeers:
    """Implements `headrace.ports.Peers`: a request to a broker behind a cut times out, and so does its response."""

    def __init__(
        self,
        peers: Peers,
        loop: asyncio.AbstractEventLoop,
        now_ms: Callable[[], int],
        is_cut: Callable[[int], bool],
        deliver: Callable[[Callable[[], object]], object],
    ) -> None:
        """Use the connections of the broker.

        Args:
            peers: The connections.
            loop: The event loop of the broker.
            now_ms: Returns the time of the broker's clock.
            is_cut: Returns whether the link to a broker is cut.
            deliver: Calls a function that resolves a response, and ticks the broker.
        """
        self._peers = peers
        self._loop = loop
        self._now_ms = now_ms
        self._is_cut = is_cut
        self._deliver = deliver
        self._lost: dict[Deferred[Any], None] = {}
        """The requests without a response."""

    def send(self, broker_id: int, request: Message, deadline_ms: int) -> Deferred[Any]:
        """Send a request; see `headrace.ports.Peers`."""
        answer: Deferred[Any] = Deferred()
        if self._is_cut(broker_id):
            self._lose(answer, deadline_ms)
            return answer

        def answered(value: Any) -> None:
            if self._is_cut(broker_id):
                self._lose(answer, deadline_ms)
            else:
                answer.resolve(value)

        self._peers.send(broker_id, request, deadline_ms).on_done(answered)
        return answer

    def _lose(self, answer: Deferred[Any], deadline_ms: int) -> None:
        """Give the sender an error at the deadline of its request, or at the end of the cut."""
        self._lost[answer] = None
        wait_s = max(0, deadline_ms - self._now_ms()) / 1000
        self._loop.call_later(wait_s, self._fail, [answer])

    def heal(self) -> None:
        """Fail the requests that were lost: the connections that carried them are not used again."""
        self._fail(list(self._lost))

    def _fail(self, answers: Sequence[Deferred[Any]]) -> None:
        failed = [answer for answer in answers if self._lost.pop(answer, False) is None]
        if failed:
            self._deliver(partial(_resolve, failed))


def _resolve(answers: Sequence[Deferred[Any]]) -> None:
    for answer in answers:
        answer.resolve(ApiError(ErrorCode.REQUEST_TIMED_OUT, "the link to the broker was cut"))
