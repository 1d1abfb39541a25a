"""Where connections and the broker meet: decode a request, hand it to the broker, encode its answer.

Also what belongs to no single connection: the set of open ones and its limits, the end of a wake-up (flush, sync,
timer), and the sweep once a second (time-outs, spare memory, the clock).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from time import perf_counter_ns
from typing import Any, Final, Protocol

from headrace.broker.access.authentication import BEFORE_AUTHENTICATION, UNAUTHENTICATED
from headrace.broker.context import CloseConnection, RequestContext
from headrace.broker.quotas.client_quotas import ClientQuotas
from headrace.broker.quotas.throttling import Throttled, pause_in
from headrace.broker.session import Session
from headrace.broker.waiting.steps import ENCODING_COST, Work
from headrace.clock import SteadyClock
from headrace.config.broker import BrokerConfig
from headrace.core.deferred import Deferred
from headrace.errors import ProtocolError
from headrace.ports import Journal
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.codec import Message
from headrace.protocol.frame import (
    RequestHeader,
    UnsupportedVersion,
    decode_request,
    encode_long_response,
    encode_response,
    encode_unsupported_version,
)
from headrace.protocol.messages.sasl_authenticate import SaslAuthenticateRequest
from headrace.protocol.pieces import is_long
from headrace.server.admission import Admission, longest_list
from headrace.server.aside import Aside
from headrace.server.budget import MemoryBudget
from headrace.server.compactor import Compactor, Step
from headrace.server.connection import CloseConnectionError, Connection, Slot
from headrace.server.hangup import notice_closed
from headrace.server.limits import ServerLimits
from headrace.server.log import RateLimited, describe
from headrace.server.syncer import Batch, Syncer
from headrace.server.timers import BrokerTimer
from headrace.types import Payload

_SWEEP_INTERVAL_S: Final = 1.0
_TICK_RETRY_MS: Final = 1000
_TOKEN: Final = RequestHeader(ApiKey.SASL_AUTHENTICATE, 0, 0, None)
"""Stands for the header that a frame does not have after SaslHandshake version 0: it is a token and nothing else."""


class ServedBroker(Protocol):
    """The interface of `headrace.broker.broker.Broker` that the server uses."""

    @property
    def quotas(self) -> ClientQuotas:
        """The quotas of clients. While `quotas.active` is true, the hub measures requests and calls `throttle`."""

    @property
    def config(self) -> BrokerConfig:
        """The configuration in force; another object after every change."""

    @property
    def next_deadline_ms(self) -> int | None:
        """When `tick` is due."""

    def handle(self, context: RequestContext, request: Any) -> Any:
        """Return a response, a `Deferred` of one, or None; raise `CloseConnection`."""

    def throttle(
        self, context: RequestContext, request: Any, reply: Any, *, request_bytes: int, used_us: int
    ) -> Throttled:
        """Charge a request to its client; returns the reply to send, and how long to mute the connection."""

    def finish_in_steps(self, work: Work[Any], session: Session) -> Any:
        """Do some work on an answer, and return its outcome, or a `Deferred` of it if it takes several steps."""

    def unsupported_version(self) -> Message:
        """Return the answer to an ApiVersions request of unknown version."""

    def tick(self, now_ms: int) -> None:
        """Do what is due."""

    @property
    def sync_due(self) -> bool:
        """Whether `start_sync` would return something."""

    def start_sync(self) -> Batch | None:
        """Return what has to be synced, or None."""

    def finish_sync(self, batch: Any, error: OSError | None, now_ms: int) -> None:
        """Take note of a sync's outcome."""

    @property
    def compaction_due(self) -> bool:
        """Whether `start_compaction` would return something."""

    def start_compaction(self) -> Step | None:
        """Return a step of compaction, or None."""

    def finish_compaction(self, task: Any, error: Exception | None, now_ms: int) -> None:
        """Take note of a step's outcome."""


