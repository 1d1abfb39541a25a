"""A member under the protocol `consumer` (KIP-848): the coordinator leads it, by the answers to its heartbeats.

(1) A first heartbeat, in epoch 0, says everything and makes the member one; (2) each answer has the member's epoch and,
where that is news, all that the member is to have; (3) the foreground gives up what is not in it any more, and takes
what came; (4) a heartbeat says so at once, for the next owner waits for it. In between, heartbeats say nothing but that
the member lives. After one whose fate is not known, the next says everything again: the coordinator may be ahead.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

from headrace.clients.config import ConsumerConfig
from headrace.clients.consumer.background import Background
from headrace.clients.consumer.member import Arrival, Member
from headrace.clients.consumer.reports import Reports
from headrace.clients.consumer.session_length import SessionLength
from headrace.clients.engine import Engine, Timer
from headrace.clients.flows import consumer_group, metadata
from headrace.clients.flows.consumer_group import (
    JOIN_EPOCH,
    MemberSettings,
    TopicIdPartition,
    TopicIdPartitions,
    Wanted,
)
from headrace.clients.flows.effects import Flow
from headrace.clients.flows.offsets import Committer
from headrace.errors import ApiError, ErrorCode, HeadraceError, TransportError
from headrace.protocol.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatResponse
from headrace.types import TopicPartition

NOT_A_MEMBER: Final = frozenset(
    {
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.FENCED_MEMBER_EPOCH,
        ErrorCode.GROUP_ID_NOT_FOUND,
        ErrorCode.ILLEGAL_GENERATION,
    }
)
CLASSIC_ONLY: Final = frozenset({ErrorCode.GROUP_ID_NOT_FOUND, ErrorCode.UNSUPPORTED_VERSION})
"""Answers to a first heartbeat: the group has members of the classic protocol only, and so has the broker."""
NOTHING: Final[TopicIdPartitions] = frozenset()
FIRST_INTERVAL_MS: Final = 5_000
"""Until an answer says how often to send heartbeats."""
ASLEEP_INTERVALS: Final = 3
"""A member that sent nothing for so many intervals did not run: others may have taken its place meanwhile."""
SHORTEST_INTERVAL_MS: Final = 500
"""As far as time limits go: who waits for partitions may be told to come back in a few milliseconds."""
UNRELEASED_PATIENCE_MS: Final = 60_000
"""A static member that was killed comes back before its old session has ended; its successor waits so long for that."""


NOT_SPOKEN: Final = (
    "this broker does not speak the group protocol `consumer` (KIP-848, feature group.version): set "
    "group_protocol='classic'"
)


class SubscriptionLookup(Protocol):
    """What the member asks of its consumer."""

    def wanted(self) -> Flow[Wanted]:
        """Look up what the member subscribes to."""

    def match_here(self) -> object:
        """The coordinator does not take the pattern: from now on it is matched here."""


class ServerSideMember(Member):
    """One consumer's place in its group, where the coordinator divides the partitions."""

    cooperative = True

    def __init__(
        self,
        engine: Engine,
        config: ConsumerConfig,
        topics: SubscriptionLookup,
        reports: Reports,
        *,
        member_id: str,
        or_classic: Callable[[], object] | None = None,
    ) -> None:
        """Prepare a member.

        Args:
            engine: What runs it.
            config: The consumer's configuration.
            topics: What is subscribed to.
            reports: The consumer.
            member_id: An id that no other member has.
            or_classic: Called when the group does not take members of this protocol, None if that is an error.
        """
        super().__init__(engine, config, reports)
        self._or_classic = or_classic
        self.member_id = member_id
        """The same for as long as there is this member, whatever becomes of its membership."""
        self._topics = topics
        self._settings = MemberSettings(
            group_id=self._group,
            member_id=member_id,
            rebalance_timeout_ms=config.max_poll_interval_ms,
            group_instance_id=config.group_instance_id,
            rack_id=config.client_rack or None,
            server_assignor=config.group_remote_assignor or None,
        )
        self._interval_ms = FIRST_INTERVAL_MS
        self._length = SessionLength(engine, config, self.session.length_changed)
        self._sent_ms = 0
        """When the heartbeat under way was sent."""
        self._joining = False
        self._joined = 0
        """How often the group has taken this member in."""
        self._unsettled = False
        """Whether what is wanted has to be looked up and told."""
        self._wanted = Wanted(frozenset())
        self._tell_all = True
        self._tell_owned = False
        self._at_once = False
        """Whether there is news for the coordinator that the heartbeat under way does not carry."""
        self._began_ms = 0
        """When the first attempt to join was made."""
        self._woke_ms = 0
        self._given: TopicIdPartitions = NOTHING
        """What the coordinator gives."""
        self._offered: TopicIdPartitions | None = None
        """What of it, with names that are known, the foreground was told last."""
        self._owned: TopicIdPartitions = NOTHING
        """What the foreground has taken over."""
        self._names: dict[bytes, str] = {}
        self._naming = Background(engine)
        self._name_timer: Timer | None = None

    @property
    def joining(self) -> bool:
        """Whether a join is under way."""
        return self._joining

    @property
    def settled(self) -> bool:
        """Whether the member has its place and knows of no change to it."""
        return super().settled and self._offered == self._given

    @property
    def session_ms(self) -> int:
        """How long the coordinator keeps a member of which it hears nothing: as it said, or else a cautious guess."""
        return self._length.within(self._pace_ms)

    def doubts(self, now_ms: int) -> bool:
        """Whether the session may have ended at a time, or this process has slept."""
        if self.generation < 0:
            return False
        return (
            super().doubts(now_ms)
            or self._slept(now_ms)
            or self.session.confirmed_ms < self._woke_ms
        )

    @property
    def _pace_ms(self) -> int:
        return max(self._interval_ms, SHORTEST_INTERVAL_MS)

    def _slept(self, now_ms: int) -> bool:
        return now_ms >= self._asked_ms + ASLEEP_INTERVALS * self._pace_ms

    def identity(self) -> Committer:
        """Return who commits."""
        return Committer(
            self.generation, self.member_id, self._config.group_instance_id, self._joined
        )

    def join(self) -> None:
        """Become a member, or tell what is wanted by now; what must not be kept has been given up."""
        self.rejoin = False
        self._unsettled = True
        if self.generation < 0:
            self._joining = True
            self._began_ms = self._engine.now_ms
            self._forget_assignment()
        else:
            read = set(self._reports.owned)
            self._owned = frozenset(each for each in self._owned if self._name(each) in read)
            self._offered = self._owned
        self.polls.start()
        self._beat_soon()

    def took(self, arrival: Arrival, *, gave_up: bool) -> None:  # noqa: ARG002 - it shows in what is offered
        """The foreground has taken over what arrived: the coordinator is told, and may give away what is not in it."""
        self.arrived = None
        assert self._offered is not None, "it arrived"
        if self._owned != self._offered:
            self._owned = self._offered
            self._tell_owned = True
            self._beat_soon()

    def stop(self) -> None:
        """Be no member any more, without telling anybody."""
        self._joining = False
        self._forget_assignment()
        self._length.stop()
        super().stop()

    def lose(self, reason: str) -> None:
        """The group went on without this member: what it read and did not commit is another's."""
        self._joining = False
        self._forget_assignment()
        super().lose(reason)

    def _farewell(self) -> Flow[None]:
        if self.generation >= 0 or self._joining:
            return consumer_group.leave(self._engine.state, self._settings, for_good=self.stopping)
        return _nothing()

    def _forget_assignment(self) -> None:
        self._naming.stop()
        if self._name_timer is not None:
            self._name_timer.cancel()
        self._given = self._owned = NOTHING
        self._offered = None

    # Heartbeats

    def _beat_soon(self) -> None:
        if self._beating.running:
            self._at_once = True
        else:
            self._beat()

    def _beat(self) -> None:
        if self._beating.running or (self.generation < 0 and not self._joining):
            return
        began_ms = self._engine.now_ms
        if self._slept(began_ms):
            self._woke_ms = began_ms
        self._asked_ms = began_ms
        # No longer than an interval or two: a member whose heartbeat hangs is not one that sleeps.
        limit_ms = (ASLEEP_INTERVALS - 1) * self._pace_ms
        if self.generation < 0 or self._unsettled:
            limit_ms = max(limit_ms, self._config.request_timeout_ms)
        self._at_once = False
        self._beating.start(
            self._converse(limit_ms), lambda outcome: self._beaten(began_ms, outcome), limit_ms
        )

    def _converse(self, limit_ms: int) -> Flow[ConsumerGroupHeartbeatResponse]:
        if self._unsettled:
            wanted = yield from self._topics.wanted()
            self._unsettled, self._tell_all = False, True
            if wanted.regex is None and self._wanted.regex:
                wanted = wanted._replace(regex="")
            self._wanted = wanted
        joining = self.generation < 0
        everything = joining or self._tell_all
        owned = self._owned if everything or self._tell_owned else None
        self._tell_all = self._tell_owned = False
        self._sent_ms = self._engine.now_ms
        return (
            yield from consumer_group.heartbeat(
                self._engine.state,
                self._settings,
                JOIN_EPOCH if joining else self.generation,
                wanted=self._wanted if everything else None,
                owned=owned,
                timeout_ms=limit_ms,
            )
        )

    def _beaten(
        self, began_ms: int, outcome: ConsumerGroupHeartbeatResponse | HeadraceError
    ) -> None:
        if isinstance(outcome, ConsumerGroupHeartbeatResponse):
            code = ErrorCode(outcome.error_code)
            if code == ErrorCode.NONE:
                self._led_on(began_ms, outcome)
            else:
                self._refused(code, outcome.error_message or code.description)
        elif isinstance(outcome, TransportError) or getattr(outcome, "retriable", False):
            # The coordinator moves or is away: reading goes on, and the next beat looks for it again.
            self._try_again()
        else:
            self._not_taken(outcome)

    def _led_on(self, began_ms: int, response: ConsumerGroupHeartbeatResponse) -> None:
        self._failures = 0
        self._interval_ms = max(1, response.heartbeat_interval_ms)
        if self._joining:
            self._joining = False
            self._joined += 1
        self.generation = response.member_epoch
        self.session.confirm(self._sent_ms)
        self._length.look()
        if response.headrace_stop:
            self.has_to_stop()
        given = consumer_group.assigned(response)
        if given is not None:
            self._given = given
        self._offer()
        if self._at_once:
            self._beat()
        else:
            self._beat_at(max(began_ms + self._interval_ms, self._engine.now_ms + 1))

    def _try_again(self) -> None:
        self._tell_all = True
        self._beat_at(self._engine.now_ms + min(self._pause_ms(), self._interval_ms))

    def _refused(self, code: ErrorCode, reason: str) -> None:
        if code == ErrorCode.FENCED_INSTANCE_ID:
            self._replaced()
        elif code in NOT_A_MEMBER and self.generation >= 0:
            self.lose(f"the group went on without this member ({code.name})")
        elif code == ErrorCode.UNRELEASED_INSTANCE_ID and self._wait_for_release():
            self._try_again()
        elif code == ErrorCode.INVALID_REGULAR_EXPRESSION and self._wanted.regex:
            self._topics.match_here()
            self._reports.warn(
                f"the pattern is matched by this consumer, not by the broker: {reason}"
            )
            self._unsettled = True
            self._beat()
        elif code.retriable or code in {ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_MEMBER_EPOCH}:
            self._try_again()
        else:
            text = f"cannot join group {self._group!r}: {reason}{_advice(code)}"
            self._not_taken(ApiError.for_code(code, text))

    def _wait_for_release(self) -> bool:
        instance_id = self._config.group_instance_id
        if self._engine.now_ms >= self._began_ms + UNRELEASED_PATIENCE_MS:
            return False
        if not self._failures:
            self._reports.warn(
                f"group.instance.id {instance_id!r} still belongs to a member of group {self._group!r}; this one waits "
                "for the end of that member's session"
            )
        return True

    def _not_taken(self, error: HeadraceError) -> None:
        """The group does not take this member, or not what it says: the program has to know."""
        if isinstance(error, ApiError) and error.code == ErrorCode.UNSUPPORTED_VERSION:
            error = ApiError.for_code(error.code, NOT_SPOKEN)
        if self.generation >= 0:
            self._try_again()
        elif self._or_classic is not None and getattr(error, "code", None) in CLASSIC_ONLY:
            self._or_classic()
            return
        else:
            self._joining = False
            self._tell_all = True
            self._rejoin_later()
        self._reports.failed(error)

    def answered(self, code: ErrorCode, generation: int) -> None:
        """Take note of what a commit was answered: only that the member is none, for an epoch may be on its way."""
        if generation != self.generation:
            return
        if code in NOT_A_MEMBER:
            self.lose(f"the group went on without this member ({code.name})")
        elif code == ErrorCode.FENCED_INSTANCE_ID:
            self._replaced()
        elif code == ErrorCode.STALE_MEMBER_EPOCH:
            self._tell_all = True
            self._beat_soon()

    # What the coordinator gives, by name

    def _offer(self) -> None:
        """Tell the foreground what it is to have, as far as names are known; look up those that are not."""
        unknown = self._unnamed()
        if unknown and not self._naming.running:
            flow = metadata.name_topics(self._engine.state, unknown)
            self._naming.start(flow, self._named, self._config.request_timeout_ms)
        named = frozenset(each for each in self._given if each.topic_id not in unknown)
        if named != self._offered:
            self._offered = named
            self.arrived = Arrival(self.generation, tuple(sorted(map(self._name, named))))
            self._engine.notify()

    def _named(self, _: object) -> None:
        if not self._unnamed():
            self._offer()
            return
        # A topic so new that the broker that was asked has not heard of it, or one that is being deleted.
        pause_ms = self._engine.state.retry_backoff_max_ms
        self._name_timer = self._engine.at(self._engine.now_ms + pause_ms, self._offer)

    def _unnamed(self) -> frozenset[bytes]:
        given = {each.topic_id for each in self._given}
        if given <= self._names.keys():
            return frozenset()
        known = self._engine.state.metadata.topics.values()
        self._names.update((topic.topic_id, topic.name) for topic in known)
        return frozenset(given - self._names.keys())

    def _name(self, name: TopicIdPartition) -> TopicPartition:
        return TopicPartition(self._names[name.topic_id], name.partition)


def _advice(code: ErrorCode) -> str:
    return {
        ErrorCode.GROUP_ID_NOT_FOUND: " Let those members end, or join them with group_protocol='classic'.",
        ErrorCode.UNSUPPORTED_ASSIGNOR: " Name one of them by group.remote.assignor, or none.",
    }.get(code, "")


def _nothing() -> Flow[None]:
    yield from ()
