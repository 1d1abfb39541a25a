"""A member under the classic group protocol: joins, heartbeats, and the assignment if the member is the leader."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Protocol

from headrace.clients.assignors import Assignor, MemberSubscription
from headrace.clients.assignors.base import withhold
from headrace.clients.config import ConsumerConfig
from headrace.clients.consumer.background import Background
from headrace.clients.consumer.member import ConsumerMember, NewAssignment
from headrace.clients.consumer.member_metadata import accepted, read_members, read_topics
from headrace.clients.consumer.reports import Reports
from headrace.clients.engine import Engine
from headrace.clients.flows import classic_group
from headrace.clients.flows.classic_group import ClassicMemberSettings
from headrace.clients.flows.coordinator import raise_for
from headrace.clients.flows.effects import Flow
from headrace.clients.flows.offsets import CommitIdentity
from headrace.errors import ApiError, ErrorCode, HeadraceError, ProtocolError, TransportError
from headrace.protocol.messages.heartbeat import HeartbeatResponse
from headrace.protocol.messages.join_group import JoinGroupResponse
from headrace.protocol.messages.sync_group import SyncGroupRequestAssignment
from headrace.types import TopicPartition

UNKNOWN: Final = frozenset({ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.GROUP_ID_NOT_FOUND})
"""The coordinator does not know the member or, from OffsetCommit 9 on, its group."""
NOT_A_MEMBER: Final = UNKNOWN | {ErrorCode.ILLEGAL_GENERATION}
_CONFIRMING: Final = frozenset({ErrorCode.NONE, ErrorCode.REBALANCE_IN_PROGRESS})
"""Error codes in responses to heartbeats that renew the session."""
_UNDERSTOOD: Final = _CONFIRMING | NOT_A_MEMBER | {ErrorCode.FENCED_INSTANCE_ID}


class _LostError(HeadraceError):
    """The coordinator does not know this member or its generation any more."""


class TopicLookup(Protocol):
    """Topics and partitions, which the consumer looks up for its member."""

    @property
    def assignor(self) -> str | None:
        """The assignor that the member prefers, if it has it; None is the first one."""

    def subscribed(self) -> Flow[frozenset[str]]:
        """Look up the topics of the subscription."""

    def count_partitions(self, topics: frozenset[str]) -> Flow[Mapping[str, int]]:
        """Look up the number of partitions of topics."""


class ClassicProtocolMember(ConsumerMember):
    """One consumer as a member of a group whose leader assigns the partitions."""

    def __init__(
        self,
        engine: Engine,
        config: ConsumerConfig,
        assignors: Sequence[Assignor],
        topics: TopicLookup,
        reports: Reports,
    ) -> None:
        super().__init__(engine, config, reports)
        self.assignors = list(assignors)
        self._topics = topics
        self._settings = ClassicMemberSettings(
            group_id=self._group,
            session_timeout_ms=config.session_timeout_ms,
            rebalance_timeout_ms=config.max_poll_interval_ms,
            group_instance_id=config.group_instance_id,
        )
        self._owned_generation = -1
        """The generation of the last assignment that was taken over; -1 before the first."""
        self._beat_every_ms = min(config.heartbeat_interval_ms, config.session_timeout_ms // 3)
        self._joining = Background(engine)

    @property
    def cooperative(self) -> bool:
        """Whether partitions are kept during a rebalance (KIP-429): if every assignor supports it."""
        return all(assignor.protocol == "cooperative" for assignor in self.assignors)

    @property
    def joining(self) -> bool:
        return self._joining.running

    @property
    def session_ms(self) -> int:
        return self._config.session_timeout_ms

    @property
    def _has_session(self) -> bool:
        """Whether there is a session whose end revokes partitions: a member that joins without partitions has none."""
        return self.generation >= 0 and not (self.joining and not self._reports.owned)

    def identity(self) -> CommitIdentity:
        """Return the identity for commits."""
        return CommitIdentity(self.generation, self.member_id, self._config.group_instance_id)

    def join(self) -> None:
        """Join the next generation of the group; partitions that must not be kept have been revoked."""
        self.rejoin = False
        if not self._reports.owned:
            self._stop_beating()  # with partitions, heartbeats detect that they were lost while the join waits
        self.polls.start()
        self._joining.start(self._converse(), self._joined)

    def took(self, arrival: NewAssignment, *, gave_up: bool) -> None:
        """Note that the assignment was taken over; rejoin if partitions were revoked, so that others can have them."""
        if gave_up:
            self.request_rejoin("gave up partitions")
        self.arrived = None
        self._owned_generation = arrival.generation

    def _farewell(self) -> Flow[None]:
        place = classic_group.Membership(self.member_id, self.generation)
        return self._send_leave(place)

    def _send_leave(self, place: classic_group.Membership) -> Flow[None]:
        """Leave the group. A static member stays in it until its session expires, unless it was stopped."""
        static = self._config.group_instance_id is not None
        if place.member_id and (self.stopping or not static):
            yield from classic_group.leave(self._engine.state, self._settings, place)

    def stop(self) -> None:
        """End the membership without a request."""
        self._joining.stop()
        self.member_id = ""
        super().stop()

    def answered(self, code: ErrorCode, generation: int) -> None:
        """Handle the error code in the response to a heartbeat or a commit of a generation.

        (1) A request is sent in generation 5. (2) The member joins generation 6. (3) The response to the request is
        ILLEGAL_GENERATION, which means nothing for generation 6. While a join is running, its own responses decide. The
        only exception is that the coordinator does not know the member at all.
        """
        if generation != self.generation:
            return
        if self.joining:
            if code not in UNKNOWN:
                return
            self._joining.stop()
        if code in UNKNOWN:
            self.member_id = ""
        if code in NOT_A_MEMBER:
            self.lose(f"the group went on without this member ({code.name})")
        elif code == ErrorCode.FENCED_INSTANCE_ID:
            self.member_id = ""
            self._replaced()
        elif code == ErrorCode.REBALANCE_IN_PROGRESS:
            self.request_rejoin("the group is rebalancing")

    # Heartbeats

    def _beat(self) -> None:
        if self._beating.running or self.generation < 0:
            return
        generation, began_ms = self.generation, self._engine.now_ms
        self._asked_ms = began_ms
        place = classic_group.Membership(self.member_id, generation)
        flow = classic_group.heartbeat(self._engine.state, self._settings, place)

        def beaten(outcome: HeartbeatResponse | HeadraceError) -> None:
            if isinstance(outcome, HeartbeatResponse):
                self._handle_heartbeat(outcome, generation, began_ms)
            elif not _passes(outcome):
                self._reports.failed(outcome)
            if self.generation >= 0:
                due_ms = max(began_ms + self._beat_every_ms, self._engine.now_ms + 1)
                if isinstance(outcome, HeadraceError) and _passes(outcome):
                    # The coordinator moves or is away. The next heartbeat looks for it again.
                    due_ms = self._engine.now_ms + min(self._beat_every_ms, self._pause_ms())
                self._beat_at(due_ms)

        self._beating.start(flow, beaten, self._config.session_timeout_ms)

    def _handle_heartbeat(
        self, response: HeartbeatResponse, generation: int, began_ms: int
    ) -> None:
        code = ErrorCode(response.error_code)
        if code in _CONFIRMING and generation == self.generation:
            self._failures = 0
            self.session.confirm(began_ms)
        elif code not in _UNDERSTOOD:  # for example an authorization error
            self._refused(code)
        if response.headrace_stop:
            self.has_to_stop()
        self.answered(code, generation)

    def _refused(self, code: ErrorCode) -> None:
        text = f"heartbeat to group {self._settings.group_id!r}: {code.description}"
        self._reports.failed(ApiError.for_code(code, text))

    # Joining

    def _joined(self, outcome: NewAssignment | HeadraceError) -> None:
        if isinstance(outcome, NewAssignment):
            self._failures = 0
            self.arrived = outcome
            return
        if isinstance(outcome, _LostError):
            # The member kept partitions while it joined. The next call of the program calls the listener.
            self.lose(str(outcome))
            return
        self.generation = -1
        self._stop_beating()
        self._rejoin_later()
        self._reports.failed(outcome)

    def _converse(self) -> Flow[NewAssignment]:
        """Join and sync until the member has an assignment."""
        backoff = self._engine.state.backoff()
        state, settings = self._engine.state, self._settings
        while True:
            topics = yield from self._topics.subscribed()
            joined = yield from classic_group.join_group(
                state, settings, self.member_id, self._protocols(topics), self.reason
            )
            code = ErrorCode(joined.error_code)
            if joined.headrace_stop:
                self.has_to_stop()
            if code == ErrorCode.MEMBER_ID_REQUIRED:
                if self.member_id:  # the coordinator has forgotten the id that it gave
                    yield backoff.after(ApiError.for_code(code))
                self.member_id = joined.member_id
                continue
            if code in NOT_A_MEMBER:
                self._check_nothing_lost(code)
                yield backoff.after(ProtocolError("the coordinator does not know this member"))
                continue
            if code == ErrorCode.REBALANCE_IN_PROGRESS or code.retriable:
                yield backoff.after(ApiError.for_code(code))
                continue
            raise_for(code, f"cannot join group {settings.group_id!r}")
            arrival = yield from self._sync(joined, topics)
            if arrival is not None:
                return arrival
            self._stop_beating()
            if self.generation < 0:
                yield backoff.after(ProtocolError("the coordinator does not know this member"))

    def _sync(
        self, joined: JoinGroupResponse, topics: frozenset[str]
    ) -> Flow[NewAssignment | None]:
        """Send the assignment as leader, or get it; None if the group has begun another generation."""
        self.member_id, self.generation = joined.member_id, joined.generation_id
        if not self._reports.owned:
            self.session.confirm(self._engine.now_ms)
        # With partitions only heartbeats count: this process may have been suspended before it read the response.
        # Heartbeats begin now, because the leader and the other members may need long for their part.
        self._beat_at(self._engine.now_ms + self._beat_every_ms)
        assignments: list[SyncGroupRequestAssignment] = []
        counts: Mapping[str, int] | None = None
        if joined.leader == joined.member_id:
            wanted = read_topics(joined, self._reports.warn)
            counts = yield from self._topics.count_partitions(
                frozenset[str]().union(*wanted.values())
            )
            subscriptions = read_members(joined, wanted, counts)
            if not joined.skip_assignment:
                assignments = self._divide(joined.protocol_name or "", subscriptions, counts)
        began_ms = self._engine.now_ms
        synced = yield from classic_group.sync_group(
            self._engine.state, self._settings, joined, assignments
        )
        code = ErrorCode(synced.error_code)
        if code == ErrorCode.REBALANCE_IN_PROGRESS:
            return None
        if code in NOT_A_MEMBER:
            self._check_nothing_lost(code)
            return None
        raise_for(code, f"cannot sync with group {self._settings.group_id!r}")
        self.session.confirm(began_ms)
        given = classic_group.decode_assignment(synced.assignment)
        partitions = accepted(self._group, given, topics, self._reports.warn)
        for assignor in self.assignors:
            if assignor.name == joined.protocol_name and hasattr(assignor, "on_assignment"):
                assignor.on_assignment(partitions, joined.generation_id)
        return NewAssignment(joined.generation_id, tuple(partitions), counts)

    def _check_nothing_lost(self, code: ErrorCode) -> None:
        """Reset the member, so that it joins again; if it kept partitions, report them as lost first."""
        self.generation = -1
        if code == ErrorCode.UNKNOWN_MEMBER_ID:
            self.member_id = ""
        if self._reports.owned:
            raise _LostError(f"the group went on without this member ({code.name})")

    def _protocols(self, topics: frozenset[str]) -> list[tuple[str, bytes]]:
        owned = self._reports.owned if self.cooperative else []
        protocols = []
        for assignor in sorted(self.assignors, key=lambda one: one.name != self._topics.assignor):
            user_data = getattr(assignor, "subscription_user_data", None)
            blob = classic_group.encode_subscription(
                topics,
                owned=owned,
                generation=self._owned_generation,
                user_data=None if user_data is None else user_data(),
                rack=self._config.client_rack or None,
            )
            protocols.append((assignor.name, blob))
        return protocols

    def _divide(
        self,
        protocol: str,
        members: Mapping[str, MemberSubscription],
        counts: Mapping[str, int],
    ) -> list[SyncGroupRequestAssignment]:
        assignor = next((one for one in self.assignors if one.name == protocol), None)
        if assignor is None:
            raise ProtocolError(
                f"the coordinator of group {self._group!r} chose the assignor {protocol!r}, "
                "which this member did not name"
            )
        assigned: Mapping[str, Iterable[TopicPartition]] = assignor.assign(members, counts)
        if self.cooperative:
            assigned = withhold(assigned, members)
        return [
            SyncGroupRequestAssignment(
                member_id=member,
                assignment=classic_group.encode_assignment(assigned.get(member, ())),
            )
            for member in members
        ]


def _passes(error: HeadraceError) -> bool:
    """Return whether an error means only that the coordinator cannot answer at present."""
    return isinstance(error, TransportError) or (isinstance(error, ApiError) and error.retriable)
