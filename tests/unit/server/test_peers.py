"""Requests between brokers over TCP: which error a sender gets, backoffs, bounds, and when responses are delivered."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import asynccontextmanager
from typing import Any, Final

import pytest

from headrace.clients.config import ClientConfig
from headrace.clock import SteadyClock
from headrace.deferred import Deferred
from headrace.errors import ApiError, ErrorCode
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.codec import Message
from headrace.protocol.frame import decode_request, encode_response
from headrace.protocol.messages.api_versions import ApiVersion, ApiVersionsResponse
from headrace.protocol.messages.fetch import FetchRequest, FetchResponse
from headrace.protocol.messages.list_groups import ListGroupsRequest
from headrace.protocol.messages.write_txn_markers import (
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from headrace.server.peers import FIRST_BACKOFF_MS, WAITING_LIMIT, PeerConnections
from tests.fixtures.broker_harness import RecordingJournal, bytes_of
from tests.unit.server.loops import on_loop

VERSIONS: Final = {
    int(ApiKey.API_VERSIONS): 4,
    int(ApiKey.FETCH): 12,
    int(ApiKey.WRITE_TXN_MARKERS): 2,
}
RESPONSES: Final[dict[int, Callable[[], Message]]] = {
    int(ApiKey.FETCH): FetchResponse,
    int(ApiKey.WRITE_TXN_MARKERS): WriteTxnMarkersResponse,
}


class OtherBroker:
    """A broker that answers, or not."""

    def __init__(self) -> None:
        self.requests: list[tuple[int, int]] = []
        """API key and version of each request after the handshake."""
        self.connections = 0
        self.answers = True
        self.shakes_hands = True
        self.address: tuple[str, int] | None = None
        self._writers: list[asyncio.StreamWriter] = []
        self._server: asyncio.Server | None = None

    async def start(self, port: int = 0) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", port)
        self.address = ("127.0.0.1", self._server.sockets[0].getsockname()[1])

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()
        self.hang_up()

    def hang_up(self) -> None:
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._writers.append(writer)
        try:
            while True:
                size = int.from_bytes(await reader.readexactly(4), "big")
                header, _ = decode_request(memoryview(await reader.readexactly(size)))
                if header.api_key == ApiKey.API_VERSIONS:
                    if not self.shakes_hands:
                        continue
                    rows = [ApiVersion(api_key=k, max_version=v) for k, v in VERSIONS.items()]
                    response: Message = ApiVersionsResponse(api_keys=rows)
                else:
                    self.requests.append((header.api_key, header.api_version))
                    if not self.answers:
                        continue
                    response = RESPONSES[header.api_key]()
                writer.write(b"".join(map(bytes_of, encode_response(header, response))))
        except (asyncio.IncompleteReadError, ConnectionError):
            pass


class Sender:
    """The connections of a broker, and what they deliver."""

    def __init__(self, other: OtherBroker, **properties: Any) -> None:
        self.clock = SteadyClock()
        self.journal = RecordingJournal()
        self.deliveries = 0
        self.peers = PeerConnections(
            asyncio.get_running_loop(),
            ClientConfig(client_id="broker-1", **properties),
            versions={**VERSIONS, int(ApiKey.WRITE_TXN_MARKERS): 1},
            now_ms=self.clock.now_ms,
            journal=self.journal,
        )
        self.peers.address_of = lambda broker_id: other.address if broker_id == 2 else None
        self.peers.deliver = self._deliver

    def _deliver(self, resolve: Callable[[], object]) -> None:
        self.deliveries += 1
        resolve()

    def send(
        self, request: Message | None = None, to: int = 2, wait_ms: int = 5_000
    ) -> Deferred[Any]:
        message = WriteTxnMarkersRequest() if request is None else request
        return self.peers.send(to, message, self.clock.now_ms() + wait_ms)

    async def ask(self, request: Message | None = None, to: int = 2, wait_ms: int = 5_000) -> Any:
        answer = self.send(request, to, wait_ms)
        await until(lambda: answer.done)
        return answer.value


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110 - no event belongs to all conditions
            await asyncio.sleep(0.001)


@asynccontextmanager
async def brokers(**properties: Any) -> Any:
    other = OtherBroker()
    await other.start()
    sender = Sender(other, **properties)
    try:
        yield sender, other
    finally:
        await sender.peers.close()
        await other.stop()
        await asyncio.sleep(0.01)


def code_of(value: Any) -> ErrorCode:
    assert isinstance(value, ApiError), value
    return value.code


@on_loop
async def test_a_request_has_the_newest_version_that_both_brokers_serve() -> None:
    async with brokers() as (sender, other):
        assert isinstance(await sender.ask(), WriteTxnMarkersResponse)
        assert isinstance(await sender.ask(FetchRequest()), FetchResponse)
        assert other.requests == [(ApiKey.WRITE_TXN_MARKERS, 1), (ApiKey.FETCH, 12)]


@on_loop
async def test_requests_follow_each_other_without_waiting_for_responses() -> None:
    async with brokers() as (sender, other):
        other.answers = False
        answers = [sender.send() for _ in range(10)]
        await until(lambda: len(other.requests) == 10)
        assert not any(answer.done for answer in answers)
        assert other.connections == 1


@on_loop
async def test_a_fetch_that_waits_delays_no_other_request() -> None:
    async with brokers() as (sender, other):
        other.answers = False
        fetch = sender.send(FetchRequest())
        await until(lambda: other.requests)
        other.answers = True
        assert isinstance(await sender.ask(), WriteTxnMarkersResponse)
        assert not fetch.done
        assert other.connections == 2


@on_loop
async def test_responses_that_arrive_together_are_delivered_together() -> None:
    async with brokers() as (sender, _):
        await sender.ask()
        before = sender.deliveries
        answers = [sender.send() for _ in range(50)]
        await until(lambda: all(answer.done for answer in answers))
        assert sender.deliveries < before + 25


@on_loop
async def test_a_request_that_cannot_be_sent_was_not_handled() -> None:
    async with brokers() as (sender, other):
        unknown = sender.send(to=3)
        assert not unknown.done, "the sender may be in the middle of a change"
        await until(lambda: unknown.done)
        assert code_of(unknown.value) == ErrorCode.BROKER_NOT_AVAILABLE
        await other.stop()
        assert code_of(await sender.ask()) == ErrorCode.BROKER_NOT_AVAILABLE
        assert other.requests == []


@on_loop
async def test_a_request_that_waits_for_the_handshake_was_not_handled() -> None:
    async with brokers() as (sender, other):
        other.shakes_hands = False
        assert code_of(await sender.ask(wait_ms=100)) == ErrorCode.BROKER_NOT_AVAILABLE
        answer = sender.send()
        other.hang_up()
        await until(lambda: other.connections == 2)
        other.hang_up()
        await until(lambda: answer.done)
        assert code_of(answer.value) == ErrorCode.BROKER_NOT_AVAILABLE


@on_loop
async def test_the_fate_of_a_request_without_a_response_is_unknown() -> None:
    async with brokers() as (sender, other):
        other.answers = False
        assert code_of(await sender.ask(wait_ms=100)) == ErrorCode.REQUEST_TIMED_OUT
        answer = sender.send()
        await until(lambda: len(other.requests) == 2)
        other.hang_up()
        await until(lambda: answer.done)
        assert code_of(answer.value) == ErrorCode.REQUEST_TIMED_OUT


@on_loop
async def test_requests_wait_for_the_backoff_after_a_failed_connection() -> None:
    async with brokers() as (sender, other):
        address = other.address
        await other.stop()
        began_ms = sender.clock.now_ms()
        for _ in range(4):
            assert code_of(await sender.ask()) == ErrorCode.BROKER_NOT_AVAILABLE
        took_ms = sender.clock.now_ms() - began_ms
        assert took_ms >= 7 * FIRST_BACKOFF_MS, "50, 100 and 200 ms"
        await other.start(address[1])
        assert isinstance(await sender.ask(), WriteTxnMarkersResponse)


@on_loop
async def test_a_broker_at_another_address_is_tried_at_once() -> None:
    async with brokers() as (sender, other):
        await other.stop()
        for _ in range(4):
            await sender.ask()
        await other.start()
        began_ms = sender.clock.now_ms()
        assert isinstance(await sender.ask(), WriteTxnMarkersResponse)
        assert sender.clock.now_ms() < began_ms + 300


@on_loop
async def test_the_number_of_pending_requests_is_bounded() -> None:
    async with brokers() as (sender, other):
        other.answers = False
        answers = [sender.send() for _ in range(WAITING_LIMIT)]
        assert code_of(sender.send().value) == ErrorCode.BROKER_NOT_AVAILABLE
        assert not any(answer.done for answer in answers)
        await until(lambda: len(other.requests) == WAITING_LIMIT)
        other.hang_up()
        await until(lambda: all(answer.done for answer in answers))
        other.answers = True
        assert isinstance(await sender.ask(), WriteTxnMarkersResponse)


@on_loop
async def test_a_version_that_the_brokers_do_not_share_is_an_error() -> None:
    async with brokers() as (sender, _):
        assert code_of(await sender.ask(ListGroupsRequest())) == ErrorCode.UNSUPPORTED_VERSION


@on_loop
async def test_a_response_that_the_broker_cannot_handle_is_logged() -> None:
    async with brokers() as (sender, _):
        first, second = sender.send(), sender.send()
        first.on_done(lambda _: 1 / 0)
        await until(lambda: second.done)
        assert sender.journal.events("error") == ["peer_response_failed"]


@pytest.mark.slow
@on_loop
async def test_a_broker_that_stays_away_is_reported() -> None:
    async with brokers() as (sender, other):
        await other.stop()
        while not sender.journal.events("warning"):
            await sender.ask(wait_ms=300)
        assert sender.journal.events("warning") == ["peer_unreachable"]
