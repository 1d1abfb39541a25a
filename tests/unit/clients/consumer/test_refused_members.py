"""A refused member retries with growing backoffs, however often the program polls."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from headrace.errors import ApiError, ErrorCode
from headrace.protocol.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from headrace.protocol.messages.join_group import JoinGroupRequest, JoinGroupResponse
from headrace.protocol.messages.sync_group import SyncGroupRequest, SyncGroupResponse
from tests.fixtures.consumer_simulation import Program, rebalance
from tests.unit.clients.consumer.test_groups import SERVER_SIDE, make_simulation, member, numbers

CODE = ErrorCode.UNKNOWN_SERVER_ERROR


@pytest.mark.parametrize(
    ("assignor", "asks", "refusal"),
    [
        ("equal", JoinGroupRequest, JoinGroupResponse(error_code=CODE)),
        ("cooperative-sticky", JoinGroupRequest, JoinGroupResponse(error_code=CODE)),
        ("equal", SyncGroupRequest, SyncGroupResponse(error_code=CODE)),
        (
            SERVER_SIDE,
            ConsumerGroupHeartbeatRequest,
            ConsumerGroupHeartbeatResponse(error_code=CODE),
        ),
    ],
)
def test_a_member_that_is_refused_asks_again_at_growing_intervals(
    assignor: str, asks: type, refusal: Any
) -> None:
    simulation = make_simulation()
    asked_ms: list[int] = []

    def refuse(_: Program, call: Any) -> Any:
        if not isinstance(call.request, asks):
            return None
        asked_ms.append(simulation.now_ms)
        return refusal

    simulation.fault = refuse
    program = member(simulation, assignor, retry_backoff_ms=100)
    begun_ms, raised = simulation.now_ms, 0
    while simulation.now_ms < begun_ms + 3_000:
        try:
            program.poll(1)
        except ApiError:
            raised += 1
        simulation.advance(1)
    assert raised == len(asked_ms), "each refusal is raised once"
    pauses = [later - earlier for earlier, later in pairwise(asked_ms)]
    for pause, least in zip(pauses, [100, 200, 400, 800, 1000], strict=False):
        assert least <= pause < least + 20, pauses
    assert len(pauses) == 5
    simulation.fault = None
    simulation.advance(1_000)
    rebalance(program)
    assert numbers(program) == list(range(6))


@pytest.mark.parametrize("assignor", ["equal", SERVER_SIDE])
def test_a_new_subscription_is_sent_without_the_backoff(assignor: str) -> None:
    simulation = make_simulation()
    simulation.broker.create_topic("other", partitions=1)
    kinds = (JoinGroupRequest, ConsumerGroupHeartbeatRequest)
    refused: list[Any] = []

    def refuse_once(_: Program, call: Any) -> Any:
        if refused or not isinstance(call.request, kinds):
            return None
        refused.append(call.request)
        kind = JoinGroupResponse if assignor == "equal" else ConsumerGroupHeartbeatResponse
        return kind(error_code=CODE)

    simulation.fault = refuse_once
    program = member(simulation, assignor, retry_backoff_ms=60_000, retry_backoff_max_ms=60_000)
    with pytest.raises(ApiError, match="UNKNOWN_SERVER_ERROR"):
        program.poll(1_000)
    program.subscribe(["other"])
    rebalance(program)
    assert [name.topic for name in program.assignment()] == ["other"]
