"""The brokers and the partitions as Metadata, DescribeCluster and errors show them to one client.

A client gets the addresses of the listener through which it has connected. A broker without such a listener does not
exist for the client.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from headrace.broker.context import RequestContext
from headrace.broker.partitions.topic import Topic
from headrace.broker.services import Services
from headrace.core.replica.role import NO_LEADER
from headrace.errors import ErrorCode

MOVED: Final = frozenset({ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH})
"""The errors with which a response names the new leader (KIP-951)."""


class BrokerView(NamedTuple):
    """A live broker, with its address for a client.

    Attributes:
        broker_id: The id of the broker.
        host: The host.
        port: The port.
        rack: The rack; None if the broker has none.
    """

    broker_id: int
    host: str
    port: int
    rack: str | None


Brokers = dict[int, BrokerView]
"""The brokers that a client can connect to, by id."""


class PartitionView(NamedTuple):
    """A partition as clients see it.

    Attributes:
        leader: The broker id of the leader; -1 if no live broker leads the partition.
        leader_epoch: The leader epoch.
        replicas: The broker ids of the replicas.
        isr: The broker ids of the in-sync replicas.
        elr: The broker ids of the eligible leader replicas.
        last_known_elr: The broker ids of the replicas of which one leads when all have lost unsynced records.
        offline: The broker ids of the replicas that are not served: the broker is not live, or the replica is damaged.
    """

    leader: int
    leader_epoch: int
    replicas: list[int]
    isr: list[int]
    elr: list[int]
    last_known_elr: list[int]
    offline: list[int]


def brokers_for(services: Services, context: RequestContext) -> Brokers:
    """Return the live brokers by id. While no broker is live, this broker."""
    found: Brokers = {}
    own = services.partitions.broker_id
    for each in services.membership.live.values():
        if each.broker_id == own:
            found[own] = _this_broker(services, context, each.rack)
        elif (address := each.endpoints.get(context.session.listener)) is not None:
            found[each.broker_id] = BrokerView(each.broker_id, *address, each.rack)
    return found or {own: _this_broker(services, context, None)}


def _this_broker(services: Services, context: RequestContext, rack: str | None) -> BrokerView:
    endpoint = services.endpoints.endpoint_for(context)
    return BrokerView(services.partitions.broker_id, endpoint.host, endpoint.port, rack)


def controller_for(services: Services, brokers: Brokers) -> int:
    """Return the id of the controller; of any live broker if the client cannot connect to the controller."""
    controller_id = services.membership.controller_id
    return controller_id if controller_id in brokers else next(iter(brokers))


def partition_views(
    services: Services, brokers: Brokers, topic: Topic, first: int = 0, end: int | None = None
) -> Iterator[PartitionView]:
    """Yield the partitions of a topic as a client sees them that knows these brokers.

    Args:
        services: The parts of the broker.
        brokers: The brokers that the client can connect to.
        topic: The topic.
        first: The number of the first partition.
        end: The number after the last partition; None is all.
    """
    own, served = services.partitions.broker_id, services.partitions.of(topic)
    for index in range(first, len(served) if end is None else end):
        state, replicas = services.topics.state(topic, index), topic.replicas[index]
        offline = [each for each in replicas if each not in brokers]
        if served[index] is None and own in replicas and own in brokers:
            offline.append(own)
        is_led = state.leader in brokers and state.leader not in offline
        leader_epoch, partition = state.leader_epoch, served[index]
        if state.leader == own and partition is not None:
            # The epoch in which this broker leads, which the log of an earlier version may have raised.
            leader_epoch = max(leader_epoch, partition.leader_epoch)
        yield PartitionView(
            state.leader if is_led else NO_LEADER,
            leader_epoch,
            list(replicas),
            list(state.isr),
            list(state.elr),
            [each.broker for each in state.last_known],
            offline,
        )


class NewLeaders:
    """The leaders that a response names with NOT_LEADER_OR_FOLLOWER or FENCED_LEADER_EPOCH (KIP-951)."""

    __slots__ = ("_brokers", "_services", "named")

    def __init__(self, services: Services, context: RequestContext) -> None:
        self._services = services
        self._brokers = brokers_for(services, context)
        self.named: Brokers = {}
        """The leaders that were found, whose addresses the response has."""

    def find(self, name: str, index: int) -> tuple[int, int] | None:
        """Return the broker id and the leader epoch of a partition's leader; None if it is this broker or unknown."""
        topic = self._services.topics.get(name)
        if topic is None or not 0 <= index < topic.partitions_count:
            return None
        state = self._services.topics.state(topic, index)
        leader = self._brokers.get(state.leader)
        if leader is None or leader.broker_id == self._services.partitions.broker_id:
            return None
        self.named[leader.broker_id] = leader
        return leader.broker_id, state.leader_epoch
