"""The owner of each partition of a group, by the heartbeats of KIP-848: what a member received or reports that it
owns."""

from __future__ import annotations

from typing import Any

from headrace.broker.broker import Broker
from headrace.protocol.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from tests.simulation.machine import ViolationError

Place = tuple[bytes, int]
"""A topic's id and a partition of it."""


class Holders:
    """The partitions that each member owns: from the assignment until the member reports that it released them, or is
    removed.

    A member owns nothing that it was not assigned: a heartbeat may come late, when its member was removed and has
    joined again. The epoch does not show that: a member without its last answer reports its partitions with the epoch
    before, and the report counts.
    """

    def __init__(self, group: str) -> None:
        self._group = group
        self._held: dict[str, set[Place]] = {}
        self._open: dict[str, list[ConsumerGroupHeartbeatRequest]] = {}
        """Requests of each member that are to be answered, since it joined last."""
        self._told: list[tuple[str, set[Place]]] = []

    def asked(self, request: ConsumerGroupHeartbeatRequest) -> None:
        """A member has asked, and perhaps says what it owns; who joins has nothing."""
        member = request.member_id
        if request.member_epoch <= 0:
            self._held.pop(member, None)
            self._open.pop(member, None)  # what is answered to a request from before comes too late
        elif request.topic_partitions is not None and member in self._held:
            self._held[member] &= _places(request.topic_partitions)  # only answers give
        self._open.setdefault(member, []).append(request)

    def answered(
        self, request: ConsumerGroupHeartbeatRequest, response: ConsumerGroupHeartbeatResponse
    ) -> None:
        """A member was answered."""
        waiting = self._open.get(request.member_id, [])
        current = any(each is request for each in waiting)
        self._open[request.member_id] = [each for each in waiting if each is not request]
        if current and not response.error_code and response.assignment is not None:
            given = _places(response.assignment.topic_partitions)
            self._told.append((request.member_id, given))
            self._held.setdefault(request.member_id, set()).update(given)

    def check(self, broker: Broker) -> None:
        """Check what was given to members since the last time, when the broker is at rest."""
        if not self._told:
            return
        told, self._told = self._told, []
        shard = broker.services.groups._shard_of(self._group)
        group = None if shard is None else shard.consumer_groups.get(self._group)
        members = set() if group is None else set(group.members)
        self._held = {name: places for name, places in self._held.items() if name in members}
        for member, given in told:
            for other, held in self._held.items():
                if other != member and given & held and member in members:
                    shared = sorted(number for _, number in given & held)
                    raise ViolationError(f"{member} was given {shared}, which {other} holds (14)")


def _places(topics: Any) -> set[Place]:
    return {(topic.topic_id, number) for topic in topics for number in topic.partitions}