class _ResponseSlot(Slot):
    """The place of a response that the broker will resolve."""

    __slots__ = ("_deferred", "_header", "_hub", "_may_be_long")

    def __init__(
        self,
        hub: BrokerHub,
        connection: Connection,
        header: RequestHeader,
        deferred: Deferred[Any],
    ) -> None:
        super().__init__(connection)
        self._hub = hub
        self._header = header
        self._deferred: Deferred[Any] | None = deferred
        self._may_be_long = connection.session.busy
        """Whether the request is answered in steps: then the response may be so long that encoding takes several."""
        deferred.on_done(self.resolve)

    def cancel(self) -> None:
        """Have the broker give the response up."""
        deferred, self._deferred = self._deferred, None
        if deferred is not None:
            deferred.cancel()

    def resolve(self, response: Any) -> None:
        """Encode the response and fill the slot; an exception of a later step closes the connection."""
        self._deferred = None
        if self.connection.lost:
            return
        if response is None:  # a request without an answer that took several steps
            self.fill(())
            return
        if isinstance(response, CloseConnection):
            self.connection.close(f"{_api_name(self._header.api_key)}: {response.reason}")
            return
        if isinstance(response, Exception):
            self._hub.report_bug("request_failed", self.connection, self._header, response)
            self.connection.close("the broker failed", quietly=True)
            return
        in_steps = self._may_be_long and is_long(response)
        try:
            payloads = self._hub.encode(self.connection, self._header, response, in_steps=in_steps)
        except Exception as error:  # noqa: BLE001 - our own bug must not stop the other connections
            payloads = error
        if isinstance(payloads, Deferred):
            self._deferred = payloads
            payloads.on_done(lambda outcome: self._encoded(response, outcome))
        else:
            self._encoded(response, payloads)

    def _encoded(self, response: Message, payloads: Sequence[Payload] | Exception) -> None:
        self._deferred = None
        if self.connection.lost:
            return
        if isinstance(payloads, Exception):
            self._hub.report_bug("response_failed", self.connection, self._header, payloads)
            self.connection.close("the broker failed", quietly=True)
            return
        if self._hub.quotas.active:
            self._hub.mute(self.connection, response)
        self.fill(payloads)
        if self.connection.session.ended:
            self.connection.close(self.connection.session.ended, quietly=True)


