"""A member under the protocol `consumer` (KIP-848): responses to heartbeats contain its assignment.

(1) The first heartbeat, in epoch 0, contains all fields and creates the member. (2) Each response has the member epoch
and, if it has changed, the whole assignment. (3) The next call of the program revokes partitions that are missing in
it, and takes over new ones. (4) A heartbeat reports this at once, because the next owner waits for it. Other heartbeats
are empty. After a heartbeat without a response, the next one contains all fields again, as the coordinator may have
advanced.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

from headrace.clients.config import ConsumerConfig
from headrace.clients.consumer.background import Background
from headrace.clients.consumer.member import ConsumerMember, NewAssignment
from headrace.clients.consumer.reports import Reports
from headrace.clients.consumer.session_length import SessionLength
from headrace.clients.engine import Engine, Timer
from headrace.clients.flows import kip848, metadata
from headrace.clients.flows.effects import Flow
from headrace.clients.flows.kip848 import (
    JOIN_EPOCH,
    ConsumerProtocolSettings,
    MemberTopics,
    TopicIdPartition,
    TopicIdPartitions,
)
from headrace.clients.flows.offsets import CommitIdentity
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
"""Error codes in the response to a first heartbeat if the group, or the broker, supports the classic protocol only."""
NOTHING: Final[TopicIdPartitions] = frozenset()
FIRST_INTERVAL_MS: Final = 5_000
"""The interval between heartbeats in milliseconds before the first response, which contains the interval."""
ASLEEP_INTERVALS: Final = 3
"""The number of intervals without a heartbeat after which the process counts as suspended: it may have lost its
partitions."""
SHORTEST_INTERVAL_MS: Final = 500
"""The least interval in milliseconds for time limits; a member that waits for partitions may have a shorter one."""
UNRELEASED_PATIENCE_MS: Final = 60_000
"""Milliseconds for which a restarted static member waits until the session of its predecessor has expired."""


NOT_SPOKEN: Final = (
    "this broker does not speak the group protocol `consumer` (KIP-848, feature group.version): set "
    "group_protocol='classic'"
)


class SubscriptionLookup(Protocol):
    """The subscription, which the consumer looks up for its member."""

    def wanted(self) -> Flow[MemberTopics]:
        """Look up what the member subscribes to."""

    def match_here(self) -> object:
        """The coordinator does not take the pattern: from now on it is matched here."""


class ConsumerProtocolMember(ConsumerMember):
    """One consumer as a member of a group whose coordinator assigns the partitions."""

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
            engine: The consumer's engine.
            config: The consumer's configuration.
            topics: The subscription.
            reports: Receives errors and warnings.
            member_id: A unique member id.
            or_classic: Called if the group refuses members of this protocol. None makes that an error.
        """
        super().__init__(engine, config, reports)
        self._or_classic = or_classic
        self.member_id = member_id
        """The member id, which stays the same when the member rejoins."""
        self._topics = topics
        self._settings = ConsumerProtocolSettings(
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
        """The time at which the heartbeat in flight was sent."""
        self._joining = False
        self._joined = 0
        """The number of times that the member has joined the group."""
        self._unsettled = False
        """Whether the next heartbeat must look up and contain the subscription."""
        self._wanted = MemberTopics(frozenset())
        self._send_all = True
        self._send_owned = False
        self._at_once = False
        """Whether another heartbeat must follow the one in flight at once."""
        self._began_ms = 0
        """The time of the first attempt to join."""
        self._woke_ms = 0
        self._assigned: TopicIdPartitions = NOTHING
        """The assignment of the coordinator."""
        self._offered: TopicIdPartitions | None = None
        """The part of the assignment, with known topic names, that was offered last; None if none was offered."""
        self._owned: TopicIdPartitions = NOTHING
        """The partitions that the program's calls have taken over."""
        self._names: dict[bytes, str] = {}
        self._naming = Background(engine)
        self._name_timer: Timer | None = None

    @property
    def joining(self) -> bool:
        """Whether a join is running."""
        return self._joining

    @property
    def settled(self) -> bool:
        """Whether the member is in the group, and its assignment is taken over."""
        return super().settled and self._offered == self._assigned

    @property
    def session_ms(self) -> int:
        """Milliseconds without a heartbeat until the coordinator removes the member; a low estimate if unknown."""
        return self._length.within(self._pace_ms)

    def doubts(self, now_ms: int) -> bool:
        """Return whether the session may have expired at a time, or this process was suspended."""
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

    def identity(self) -> CommitIdentity:
        """Return the identity for commits."""
        return CommitIdentity(
            self.generation, self.member_id, self._config.group_instance_id, self._joined
        )

    def join(self) -> None:
        """Join the group, or send the new subscription; partitions that must not be kept have been revoked."""
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

    def took(self, arrival: NewAssignment, *, gave_up: bool) -> None:  # noqa: ARG002 - it shows in what is offered
        """Report to the coordinator that the assignment was taken over; it may assign revoked partitions to others."""
        self.arrived = None
        assert self._offered is not None, "it arrived"
        if self._owned != self._offered:
            self._owned = self._offered
            self._send_owned = True
            self._beat_soon()

    def stop(self) -> None:
        """End the membership without a request."""
        self._joining = False
        self._forget_assignment()
        self._length.stop()
        super().stop()

    def lose(self, reason: str) -> None:
        """Note that the member was removed from the group, and lose its partitions."""
        self._joining = False
        self._forget_assignment()
        super().lose(reason)

    def _farewell(self) -> Flow[None]:
        if self.generation >= 0 or self._joining:
            return kip848.leave(self._engine.state, self._settings, for_good=self.stopping)
        return _nothing()

    def _forget_assignment(self) -> None:
        self._naming.stop()
        if self._name_timer is not None:
            self._name_timer.cancel()
        self._assigned = self._owned = NOTHING
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
        # At most two intervals: a member with a slow heartbeat must not count as suspended.
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
            self._unsettled, self._send_all = False, True
            if wanted.regex is None and self._wanted.regex:
                wanted = wanted._replace(regex="")
            self._wanted = wanted
        joining = self.generation < 0
        everything = joining or self._send_all
        owned = self._owned if everything or self._send_owned else None
        self._send_all = self._send_owned = False
        self._sent_ms = self._engine.now_ms
        return (
            yield from kip848.heartbeat(
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
            # The coordinator moves or is unreachable. Reading continues; the next heartbeat looks it up again.
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
        given = kip848.assigned(response)
        if given is not None:
            self._assigned = given
        self._offer()
        if self._at_once:
            self._beat()
        else:
            self._beat_at(max(began_ms + self._interval_ms, self._engine.now_ms + 1))

    def _try_again(self) -> None:
        self._send_all = True
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
        """Report that the group refuses this member or its subscription; use the classic protocol if possible."""
        if isinstance(error, ApiError) and error.code == ErrorCode.UNSUPPORTED_VERSION:
            error = ApiError.for_code(error.code, NOT_SPOKEN)
        if self.generation >= 0:
            self._try_again()
        elif self._or_classic is not None and getattr(error, "code", None) in CLASSIC_ONLY:
            self._or_classic()
            return
        else:
            self._joining = False
            self._send_all = True
            self._rejoin_later()
        self._reports.failed(error)

    def answered(self, code: ErrorCode, generation: int) -> None:
        """Handle the error code in the response to a commit. A newer epoch may be in flight, so few codes count."""
        if generation != self.generation:
            return
        if code in NOT_A_MEMBER:
            self.lose(f"the group went on without this member ({code.name})")
        elif code == ErrorCode.FENCED_INSTANCE_ID:
            self._replaced()
        elif code == ErrorCode.STALE_MEMBER_EPOCH:
            self._send_all = True
            self._beat_soon()

    # Topic names of the assignment

    def _offer(self) -> None:
        """Offer the part of the assignment with known topic names; look up the other names."""
        unknown = self._unnamed()
        if unknown and not self._naming.running:
            flow = metadata.name_topics(self._engine.state, unknown)
            self._naming.start(flow, self._named, self._config.request_timeout_ms)
        named = frozenset(each for each in self._assigned if each.topic_id not in unknown)
        if named != self._offered:
            self._offered = named
            self.arrived = NewAssignment(self.generation, tuple(sorted(map(self._name, named))))
            self._engine.notify()

    def _named(self, _: object) -> None:
        if not self._unnamed():
            self._offer()
            return
        # The topic is so new that the broker does not know it yet, or it is being deleted.
        pause_ms = self._engine.state.retry_backoff_max_ms
        self._name_timer = self._engine.at(self._engine.now_ms + pause_ms, self._offer)

    def _unnamed(self) -> frozenset[bytes]:
        given = {each.topic_id for each in self._assigned}
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
