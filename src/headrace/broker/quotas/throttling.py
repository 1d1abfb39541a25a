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
    ClientQuotas,
)
from headrace.broker.waiting.fetch_sessions import Fetch
from headrace.core.quota import SampledRate, TrackedRates, Windows
from headrace.deferred import Deferred
from headrace.protocol.codec import Message
from headrace.protocol.messages.fetch import FetchRequest, FetchResponse, FetchTopic

TRACKED_LIMIT: Final = 10_000
"""The greatest number of rates in memory: those that were used last."""
_NAME_LIMIT: Final = 64
"""The length of the longest user name or client id that is kept unchanged, in characters."""
PERCENT_SECONDS_PER_US: Final = 100 / 1_000_000
"""A microsecond of thread time in percent-seconds: a thread that works all the time uses 100 of them a second."""


class Throttled(NamedTuple):
    """A reply, and the time in milliseconds for which the shell must not read from the connection."""

    reply: Message | Deferred[Any] | None
    pause_ms: int


class Client(NamedTuple):
    """The client to whose rates a request is charged."""

    user: str
    """The name of the principal; ANONYMOUS without authentication."""
    client_id: str


def _shortened(name: str | None) -> str | None:
    """Return a name, or a digest of a long name: the memory of ten thousand keys is bounded."""
    if name is None or len(name) <= _NAME_LIMIT:
        return name
    return hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=32).hexdigest()


def client_of(context: RequestContext) -> Client:
    """Return the client of a request."""
    return Client(context.session.principal.name, context.header.client_id or "")


class Throttling:
    """The rates of all clients against their quotas."""

    __slots__ = ("_quotas", "_rates", "_time", "windows")

    def __init__(self, quotas: ClientQuotas, windows: Windows, time: LatestTime) -> None:
        self._quotas = quotas
        self._time = time
        self.windows = windows
        """The number and the length of the windows over which rates are measured."""
        self._rates: TrackedRates[tuple[str, str | None, str | None]] = TrackedRates(
            partial(SampledRate, windows), TRACKED_LIMIT
        )

    def charge(self, name: str, client: Client, amount: float, now_ms: int) -> int:
        """Add an amount to a rate of a client.

        Return the pause of the client in milliseconds, 0 if it is below the quota.
        """
        quota = self._quotas.find(name, client.user, client.client_id)
        if quota is None:
            return 0
        rate = self._rates.of((name, _shortened(quota.user), _shortened(quota.client_id)))
        rate.record(amount, now_ms)
        return rate.pause_ms(quota.limit, now_ms)

    def limit_fetch(self, context: RequestContext, request: FetchRequest, fetch: Fetch) -> Fetch:
        """Return a fetch that asks for no more bytes than the quota allows, and gets no records above the quota."""
        client = client_of(context)
        quota = self._quotas.find(CONSUMER_BYTE_RATE, client.user, client.client_id)
        if quota is None:
            return fetch
        number, size_ms = self.windows
        request.max_bytes = int(min(request.max_bytes, quota.limit * (number - 1) * size_ms / 1000))
        request.min_bytes = min(request.min_bytes, request.max_bytes)
        return _LimitedFetch(self, client, fetch, self._time)


def pause_in(response: Message) -> int:
    """Return the pause that a response asks of its client, in milliseconds."""
    pause_ms: int = getattr(response, "throttle_time_ms", 0)
    return pause_ms


def with_pause(pause_ms: int, response: Message) -> Message:
    """Write a pause into a response, unless the response asks for a longer pause or has no field for one."""
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
        """Return the response with its records if they are within the quota, otherwise a response without records."""
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
