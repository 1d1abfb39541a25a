"""A member's conversation with its coordinator, in the background: what both group protocols have in common.

The program's own part in it, giving partitions up and taking them, belongs to the foreground (`rebalancing.py`): the
member says `rejoin`, `lost` or `arrived`, and goes on when it has been heard.
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
from headrace.clients.consumer.session import Session
from headrace.clients.engine import Engine, Timer
from headrace.clients.flows.effects import Flow
from headrace.clients.flows.offsets import Committer
from headrace.errors import ApiError, ErrorCode
from headrace.types import TopicPartition

LEAVE_TIMEOUT_MS: Final = 3_000


@dataclass(frozen=True, slots=True)
class Arrival:
    """What a member got, and the generation of the group, or the member epoch, in which it did."""

    generation: int
    partitions: tuple[TopicPartition, ...]
    partition_counts: Mapping[str, int] | None = None
    """What the leader of a classic group divided; None for the others."""


class Member(ABC):
    """One consumer's place in its group."""

    def __init__(self, engine: Engine, config: ConsumerConfig, reports: Reports) -> None:
        assert config.group_id is not None, "checked by subscribe"
        self._group = config.group_id
        self._engine = engine
        self._config = config
        self._reports = reports
        self.member_id = ""
        self.generation = -1
        """The generation, or member epoch, that the coordinator knows this member in; -1 while it is no member."""
        self.former: Committer | None = None
        """Who it was when it lost its place last."""
        self.rejoin = False
        """The foreground has to prepare for another assignment, and call `join`."""
        self.lost: str | None = None
        """Why the partitions are another's by now; the foreground has to give them up."""
        self.arrived: Arrival | None = None
        """What the foreground has to take over."""
        self.stopping = False
        """An administrator stops this member: the foreground has to finish, commit and leave, and not to join again."""
        self.reason = "subscribed"
        """Why it joined last, or is about to."""
        self._failures = 0
        """Attempts that failed since the coordinator last took this member."""
        self._retry_timer: Timer | None = None
        self._beating = Background(engine)
        self._beat_timer: Timer | None = None
        self._asked_ms = 0
        """When the last heartbeat was sent."""
        self.session = Session(
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

    # What the protocols do each in its way

    @property
    @abstractmethod
    def cooperative(self) -> bool:
        """Whether partitions are kept while the group rebalances."""

    @property
    @abstractmethod
    def joining(self) -> bool:
        """Whether a join is under way."""

    @property
    @abstractmethod
    def session_ms(self) -> int:
        """How long the coordinator keeps a member of which it hears nothing."""

    @abstractmethod
    def identity(self) -> Committer:
        """Return who commits."""

    @abstractmethod
    def join(self) -> None:
        """Ask for an assignment to what is wanted by now; what must not be kept has been given up."""

    @abstractmethod
    def took(self, arrival: Arrival, *, gave_up: bool) -> None:
        """The foreground has taken over what arrived, and given up what did not."""

    @abstractmethod
    def answered(self, code: ErrorCode, generation: int) -> None:
        """Take note of what a heartbeat or a commit was answered."""

    @abstractmethod
    def _farewell(self) -> Flow[None]:
        """Return the flow that tells the coordinator; what it says is decided now, before the member stops."""

    @abstractmethod
    def _beat(self) -> None:
        """Send a heartbeat, unless one is under way."""

    # What is known of it

    @property
    def settled(self) -> bool:
        """Whether the member has its place and knows of no change to it."""
        pending = self.rejoin or self.joining or self.arrived is not None or self.lost is not None
        return self.generation >= 0 and not pending

    @property
    def doubtful(self) -> bool:
        """Whether the session may have ended, so that what is in hand must wait for the coordinator's word."""
        return self.doubts(self._engine.now_ms)

    def doubts(self, now_ms: int) -> bool:
        """Whether the session may have ended at a time, by the clock of the engine; any thread may ask."""
        return self.session.is_over(now_ms)

    @property
    def _has_session(self) -> bool:
        """Whether there is a session whose end takes partitions away."""
        return self.generation >= 0

    def confirm(self) -> None:
        """Ask the coordinator whether it counts on this member, unless it was asked a moment ago.

        (1) A member joins that keeps its partitions, (2) the join's answer is lost, (3) the coordinator answers that it
        knows another generation: the doubt stays until the join ends, and asking at once again would not end it.
        """
        if self._engine.now_ms >= self._asked_ms + self._config.retry_backoff_ms:
            self._beat()

    # The program calls in

    def request_rejoin(self, reason: str) -> None:
        """Have the foreground prepare for another assignment."""
        self._cancel_retry()
        if not self.rejoin:
            self.rejoin = True
            self.reason = reason
            self._engine.notify()

    def _rejoin_later(self) -> None:
        """Have the foreground try again, not at once: the program is told, and may poll again at once."""
        retry_ms = self._engine.now_ms + self._pause_ms()
        self._cancel_retry()
        self._retry_timer = self._engine.at(
            retry_ms, lambda: self.request_rejoin("the last attempt failed")
        )

    def _pause_ms(self) -> int:
        """Return how long to wait after one more attempt that failed."""
        state = self._engine.state
        pause_ms = state.retry_backoff_ms << min(self._failures, 16)
        self._failures += 1
        return max(1, min(pause_ms, state.retry_backoff_max_ms))

    def _cancel_retry(self) -> None:
        if self._retry_timer is not None:
            self._retry_timer.cancel()
            self._retry_timer = None

    def leave(self) -> Flow[None]:
        """Stop, and return the flow that tells the coordinator."""
        farewell = self._farewell()
        self.stop()
        return farewell

    def stop(self) -> None:
        """Be no member any more, without telling anybody."""
        self._stop_beating()
        self._cancel_retry()
        self.session.stop()
        self.polls.stop()
        self.generation = -1
        self.rejoin = False
        self.arrived = None
        self.lost = None

    def has_to_stop(self) -> None:
        """An answer of the coordinator says that an administrator stops this member."""
        if not self.stopping:
            self.stopping = True
            self._engine.notify()

    # Losing one's place

    def _session_ended(self) -> None:
        """Give everything up when nothing was acknowledged for as long as a session lasts, less a margin.

        (1) The network is cut, (2) the session ends, others get the partitions, (3) the network is back: in between the
        member cannot learn whose they are, so it owns nothing.
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
        """The group went on without this member: what it read and did not commit is another's."""
        if self.generation >= 0:
            self.former = self.identity()
        self.generation = -1
        self._stop_beating()
        self.arrived = None
        self.lost = reason
        self.request_rejoin(reason)
        self._engine.notify()

    def _replaced(self) -> None:
        """Another has this member's instance id: the program is told, or the two would throw each other out."""
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
