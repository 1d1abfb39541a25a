"""The time that counts for quotas: decoding, handling, and with the next request encoding the response."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.broker.quotas.throttling import Throttled
from headrace.broker.session import Session
from headrace.clock import SteadyClock
from headrace.config.broker import parse_broker_config
from headrace.deferred import Deferred
from headrace.protocol.frame import RequestHeader, encode_request
from headrace.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from headrace.server import hub as hubs
from headrace.server.hub import BrokerHub
from headrace.server.limits import ServerLimits
from headrace.server.log import RateLimited
from headrace.types import FileRange
from tests.unit.server.fakes import RecordingJournal
from tests.unit.server.loops import on_loop

DECODING_MS, HANDLING_MS, ENCODING_MS = 7, 5, 11


class Harness:
    """A hub whose clock moves when it decodes, handles and encodes, with a broker that records the charges."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_ns = 0
        self.charged_us: list[int] = []
        self.answer: Any = ApiVersionsResponse()
        self.connection: Any = SimpleNamespace(
            session=Session(), client="c", local_host="h", local_port=1, lost=False
        )
        monkeypatch.setattr(hubs, "perf_counter_ns", lambda: self.now_ns)
        for name, takes_ms in (("decode", DECODING_MS), ("encode", ENCODING_MS)):
            monkeypatch.setattr(hubs, name, self.slowly(getattr(hubs, name), takes_ms))
        broker: Any = SimpleNamespace(
            config=parse_broker_config({}),
            quotas=SimpleNamespace(active=True),
            handle=self.slowly(lambda _context, _request: self.answer, HANDLING_MS),
            throttle=self.throttle,
        )
        clock = SteadyClock()
        self.hub = BrokerHub(
            asyncio.get_running_loop(),
            broker,
            clock=clock,
            limits=ServerLimits(),
            journal=RateLimited(RecordingJournal(), clock.now_ms),
            on_failure=lambda _: None,
        )

    def slowly(self, function: Any, takes_ms: int) -> Any:
        def called(*arguments: Any) -> Any:
            self.now_ns += takes_ms * 1_000_000
            return function(*arguments)

        return called

    def throttle(self, context: Any, _request: Any, reply: Any, **measured: int) -> Throttled:
        self.charged_us.append(measured["used_us"] + context.session.unpaid_us)
        context.session.unpaid_us = 0
        return Throttled(reply, 0)

    def request(self) -> Any:
        header = RequestHeader(ApiVersionsRequest.API_KEY, 3, 1, "client")
        message = ApiVersionsRequest(client_software_name="x", client_software_version="1")
        frame = b"".join(
            each.read() if isinstance(each, FileRange) else each
            for each in encode_request(header, message)
        )
        return self.hub.handle(self.connection, memoryview(frame)[4:])


@on_loop
async def test_decoding_handling_and_encoding_are_charged(monkeypatch: pytest.MonkeyPatch) -> None:
    harness = Harness(monkeypatch)
    for _ in range(3):
        harness.request()
    own = (DECODING_MS + HANDLING_MS) * 1000
    assert harness.charged_us == [own, own + ENCODING_MS * 1000, own + ENCODING_MS * 1000]
    harness.hub.stop()


@on_loop
async def test_a_response_that_comes_late_is_charged_with_the_next_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    harness = Harness(monkeypatch)
    late: Deferred[Any] = Deferred()
    harness.connection.slot_filled = lambda: None
    harness.answer = late
    harness.request()
    late.resolve(ApiVersionsResponse())
    harness.answer = None
    harness.request()
    own = (DECODING_MS + HANDLING_MS) * 1000
    assert harness.charged_us == [own, own + ENCODING_MS * 1000]
    harness.hub.stop()
