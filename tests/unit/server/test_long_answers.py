"""Long responses are encoded in steps, so that other requests are handled between the steps."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from headrace.broker.session import Session
from headrace.broker.waiting.purgatory import Purgatory
from headrace.broker.waiting.steps import ENCODING_COST, STEP_COST, Steps
from headrace.clock import SteadyClock
from headrace.config.broker import parse_broker_config
from headrace.deferred import Deferred
from headrace.protocol.frame import RequestHeader, encode_request, encode_response
from headrace.protocol.messages.list_offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from headrace.server.hub import BrokerHub
from headrace.server.limits import ServerLimits
from headrace.server.log import RateLimited
from headrace.types import Payload
from tests.unit.server.fakes import RecordingJournal
from tests.unit.server.loops import on_loop

HEADER = RequestHeader(2, 9, 5, "c")


class Harness:
    """A hub with a broker that defers its responses, and a connection that records what it gets."""

    def __init__(self) -> None:
        self.purgatory = Purgatory()
        self.steps = Steps(self.purgatory)
        self.session = Session()
        self.closed: list[str] = []
        self.sent: list[Sequence[Payload]] = []
        self.journal = RecordingJournal()
        self.connection: Any = SimpleNamespace(
            session=self.session,
            client="c",
            local_host="h",
            local_port=1,
            lost=False,
            close=lambda reason, **_: self.closed.append(reason),
        )
        broker: Any = SimpleNamespace(
            config=parse_broker_config({}),
            quotas=SimpleNamespace(active=False),
            handle=lambda _context, _request: self.answer,
            finish_in_steps=self.steps.run,
        )
        clock = SteadyClock()
        self.hub = BrokerHub(
            asyncio.get_running_loop(),
            broker,
            clock=clock,
            limits=ServerLimits(),
            journal=RateLimited(self.journal, clock.now_ms),
            on_failure=lambda _: None,
        )

    def request(self, *, in_steps: bool = True) -> Any:
        """Send a request that the broker defers, and return its slot."""
        self.answer: Deferred[Any] = Deferred()
        self.session.busy = in_steps
        frame = joined(encode_request(HEADER, ListOffsetsRequest()))
        slot: Any = self.hub.handle(self.connection, memoryview(frame)[4:])
        self.connection.slot_filled = lambda: self.sent.append(slot.payloads)
        self.session.busy = False
        return slot

    def work(self) -> int:
        """Run all steps, and return their number."""
        steps = 0
        while self.steps:
            self.steps.tick()
            self.purgatory.deliver()
            steps += 1
        return steps


def offsets(partitions: int) -> ListOffsetsResponse:
    parts = [ListOffsetsPartitionResponse(partition_index=index) for index in range(partitions)]
    return ListOffsetsResponse(topics=[ListOffsetsTopicResponse(name="t", partitions=parts)])


def joined(payloads: Sequence[Any]) -> bytes:
    return b"".join(payloads)


@on_loop
async def test_a_long_answer_is_encoded_in_steps() -> None:
    harness = Harness()
    harness.request()
    harness.answer.resolve(offsets(31_000))
    assert (harness.session.busy, harness.sent) == (True, [])
    assert harness.work() >= 31_000 * ENCODING_COST // STEP_COST // 2
    assert harness.session.busy is False
    [payloads] = harness.sent
    assert joined(payloads) == joined(encode_response(HEADER, offsets(31_000)))
    harness.hub.stop()


@on_loop
async def test_a_short_answer_and_one_of_a_single_step_are_encoded_at_once() -> None:
    harness = Harness()
    for partitions, in_steps in ((900, True), (3_000, False)):
        harness.request(in_steps=in_steps)
        harness.answer.resolve(offsets(partitions))
        assert not harness.steps
    assert [joined(each) for each in harness.sent] == [
        joined(encode_response(HEADER, offsets(partitions))) for partitions in (900, 3_000)
    ]
    harness.hub.stop()


@on_loop
async def test_the_encoding_of_a_cancelled_response_ends() -> None:
    harness = Harness()
    slot = harness.request()
    harness.answer.resolve(offsets(31_000))
    slot.cancel()
    assert harness.work() <= 1
    assert not harness.sent
    assert not harness.session.busy
    harness.hub.stop()


@on_loop
async def test_an_answer_that_cannot_be_encoded_closes_its_connection() -> None:
    for wrong in (0, 30_999):
        harness = Harness()
        harness.request()
        response = offsets(31_000)
        response.topics[0].partitions[wrong].offset = 1 << 70
        harness.answer.resolve(response)
        harness.work()
        assert harness.closed == ["the broker failed"]
        assert not harness.sent
        assert [event for event, _ in harness.journal.lines] == ["response_failed"]
        harness.hub.stop()
