"""The membership of a consumer in its group while it is subscribed: the member, and the rebalances."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from headrace.clients.assignors import Assignor, choose_assignors
from headrace.clients.config import ConsumerConfig
from headrace.clients.consumer.assigned_partition import AssignedPartition
from headrace.clients.consumer.background import Background
from headrace.clients.consumer.classic import ClassicProtocolMember
from headrace.clients.consumer.commits import Commits
from headrace.clients.consumer.kip848 import ConsumerProtocolMember
from headrace.clients.consumer.member import ConsumerMember, NewAssignment
from headrace.clients.consumer.rebalancing import Rebalancing
from headrace.clients.consumer.reports import Reports
from headrace.clients.consumer.subscribed_topics import SubscribedTopics
from headrace.clients.engine import Engine
from headrace.clients.flows import kip848
from headrace.clients.flows.effects import Flow
from headrace.clients.flows.offsets import CommitIdentity
from headrace.errors import ErrorCode
from headrace.types import TopicPartition


class GroupMembership:
    """The membership of one consumer. There is no member while the consumer is not subscribed."""

    def __init__(
        self,
        engine: Engine,
        config: ConsumerConfig,
        assigned: dict[TopicPartition, AssignedPartition],
        topics: SubscribedTopics,
        reports: Reports,
        *,
        new_id: Callable[[], str],
    ) -> None:
        self._engine = engine
        self._config = config
        self._assigned = assigned
        self._topics = topics
        self._reports = reports
        self._new_id = new_id
        self.member: ConsumerMember | None = None
        self._rebalancing: Rebalancing | None = None
        self._commits: Commits | None = None
        self._assignors: Sequence[Assignor] | None = None
        self._listener: object | None = None
        self._asking = Background(engine)
        self._polling = False

    def begin(
        self, assignors: Sequence[Assignor] | None, commits: Commits, listener: object | None
    ) -> None:
        """Become a member, or rejoin because the subscription has changed."""
        self._assignors, self._commits, self._listener = assignors, commits, listener
        if self.member is not None:
            assert self._rebalancing is not None, "there is none without the other"
            self._rebalancing.listener = listener
            self.member.request_rejoin("the subscription changed")
        elif self._asking.running:
            pass  # `_become` uses the arguments when the response arrives
        elif self._config.group_protocol == "auto" and assignors is None:
            flow = kip848.is_offered(self._engine.state)
            self._asking.start(flow, lambda offered: self._become(kip848=offered is True))
        else:
            self._become(kip848=self._config.group_protocol == "consumer")

    def _become(self, *, kip848: bool) -> None:
        self._topics.coordinator_assigns = kip848
        if kip848:
            self.member = ConsumerProtocolMember(
                self._engine,
                self._config,
                self._topics,
                self._reports,
                member_id=self._new_id(),
                or_classic=self._go_classic if self._config.group_protocol == "auto" else None,
            )
        else:
            chosen = choose_assignors("range") if self._assignors is None else self._assignors
            self.member = ClassicProtocolMember(
                self._engine, self._config, chosen, self._topics, self._reports
            )
        assert self._commits is not None, "set by begin"
        self._rebalancing = Rebalancing(
            self._engine,
            self.member,
            self._commits,
            self._assigned,
            wanted=lambda: self._topics.known,
            took=self._took,
            warn=self._reports.warn,
            listener=self._listener,
        )
        if self._polling:
            self.member.polls.began()
        self.member.request_rejoin("subscribed")

    def _go_classic(self) -> None:
        """Become a classic member, because the group has members of the classic protocol."""
        assert self.member is not None, "the member calls this"
        self.member.stop()
        self._become(kip848=False)

    def _took(self, arrival: NewAssignment) -> None:
        self._topics.took(arrival.partition_counts)

    def end(self) -> Flow[None] | None:
        """End the membership; return the flow that leaves the group, or None if there is no member."""
        self._asking.stop()
        member, self.member, self._rebalancing = self.member, None, None
        return None if member is None else member.leave()

    # State of the membership

    @property
    def stopping(self) -> bool:
        """Whether an administrator has asked this member to stop."""
        return self.member is not None and self.member.stopping

    @property
    def belongs(self) -> bool:
        """Whether the consumer is a member, or is becoming one."""
        return self.member is not None or self._asking.running

    @property
    def joined(self) -> bool:
        """Whether the consumer is a member of its group, with or without partitions."""
        return self.member is not None and self.member.settled

    @property
    def trouble(self) -> str | None:
        """The reason why the consumer is no member of its group; None if it is one, or reads without a group."""
        if self.member is None:
            return "it has not found its group yet" if self._asking.running else None
        if self.member.generation >= 0:
            return None
        return f"it is not a member of its group at present (why it joins: {self.member.reason})"

    def identity(self) -> CommitIdentity | None:
        """Return the identity for commits; None while the consumer is no member and must not commit."""
        if self.member is None:
            return None if self._asking.running else CommitIdentity()
        return self.member.identity() if self.member.generation >= 0 else None

    def fenced_identity(self) -> CommitIdentity | None:
        """Return the identity for transactions: that of the member, or its last one if it is no member any more.

        (1) A member is removed from the group. (2) Another member reads, commits and leaves. (3) The coordinator would
        accept a transaction of the first member without an identity, and the group would be set back. With the last
        identity the coordinator refuses it.
        """
        who = self.identity()
        return self.member.former if who is None and self.member is not None else who

    def answered(self, code: ErrorCode, generation: int) -> None:
        """Handle the error code in the response to a commit of a generation."""
        if self.member is not None:
            self.member.answered(code, generation)

    def changed(self, reason: str | None) -> None:
        """Rejoin the group because the topics of the subscription have changed; None is no change."""
        if self.member is not None and reason is not None:
            self.member.request_rejoin(reason)

    def poll_began(self) -> None:
        """Note that the program is inside a call in which the member can take part in rebalances."""
        self._polling = True
        if self.member is not None:
            self.member.polls.began()

    def poll_ended(self) -> None:
        """Note that the program has left the call and processes records."""
        self._polling = False
        if self.member is not None:
            self.member.polls.ended()

    def may_hand_out(self) -> bool:
        """Return whether fetched records may be returned. If ownership is in doubt, ask the coordinator."""
        member = self.member
        if member is None:
            return True
        if member.doubtful:
            member.confirm()
        return member.lost is None and not member.doubtful

    def holds(self, now_ms: int) -> bool:
        """Return whether the consumer owns its partitions at a time of the engine's clock. Any thread may call it."""
        member = self.member
        return member is None or (member.lost is None and not member.doubts(now_ms))

    def leaves_time(self) -> bool:
        """Return whether the next record can be returned at once, which then counts as a poll."""
        member = self.member
        if member is None:
            return True
        if member.lost or member.arrived or (member.rejoin and not member.joining):
            return False
        if self._rebalancing is not None and self._rebalancing.unreported is not None:
            return False
        if member.doubtful or member.stopping:
            return False
        member.polls.began()
        member.polls.ended()
        return True

    def keep(self) -> Flow[None]:
        """Take part in a rebalance, if there is one."""
        if self._rebalancing is not None:
            yield from self._rebalancing.keep()

    def give_up_all(self) -> Flow[None]:
        """Call the listener with all partitions before the consumer leaves."""
        if self._rebalancing is not None:
            yield from self._rebalancing.give_up_all()
