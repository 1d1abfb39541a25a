"""The in-sync replicas of a partition, as its leader manages them in one leader epoch.

Only the leader changes the in-sync replicas within its leader epoch. It proposes a change, commits the proposal to the
metadata store, and learns the outcome later:

    STABLE --propose--> PENDING --accepted or rejected--> STABLE
                        PENDING --outcome unknown--> UNRESOLVED --a newer state, or settled--> STABLE

A replica that lags does not join: it would have to leave at once, and join again.

A partition with a schedule has a second log. A replica is in sync if it is in both logs: it leaves when it lags in one,
and joins when it may join in both. So the next leader has all committed records of both.

Six rules keep every committed record on every replica that may become the leader:

* Until a proposal is decided, the replicas of both states hold back the high watermark (the maximal ISR). A replica
  that is to leave may still become the leader, and so may a replica that is to join.
* The next proposal waits until the previous one is decided. Otherwise the leader could return to the smaller ISR after
  the second proposal has failed, although the store has applied the first one.
* A replica joins when it has all records below the high watermark, and all records that were in the log when the leader
  epoch began. The high watermark of a new leader may be too low.
* A replica joins when it has deleted what the leader has deleted. The logs are compared from the leader's start on, so
  below it the replica may have records that were never committed. As a leader it would return them.
* A replica joins only with the broker epoch that the metadata have. A restarted broker may have lost records that its
  earlier process has fetched.
* Replicas that leave an ISR which becomes smaller than `min.insync.replicas` remain eligible as leaders (ELR, KIP-966).
  The high watermark does not move while the ISR of the newest state is too small, or its ELR is not empty.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from enum import Enum
from typing import Final, NamedTuple, Protocol

from headrace.core.replica.progress import UNKNOWN, Progress

LAG_TIME_MS: Final = 30_000
"""Kafka's default of `replica.lag.time.max.ms`."""
MESSAGES_LAG_MS: Final = 10_000
"""The time for which a replica may lag by more than `replica.lag.max.messages`, in milliseconds. A shorter burst of
appends does not remove a replica."""
NOTHING_KNOWN: Final = (-1, -1)
"""The high watermark and the log start offset of which a follower knows that has received no response."""
NO_BROKER_EPOCH: Final = -1
"""The broker epoch of a fetch that has none."""


class Phase(Enum):
    """The state of the proposal of a leader."""

    STABLE = "stable"
    """There is no proposal."""
    PENDING = "pending"
    """A proposal was sent to the metadata store."""
    UNRESOLVED = "unresolved"
    """A proposal was sent, and the store may have applied it or may still apply it."""


class InSync(NamedTuple):
    """The in-sync replicas of a state.

    Attributes:
        isr: The broker ids of the in-sync replicas.
        elr: The broker ids of the eligible leader replicas, which are not in sync but have all committed records.
    """

    isr: frozenset[int]
    elr: frozenset[int] = frozenset()


class LiveBroker(Protocol):
    """A broker whose process has registered, and is alive."""

    @property
    def broker_epoch(self) -> int:
        """The broker epoch of the process."""

    @property
    def is_draining(self) -> bool:
        """Whether the broker is being shut down."""


LiveBrokers = Mapping[int, LiveBroker]
"""The live brokers by id, as the image of the leader has them."""


