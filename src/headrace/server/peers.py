"""The connections of a broker to the other brokers: implements `headrace.ports.Peers` over TCP.

A broker has three connections to each other broker: one for Fetch, which waits for records, one for the markers of
transactions, which wait for replicas, and one for all other requests. The connection core of the clients carries the
requests: a connection begins with ApiVersions and the login, and requests follow each other without waiting for
responses. If no connection can be made, the next attempt waits for a backoff, and so do the requests.

Everything here belongs to the thread of the broker's event loop.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

from headrace.clients.config import ClientConfig
from headrace.clients.drivers.common import renewal_share
from headrace.clients.drivers.transports import Transports
from headrace.clients.engine import Outcome
from headrace.clients.flows.cluster import BrokerAddress
from headrace.clients.flows.effects import Call, ClientState
from headrace.clients.network.links import UnsentError
from headrace.clients.network.outages import REPORT_AGAIN_MS, Address
from headrace.clients.network.pool import Pool
from headrace.deferred import Deferred, resolved
from headrace.errors import ApiError, AuthenticationError, ConfigError, ErrorCode
from headrace.ports import Journal
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.codec import Message
from headrace.server.log import describe

WAITING_LIMIT: Final = 1_000
"""The greatest number of requests to one broker that have no response yet."""
FIRST_BACKOFF_MS: Final = 50
"""The time after a failed connection in which no other one is tried, in milliseconds. It doubles with each failure."""
MAX_BACKOFF_MS: Final = 1_000
CHANNELS: Final = {ApiKey.FETCH: "fetch", ApiKey.WRITE_TXN_MARKERS: "markers"}
"""The connections of requests whose responses may wait, by API key. Other requests have a connection in common."""
_LONGEST_SLEEP_MS: Final = 1_000
"""The longest time between two looks at connections that are in use, in milliseconds."""

AddressOf = Callable[[int], "Address | None"]
"""Returns host and port of a live broker for other brokers; None if there is no such broker."""
Deliver = Callable[[Callable[[], object]], object]
"""Calls a function that resolves responses, and ticks the broker afterwards."""


class _Peer:
    """Another broker: its pending requests, and the pause after a failed connection."""

    __slots__ = ("address", "backoff_ms", "login_error", "pending", "reported_ms", "retry_at_ms")

    def __init__(self) -> None:
        self.address: Address | None = None
        """The last known address; None while the broker is not live."""
        self.pending = 0
        """The number of requests without a response."""
        self.backoff_ms = 0
        """The last backoff in milliseconds; 0 if the last connection succeeded."""
        self.retry_at_ms = 0
        """The time of the next attempt to connect."""
        self.login_error = ""
        """The reason why the last login failed; "" if it succeeded."""
        self.reported_ms = 0
        """The time at which the failure of the login was logged."""


class PeerConnections:
    """Sends requests to the other brokers, on a running event loop."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        config: ClientConfig,
        *,
        versions: Mapping[int, int],
        now_ms: Callable[[], int],
        journal: Journal,
        remedy: str = "",
    ) -> None:
        """Prepare connections. `address_of` and `deliver` have to be set when the broker is open.

        Args:
            loop: The event loop of the broker.
            config: The security of connections, and their limits.
            versions: The newest version of each API that this broker serves.
            now_ms: Returns the time of the broker's clock.
            journal: Receives the log events.
            remedy: What an administrator can do if a login fails.
        """
        self.address_of: AddressOf = lambda _: None
        self.deliver: Deliver = lambda resolve: resolve()
        self._loop = loop
        self._now_ms = now_ms
        self._journal = journal
        self._remedy = remedy
        self._state = ClientState()
        self._transports = Transports(self, loop, config)
        self._peers: dict[int, _Peer] = {}
        self._resolved: list[tuple[Deferred[Any], Any]] = []
        """The responses that are not delivered yet."""
        self._is_submitting = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms = 0
        self._closed = False
        self.pool = Pool(
            self._state,
            config,
            self._transports,
            now_ms=now_ms,
            shuffle=random.shuffle,
            on_error=self._failed,
            renewal_share=renewal_share,
            report=lambda text: journal.warning("peer_unreachable", problem=text),
            max_versions=versions,
        )

    def send(self, broker_id: int, request: Message, deadline_ms: int) -> Deferred[Any]:
        """Send a request; see `headrace.ports.Peers`. The response is never there on return, an error may be."""
        peer = self._peers.setdefault(broker_id, _Peer())
        if peer.pending >= WAITING_LIMIT:
            return resolved(_unsent(f"{WAITING_LIMIT} requests to broker {broker_id} are pending"))
        answer: Deferred[Any] = Deferred()
        peer.pending += 1
        self._look_up(peer, broker_id)
        now_ms = self._now_ms()
        channel = CHANNELS.get(ApiKey(request.API_KEY), "")
        call = Call(request=request, node=broker_id, channel=channel)
        if now_ms < peer.retry_at_ms:
            wait_ms = max(0, min(peer.retry_at_ms, deadline_ms) - now_ms)
            submit = partial(self._submit_late, peer, call, deadline_ms, answer)
            self._loop.call_later(wait_ms / 1000, submit)
        else:
            self._submit(peer, call, deadline_ms, answer)
        return answer

    def _look_up(self, peer: _Peer, broker_id: int) -> None:
        address = self.address_of(broker_id)
        if address == peer.address:
            return
        peer.address = address
        peer.backoff_ms = peer.retry_at_ms = 0
        if address is not None:
            self._state.metadata.brokers[broker_id] = BrokerAddress(broker_id, *address)

    def _submit_late(
        self, peer: _Peer, call: Call, deadline_ms: int, answer: Deferred[Any]
    ) -> None:
        if not self._closed:
            self._look_up(peer, call.node)
            self._submit(peer, call, deadline_ms, answer)

    def _submit(self, peer: _Peer, call: Call, deadline_ms: int, answer: Deferred[Any]) -> None:
        done = partial(self._done, peer, call.node, answer)
        self._is_submitting = True
        if peer.address is None or deadline_ms <= self._now_ms():
            done(UnsentError(f"broker {call.node} is not available"))
        else:
            self.pool.submit(call, deadline_ms, done)
            self._wake_at(deadline_ms)
        self._is_submitting = False

    def _done(
        self, peer: _Peer, broker_id: int | None, answer: Deferred[Any], outcome: Outcome
    ) -> None:
        peer.pending -= 1
        if isinstance(outcome, AuthenticationError):
            self._login_failed(peer, broker_id, str(outcome))
        if isinstance(outcome, UnsentError | AuthenticationError):
            now_ms = self._now_ms()
            # Before that time, another request has failed with the same connection.
            if now_ms >= peer.retry_at_ms:
                peer.backoff_ms = min(max(FIRST_BACKOFF_MS, 2 * peer.backoff_ms), MAX_BACKOFF_MS)
                peer.retry_at_ms = now_ms + peer.backoff_ms
        elif not isinstance(outcome, Exception):
            peer.backoff_ms = 0
            peer.login_error = ""
        # An event of a connection ends with `arm`; a submission does not.
        if self._is_submitting and not self._resolved:
            self._loop.call_soon(self.arm)
        self._resolved.append((answer, _value(outcome)))

    def _login_failed(self, peer: _Peer, broker_id: int | None, error: str) -> None:
        """Log a failed login, but not each attempt, and read the certificates again: they may have been replaced."""
        now_ms = self._now_ms()
        if error != peer.login_error or now_ms >= peer.reported_ms + REPORT_AGAIN_MS:
            peer.login_error, peer.reported_ms = error, now_ms
            self._journal.error(
                "peer_login_failed", broker=broker_id, reason=error, remedy=self._remedy
            )
        try:
            self._transports.read_certificates()
        except ConfigError as problem:
            self._journal.error(
                "peer_login_failed", broker=broker_id, reason=str(problem), remedy=self._remedy
            )

    async def close(self) -> None:
        """Close all connections. Pending requests get no response."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        opening = list(self._transports.opening.values())
        self.pool.close()
        self._resolved.clear()
        if opening:
            await asyncio.wait(opening)

    # For the transports

    def refresh(self) -> None:
        """Do nothing: the pool reads the clock itself."""

    def arm(self) -> None:
        """Deliver the responses that have arrived."""
        if self._resolved and not self._closed:
            found, self._resolved = self._resolved, []
            self.deliver(partial(self._resolve, found))

    def _resolve(self, found: list[tuple[Deferred[Any], Any]]) -> None:
        for answer, value in found:
            try:
                answer.resolve(value)
            except Exception as error:  # noqa: BLE001 - a bug of the broker must not stop the other responses
                self._failed(error)

    def _failed(self, error: Exception) -> None:
        self._journal.error("peer_response_failed", error=describe(error))

    # Time

    def _wake_at(self, when_ms: int) -> None:
        now_ms = self._now_ms()
        when_ms = min(when_ms, now_ms + _LONGEST_SLEEP_MS)
        if self._timer is not None:
            if self._timer_ms <= when_ms:
                return
            self._timer.cancel()
        self._timer_ms = when_ms
        self._timer = self._loop.call_later(max(0, when_ms - now_ms) / 1000, self._look)

    def _look(self) -> None:
        self._timer = None
        self.pool.expire(self._now_ms())
        self.arm()
        next_ms = self.pool.next_deadline_ms
        if next_ms is not None and not self._closed:
            self._wake_at(next_ms)


def _value(outcome: Outcome) -> Message | ApiError:
    """Return what the sender gets for the outcome of a call."""
    if isinstance(outcome, Message):
        return outcome
    if isinstance(outcome, UnsentError | AuthenticationError):
        # While a connection authenticates, none of its requests is in flight.
        return _unsent(str(outcome))
    if isinstance(outcome, ApiError):  # the brokers have no common version
        return outcome
    return ApiError(ErrorCode.REQUEST_TIMED_OUT, str(outcome))


def _unsent(reason: str) -> ApiError:
    return ApiError(ErrorCode.BROKER_NOT_AVAILABLE, reason)
