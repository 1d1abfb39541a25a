"""The decisions of a consumer: public operations as flows, or as plain methods if they do not wait."""

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
from headrace.clients.consumer.member import ConsumerMember
from headrace.clients.consumer.missing_topics import MissingTopics
from headrace.clients.consumer.position_finder import PositionFinder
from headrace.clients.consumer.positions import ConsumerPositions
from headrace.clients.consumer.records import ConsumerRecord
from headrace.clients.consumer.reports import Reports
from headrace.clients.consumer.subscribed_topics import SubscribedTopics
from headrace.clients.consumer.subscription import (
    ConsumerSubscription,
    check_listener,
    partition_of,
    wanted_subscription,
)
from headrace.clients.consumer.topic_watch import TopicWatch
from headrace.clients.engine import Engine
from headrace.clients.flows import metadata
from headrace.clients.flows.effects import Flow, Invoke, Wait
from headrace.clients.flows.offsets import CommitIdentity, OffsetAndMetadata
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
"""Milliseconds that the last commit and the departure of a stopped member may take."""


class ConsumerCore:
    """The state of one consumer.

    Attributes:
        assigned: The partitions that the consumer reads.
        stopped: Whether an administrator has stopped this member: it has left its group and does not join again.
    """

    _stopped_as: CommitIdentity | None = None
    """The identity of the member when an administrator stopped it; None if it was not stopped."""

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
            engine: The engine that runs the flows.
            config: The consumer's configuration.
            new_id: Returns a unique member id, for the protocol `consumer`.
            assignors: The assignors, preferred first. None is the one of the group's attachment, or range.
            serde: The serde of values. None is the serde that each topic names.
            key_serde: The serde of keys. None is the serde that each topic names.
            resolve_serde: Returns the serde that a topic names. None is bytes for all topics.
            warn: Logs a warning.
        """
        self._engine, self._config = engine, config
        self._assignors = list(assignors) if assignors is not None else None
        self.assigned: dict[TopicPartition, AssignedPartition] = {}
        reports = self._reports = Reports(engine, self.assigned, warn)
        self._subscription = ConsumerSubscription()
        self._topics = SubscribedTopics(engine, config, self.assigned)
        group = GroupMembership(engine, config, self.assigned, self._topics, reports, new_id=new_id)
        self._group = group
        self._commits = Commits(engine, config, self.assigned, group.identity, group.answered)
        self._fetcher = Fetcher(engine, config, self.assigned, reports.failed)
        isolation, commits = self._fetcher.isolation_level, self._commits
        self._position_finder = PositionFinder(
            engine, config, self.assigned, isolation, reports, commits=commits
        )
        self.positions = ConsumerPositions(
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

    # Problems

    @property
    def trouble(self) -> str | None:
        """The reason why some records cannot be read at present; None if there is no known reason."""
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
    def _member(self) -> ConsumerMember | None:
        return self._group.member

    # What is read

    @property
    def needs_background(self) -> bool:
        """Whether heartbeats or commits may be due while the program works."""
        return self._group.belongs or (self._commits.automatic and bool(self.assigned))

    @property
    def joined(self) -> bool:
        """Whether the consumer is a member of its group, with or without partitions."""
        return self._group.joined

    def subscribe(
        self,
        topics: Collection[str] | None = None,
        *,
        pattern: str | re.Pattern[str] | None = None,
        exclude: str | re.Pattern[str] | Collection[str] = (),
        listener: object | None = None,
    ) -> Flow[None]:
        """Join the group for topics, for a pattern, or (without both) for the topics to which the group is attached."""
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
        self._watch.refresh()  # it also reports if no broker can be reached
        self._commits.start_auto()

    def assign(
        self, partitions: Mapping[TopicPartition, int | None] | Iterable[TopicPartition]
    ) -> Flow[None]:
        """Read these partitions and no others, without an assignment by a group.

        Args:
            partitions: Partitions, or offsets by partition, also EARLIEST and LATEST. Without an offset, a partition
                keeps its position, or begins at the group's committed offset, or by `auto.offset.reset`.
        """
        self._check_open()
        self._subscription.check_change("partitions")
        given = partitions if isinstance(partitions, Mapping) else dict.fromkeys(partitions)
        wanted = {partition_of(name): offset for name, offset in given.items()}
        yield from ensure_partitions(self._engine.state, wanted)
        listed = {name: at for name, at in wanted.items() if at is not None and at < 0}
        found = yield from self.positions.listed(listed)
        self._subscription = ConsumerSubscription("partitions" if wanted else "none")
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
        """Commit (with `enable.auto.commit`), call the listener, leave the group, and read nothing any more."""
        self._check_open()
        yield from self._departure.depart("handed out", self._engine.now_ms + timeout_ms)

    def subscription(self) -> frozenset[str]:
        """Return the topics of the subscription that are known."""
        topics = self._topics.known
        return frozenset(name.topic for name in self.assigned) if topics is None else topics

    def assignment(self, timeout_ms: int) -> Flow[list[TopicPartition]]:
        """Return the assigned partitions; in a group, wait for the assignment.

        Raises:
            NoSubscriptionError: The consumer has no subscription and no partitions.
            TransportError: The group did not assign partitions in time.
        """
        self._check_reading()
        began_ms = self._engine.now_ms
        until_ms = began_ms + timeout_ms
        # If a listener calls this, or another thread polls, the current partitions are the result.
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
        """Wait until there are records for `take`. The records that were returned before count as finished.

        Raises:
            NoSubscriptionError: The consumer has no subscription and no partitions.
            ApiError: A partition cannot be read, or the group refuses this consumer.
            CorruptRecordError: A batch is damaged. The position stays before it.
        """
        self._check_open(but_for_closing=False)
        for partition in self.assigned.values():
            partition.finished = partition.position() or partition.finished
        yield from self._as_poll(self._wait_for_records(self._engine.now_ms + timeout_ms))

    def take(self, max_records: int | None = None) -> list[ConsumerRecord]:
        """Return records that were fetched, and fetch more.

        Raises:
            SerializationError: The first record cannot be decoded. The position stays at it.
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
        """Return one fetched record, unless the group needs attention first. The record before it is finished."""
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
                self._fetch()  # decoding may have found that the rest of a response has no records
            if self._engine.now_ms >= until_ms or self._ready():
                return
            # A wait that ends now would run before other tasks; wait one millisecond.
            yield Wait(self._engine.now_ms + 1 if self._collector.unfinished else until_ms)
            self._check_open(but_for_closing=False)

    def _attend(self) -> Flow[None]:
        """Take part in a rebalance if there is one, and start the requests that are needed."""
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
        """Commit the given offsets; None is the offsets after all records that polls returned."""
        yield from self._call_back()
        yield from self._commits.commit(self._wanted_commit(wanted))
        yield from self._call_back()

    def commit_async(
        self,
        wanted: Mapping[TopicPartition, int | OffsetAndMetadata] | None = None,
        callback: Callback | None = None,
    ) -> None:
        """Commit offsets without waiting for the response."""
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
        """Return the committed offsets of these partitions; None is all that are or were read.

        Raises:
            InvalidCommittedOffsetError: There is no such partition.
            NoSubscriptionError: No partitions are given, and the consumer has no subscription and no partitions.
        """
        self._check_open()
        if partitions is not None:
            return (yield from self._committed.of(partitions))
        self._check_subscribed()
        return (yield from self._committed.of_consumed(self._collector.consumed))

    def seek_to_committed(self, partitions: Iterable[TopicPartition] | None) -> Flow[None]:
        """Set the positions to the committed offsets; None is all partitions that are read."""
        self._check_reading()
        return self._committed.go_back(partitions)

    def holds(self, name: TopicPartition, now_ms: int) -> bool:
        """Return whether the consumer owns a partition at a time of the engine's clock. Any thread may call it."""
        return name in self.assigned and self._group.holds(now_ms)

    def group_metadata(self) -> GroupMetadata:
        """Return the identity of the consumer in its group."""
        if self._config.group_id is None:
            raise ConfigError("the consumer has no group: Consumer(..., group=NAME)")
        # (1) An administrator stops the member. (2) Other members continue and commit. (3) A transaction of the stopped
        # member without an identity would be accepted, and set the group back.
        who = self._stopped_as or self._group.fenced_identity() or CommitIdentity()
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
        """Commit (with `enable.auto.commit`), call the listener, and leave the group, within a time."""
        if self._closed:
            return
        self._closing = True
        self._engine.notify()
        try:
            yield from self._departure.depart(at_close, self._engine.now_ms + timeout_ms)
        finally:
            self._closed = True

    def _stop_as_asked(self) -> Flow[None]:
        """Commit finished records and leave the group for good, because an administrator stops this member."""
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
        self._subscription = ConsumerSubscription()
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
        """Raise ClosedError if the consumer is closed. While it is being closed, a listener may commit but not poll."""
        if self._closed or (self._closing and not but_for_closing):
            raise ClosedError("the consumer is closed")