class BrokerHub:
    """Serves one broker to any number of connections, all on one event loop.

    Args:
        loop: the running event loop.
        broker: the broker, open.
        clock: the process's clock.
        limits: the server's bounds; no number of connections that is configured while it runs can exceed theirs.
        journal: where log lines go, those that clients can cause within a limit.
        on_failure: called when a sync failed: the process has to end, with an error.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        broker: ServedBroker,
        *,
        clock: SteadyClock,
        limits: ServerLimits,
        journal: RateLimited,
        on_failure: Callable[[BaseException], object],
    ) -> None:
        self._loop = loop
        self._broker = broker
        self._clock = clock
        self._journal = journal
        self._config: BrokerConfig | None = None
        self._dirty: list[Connection] = []
        self._connections: set[Connection] = set()
        self._admission = Admission(limits)
        self._all_closed = asyncio.Event()
        self._draining = False
        self._sweep: asyncio.TimerHandle | None = None
        self._timer = BrokerTimer(loop, clock.now_ms, self._next_deadline_ms, self._tick)
        self.syncer = Syncer(loop, broker, clock.now_ms, after=self.end, on_failure=on_failure)
        self.aside = Aside(loop, self.begin, self.end)
        self.codecs = Aside(loop, self.begin, self.end, "headrace-codecs")
        self.compactor = Compactor(loop, broker, clock.now_ms, after=self.end)
        self.quotas = broker.quotas
        self.limits = limits
        self.client_log: Journal = journal
        self.budget = MemoryBudget(limits.memory_budget_bytes)
        self.now_ms = clock.now_ms()
        self.sweeps: list[Callable[[], object]] = []
        """Further functions that are called once a second."""
        self.ticks: list[Callable[[], object]] = []
        """Further functions that are called after each tick of the broker."""

    @property
    def connections(self) -> Sequence[Connection]:
        """The connections that are open now."""
        return list(self._connections)

    def start(self) -> None:
        """Begin with timers and sweeps."""
        self._sweep = self._loop.call_later(_SWEEP_INTERVAL_S, self._sweep_connections)
        self._timer.arm()

    def stop(self) -> None:
        """End timers, sweeps and the thread that syncs."""
        if self._sweep is not None:
            self._sweep.cancel()
        self._timer.cancel()
        self.aside.close()
        self.codecs.close()
        self.compactor.close()
        self.syncer.close()

    # -- a wake-up

    def begin(self) -> None:
        """Read the clock for this wake-up."""
        self.now_ms = self._clock.now_ms()

    def handle(self, connection: Connection, frame: memoryview) -> Sequence[Payload] | Slot | None:
        """Handle one request; see `headrace.server.connection.Hub`."""
        measured = self.quotas.active
        began_ns = perf_counter_ns() if measured else 0
        session = connection.session
        try:
            header, request = _decode(session, frame)
        except UnsupportedVersion as error:
            return self._unsupported_version(error.header)
        except ProtocolError as error:
            raise CloseConnectionError(f"a request that cannot be read: {error}") from error
        most = self.limits.max_topics_per_request
        if len(frame) > most and (named := longest_list(request)) > most:
            raise CloseConnectionError(
                f"{_api_name(header.api_key)} names {named} topics (or the like); allowed: {most}"
            )
        context = RequestContext(
            now_ms=self.now_ms,
            header=header,
            client_address=connection.client,
            listener_host=connection.local_host,
            listener_port=connection.local_port,
            session=session,
            request_bytes=len(frame),
        )
        try:
            if measured:
                answer = self._measured(connection, context, request, len(frame), began_ns)
            else:
                answer = self._broker.handle(context, request)
            if isinstance(answer, Deferred):
                if not answer.done:
                    return _ResponseSlot(self, connection, header, answer)
                answer = answer.value
            if answer is None:
                return None
            return (
                self.encode(connection, header, answer)
                if measured or header is _TOKEN
                else encode_response(header, answer)
            )
        except CloseConnection as error:
            raise CloseConnectionError(f"{_api_name(header.api_key)}: {error.reason}") from error
        except Exception as error:
            self.report_bug("request_failed", connection, header, error)
            raise CloseConnectionError(
                "the broker failed on its request; see request_failed"
            ) from error

    def encode(
        self,
        connection: Connection,
        header: RequestHeader,
        response: Any,
        *,
        in_steps: bool = False,
    ) -> Any:
        """Encode a response; while there are quotas the connection's next request pays for the time that it takes.

        Args:
            connection: The connection that it is for.
            header: The header of the request.
            response: The response.
            in_steps: Whether it is so long that other requests are to have their turn meanwhile.

        Returns:
            The payloads; in steps perhaps a `Deferred` of the payloads, or of an exception.
        """
        encode = partial(self._encode_in_steps, connection) if in_steps else _encode
        if not self.quotas.active:
            return encode(header, response)
        began_ns = perf_counter_ns()
        payloads = encode(header, response)
        connection.session.unpaid_us += (perf_counter_ns() - began_ns) // 1000
        return payloads

    def _encode_in_steps(
        self, connection: Connection, header: RequestHeader, response: Message
    ) -> Any:
        work = _encoding(header, response)
        return self._broker.finish_in_steps(work, connection.session)

    def _measured(
        self,
        connection: Connection,
        context: RequestContext,
        request: Message,
        size: int,
        began_ns: int,
    ) -> Any:
        """Have the broker handle a request, and mute its connection if it went over a quota."""
        answer = self._broker.handle(context, request)
        used_us = (perf_counter_ns() - began_ns) // 1000
        answer, pause_ms = self._broker.throttle(
            context, request, answer, request_bytes=size, used_us=used_us
        )
        if pause_ms:
            connection.mute(self.now_ms + pause_ms)
        return answer

    def mute(self, connection: Connection, response: Message) -> None:
        """Listen to a client no sooner than the response, which was late, tells it to go on."""
        if pause_ms := pause_in(response):
            connection.mute(self.now_ms + pause_ms)

    def _unsupported_version(self, header: RequestHeader) -> Sequence[Payload]:
        """Answer ApiVersions in version 0 with error 35 and what we serve; close on anything else.

        A client whose ApiVersions is newer than ours learns from the answer which one to use (KIP-511).
        """
        if header.api_key != ApiKey.API_VERSIONS:
            raise CloseConnectionError(
                f"{_api_name(header.api_key)} version {header.api_version} is not supported"
            )
        return encode_unsupported_version(header, self._broker.unsupported_version())

    def report_bug(
        self, event: str, connection: Connection, header: RequestHeader, error: Exception
    ) -> None:
        """Log an exception that a handler should not have raised, with its traceback."""
        self.client_log.error(
            event,
            api=_api_name(header.api_key),
            version=header.api_version,
            client=connection.client,
            client_id=header.client_id,
            error=describe(error),
        )

    def has_output(self, connection: Connection) -> None:
        """Have `connection.flush` called at the end of this wake-up."""
        self._dirty.append(connection)

    def end(self) -> None:
        """Flush connections that got an answer, start a sync if one is due, set the timer."""
        while self._dirty:
            dirty, self._dirty = self._dirty, []
            for connection in dirty:
                connection.flush()
        self.syncer.kick()
        self._timer.arm()

    def clock_leapt(self) -> None:
        """Look at the broker's deadlines anew: a test has moved the clock ahead."""
        self.begin()
        self._timer.clock_leapt()

    def _next_deadline_ms(self) -> int | None:
        return self._broker.next_deadline_ms

    def _tick(self) -> None:
        self.begin()
        try:
            self._broker.tick(self.now_ms)
        except Exception as error:  # noqa: BLE001 - our own bug must not stop the server
            self.client_log.error("tick_failed", error=describe(error))
            self._timer.hold_off(_TICK_RETRY_MS)
        self.compactor.kick()
        for also in self.ticks:
            also()
        self.end()

    # -- connections

    def opened(self, connection: Connection) -> str | None:
        """Note a new connection; returns why it is refused, or None."""
        if self._draining:  # the loop had accepted it already, and nobody would close it
            return "the broker stops"
        if (config := self._broker.config) is not self._config:
            self._config = config
            self._admission.limit(config.max_connections, config.max_connections_per_ip)
        rate = self._broker.quotas.connection_rate(connection.client_address)
        reason = self._admission.enter(connection.client_address, self.now_ms, rate)
        if reason is None:
            self._connections.add(connection)
            self._all_closed.clear()
        return reason

    def closed(self, connection: Connection) -> None:
        """Remove a connection that is closed."""
        self._connections.discard(connection)
        if not self._connections:
            self._all_closed.set()
        self._admission.leave(connection.client_address)

    def _sweep_connections(self) -> None:
        self._sweep = self._loop.call_later(_SWEEP_INTERVAL_S, self._sweep_connections)
        self._clock.slew()
        self.begin()
        for connection in self.connections:
            connection.check(self.now_ms)
        notice_closed(self._connections)
        for sweep in self.sweeps:
            sweep()
        self._journal.report()

    async def drain(self, timeout_s: float) -> None:
        """Take no further connections and requests, and answer those whose records only wait to be synced.

        Requests that wait for something else (long polls, joins) are not answered: their clients see a closed
        connection and find their next broker.
        """
        self._draining = True
        for connection in self.connections:
            connection.stop_reading()
        try:
            async with asyncio.timeout(timeout_s):
                await self.syncer.idle()
                self.end()
                while any(c.unsent_bytes for c in self.connections):  # noqa: ASYNC110 - once a life
                    await asyncio.sleep(0.01)
        except TimeoutError:
            self._journal.warning("drain_timed_out", seconds=timeout_s)

    async def close_connections(self) -> None:
        """Close every connection and wait until all are gone."""
        for connection in self.connections:
            connection.abort()
        if self._connections:
            await self._all_closed.wait()


