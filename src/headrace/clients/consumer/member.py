"""A member's conversation with its coordinator, in the background: joining, heartbeats, leaving.

The program's own part in it, giving partitions up and taking them, belongs to the foreground (`core.py`): the member
says `rejoin`, `lost` or `arrived`, and goes on when it has been heard.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from headrace.clients.config import ConsumerConfig
from headrace.clients.consumer.assignors import Assignor, MemberSubscription
from headrace.clients.consumer.background import Background
from headrace.clients.engine import Engine, Timer
from headrace.clients.flows import membership
from headrace.clients.flows.coordinator import raise_for
from headrace.clients.flows.effects import Flow
from headrace.clients.flows.membership import GroupSettings
from headrace.clients.flows.offsets import Committer
from headrace.errors import ApiError, ErrorCode, HeadraceError, ProtocolError, TransportError
from headrace.protocol.messages.join_group import JoinGroupResponse
from headrace.protocol.messages.sync_group import SyncGroupRequestAssignment
from headrace.types import TopicPartition

LEAVE_TIMEOUT_MS: Final = 3_000
NOT_A_MEMBER: Final = frozenset({ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION})
_CONFIRMING: Final = frozenset({ErrorCode.NONE, ErrorCode.REBALANCE_IN_PROGRESS})
"""Answers to a heartbeat that begin the session anew."""
_UNDERSTOOD: Final = _CONFIRMING | NOT_A_MEMBER | {ErrorCode.FENCED_INSTANCE_ID}


@dataclass(frozen=True, slots=True)
class Arrival:
    """A new generation of the group, and what this member got in it."""

    generation: int
    partitions: tuple[TopicPartition, ...]
    partition_counts: Mapping[str, int] | None
    """What the leader divided; None for the others."""


class _LostError(HeadraceError):
    """The coordinator does not know this member, or its generation, any more."""


class Topics(Protocol):
    """What the member asks of its consumer."""

    @property
    def assignor(self) -> str | None:
        """The assignor that the member votes for, if it is one of its own; None is the first of them."""

    def subscribed(self) -> Flow[frozenset[str]]:
        """Look up which topics the member wants."""

    def count_partitions(self, topics: frozenset[str]) -> Flow[Mapping[str, int]]:
        """Look up how many partitions topics have."""


class Reports(Protocol):
    """What the member asks of its consumer, and tells it."""

    @property
    def owned(self) -> list[TopicPartition]:
        """The partitions that are read."""

    def failed(self, error: HeadraceError) -> object:
        """An error that does not pass; the program has to be told."""

    def warn(self, text: str) -> object:
        """Something that the program's operator should know."""


