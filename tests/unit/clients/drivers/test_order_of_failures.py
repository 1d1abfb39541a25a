"""Calls to an embedded broker that fail together: they fail in the order in which they were made.

Each call continues after a random backoff. In another order, one seed of a simulation run would have several results.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from headrace.clients.blocking import BlockingClient
from headrace.clients.drivers.local_target import LocalClient
from headrace.clients.flows.effects import Call
from headrace.protocol.messages.list_groups import ListGroupsRequest
from tests.fixtures.group_rounds import RestartableRuntime

CALLS = 100


class CutRuntime(RestartableRuntime):
    """A simulated cluster whose network is cut: nothing arrives."""

    def submit(self, client: LocalClient, call: Call, on_done: Any) -> None:
        """Lose the request without an answer."""


def test_calls_fail_in_their_order_when_the_broker_ends() -> None:
    harness = CutRuntime()
    failed: list[int] = []

    def note(number: int, _outcome: object) -> None:
        failed.append(number)

    with BlockingClient(harness) as client, client.driver.enter() as engine:
        others = []
        for number in range(CALLS):
            call = Call(request=ListGroupsRequest())
            engine.submit(call, partial(note, number))
            others.append(bytearray(number * 37 % 500))  # no two runs place objects in memory alike
        harness.restart(crash=True)
    assert failed == list(range(CALLS))
