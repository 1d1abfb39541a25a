"""The throttling of clients above their quotas (KIP-13, KIP-124, KIP-219).

The broker measures three rates of each client that has a quota: the bytes of its produce requests, the bytes of the
records that it fetched, and the share of the broker's thread that its requests took. A request that brings a rate above
the quota is handled nevertheless, and its response is sent at once. The response has a `throttle_time_ms`: the client
has to send nothing for this time, and the broker does not read from its connection. A fetch is the exception, because
records that were sent cannot be taken back: it gets no records, and the client fetches again.

The shell has a clock and counts bytes. It calls `Broker.throttle` after `Broker.handle`, only while there are quotas.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import partial
from typing import Any, Final, NamedTuple

from headrace.broker.context import LatestTime, RequestContext
from headrace.broker.quotas.client_quotas import (
    CONSUMER_BYTE_RATE,
    PRODUCER_BYTE_RATE,
    REQUEST_PERCENTAGE,
    ClientQuotas,
)
from headrace.broker.waiting.fetch_sessions import Fetch
from headrace.core.deferred import Deferred
from headrace.core.quota import SampledRate, TrackedRates, Windows
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.codec import Message
from headrace.protocol.messages.fetch import FetchRequest, FetchResponse, FetchTopic

TRACKED_LIMIT: Final = 10_000
"""How many rates are kept, the latest used ones."""
_NAME_LIMIT: Final = 64
"""Characters of a user's name or a client id that is kept as it is."""
_PERCENT_SECONDS_PER_US: Final = 100 / 1_000_000


class Throttled(NamedTuple):
    """A reply, and the time in milliseconds for which the shell must not read from the connection."""

    reply: Message | Deferred[Any] | None
    pause_ms: int


class Client(NamedTuple):
    """The client whose rates a request counts for."""

    user: str
    """The name of the principal: ANONYMOUS where nobody has authenticated."""
    client_id: str


def _shortened(name: str | None) -> str | None:
    """Return a name, or what stands for it if it is long: a key is kept for each of ten thousand clients."""
    if name is None or len(name) <= _NAME_LIMIT:
        return name
    return hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=32).hexdigest()


def _client_of(context: RequestContext) -> Client:
    return Client(context.session.principal.name, context.header.client_id or "")


class Throttling:
    """The rates of all clients against their quotas."""

    __slots__ = ("_quotas", "_rates", "_time", "_windows")

    def __init__(self, quotas: ClientQuotas, windows: Windows, time: LatestTime) -> None:
        self._quotas = quotas
        self._time = time
        self._windows = windows
        self._rates: TrackedRates[tuple[str, str | None, str | None]] = TrackedRates(
            partial(SampledRate, windows), TRACKED_LIMIT
        )

    def charge(self, name: str, client: Client, amount: float, now_ms: int) -> int:
        """Add to a rate of a client; return the pause of the client in milliseconds, 0 if it is below the quota."""
        quota = self._quotas.find(name, client.user, client.client_id)
        if quota is None:
            return 0
        rate = self._rates.of((name, _shortened(quota.user), _shortened(quota.client_id)))
        rate.record(amount, now_ms)
        return rate.pause_ms(quota.limit, now_ms)

    def throttle(
        self,
        context: RequestContext,
        request: Message,
        reply: Message | Deferred[Any] | None,
        *,
        request_bytes: int,
        used_us: int,
    ) -> Throttled:
        """Charge a handled request to its client, and write the pause of the client into the reply."""
        client, now_ms = _client_of(context), context.now_ms
        pause_ms = 0
        if request.API_KEY == ApiKey.PRODUCE:
            pause_ms = self.charge(PRODUCER_BYTE_RATE, client, request_bytes, now_ms)
        session = context.session
        share = (used_us + session.unpaid_us) * _PERCENT_SECONDS_PER_US
        session.unpaid_us = 0
        by_time_ms = self.charge(REQUEST_PERCENTAGE, client, share, now_ms)
        pause_ms = max(pause_ms, min(by_time_ms, self._windows.size_ms))
        if isinstance(reply, Deferred):
            return Throttled(reply.map(partial(_say, pause_ms)) if pause_ms else reply, pause_ms)
        if reply is None:
            return Throttled(None, pause_ms)
        return Throttled(_say(pause_ms, reply), max(pause_ms, pause_in(reply)))

    def limit_fetch(self, context: RequestContext, request: FetchRequest, fetch: Fetch) -> Fetch:
        """Return a fetch that asks for no more bytes than the quota allows, and gets no records above the quota."""
        client = _client_of(context)
        quota = self._quotas.find(CONSUMER_BYTE_RATE, client.user, client.client_id)
        if quota is None:
            return fetch
        number, size_ms = self._windows
        request.max_bytes = int(min(request.max_bytes, quota.limit * (number - 1) * size_ms / 1000))
        request.min_bytes = min(request.min_bytes, request.max_bytes)
        return _LimitedFetch(self, client, fetch, self._time)


def pause_in(response: Message) -> int:
    """Return the pause that a response asks its client for."""
    pause_ms: int = getattr(response, "throttle_time_ms", 0)
    return pause_ms


def _say(pause_ms: int, response: Message) -> Message:
    if pause_ms > pause_in(response) and hasattr(response, "throttle_time_ms"):
        response.throttle_time_ms = pause_ms
    return response


class _LimitedFetch:
    """A fetch of a client that has a quota."""

    __slots__ = ("_client", "_fetch", "_throttling", "_time", "topics")

    def __init__(
        self, throttling: Throttling, client: Client, fetch: Fetch, time: LatestTime
    ) -> None:
        self._throttling = throttling
        self._time = time
        self._client = client
        self._fetch = fetch
        self.topics: Sequence[FetchTopic] = fetch.topics

    def finish(self, response: FetchResponse) -> FetchResponse:
        """Answer as without a quota if that is within it, else nothing."""
        charge, now_ms = self._throttling.charge, self._time.now_ms
        size = _records_bytes(response)
        pause_ms = charge(CONSUMER_BYTE_RATE, self._client, size, now_ms)
        if not pause_ms:
            return self._fetch.finish(response)
        charge(CONSUMER_BYTE_RATE, self._client, -size, now_ms)
        put_off = self.put_off()
        put_off.throttle_time_ms = pause_ms
        return put_off

    def put_off(self) -> FetchResponse:
        """Return a response without records."""
        return self._fetch.put_off()


def _records_bytes(response: FetchResponse) -> int:
    return sum(
        len(partition.records)
        for topic in response.responses
        for partition in topic.partitions
        if partition.records is not None
    )
