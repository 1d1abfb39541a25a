"""The owner of each partition of a KIP-848 group, as heartbeats and their responses show it."""

from __future__ import annotations

from typing import Any

from headrace.broker.broker import Broker
from headrace.protocol.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from tests.simulation.machine import ViolationError

Partition = tuple[bytes, int]
"""A topic's id and the number of a partition."""


class PartitionOwners:
    """The partitions that each member owns: from its assignment until the member reports the revocation or is removed.

    A member owns only what it was assigned. A late heartbeat of a member that was removed and has joined again assigns
    nothing. The member epoch does not show that: a member that missed its last response reports its partitions with the
    previous epoch, and that report counts.
    """

    def __init__(self, group: str) -> None:
        self._group = group
        self._owned: dict[str, set[Partition]] = {}
        self._pending: dict[str, list[ConsumerGroupHeartbeatRequest]] = {}
        """The requests of each member since its last join that have no response yet."""
        self._assigned: list[tuple[str, set[Partition]]] = []
        """Members and their assignments since the last check."""

    def asked(self, request: ConsumerGroupHeartbeatRequest) -> None:
        """Take a request, which may report the owned partitions. A member that joins owns nothing."""
        member = request.member_id
        if request.member_epoch <= 0:
            self._owned.pop(member, None)
            self._pending.pop(member, None)  # responses to earlier requests no longer count
        elif request.topic_partitions is not None and member in self._owned:
            self._owned[member] &= _partitions(request.topic_partitions)  # only responses assign
        self._pending.setdefault(member, []).append(request)

    def answered(
        self, request: ConsumerGroupHeartbeatRequest, response: ConsumerGroupHeartbeatResponse
    ) -> None:
        """Take a response, which may assign partitions."""
        pending = self._pending.get(request.member_id, [])
        current = any(each is request for each in pending)
        self._pending[request.member_id] = [each for each in pending if each is not request]
        if current and not response.error_code and response.assignment is not None:
            assigned = _partitions(response.assignment.topic_partitions)
            self._assigned.append((request.member_id, assigned))
            self._owned.setdefault(request.member_id, set()).update(assigned)

    def check(self, broker: Broker) -> None:
        """Check the assignments since the last check. The broker has finished its step."""
        if not self._assigned:
            return
        assignments, self._assigned = self._assigned, []
        shard = broker.services.groups._shard_of(self._group)
        group = None if shard is None else shard.consumer_groups.get(self._group)
        members = set() if group is None else set(group.members)
        self._owned = {name: owned for name, owned in self._owned.items() if name in members}
        for member, assigned in assignments:
            for other, owned in self._owned.items():
                if other != member and assigned & owned and member in members:
                    shared = sorted(number for _, number in assigned & owned)
                    raise ViolationError(f"{member} was assigned {shared}, which {other} owns (14)")


def _partitions(topics: Any) -> set[Partition]:
    return {(topic.topic_id, number) for topic in topics for number in topic.partitions}
