"""The requests of a group member to its coordinator: the part that both group protocols share.

The member runs beside the calls of the program. Partitions are revoked and assigned inside the program's calls
(`rebalancing.py`): the member sets `rejoin`, `lost` or `arrived`, and continues when the call has handled it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from headrace.clients.config import ConsumerConfig
from headrace.clients.consumer.background import Background
from headrace.clients.consumer.poll_watch import PollWatch
from headrace.clients.consumer.reports import Reports
from headrace.clients.consumer.session import MemberSession
from headrace.clients.engine import Engine, Timer
from headrace.clients.flows.effects import Flow
from headrace.clients.flows.offsets import CommitIdentity
from headrace.errors import ApiError, ErrorCode
from headrace.types import TopicPartition

LEAVE_TIMEOUT_MS: Final = 3_000


@dataclass(frozen=True, slots=True)
class NewAssignment:
    """An assignment that a member has received."""

    generation: int
    """The generation or member epoch of the assignment."""
    partitions: tuple[TopicPartition, ...]
    partition_counts: Mapping[str, int] | None = None
    """The number of partitions of each topic, for the leader of a classic group; None for other members."""


class ConsumerMember(ABC):
    """One consumer as a member of its group."""

    def __init__(self, engine: Engine, config: ConsumerConfig, reports: Reports) -> None:
        assert config.group_id is not None, "checked by subscribe"
        self._group = config.group_id
        self._engine = engine
        self._config = config
        self._reports = reports
        self.member_id = ""
        self.generation = -1
        """The generation, or member epoch, that the coordinator knows this member in; -1 while it is no member."""
        self.former: CommitIdentity | None = None
        """The identity of the member before it was last removed from the group; None if it never was."""
        self.rejoin = False
        """Whether the next call of the program must prepare for another assignment, and call `join`."""
        self.lost: str | None = None
        """The reason of a loss of all partitions, until the next call of the program has given them up."""
        self.arrived: NewAssignment | None = None
        """The assignment that the next call of the program must take over; None if there is none."""
        self.stopping = False
        """Whether an administrator has asked this member to stop: the next call of the program commits and leaves."""
        self.reason = "subscribed"
        """The reason for the last join, or for the next one."""
        self._failures = 0
        """The number of requests that failed since the last success."""
        self._retry_timer: Timer | None = None
        self._beating = Background(engine)
        self._beat_timer: Timer | None = None
        self._asked_ms = 0
        """The time at which the last heartbeat was sent."""
        self.session = MemberSession(
            engine,
            length_ms=lambda: self.session_ms,
            exists=lambda: self._has_session,
            on_end=self._session_ended,
        )
        self.polls = PollWatch(
            engine,
            config.max_poll_interval_ms,
            is_member=lambda: self.generation >= 0 or self.joining,
            on_late=self._stopped_polling,
        )

    # The part that differs between the protocols

    @property
    @abstractmethod
    def cooperative(self) -> bool:
        """Whether partitions are kept while the group rebalances."""

    @property
    @abstractmethod
    def joining(self) -> bool:
        """Whether a join is running."""

    @property
    @abstractmethod
    def session_ms(self) -> int:
        """Milliseconds without a heartbeat after which the coordinator removes the member."""

    @abstractmethod
    def identity(self) -> CommitIdentity:
        """Return the identity for commits."""

    @abstractmethod
    def join(self) -> None:
        """Request an assignment; partitions that must not be kept have been revoked."""

    @abstractmethod
    def took(self, arrival: NewAssignment, *, gave_up: bool) -> None:
        """Note that the arrived assignment was taken over; `gave_up` if partitions were revoked for it."""

    @abstractmethod
    def answered(self, code: ErrorCode, generation: int) -> None:
        """Handle the error code in the response to a heartbeat or a commit of a generation."""

    @abstractmethod
    def _farewell(self) -> Flow[None]:
        """Return the flow that leaves the group; its request is built before the member stops."""

    @abstractmethod
    def _beat(self) -> None:
        """Send a heartbeat, unless one is in flight."""

    # State of the member

    @property
    def settled(self) -> bool:
        """Whether the member is in the group, and no rebalance is known."""
        pending = self.rejoin or self.joining or self.arrived is not None or self.lost is not None
        return self.generation >= 0 and not pending

    @property
    def doubtful(self) -> bool:
        """Whether the session may have expired, so that records must wait for a response of the coordinator."""
        return self.doubts(self._engine.now_ms)

    def doubts(self, now_ms: int) -> bool:
        """Return whether the session may have expired at a time of the engine's clock. Any thread may call it."""
        return self.session.is_over(now_ms)

    @property
    def _has_session(self) -> bool:
        """Whether there is a session whose end revokes partitions."""
        return self.generation >= 0

    def confirm(self) -> None:
        """Send a heartbeat to confirm the membership, unless one was sent a moment ago.

        (1) A member that keeps its partitions joins. (2) The response to the join is lost. (3) The coordinator answers
        heartbeats with an error about the generation. The doubt lasts until the join ends, so more heartbeats do not
        help.
        """
        if self._engine.now_ms >= self._asked_ms + self._config.retry_backoff_ms:
            self._beat()

    # Joining and leaving

    def request_rejoin(self, reason: str) -> None:
        """Make the next call of the program prepare for another assignment."""
        self._cancel_retry()
        if not self.rejoin:
            self.rejoin = True
            self.reason = reason
            self._engine.notify()

    def _rejoin_later(self) -> None:
        """Make a later call of the program join again, after a backoff: an error was reported to the program."""
        retry_ms = self._engine.now_ms + self._pause_ms()
        self._cancel_retry()
        self._retry_timer = self._engine.at(
            retry_ms, lambda: self.request_rejoin("the last attempt failed")
        )

    def _pause_ms(self) -> int:
        """Count a failure, and return the backoff in milliseconds."""
        state = self._engine.state
        pause_ms = state.retry_backoff_ms << min(self._failures, 16)
        self._failures += 1
        return max(1, min(pause_ms, state.retry_backoff_max_ms))

    def _cancel_retry(self) -> None:
        if self._retry_timer is not None:
            self._retry_timer.cancel()
            self._retry_timer = None

    def leave(self) -> Flow[None]:
        """Stop the member, and return the flow that leaves the group."""
        farewell = self._farewell()
        self.stop()
        return farewell

    def stop(self) -> None:
        """End the membership without a request."""
        self._stop_beating()
        self._cancel_retry()
        self.session.stop()
        self.polls.stop()
        self.generation = -1
        self.rejoin = False
        self.arrived = None
        self.lost = None

    def has_to_stop(self) -> None:
        """Note that a response of the coordinator asks this member to stop."""
        if not self.stopping:
            self.stopping = True
            self._engine.notify()

    # Losing the membership

    def _session_ended(self) -> None:
        """Lose all partitions, because no heartbeat was acknowledged for nine tenths of a session.

        (1) The network fails. (2) The session expires, and other members get the partitions. (3) The network works
        again. Before step 3 the member cannot know who owns the partitions, so it owns none.
        """
        silent_ms = self._engine.now_ms - self.session.confirmed_ms
        reason = (
            f"no heartbeat of member {self.member_id!r} of group {self._group!r} was acknowledged for {silent_ms} ms, "
            f"and its session lasts {self.session_ms} ms"
        )
        if self._reports.owned or self.arrived is not None:
            self._reports.warn(
                f"{reason}: its partitions may belong to other members by now, so it gives them up and joins again"
            )
        self.lose(reason)

    def lose(self, reason: str) -> None:
        """Note that the member was removed from the group, and lose its partitions."""
        if self.generation >= 0:
            self.former = self.identity()
        self.generation = -1
        self._stop_beating()
        self.arrived = None
        self.lost = reason
        self.request_rejoin(reason)
        self._engine.notify()

    def _replaced(self) -> None:
        """Report that another member uses the same instance id; rejoining would only fence that member."""
        text = f"another member of the group has taken over group.instance.id {self._config.group_instance_id!r}"
        self.lose(text)
        self.rejoin = False
        self._reports.failed(ApiError.for_code(ErrorCode.FENCED_INSTANCE_ID, text))

    def _stopped_polling(self) -> None:
        limit_ms = self._config.max_poll_interval_ms
        reason = (
            f"the program of consumer {self._config.client_id!r} (member {self.member_id!r} of group "
            f"{self._group!r}) has not polled for {limit_ms} ms (max.poll.interval.ms)"
        )
        self._reports.warn(
            f"{reason}: its partitions go to others, and it joins again with its next poll; poll more often, take "
            "fewer records at a time (max.poll.records), or raise max.poll.interval.ms"
        )
        self._engine.spawn(self.leave(), timeout_ms=LEAVE_TIMEOUT_MS)
        self.lose(reason)

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
