"""Faults that a test sets in its broker: refusals, slow responses, lost connections, moved leaders, expired members.

broker.faults.on(ApiKey.PRODUCE, once=error("NOT_LEADER_OR_FOLLOWER"))
broker.faults.on(ApiKey.FETCH, delay(0.5))
broker.faults.expire_member("billing")
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from headrace.broker.apis import Api
from headrace.broker.context import CloseConnection, RequestContext
from headrace.broker.dispatch import APIS
from headrace.clients.flows.kip848 import LEAVE_EPOCH
from headrace.errors import ConfigError, ErrorCode, UnknownTopicOrPartitionError
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.codec import Message
from headrace.protocol.frame import RequestHeader
from headrace.protocol.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from headrace.protocol.messages.leave_group import LeaveGroupRequest, MemberIdentity
from headrace.protocol.messages.metadata import MetadataRequest
from headrace.testing import fault_list, views
from headrace.testing.interception import Exchange, InterceptedBroker, Reply
from headrace.testing.refusals import refuse
from headrace.testing.releases import apis_of
from headrace.types import TopicPartition

if TYPE_CHECKING:
    from headrace.embedded.runtime import BrokerRuntime

Action = Callable[[Exchange], Reply]
"""Handles a request: returns the reply, or raises `CloseConnection`."""

Client = tuple[str | None, str]
"""The identity of a client for a broker: the client id, and the host."""


def error(code: str | int) -> Action:
    """Refuse a request with one of Kafka's errors, by its name or number. The broker does not execute the request.

    Raises:
        ConfigError: Kafka has no error of this name.
    """
    if isinstance(code, str) and code not in ErrorCode.__members__:
        close = difflib.get_close_matches(code.upper(), ErrorCode.__members__, 1)
        hint = f"; did you mean {close[0]}?" if close else ""
        raise ConfigError(f"Kafka has no error {code!r}{hint}")
    chosen = ErrorCode[code] if isinstance(code, str) else ErrorCode(code)
    return lambda exchange: refuse(exchange, chosen)


def delay(seconds: float) -> Action:
    """Execute a request at once, and respond after a number of seconds of the broker's clock."""

    def act(exchange: Exchange) -> Reply:
        return exchange.later(exchange.proceed(), seconds)

    return act


def drop_connection(*, handled: bool = False) -> Action:
    """Close the connection instead of responding.

    Args:
        handled: Whether the broker executes the request before, so that only the response is lost.
    """

    def act(exchange: Exchange) -> Reply:
        if handled:
            exchange.proceed()
        raise CloseConnection(f"a fault of the test: {exchange.api.name} gets no response")

    return act


Fault = fault_list.Fault[Exchange, Reply]


class FaultState(NamedTuple):
    """The faults of a broker at one moment. `apis` is None if the broker serves all versions."""

    ordered: tuple[Fault, ...]
    moved: frozenset[TopicPartition]
    apis: tuple[Api, ...] | None

    def __sub__(self, before: FaultState) -> FaultState:
        """Return the faults that `before` does not have."""
        return FaultState(
            tuple(each for each in self.ordered if each not in before.ordered),
            self.moved - before.moved,
            None if self.apis is before.apis else self.apis,
        )


