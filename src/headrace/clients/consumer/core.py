"""The consumer's decisions, put together: public operations as flows, or as plain methods where nothing waits."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Final

from headrace.clients.assignors import Assignor, choose_assignors
from headrace.clients.config import ConsumerConfig
from headrace.clients.consumer.assigned_partition import AssignedPartition
from headrace.clients.consumer.commits import Callback, Commits
from headrace.clients.consumer.committed_offsets import Committed, CommittedOffsets
from headrace.clients.consumer.decoding import Decoders, Deserializer, Resolve
from headrace.clients.consumer.departure import AtClose, Departure
from headrace.clients.consumer.fetch_collector import FetchCollector
from headrace.clients.consumer.fetcher import Fetcher
from headrace.clients.consumer.group_membership import GroupMembership
from headrace.clients.consumer.group_metadata import GroupMetadata
from headrace.clients.consumer.member import Member
from headrace.clients.consumer.missing_topics import MissingTopics
from headrace.clients.consumer.position_finder import PositionFinder
from headrace.clients.consumer.positions import Positions
from headrace.clients.consumer.records import ConsumerRecord
from headrace.clients.consumer.reports import Reports
from headrace.clients.consumer.subscribed_topics import SubscribedTopics
from headrace.clients.consumer.subscription import (
    Subscription,
    check_listener,
    partition_of,
    wanted_subscription,
)
from headrace.clients.consumer.topic_watch import TopicWatch
from headrace.clients.engine import Engine
from headrace.clients.flows import metadata
from headrace.clients.flows.effects import Flow, Invoke, Wait
from headrace.clients.flows.offsets import Committer, OffsetAndMetadata
from headrace.clients.flows.routing import ensure_partitions
from headrace.errors import (
    ClosedError,
    ConcurrentPollError,
    ConfigError,
    HeadraceError,
    MemberStoppedError,
    NoSubscriptionError,
    TransportError,
)
from headrace.types import TopicPartition

STOP_TIMEOUT_MS: Final = 10_000
"""How long the last commit and the farewell of a member that is stopped may take."""


class ConsumerCore:
    """One consumer.

    Attributes:
        assigned: The partitions that are read.
        stopped: Whether an administrator has stopped this member: it has left its group, and does not join again.
    """

    _stopped_as: Committer | None = None
    """Who it was when it was stopped."""

    def __init__(
        self,
        engine: Engine,
        config: ConsumerConfig,
        *,
        new_id: Callable[[], str],
        assignors: Sequence[Assignor] | None = None,
        serde: Deserializer | None = None,
        key_serde: Deserializer | None = None,
        resolve_serde: Resolve | None = None,
        warn: Callable[[str], object] = lambda _: None,
    ) -> None:
        """Prepare a consumer.

        Args:
            engine: What runs it.
            config: Its configuration.
            new_id: Returns an id that no other member has, for the protocol `consumer`.
            assignors: How its group may divide partitions, best first; None is what it is attached with, or range.
            serde: What makes values of bytes; None asks each topic.
            key_serde: What makes keys of bytes; None asks each topic.
            resolve_serde: Returns the serde of a name in a topic's configuration; None takes bytes.
            warn: Told what the program's operator should know.
        """
        self._engine, self._config = engine, config
        self._assignors = list(assignors) if assignors is not None else None
        self.assigned: dict[TopicPartition, AssignedPartition] = {}
        reports = self._reports = Reports(engine, self.assigned, warn)
        self._subscription = Subscription()
        self._topics = SubscribedTopics(engine, config, self.assigned)
        group = GroupMembership(engine, config, self.assigned, self._topics, reports, new_id=new_id)
        self._group = group
        self._commits = Commits(engine, config, self.assigned, group.identity, group.answered)
        self._fetcher = Fetcher(engine, config, self.assigned, reports.failed)
        isolation, commits = self._fetcher.isolation_level, self._commits
        self._position_finder = PositionFinder(
            engine, config, self.assigned, isolation, reports, commits=commits
        )
        self.positions = Positions(
            engine,
            self.assigned,
            self._position_finder,
            isolation,
            check=self._check_open,
            check_reading=self._check_reading,
            raise_failure=reports.raise_failure,
        )
        self._committed = CommittedOffsets(engine, config.group_id, commits, self.positions)
        self._decoders = Decoders(engine, key_serde, serde, resolve_serde, reports)
        self._collector = FetchCollector(self.assigned, self._decoders)
        topics = self._topics
        self._watch = TopicWatch(
            engine, config, topics, on_news=self._topics_found, on_failure=self._topics_not_found
        )
        self._missing = MissingTopics(engine, self._topics, reports.warn)
        self._departure = Departure(
            engine, commits, group, reports, stop_reading=self._stop, call_back=self._call_back
        )
        self._polling = self._closing = self._closed = self.stopped = False

    # What is wrong at present

    @property
    def trouble(self) -> str | None:
        """Why nothing, or not everything, can be read at present; None where nothing is known to be wrong."""
        return self._missing.text or self._group.trouble

    def _topics_found(self) -> None:
        for name, partition in self.assigned.items():
            partition.belongs_to(self._engine.state.metadata.topic_id(name.topic))
        refused = self._topics.refused()
        if refused is not None:
            self._reports.failed(refused)
        self._group.changed(self._topics.changed())
        self._missing.look()

    def _topics_not_found(self, error: HeadraceError) -> None:
        if isinstance(error, TransportError):
            self._reports.unreachable(error)
        else:
            self._reports.failed(error)

    @property
    def _member(self) -> Member | None:
        return self._group.member

    # What is read

    @property
    def needs_background(self) -> bool:
        """Whether something may be due while the program works."""
        return self._group.belongs or (self._commits.automatic and bool(self.assigned))

    @property
    def joined(self) -> bool:
        """Whether the consumer has its place in its group, with or without partitions."""
        return self._group.joined

    def subscribe(
        self,
        topics: Collection[str] | None = None,
        *,
        pattern: str | re.Pattern[str] | None = None,
        exclude: str | re.Pattern[str] | Collection[str] = (),
        listener: object | None = None,
    ) -> Flow[None]:
        """Join the group for topics, for all that match a pattern, or (given neither) for what it is attached to."""
        self._check_open()
        if self._config.group_id is None:
            raise ConfigError("subscribing needs a group: Consumer(..., group=NAME)")
        check_listener(listener)
        wanted = wanted_subscription(topics, pattern, exclude)
        self._subscription.check_change(wanted.kind)
        assignors = self._assignors
        if wanted.kind == "group":
            named = yield from self._topics.attachments()
            if assignors is None and named is not None:
                assignors = choose_assignors(named)
        self._subscription = wanted
        self._start_anew()
        self._topics.follow(wanted)
        self._group.begin(assignors, self._commits, listener)
        self._watch.watch()
        self._watch.refresh()  # tells, too, that no broker can be reached
        self._commits.start_auto()

    def assign(
        self, partitions: Mapping[TopicPartition, int | None] | Iterable[TopicPartition]
    ) -> Flow[None]:
        """Read these partitions, without a group deciding, instead of those before.

        Args:
            partitions: Partitions, or offsets by partition, EARLIEST and LATEST included. Without an offset, reading
                goes on where it is, or begins at the group's committed offset, or else by `auto.offset.reset`.
        """
        self._check_open()
        self._subscription.check_change("partitions")
        given = partitions if isinstance(partitions, Mapping) else dict.fromkeys(partitions)
        wanted = {partition_of(name): offset for name, offset in given.items()}
        yield from ensure_partitions(self._engine.state, wanted)
        listed = {name: at for name, at in wanted.items() if at is not None and at < 0}
        found = yield from self.positions.listed(listed)
        self._subscription = Subscription("partitions" if wanted else "none")
        self._start_anew()
        self._topics.follow(self._subscription)
        for name in [name for name in self.assigned if name not in wanted]:
            del self.assigned[name]
        for name, offset in wanted.items():
            at = found[name].offset if name in found else offset
            if at is not None or name not in self.assigned:
                self.assigned[name] = AssignedPartition(name, at)
        self._watch.watch()
        self._commits.start_auto()

    def unsubscribe(self, timeout_ms: int) -> Flow[None]:
        """Read nothing any more: commit (with enable.auto.commit), tell the listener, leave the group."""
        self._check_open()
        yield from self._departure.depart("handed out", self._engine.now_ms + timeout_ms)

    def subscription(self) -> frozenset[str]:
        """Return the topics subscribed to, as far as they are known."""
        topics = self._topics.known
        return frozenset(name.topic for name in self.assigned) if topics is None else topics

    def assignment(self, timeout_ms: int) -> Flow[list[TopicPartition]]:
        """Return the partitions that are read; in a group, wait for the place in it.

        Raises:
            NoSubscriptionError: Nothing is read.
            TransportError: The consumer does not have its place in time.
        """
        self._check_reading()
        began_ms = self._engine.now_ms
        until_ms = began_ms + timeout_ms
        # Where a listener asks, or another thread polls, the answer is what is known now.
        while self._group.belongs and not self._polling:
            yield from self._as_poll(self._attend())
            if self.joined:
                break
            if self._engine.now_ms >= until_ms:
                text = f"the assignment was not known within {timeout_ms} ms"
                if self.trouble is not None:
                    text += f": {self.trouble}"
                raise TransportError(self._engine.trouble.explain(text, began_ms))
            yield Wait(until_ms)
        return sorted(self.assigned)

    # Polling

    def poll(self, timeout_ms: int) -> Flow[None]:
        """Wait until there are records for `take`; what was handed out before counts as finished.

        Raises:
            NoSubscriptionError: Nothing is read.
            ApiError: A partition cannot be read, or the group does not take this consumer.
            CorruptRecordError: A batch is damaged; the position stays before it.
        """
        self._check_open(but_for_closing=False)
        for partition in self.assigned.values():
            partition.finished = partition.position() or partition.finished
        yield from self._as_poll(self._wait_for_records(self._engine.now_ms + timeout_ms))

    def take(self, max_records: int | None = None) -> list[ConsumerRecord]:
        """Hand out records that are here, and fetch more.

        Raises:
            SerializationError: The first record does not decode; the position stays at it.
        """
        self._check_open()
        if not self._group.may_hand_out():
            return []
        limit = self._config.max_poll_records if max_records is None else max_records
        records = self._collector.take(max(1, limit))
        self._fetch()
        return records

    def _ready(self) -> bool:
        return self._group.may_hand_out() and self._collector.ready()

    def take_one(self) -> ConsumerRecord | None:
        """Hand out one record, if one is here and nothing else is to be done first; the one before it is finished."""
        self._check_open()
        self._collector.finish_last()
        if not self._group.leaves_time():
            return None
        record = self._collector.take_one()
        if record is None or self._collector.drained:
            self._fetch()
        return record

    def _as_poll(self, flow: Flow[None]) -> Flow[None]:
        if self._polling:
            flow.close()
            raise ConcurrentPollError(
                "this consumer is being polled already: one thread or task polls, and listeners do not"
            )
        self._polling = True
        self._group.poll_began()
        try:
            yield from flow
        finally:
            self._polling = False
            self._group.poll_ended()

    def _wait_for_records(self, until_ms: int) -> Flow[None]:
        while True:
            self._check_subscribed()
            yield from self._attend()
            if self.stopped:
                return
            if not self._ready():
                self._fetch()  # looking has found perhaps that what was left of an answer holds no records
            if self._engine.now_ms >= until_ms or self._ready():
                return
            # What is due now would be done before anything else gets its turn.
            yield Wait(self._engine.now_ms + 1 if self._collector.unfinished else until_ms)
            self._check_open(but_for_closing=False)

    def _attend(self) -> Flow[None]:
        """Do the foreground's part, and start what is to be done in the background."""
        yield from self._call_back()
        if self._group.stopping:
            yield from self._stop_as_asked()
            return
        yield from self._group.keep()
        self._reports.raise_failure()
        self._decoders.look_up({name.topic for name in self.assigned})
        self._position_finder.work()
        self._fetch()

    def _fetch(self) -> None:
        self._fetcher.send(self._position_finder.usable)
        if self._watch.stale:
            self._watch.refresh()

    def _call_back(self) -> Flow[None]:
        while self._commits.outcomes:
            callback, committed, error = self._commits.outcomes.popleft()
            yield Invoke(callback, (committed, error))

    # Commits

    def commit(
        self, wanted: Mapping[TopicPartition, int | OffsetAndMetadata] | None = None
    ) -> Flow[None]:
        """Commit offsets: those given, or where everything is finished that was handed out."""
        yield from self._call_back()
        yield from self._commits.commit(self._wanted_commit(wanted))
        yield from self._call_back()

    def commit_async(
        self,
        wanted: Mapping[TopicPartition, int | OffsetAndMetadata] | None = None,
        callback: Callback | None = None,
    ) -> None:
        """Commit without waiting."""
        self._commits.commit_async(self._wanted_commit(wanted), callback)

    def _wanted_commit(
        self, wanted: Mapping[TopicPartition, int | OffsetAndMetadata] | None
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        self._check_open()
        if self._config.group_id is None:
            raise ConfigError("committing needs a group: Consumer(..., group=NAME)")
        self._check_subscribed()
        return self._commits.handed_out() if wanted is None else self.positions.checked(wanted)

    def committed(self, partitions: Iterable[TopicPartition] | None = None) -> Flow[Committed]:
        """Return what the group has committed in these partitions, or (None) in all that are read or were read.

        Raises:
            InvalidCommittedOffsetError: There is no such partition.
            NoSubscriptionError: No partitions are given, and nothing is read.
        """
        self._check_open()
        if partitions is not None:
            return (yield from self._committed.of(partitions))
        self._check_subscribed()
        return (yield from self._committed.of_consumed(self._collector.consumed))

    def seek_to_committed(self, partitions: Iterable[TopicPartition] | None) -> Flow[None]:
        """Go on from what the group has committed in these partitions, or (None) in all that are read."""
        self._check_reading()
        return self._committed.go_back(partitions)

    def holds(self, name: TopicPartition, now_ms: int) -> bool:
        """Whether a partition is this consumer's at a time, by the clock of the engine; any thread may ask."""
        return name in self.assigned and self._group.holds(now_ms)

    def group_metadata(self) -> GroupMetadata:
        """Return the consumer's place in its group."""
        if self._config.group_id is None:
            raise ConfigError("the consumer has no group: Consumer(..., group=NAME)")
        # (1) A member is stopped, (2) others read on and commit, (3) a transaction that it has begun must not be taken
        # as that of nobody, and set the group back.
        who = self._stopped_as or self._group.fenced_identity() or Committer()
        return GroupMetadata(
            self._config.group_id,
            who.generation_id,
            who.member_id,
            who.group_instance_id,
            who.joined,
        )

    # Topics

    def partitions_for(self, topic: str) -> Flow[list[TopicPartition]]:
        """Return a topic's partitions."""
        self._check_open()
        auto_create = self._config.allow_auto_create_topics
        yield from metadata.ensure(self._engine.state, [topic], auto_create=auto_create)
        return self._engine.state.metadata.partitions(topic)

    # The end

    def close(self, at_close: AtClose, timeout_ms: int) -> Flow[None]:
        """Commit (with enable.auto.commit), tell the listener, leave the group; the network gets so long for it."""
        if self._closed:
            return
        self._closing = True
        self._engine.notify()
        try:
            yield from self._departure.depart(at_close, self._engine.now_ms + timeout_ms)
        finally:
            self._closed = True

    def _stop_as_asked(self) -> Flow[None]:
        """Commit what is finished, and leave for good: an administrator stops this member."""
        self._reports.warn(
            f"an administrator stops this member of group {self._config.group_id!r}: it commits what is finished, "
            "leaves, and does not join again"
        )
        self._stopped_as = self._group.fenced_identity()
        try:
            yield from self._departure.depart("finished", self._engine.now_ms + STOP_TIMEOUT_MS)
        finally:
            self.stopped = True

    def _start_anew(self) -> None:
        self.stopped, self._stopped_as = False, None

    def _stop(self) -> None:
        for part in (
            self._commits,
            self._position_finder,
            self._decoders,
            self._watch,
            self._missing,
        ):
            part.stop()
        self.assigned.clear()
        self._collector.consumed.clear()
        self._reports.clear()
        self._subscription = Subscription()
        self._topics.follow(self._subscription)

    def _check_reading(self) -> None:
        self._check_open()
        self._check_subscribed()

    def _check_subscribed(self) -> None:
        if self.stopped:
            raise MemberStoppedError(
                "an administrator has stopped this member of its group, and it has left: end the program's loop when "
                "`consumer.stopped` is true, or call subscribe to join again"
            )
        if self._subscription.kind == "none":
            raise NoSubscriptionError("the consumer reads nothing: call subscribe or assign first")

    def _check_open(self, *, but_for_closing: bool = True) -> None:
        """Raise ClosedError; while the consumer is being closed, its listener may still commit, but nobody polls."""
        if self._closed or (self._closing and not but_for_closing):
            raise ClosedError("the consumer is closed")
