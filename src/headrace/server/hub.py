"""The hub between connections and the broker: it decodes a request, calls the broker, and encodes the response.

The hub also does what belongs to no single connection: it bounds the number of connections, ends each wake-up of the
event loop (flush, sync, timer), and checks all connections once a second (time-outs, spare memory).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from time import perf_counter_ns
from typing import Any, Final

from headrace.broker.context import CloseConnection, RequestContext
from headrace.broker.quotas.throttling import pause_in
from headrace.clock import SteadyClock
from headrace.config.broker import BrokerConfig
from headrace.deferred import Deferred
from headrace.errors import ProtocolError
from headrace.ports import Journal
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.codec import Message
from headrace.protocol.frame import (
    RequestHeader,
    UnsupportedVersion,
    encode_response,
    encode_unsupported_version,
)
from headrace.protocol.pieces import is_long
from headrace.server.connections.admission import Admission, longest_list
from headrace.server.connections.budget import MemoryBudget
from headrace.server.connections.connection import Connection
from headrace.server.connections.hangup import notice_closed
from headrace.server.connections.request_codec import (
    TOKEN,
    api_name,
    decode,
    encode,
    encode_in_steps,
)
from headrace.server.hub_interface import CloseConnectionError, Slot
from headrace.server.limits import ServerLimits
from headrace.server.log import RateLimited, describe
from headrace.server.served_broker import ServedBroker
from headrace.server.threads.aside import Aside
from headrace.server.threads.compactor import Compactor
from headrace.server.threads.syncer import Syncer
from headrace.server.timers import BrokerTimer
from headrace.types import Payload

_SWEEP_INTERVAL_S: Final = 1.0
_TICK_RETRY_MS: Final = 1000


class _ResponseSlot(Slot[Connection]):
    """The slot of a response that the broker has deferred."""

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
        """Whether the request is handled in steps. Then its response may be encoded in steps, too."""
        deferred.on_done(self.resolve)

    def cancel(self) -> None:
        """Cancel the deferred response of the broker."""
        deferred, self._deferred = self._deferred, None
        if deferred is not None:
            deferred.cancel()

    def resolve(self, response: Any) -> None:
        """Encode the response and fill the slot. An exception of a later step closes the connection."""
        self._deferred = None
        if self.connection.lost:
            return
        if response is None:  # a request without a response, handled in steps
            self.fill(())
            return
        if isinstance(response, CloseConnection):
            self.connection.close(f"{api_name(self._header.api_key)}: {response.reason}")
            return
        if isinstance(response, Exception):
            self._hub.report_bug("request_failed", self.connection, self._header, response)
            self.connection.close("the broker failed", quietly=True)
            return
        in_steps = self._may_be_long and is_long(response)
        try:
            payloads = self._hub.encode(self.connection, self._header, response, in_steps=in_steps)
        except Exception as error:  # noqa: BLE001 - a bug of the broker must not stop the other connections
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
        loop: The running event loop.
        broker: The open broker.
        clock: The clock of the process.
        limits: The limits of the server. Limits of connections that are configured later cannot exceed them.
        journal: Receives the log events. Events that clients can cause at will are rate-limited.
        on_failure: Called with the error when a sync has failed. The process has to end with an error then.
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
        """The connections that are open."""
        return list(self._connections)

    def start(self) -> None:
        """Start the timers of the hub."""
        self._sweep = self._loop.call_later(_SWEEP_INTERVAL_S, self._sweep_connections)
        self._timer.arm()

    def stop(self) -> None:
        """Stop the timers and all threads."""
        if self._sweep is not None:
            self._sweep.cancel()
        self._timer.cancel()
        self.aside.close()
        self.codecs.close()
        self.compactor.close()
        self.syncer.close()

    # A wake-up

    def begin(self) -> None:
        """Read the clock for this wake-up."""
        self.now_ms = self._clock.now_ms()

    def handle(
        self, connection: Connection, frame: memoryview
    ) -> Sequence[Payload] | Slot[Any] | None:
        """Handle one request; see `headrace.server.hub_interface.Hub`."""
        measured = self.quotas.active
        began_ns = perf_counter_ns() if measured else 0
        session = connection.session
        try:
            header, request = decode(session, frame)
        except UnsupportedVersion as error:
            return self._unsupported_version(error.header)
        except ProtocolError as error:
            raise CloseConnectionError(f"a request that cannot be read: {error}") from error
        most = self.limits.max_topics_per_request
        if len(frame) > most and (named := longest_list(request)) > most:
            raise CloseConnectionError(
                f"{api_name(header.api_key)} names {named} topics (or the like); allowed: {most}"
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
                if measured or header is TOKEN
                else encode_response(header, answer)
            )
        except CloseConnection as error:
            raise CloseConnectionError(f"{api_name(header.api_key)}: {error.reason}") from error
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
        """Encode a response. While there are quotas, the next request of the connection is charged for the time.

        Args:
            connection: The connection of the request.
            header: The header of the request.
            response: The response.
            in_steps: Whether to encode a long response in steps, between which other requests are handled.

        Returns:
            The payloads. If the response is encoded in steps, a `Deferred` of the payloads or of an exception.
        """
        encoder = partial(self._encode_in_steps, connection) if in_steps else encode
        if not self.quotas.active:
            return encoder(header, response)
        began_ns = perf_counter_ns()
        payloads = encoder(header, response)
        connection.session.unpaid_us += (perf_counter_ns() - began_ns) // 1000
        return payloads

    def _encode_in_steps(
        self, connection: Connection, header: RequestHeader, response: Message
    ) -> Any:
        work = encode_in_steps(header, response)
        return self._broker.finish_in_steps(work, connection.session)

    def _measured(
        self,
        connection: Connection,
        context: RequestContext,
        request: Message,
        size: int,
        began_ns: int,
    ) -> Any:
        """Handle a request and charge its client. Mute the connection if the client is above a quota."""
        answer = self._broker.handle(context, request)
        used_us = (perf_counter_ns() - began_ns) // 1000
        answer, pause_ms = self._broker.throttle(
            context, request, answer, request_bytes=size, used_us=used_us
        )
        if pause_ms:
            connection.mute(self.now_ms + pause_ms)
        return answer

    def mute(self, connection: Connection, response: Message) -> None:
        """Mute a connection for the throttle time of a deferred response."""
        if pause_ms := pause_in(response):
            connection.mute(self.now_ms + pause_ms)

    def _unsupported_version(self, header: RequestHeader) -> Sequence[Payload]:
        """Return the response to an ApiVersions request of unknown version: error 35 and the served versions (KIP-511).

        The response has version 0. A newer client reads the version to use from it.

        Raises:
            CloseConnectionError: The request is of another API.
        """
        if header.api_key != ApiKey.API_VERSIONS:
            raise CloseConnectionError(
                f"{api_name(header.api_key)} version {header.api_version} is not supported"
            )
        return encode_unsupported_version(header, self._broker.unsupported_version())

    def report_bug(
        self, event: str, connection: Connection, header: RequestHeader, error: Exception
    ) -> None:
        """Log an exception that a handler should not have raised, with its traceback."""
        self.client_log.error(
            event,
            api=api_name(header.api_key),
            version=header.api_version,
            client=connection.client,
            client_id=header.client_id,
            error=describe(error),
        )

    def has_output(self, connection: Connection) -> None:
        """Have `connection.flush` called at the end of this wake-up."""
        self._dirty.append(connection)

    def end(self) -> None:
        """End a wake-up: flush the connections that have output, start a sync if one is due, set the timer."""
        while self._dirty:
            dirty, self._dirty = self._dirty, []
            for connection in dirty:
                connection.flush()
        self.syncer.kick()
        self._timer.arm()

    def clock_leapt(self) -> None:
        """Read the broker's deadlines again, after a test has moved the clock."""
        self.begin()
        self._timer.clock_leapt()

    def _next_deadline_ms(self) -> int | None:
        return self._broker.next_deadline_ms

    def _tick(self) -> None:
        self.begin()
        try:
            self._broker.tick(self.now_ms)
        except Exception as error:  # noqa: BLE001 - a bug of the broker must not stop the server
            self.client_log.error("tick_failed", error=describe(error))
            self._timer.hold_off(_TICK_RETRY_MS)
        self.compactor.kick()
        for also in self.ticks:
            also()
        self.end()

    # Connections

    def opened(self, connection: Connection) -> str | None:
        """Register a new connection. Return None, or the reason why the connection is refused."""
        if self._draining:  # the event loop accepted the connection before the listener was closed
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
        """Refuse new connections and requests, and complete the requests that wait for a sync.

        Other pending requests (long polls, joins) get no response. Their clients see a closed connection and reconnect.

        Args:
            timeout_s: How long to wait for the sync and for clients to read their responses, in seconds.
        """
        self._draining = True
        for connection in self.connections:
            connection.stop_reading()
        try:
            async with asyncio.timeout(timeout_s):
                await self.syncer.idle()
                self.end()
                while any(c.unsent_bytes for c in self.connections):  # noqa: ASYNC110 - only at the end of the process
                    await asyncio.sleep(0.01)
        except TimeoutError:
            self._journal.warning("drain_timed_out", seconds=timeout_s)

    async def close_connections(self) -> None:
        """Refuse new connections, close every connection, and wait until all are closed."""
        self._draining = True
        for connection in self.connections:
            connection.abort()
        if self._connections:
            await self._all_closed.wait()