class LagLimits(NamedTuple):
    """The limits of the lag of an in-sync replica. A replica that exceeds one of them leaves the ISR.

    Attributes:
        time_ms: The time since a replica last had the end of the log, in milliseconds (`replica.lag.time.max.ms`).
        messages: The number of records by which a replica may lag for `MESSAGES_LAG_MS`; None for any number
            (`replica.lag.max.messages`).
    """

    time_ms: int = LAG_TIME_MS
    messages: int | None = None

    @property
    def check_interval_ms(self) -> int:
        """The time between two checks for replicas that lag, in milliseconds."""
        if self.messages is None:
            return max(1, self.time_ms // 2)
        return max(1, min(self.time_ms, MESSAGES_LAG_MS) // 2)


class _Follower:
    """A replica on another broker, as its fetches show it."""

    __slots__ = (
        "broker_epoch",
        "caught_up_ms",
        "end_offset",
        "fetched_ms",
        "known",
        "lags_since_ms",
        "leader_end_offset",
        "log_start_offset",
    )

    def __init__(self, caught_up_ms: int | None, leader_end_offset: int) -> None:
        self.end_offset = UNKNOWN
        """The progress of the replica."""
        self.log_start_offset = UNKNOWN
        """The log start offset of the replica at its last fetch."""
        self.broker_epoch = NO_BROKER_EPOCH
        """The broker epoch of its last fetch."""
        self.caught_up_ms = caught_up_ms
        """The last time at which the replica is known to have had the end of the log; None if there was none."""
        self.fetched_ms = caught_up_ms
        """The time of its last fetch."""
        self.leader_end_offset = leader_end_offset
        """The leader's log end offset at its last fetch."""
        self.known = NOTHING_KNOWN
        """The high watermark and the log start offset in the last response to the replica."""
        self.lags_since_ms: int | None = None
        """The time since which it has lagged by more than `LagLimits.messages` at every fetch; None if it does not."""

    def fetched(self, end_offset: int, log_end_offset: int, now_ms: int) -> None:
        """Note a fetch. A replica that has what was the end at its previous fetch had caught up at that time."""
        if end_offset >= log_end_offset:
            self.caught_up_ms = now_ms
        elif end_offset >= self.leader_end_offset and self.fetched_ms is not None:
            self.caught_up_ms = max(self.caught_up_ms or self.fetched_ms, self.fetched_ms)
        self.end_offset = end_offset
        self.fetched_ms, self.leader_end_offset = now_ms, log_end_offset

    def lags(self, limits: LagLimits, log_end_offset: int, now_ms: int) -> bool:
        """Return whether the replica lags too far behind. A replica that has the end of the log never does."""
        if self.end_offset >= log_end_offset:
            return False
        if self.caught_up_ms is None or now_ms - self.caught_up_ms > limits.time_ms:
            return True
        return self.lags_since_ms is not None and now_ms - self.lags_since_ms >= MESSAGES_LAG_MS


class Isr:
    """The in-sync replicas of a partition with several replicas, during one leader epoch of this broker."""

    __slots__ = (
        "_assigned",
        "_broker_id",
        "_epoch_start_offset",
        "_followers",
        "_limits",
        "_min_insync_replicas",
        "committed",
        "pending",
        "phase",
        "progress",
        "schedule",
    )

    def __init__(
        self,
        broker_id: int,
        assigned: Iterable[int],
        committed: InSync,
        *,
        min_insync_replicas: int,
        epoch_start_offset: int,
        limits: LagLimits,
        now_ms: int,
    ) -> None:
        """Begin a leader epoch. The progress of all followers is unknown.

        Args:
            broker_id: The broker id of the leader.
            assigned: The broker ids of all replicas.
            committed: The in-sync replicas of the state that began the leader epoch.
            min_insync_replicas: The topic's `min.insync.replicas`.
            epoch_start_offset: The log end offset at which the leader epoch began.
            limits: The limits of the lag of an in-sync replica.
            now_ms: The time. An in-sync replica has `LagLimits.time_ms` for its first fetch.
        """
        self._broker_id = broker_id
        self._assigned = frozenset(assigned) | committed.isr
        self._min_insync_replicas = min_insync_replicas
        self._epoch_start_offset = epoch_start_offset
        self._limits = limits
        self._followers = {
            replica: _Follower(now_ms if replica in committed.isr else None, epoch_start_offset)
            for replica in self._assigned
            if replica != broker_id
        }
        self.committed = committed
        """The in-sync replicas of the newest known state."""
        self.pending: InSync | None = None
        """The proposal; None in the phase STABLE."""
        self.phase = Phase.STABLE
        self.progress = Progress(broker_id, committed.isr)
        """The progress of all replicas, and the maximal ISR."""
        self.schedule: Isr | None = None
        """The replicas of the partition's schedule: the same ones count, and each is in sync in both logs or in none.
        None without a schedule."""
        self._count()

    def __repr__(self) -> str:
        return f"Isr({self.phase.value}, committed={self.committed}, pending={self.pending})"

    @property
    def replicas_count(self) -> int:
        """The number of replicas, in sync or not."""
        return len(self._assigned)

    @property
    def size(self) -> int:
        """The number of in-sync replicas in the newest state."""
        return len(self.committed.isr)

    @property
    def is_below_min(self) -> bool:
        """Whether the ISR is smaller than `min.insync.replicas`. More replicas than there are, are never needed."""
        return self.size < min(self._min_insync_replicas, len(self._assigned))

    def begin_schedule(self, *, epoch_start_offset: int, now_ms: int) -> Isr:
        """Begin the schedule of the partition, and return its replicas. The followers do not know of it yet.

        Args:
            epoch_start_offset: The log end offset at which this broker began to lead the schedule.
            now_ms: The time. An in-sync replica has `LagLimits.time_ms` for its first fetch.
        """
        self.schedule = Isr(
            self._broker_id,
            self._assigned,
            self.committed,
            min_insync_replicas=self._min_insync_replicas,
            epoch_start_offset=epoch_start_offset,
            limits=self._limits,
            now_ms=now_ms,
        )
        for follower in self._followers.values():
            follower.known = NOTHING_KNOWN
        self._count()
        return self.schedule

    def set_min_insync_replicas(self, count: int) -> None:
        """Use another value of the topic's `min.insync.replicas`."""
        self._min_insync_replicas = count
        self._count()

    def is_follower(self, broker_id: int) -> bool:
        """Return whether another broker has a replica of the partition."""
        return broker_id in self._followers

    # Fetches of followers

    def fetched(
        self,
        replica: int,
        end_offset: int,
        *,
        log_start_offset: int,
        broker_epoch: int,
        log_end_offset: int,
        now_ms: int,
    ) -> bool:
        """Note a fetch of a follower. Return whether its log start offset has changed since the last one.

        Args:
            replica: The broker id of the follower.
            end_offset: The progress of the follower: its fetch offset.
            log_start_offset: The log start offset of the follower.
            broker_epoch: The broker epoch of the fetch; `NO_BROKER_EPOCH` if it has none.
            log_end_offset: The leader's log end offset.
            now_ms: The time.
        """
        follower = self._followers[replica]
        follower.fetched(end_offset, log_end_offset, now_ms)
        moved = follower.log_start_offset != log_start_offset
        follower.broker_epoch, follower.log_start_offset = broker_epoch, log_start_offset
        messages = self._limits.messages
        if messages is None or log_end_offset - end_offset <= messages:
            follower.lags_since_ms = None
        elif follower.lags_since_ms is None:
            follower.lags_since_ms = now_ms
        self.progress.report(replica, end_offset)
        return moved

    def low_watermark(self, own: int, live: LiveBrokers) -> int:
        """Return the least log start offset of the live replicas; -1 if one has not fetched in this leader epoch.

        Args:
            own: The leader's log start offset.
            live: The live brokers.
        """
        starts = [
            each.log_start_offset for replica, each in self._followers.items() if replica in live
        ]
        return min([own, *starts])

    def known_to(self, replica: int) -> tuple[int, int]:
        """Return the high watermark and the log start offset in the last response to a follower."""
        return self._followers[replica].known

    def reported(self, replica: int, offsets: tuple[int, int]) -> None:
        """Note the high watermark and the log start offset in a response to a follower."""
        self._followers[replica].known = offsets

    def forget_restarted(self, live: LiveBrokers) -> None:
        """Forget the progress that earlier processes of restarted brokers have reported."""
        for replica, follower in self._followers.items():
            broker = live.get(replica)
            known = follower.broker_epoch
            if broker is not None and NO_BROKER_EPOCH != known < broker.broker_epoch:
                follower.end_offset, follower.broker_epoch = UNKNOWN, NO_BROKER_EPOCH
                follower.log_start_offset = UNKNOWN
                self.progress.report(replica, UNKNOWN)
        if self.schedule is not None:
            self.schedule.forget_restarted(live)

    def behind(
        self,
        live: LiveBrokers,
        *,
        log_start_offset: int,
        high_watermark: int,
        log_end_offset: int,
        now_ms: int,
    ) -> set[int]:
        """Return the replicas that lag, and those that are not in sync and may not join; see `propose`."""
        joining = self._joining(
            live,
            log_start_offset=log_start_offset,
            high_watermark=high_watermark,
            log_end_offset=log_end_offset,
            now_ms=now_ms,
        )
        return {
            replica
            for replica, follower in self._followers.items()
            if (
                follower.lags(self._limits, log_end_offset, now_ms)
                if replica in self.committed.isr
                else replica not in joining
            )
        }

    # Proposals

    def propose(
        self,
        live: LiveBrokers,
        *,
        log_start_offset: int,
        high_watermark: int,
        log_end_offset: int,
        now_ms: int,
        behind: AbstractSet[int] = frozenset(),
    ) -> InSync | None:
        """Return a change of the in-sync replicas, to be committed at once; None if there is nothing to change now.

        Args:
            live: The live brokers. Without this broker among them, nothing is proposed.
            log_start_offset: The leader's log start offset.
            high_watermark: The high watermark.
            log_end_offset: The log end offset.
            now_ms: The time.
            behind: The replicas that may not be in sync because of their schedules.
        """
        if self.phase is not Phase.STABLE or self._broker_id not in live:
            return None
        isr = self.committed.isr
        leaving = {
            replica
            for replica in isr - {self._broker_id}
            if replica not in live
            or replica in behind
            or self._followers[replica].lags(self._limits, log_end_offset, now_ms)
        }
        wanted = (
            isr - leaving
            if leaving
            else isr
            | self._joining(
                live,
                log_start_offset=log_start_offset,
                high_watermark=high_watermark,
                log_end_offset=log_end_offset,
                now_ms=now_ms,
            )
            - behind
        )
        proposal = InSync(wanted, self._eligible(wanted))
        if wanted == isr and (proposal.elr or not self.committed.elr):
            return None
        self.pending = proposal
        self.phase = Phase.PENDING
        self._count()
        return self.pending

    def _joining(
        self,
        live: LiveBrokers,
        *,
        log_start_offset: int,
        high_watermark: int,
        log_end_offset: int,
        now_ms: int,
    ) -> set[int]:
        return {
            replica
            for replica, follower in self._followers.items()
            if replica not in self.committed.isr
            and (broker := live.get(replica)) is not None
            and not broker.is_draining
            and follower.broker_epoch == broker.broker_epoch
            and follower.end_offset >= high_watermark
            and follower.end_offset >= self._epoch_start_offset
            and follower.log_start_offset >= log_start_offset
            and not follower.lags(self._limits, log_end_offset, now_ms)
        }

    def _eligible(self, isr: frozenset[int]) -> frozenset[int]:
        """Return the eligible leader replicas beside a proposed ISR."""
        if len(isr) >= min(self._min_insync_replicas, len(self._assigned)):
            return frozenset()
        return (self.committed.elr | self.committed.isr) - isr

    def decided(self, proposal: InSync, *, accepted: bool) -> None:
        """End a proposal: the store has applied it, or never will. Does nothing for an earlier proposal."""
        if proposal is self.pending:
            if accepted:
                self.committed = proposal
            self._stabilise()

    def unknown(self, proposal: InSync) -> None:
        """Wait until the outcome of a proposal is known. Does nothing for an earlier proposal."""
        if proposal is self.pending:
            self.phase = Phase.UNRESOLVED

    def settled(self) -> None:
        """End a proposal whose outcome was unknown: `committed` is the newest state, and stays so."""
        if self.phase is Phase.UNRESOLVED:
            self._stabilise()

    def newest(self, state: InSync) -> None:
        """Take the in-sync replicas of a newer state, which also decides a proposal.

        The same replicas again are no newer state, and decide nothing: the proposal may still be applied.
        """
        if state != self.committed:
            self.committed = state
            self._stabilise()

    def _stabilise(self) -> None:
        self.pending, self.phase = None, Phase.STABLE
        self._count()

    def _count(self) -> None:
        """Let the progress count the replicas that hold back the high watermark."""
        progress, isr = self.progress, self.committed.isr
        progress.isr = isr
        progress.maximal_isr = isr if self.pending is None else isr | self.pending.isr
        progress.is_frozen = self.is_below_min or bool(self.committed.elr)
        if (schedule := self.schedule) is not None:
            schedule.committed, schedule.pending = self.committed, self.pending
            schedule.set_min_insync_replicas(self._min_insync_replicas)