class Member:
    """One consumer's place in its group."""

    def __init__(
        self,
        engine: Engine,
        config: ConsumerConfig,
        assignors: Sequence[Assignor],
        topics: Topics,
        reports: Reports,
    ) -> None:
        assert config.group_id is not None, "checked by subscribe"
        self._engine = engine
        self._config = config
        self.assignors = list(assignors)
        self._topics = topics
        self._reports = reports
        self._settings = GroupSettings(
            group_id=config.group_id,
            session_timeout_ms=config.session_timeout_ms,
            rebalance_timeout_ms=config.max_poll_interval_ms,
            group_instance_id=config.group_instance_id,
        )
        self.member_id = ""
        self.generation = -1
        """The generation that the coordinator knows this member in; -1 while it is no member."""
        self._owned_generation = -1
        """The generation in which the partitions that are read were given."""
        self.rejoin = False
        """The foreground has to prepare for a new generation, and call `join`."""
        self.lost: str | None = None
        """Why the partitions are another's by now; the foreground has to give them up."""
        self.arrived: Arrival | None = None
        """What the foreground has to take over."""
        self._reason = "subscribed"
        self._beat_every_ms = min(config.heartbeat_interval_ms, config.session_timeout_ms // 3)
        self._joining = Background(engine)
        self._beating = Background(engine)
        self._beat_timer: Timer | None = None
        self._confirmed_ms = 0
        """When the last request was sent by whose answer the coordinator counted on this member."""
        self._asked_ms = 0
        """When the last heartbeat was sent."""
        self._polls = 0
        self._polled_ms = engine.now_ms
        self._poll_timer: Timer | None = None

    @property
    def cooperative(self) -> bool:
        """Whether partitions are kept while the group rebalances (KIP-429): when every assignor can do so."""
        return all(assignor.protocol == "cooperative" for assignor in self.assignors)

    @property
    def joining(self) -> bool:
        """Whether a join is under way."""
        return self._joining.running

    @property
    def settled(self) -> bool:
        """Whether the member has its place and knows of no change to it."""
        pending = self.rejoin or self.joining or self.arrived is not None or self.lost is not None
        return self.generation >= 0 and not pending

    @property
    def doubtful(self) -> bool:
        """Whether the session may have ended: nobody has confirmed the membership for as long as a session lasts.

        (1) The process stops, (2) the session ends, others read and commit, (3) the process goes on, with records in
        hand that were fetched before. They must wait for the coordinator's word. While a member joins that keeps its
        partitions, its heartbeats go on, and their answers count.
        """
        if self.generation < 0 or (self.joining and not self._reports.owned):
            return False
        return self._engine.now_ms >= self._confirmed_ms + self._config.session_timeout_ms

    def confirm(self) -> None:
        """Ask the coordinator whether it counts on this member, unless it was asked a moment ago.

        (1) A member joins that keeps its partitions, (2) the join's answer is lost, (3) the coordinator answers that it
        knows another generation: the doubt stays until the join ends, and asking at once again would not end it.
        """
        if self._engine.now_ms >= self._asked_ms + self._config.retry_backoff_ms:
            self._beat()

    def identity(self) -> Committer:
        """Return who commits."""
        return Committer(self.generation, self.member_id, self._config.group_instance_id)

    # The program calls in

    def poll_began(self) -> None:
        """The program is inside a call that lets the member do its part."""
        self._polls += 1

    def poll_ended(self) -> None:
        """The program works on its own again, from now on."""
        self._polls -= 1
        self._polled_ms = self._engine.now_ms

    def request_rejoin(self, reason: str) -> None:
        """Have the foreground prepare for a new generation."""
        if not self.rejoin:
            self.rejoin = True
            self._reason = reason
            self._engine.notify()

    def join(self) -> None:
        """Join the group's next generation; the partitions that must not be kept have been given up."""
        self.rejoin = False
        if not self._reports.owned:
            self._stop_beating()  # else they tell, when the join hangs, that what was kept is another's by now
        self._watch_polls()
        self._joining.start(self._converse(), self._joined)

    def took(self, arrival: Arrival) -> None:
        """The foreground has taken over what arrived."""
        self.arrived = None
        self._owned_generation = arrival.generation

    def leave(self) -> Flow[None]:
        """Stop, and return the flow that tells the coordinator.

        A static member says nothing, and keeps its place until its session ends.
        """
        place = membership.Membership(self.member_id, self.generation)
        self.stop()
        return self._tell_to_leave(place)

    def _tell_to_leave(self, place: membership.Membership) -> Flow[None]:
        if place.member_id and self._config.group_instance_id is None:
            yield from membership.leave(self._engine.state, self._settings, place)

    def stop(self) -> None:
        """Be no member any more, without telling anybody."""
        self._joining.stop()
        self._stop_beating()
        if self._poll_timer is not None:
            self._poll_timer.cancel()
            self._poll_timer = None
        self.member_id = ""
        self.generation = -1
        self.rejoin = False
        self.arrived = None
        self.lost = None

    # Losing one's place

    def lose(self, reason: str, *, forget_id: bool) -> None:
        """The group went on without this member: what it read and did not commit is another's."""
        if forget_id:
            self.member_id = ""
        self.generation = -1
        self._stop_beating()
        self.arrived = None
        self.lost = reason
        self.request_rejoin(reason)
        self._engine.notify()

    def answered(self, code: ErrorCode, generation: int) -> None:
        """Take note of what a heartbeat or a commit was answered.

        (1) A request goes out in generation 5, (2) the member joins generation 6, (3) the answer to (1) is
        ILLEGAL_GENERATION: that is no news. While a join is under way its own answers tell, but for one thing: that the
        coordinator does not know the member at all.
        """
        if generation != self.generation:
            return
        if self.joining:
            if code != ErrorCode.UNKNOWN_MEMBER_ID:
                return
            self._joining.stop()
        if code in NOT_A_MEMBER:
            forget_id = code == ErrorCode.UNKNOWN_MEMBER_ID
            self.lose(f"the group went on without this member ({code.name})", forget_id=forget_id)
        elif code == ErrorCode.FENCED_INSTANCE_ID:
            text = f"another member of the group has taken over group.instance.id {self._config.group_instance_id!r}"
            self.lose(text, forget_id=True)
            self.rejoin = False  # or the two would throw each other out for ever
            self._reports.failed(ApiError.for_code(code, text))
        elif code == ErrorCode.REBALANCE_IN_PROGRESS:
            self.request_rejoin("the group is rebalancing")

    def _watch_polls(self) -> None:
        """Notice a program that does not come back for max.poll.interval.ms."""
        self._polled_ms = self._engine.now_ms
        if self._poll_timer is None or not self._poll_timer.pending:
            limit_ms = self._config.max_poll_interval_ms
            self._poll_timer = self._engine.at(self._engine.now_ms + limit_ms, self._check_polls)

    def _check_polls(self) -> None:
        now_ms, limit_ms = self._engine.now_ms, self._config.max_poll_interval_ms
        if self.generation < 0 and not self.joining:
            self._poll_timer = None
            return  # no member by now; the next join watches again
        if self._polls:
            self._polled_ms = now_ms
        due_ms = self._polled_ms + limit_ms
        if now_ms < due_ms:
            self._poll_timer = self._engine.at(due_ms, self._check_polls)
            return
        self._poll_timer = None
        reason = (
            f"the program of consumer {self._config.client_id!r} (member {self.member_id!r} of group "
            f"{self._config.group_id!r}) has not polled for {limit_ms} ms (max.poll.interval.ms)"
        )
        self._reports.warn(
            f"{reason}: its partitions go to others, and it joins again with its next poll; poll more often, take "
            "fewer records at a time (max.poll.records), or raise max.poll.interval.ms"
        )
        self._engine.spawn(self.leave(), timeout_ms=LEAVE_TIMEOUT_MS)
        self.lose(reason, forget_id=True)

    # Heartbeats

    def _stop_beating(self) -> None:
        self._beating.stop()
        if self._beat_timer is not None:
            self._beat_timer.cancel()
            self._beat_timer = None

    def _beat_at(self, when_ms: int) -> None:
        if self._beat_timer is not None:
            self._beat_timer.cancel()
        self._beat_timer = self._engine.at(when_ms, self._beat)

    def _beat(self) -> None:
        if self._beating.running or self.generation < 0:
            return
        generation, began_ms = self.generation, self._engine.now_ms
        self._asked_ms = began_ms
        place = membership.Membership(self.member_id, generation)
        flow = membership.heartbeat(self._engine.state, self._settings, place)

        def beaten(outcome: ErrorCode | HeadraceError) -> None:
            if isinstance(outcome, ErrorCode):
                if outcome in _CONFIRMING and generation == self.generation:
                    self._confirmed_ms = began_ms
                elif outcome not in _UNDERSTOOD:  # such as that the group is closed to us
                    self._refused(outcome)
                self.answered(outcome, generation)
            elif isinstance(outcome, ApiError):
                self._reports.failed(outcome)
            # Else the coordinator moves or is away: reading goes on, and the next beat looks for it again.
            if self.generation >= 0:
                pause_ms = self._beat_every_ms
                if isinstance(outcome, TransportError):
                    pause_ms = min(pause_ms, self._config.retry_backoff_ms)
                self._beat_at(max(began_ms + pause_ms, self._engine.now_ms + 1))

        self._beating.start(flow, beaten, self._config.session_timeout_ms)

    def _refused(self, code: ErrorCode) -> None:
        text = f"heartbeat to group {self._settings.group_id!r}: {code.description}"
        self._reports.failed(ApiError.for_code(code, text))

    # Joining

    def _joined(self, outcome: Arrival | HeadraceError) -> None:
        if isinstance(outcome, Arrival):
            self.arrived = outcome
            return
        if isinstance(outcome, _LostError):
            # Only who kept partitions while joining has something to lose; the foreground tells the listener.
            self.lose(str(outcome), forget_id=False)
            return
        self.generation = -1
        self._stop_beating()
        self.request_rejoin("the last attempt failed")
        self._reports.failed(outcome)

    def _converse(self) -> Flow[Arrival]:
        """Join and sync, however many rebalances that takes."""
        backoff = self._engine.state.backoff()
        state, settings = self._engine.state, self._settings
        while True:
            topics = yield from self._topics.subscribed()
            joined = yield from membership.join_group(
                state, settings, self.member_id, self._protocols(topics), self._reason
            )
            code = ErrorCode(joined.error_code)
            if code == ErrorCode.MEMBER_ID_REQUIRED:
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
            arrival = yield from self._sync(joined)
            if arrival is not None:
                return arrival
            self._stop_beating()
            if self.generation < 0:
                yield backoff.after(ProtocolError("the coordinator does not know this member"))

    def _sync(self, joined: JoinGroupResponse) -> Flow[Arrival | None]:
        """Bring or fetch the assignment; None when the group moved on to another generation meanwhile."""
        self.member_id, self.generation = joined.member_id, joined.generation_id
        if not self._reports.owned:
            self._confirmed_ms = self._engine.now_ms
        # Else only heartbeats count: this answer may have waited for a process that was stopped.
        # The session runs from the join's answer on; the leader may take its time, and so may the others' syncs.
        self._beat_at(self._engine.now_ms + self._beat_every_ms)
        assignments: list[SyncGroupRequestAssignment] = []
        counts: Mapping[str, int] | None = None
        if joined.leader == joined.member_id:
            subscriptions = _read_members(joined)
            topics = frozenset[str]().union(*(member.topics for member in subscriptions.values()))
            counts = yield from self._topics.count_partitions(topics)
            if not joined.skip_assignment:
                assignments = self._divide(joined.protocol_name or "", subscriptions, counts)
        began_ms = self._engine.now_ms
        synced = yield from membership.sync_group(
            self._engine.state, self._settings, joined, assignments
        )
        code = ErrorCode(synced.error_code)
        if code == ErrorCode.REBALANCE_IN_PROGRESS:
            return None
        if code in NOT_A_MEMBER:
            self._check_nothing_lost(code)
            return None
        raise_for(code, f"cannot sync with group {self._settings.group_id!r}")
        self._confirmed_ms = max(self._confirmed_ms, began_ms)
        partitions = membership.decode_assignment(synced.assignment)
        for assignor in self.assignors:
            if assignor.name == joined.protocol_name and hasattr(assignor, "on_assignment"):
                assignor.on_assignment(partitions, joined.generation_id)
        return Arrival(joined.generation_id, tuple(partitions), counts)

    def _check_nothing_lost(self, code: ErrorCode) -> None:
        """The member begins anew; if it kept partitions, they have to be given up first."""
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
            blob = membership.encode_subscription(
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
        assignor = next(one for one in self.assignors if one.name == protocol)
        assigned: Mapping[str, Iterable[TopicPartition]] = assignor.assign(members, counts)
        if self.cooperative:
            assigned = withhold(assigned, members)
        return [
            SyncGroupRequestAssignment(
                member_id=member,
                assignment=membership.encode_assignment(assigned.get(member, ())),
            )
            for member in members
        ]


def withhold(
    assigned: Mapping[str, Iterable[TopicPartition]], members: Mapping[str, MemberSubscription]
) -> dict[str, list[TopicPartition]]:
    """Keep back what another member still owns: it is given away once that member has confirmed to have stopped.

    (1) In generation 5 a partition is taken from its owner and given to nobody; (2) the owner finishes, commits, and
    joins again without it; (3) in generation 6 it is free. So it never has two owners, whatever the assignor wants.
    """
    owners: dict[TopicPartition, set[str]] = {}
    for member, subscription in members.items():
        for partition in subscription.owned:
            owners.setdefault(partition, set()).add(member)
    return {
        member: [name for name in partitions if owners.get(name, {member}) == {member}]
        for member, partitions in assigned.items()
    }


def _read_members(joined: JoinGroupResponse) -> dict[str, MemberSubscription]:
    members = {}
    for member in joined.members:
        told = membership.read_subscription(member.metadata)
        owned = tuple(
            TopicPartition(topic.topic, number)
            for topic in told.owned_partitions
            for number in topic.partitions
        )
        members[member.member_id] = MemberSubscription(
            frozenset(told.topics),
            owned,
            told.generation_id,
            bytes(told.user_data or b""),
            member.group_instance_id,
            told.rack_id,
        )
    return members
