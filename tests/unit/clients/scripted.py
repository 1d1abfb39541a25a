"""A driver for flows without I/O: a function answers each call, and sleeps take no time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from headrace.clients.flows.effects import Call, ClientState, Sleep
from headrace.clients.flows.metadata import learn
from headrace.errors import HeadraceError
from headrace.protocol.messages.metadata import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)

Answer = Callable[[Call], Any]


class ScriptedDriver:
    """A driver that answers calls by a function; `calls` and `sleeps` record what the flow did."""

    def __init__(self, answer: Answer, *, max_sleeps: int = 20) -> None:
        self.answer = answer
        self.calls: list[Call] = []
        self.sleeps: list[Sleep] = []
        self.max_sleeps = max_sleeps

    def run(self, flow):
        try:
            effect = next(flow)
            while True:
                effect = self._step(flow, effect)
        except StopIteration as stop:
            return stop.value

    def _step(self, flow, effect):
        if isinstance(effect, Sleep):
            self.sleeps.append(effect)
            if len(self.sleeps) > self.max_sleeps:
                raise effect.cause
            return flow.send(None)
        if isinstance(effect, tuple):
            return flow.send(tuple(map(self._outcome, effect)))
        outcome = self._outcome(effect)
        if isinstance(outcome, HeadraceError):
            return flow.throw(outcome)
        return flow.send(outcome)

    def _outcome(self, call: Call):
        self.calls.append(call)
        try:
            return self.answer(call)
        except HeadraceError as error:
            return error

    def requests(self, kind: type) -> list[Any]:
        return [call.request for call in self.calls if isinstance(call.request, kind)]


def metadata_response(
    topics: dict[str, dict[int, int]],
    *,
    brokers: tuple[int, ...] = (1, 2),
    controller: int = 1,
    epoch: int = 0,
    errors: dict[str, int] | None = None,
    topic_id: bytes = b"i" * 16,
) -> MetadataResponse:
    """Topic name to partition number to leader."""
    return MetadataResponse(
        brokers=[MetadataResponseBroker(node_id=n, host=f"b{n}", port=9000 + n) for n in brokers],
        controller_id=controller,
        cluster_id="c",
        topics=[
            MetadataResponseTopic(
                name=name,
                topic_id=topic_id,
                partitions=[
                    MetadataResponsePartition(
                        partition_index=number,
                        leader_id=leader,
                        leader_epoch=epoch,
                        replica_nodes=[leader],
                        isr_nodes=[leader],
                    )
                    for number, leader in partitions.items()
                ],
            )
            for name, partitions in topics.items()
        ]
        + [
            MetadataResponseTopic(name=name, error_code=code)
            for name, code in (errors or {}).items()
        ],
    )


def known_state(topics: dict[str, dict[int, int]], **options) -> ClientState:
    """A state that has seen the metadata of these topics."""
    state = ClientState()
    learn(state, metadata_response(topics, **options))
    return state