class Faults(fault_list.FaultList[Exchange, Reply]):
    """The faults of one broker. Without faults, requests cost nothing more."""

    def __init__(self, runtime: BrokerRuntime, core: InterceptedBroker) -> None:
        super().__init__()
        self._runtime = runtime
        self._core = core
        self._condition = runtime.condition
        self._moved: dict[TopicPartition, set[Client]] = {}
        """The partitions whose leader has moved, each with the clients that have received the new metadata."""
        self._versions: dict[int, int] = {}

    def on(
        self,
        api: ApiKey | None,
        action: Action | None = None,
        *,
        once: Action | None = None,
        times: int | None = None,
        client_id: str | None = None,
        when: Callable[[Exchange], bool] | None = None,
    ) -> Fault:
        """Set a fault. If several faults fit a request, the one that was set first applies.

        Args:
            api: The API of the requests. None is every API.
            action: The action: `error(...)`, `delay(...)`, `drop_connection()`, or a function of an `Exchange`.
            once: The action for the next request only.
            times: The number of requests to which the fault applies. None is any number.
            client_id: Apply the fault only to clients with this client id.
            when: Apply the fault only to requests for which this function of an `Exchange` returns True.

        Returns:
            The fault, which counts its requests and can be removed.

        Raises:
            ConfigError: Neither `action` nor `once` was passed, or both.
        """

        def meets(exchange: Exchange) -> bool:
            return (
                api in {None, exchange.api}
                and client_id in {None, exchange.client_id}
                and (when is None or when(exchange))
            )

        with self._condition:
            fault = self.order(action, once, times, meets)
            self._arm()
        return fault

    def remove(self, fault: Fault) -> None:
        """Remove a fault. No error is raised if it has ended."""
        with self._condition:
            super().remove(fault)
            self._arm()

    def clear(self) -> None:
        """End all faults, send the delayed responses, and serve all versions again."""
        self.keep([])

    def state(self) -> FaultState:
        """Return the present faults, for `keep`."""
        with self._condition:
            apis = None if self._core.apis is APIS else self._core.apis
            return FaultState(self._ordered, frozenset(self._moved), apis)

    def keep(self, states: Iterable[FaultState | None]) -> None:
        """End all faults except those in some states."""
        kept = [state for state in states if state is not None]
        with self._condition:
            self._ordered = tuple(
                each for each in self._ordered if any(each in state.ordered for state in kept)
            )
            for moved in set(self._moved) - frozenset().union(*(state.moved for state in kept)):
                del self._moved[moved]
            apis = [state.apis for state in kept if state.apis is not None]
            self._speak(apis[-1] if apis else APIS)
            self._core.release()
            self._runtime.pump()
            self._condition.notify_all()

    def move_leader(self, topic: str, partition: int | None = None) -> None:
        """Simulate that the leader of a partition, or of all partitions of a topic, has moved.

        The leader epoch grows by one. A client that writes, reads or lists offsets gets NOT_LEADER_OR_FOLLOWER until it
        has requested metadata of the topic. A request with the old epoch gets FENCED_LEADER_EPOCH. Clients with the
        same client id and host count as one client.

        Raises:
            ApiError: UNKNOWN_TOPIC_OR_PARTITION, if the topic or the partition does not exist.
        """
        with self._condition:
            services = self._core.services
            found = services.topics.require(topic)
            if partition is not None and not 0 <= partition < found.partitions_count:
                raise UnknownTopicOrPartitionError(f"{topic} has no partition {partition}")
            for index, moved in enumerate(services.partitions.of(found)):
                if moved is not None and partition in {None, index}:
                    moved.leader_epoch += 1
                    self._moved[moved.topic_partition] = set()
            self._arm()

    def expire_member(self, group: str, member: str | None = None) -> None:
        """Expire the session of a member, as if it had sent no heartbeats. Its next request gets an error.

        Args:
            group: The group.
            member: The member id or the group instance id. None is the only member of the group.

        Raises:
            ConfigError: The group has no such member.
        """
        with self._condition:
            described = views.describe(self._core, group, self._runtime.now_ms())
            rows = [] if described is None else described.members
            chosen = [row for row in rows if member in {None, row.member_id, row.group_instance_id}]
            if len(chosen) != 1:
                known = ", ".join(row.member_id for row in rows) or "none"
                wanted = "exactly one member" if member is None else f"a member {member!r}"
                raise ConfigError(f"group {group!r} does not have {wanted}; its members: {known}")
            self.remove_members(group, chosen)

    def remove_members(self, group: str, members: Iterable[views.MemberView]) -> None:
        """Remove members from a group as if their sessions had expired. The caller holds the lock."""
        gone = []
        for each in members:
            instance_id = each.group_instance_id
            if each.by_heartbeats:
                self._handle(
                    ConsumerGroupHeartbeatRequest(
                        group_id=group,
                        member_id=each.member_id,
                        member_epoch=LEAVE_EPOCH,
                        instance_id=instance_id,
                    )
                )
            else:
                gone.append(MemberIdentity(member_id=each.member_id, group_instance_id=instance_id))
        if gone:
            self._handle(LeaveGroupRequest(group_id=group, members=gone))
        self._runtime.pump()

    def _handle(self, request: Message) -> None:
        context = RequestContext(
            now_ms=self._runtime.now_ms(),
            header=RequestHeader(request.API_KEY, request.MAX_VERSION, 0, "headrace-testing"),
            client_address="embedded",
            listener_host="",
            listener_port=0,
        )
        self._core.handle_undisturbed(context, request)

    def max_versions(self, release: str) -> None:
        """Serve only the APIs and versions of a release of Kafka, such as "2.8".

        Clients receive the versions when they connect.

        Raises:
            ConfigError: There is no table for this release.
        """
        with self._condition:
            self._speak(apis_of(release, APIS))

    def _speak(self, apis: tuple[Api, ...]) -> None:
        self._core.services.apis.rows = apis
        self._versions = {} if apis is APIS else {api.key: api.served.max for api in apis}
        self._runtime.apis_changed()
        self._arm()

    def _arm(self) -> None:
        busy = self._ordered or self._moved or self._versions
        self._core.intercept = self._reply if busy else None

    def _reply(self, exchange: Exchange) -> Reply:
        if self._is_too_new(exchange):
            raise CloseConnection(f"{exchange.api.name} version {exchange.version} is too new")
        if self._moved and isinstance(exchange.request, MetadataRequest):
            self._note_metadata(exchange)
        fault = self.find(exchange)
        if fault is not None:
            return fault.take(exchange)
        if self._moved and self._is_stale(exchange):
            return refuse(exchange, ErrorCode.NOT_LEADER_OR_FOLLOWER)
        return exchange.proceed()

    def _is_too_new(self, exchange: Exchange) -> bool:
        """Return whether a request has a version above `max_versions`. Every version of ApiVersions is served."""
        newest = self._versions.get(exchange.api, -1 if self._versions else exchange.version)
        return exchange.version > newest and exchange.api != ApiKey.API_VERSIONS

    def _note_metadata(self, exchange: Exchange) -> None:
        """Note that a client requests metadata, which contains the new leaders."""
        topics = exchange.request.topics
        asked = None if topics is None else {topic.name for topic in topics}
        for moved, informed in self._moved.items():
            if asked is None or moved.topic in asked:
                informed.add(_client(exchange))

    def _is_stale(self, exchange: Exchange) -> bool:
        """Return whether a request is for a leader that has moved, from a client without the new metadata."""
        client = _client(exchange)
        stale = {moved for moved, informed in self._moved.items() if client not in informed}
        return not stale.isdisjoint(_partitions(exchange))


_TOPICS: Final = {ApiKey.PRODUCE: "topic_data", ApiKey.FETCH: "topics", ApiKey.LIST_OFFSETS: "topics"}  # fmt: skip


def _client(exchange: Exchange) -> Client:
    return exchange.client_id, exchange.context.client_address.rpartition(":")[0]


def _partitions(exchange: Exchange) -> Iterable[TopicPartition]:
    """Yield the partitions in a request that only their leaders serve."""
    if exchange.api not in _TOPICS:
        return
    topics: Any = getattr(exchange.request, _TOPICS[exchange.api])
    for topic in topics:
        for row in getattr(topic, "partition_data", None) or topic.partitions:
            name = topic.topic if exchange.api == ApiKey.FETCH else topic.name
            found = exchange.core.services.topics.by_id(getattr(topic, "topic_id", b""))
            name = name if found is None else found.name
            index = next(
                getattr(row, field)
                for field in ("index", "partition", "partition_index")
                if hasattr(row, field)
            )
            yield TopicPartition(name, index)