def _decode(session: Session, frame: memoryview) -> tuple[RequestHeader, Message]:
    """Decode a request or a SASL token. Before a client has authenticated only the requests for that are decoded."""
    if session.raw_tokens:
        return _TOKEN, SaslAuthenticateRequest(auth_bytes=frame)
    if not session.authenticated:
        api_key = int.from_bytes(frame[:2], signed=True)
        if api_key not in BEFORE_AUTHENTICATION:
            raise CloseConnectionError(f"{_api_name(api_key)}: {UNAUTHENTICATED}")
    return decode_request(frame)


def _encode(header: RequestHeader, response: Any) -> Sequence[Payload]:
    """Encode a response; to a token without a header it is a token without one, or nothing if it was refused."""
    if header is not _TOKEN:
        return encode_response(header, response)
    if response.error_code:
        return ()
    token = bytes(response.auth_bytes)
    return [len(token).to_bytes(4) + token]


def _encoding(header: RequestHeader, response: Message) -> Work[Sequence[Payload]]:
    pieces = encode_long_response(header, response)
    while True:
        try:
            size = next(pieces)
        except StopIteration as end:
            payloads: Sequence[Payload] = end.value
            return payloads
        yield size * ENCODING_COST


def _api_name(api_key: int) -> str:
    try:
        return ApiKey(api_key).name
    except ValueError:
        return f"API key {api_key}"
