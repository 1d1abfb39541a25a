"""The controller of a cluster: one of the brokers, which elects the leaders of partitions.

While the cluster has no controller, every live broker tries to become the controller, and the first commit wins. The
controller looks at all topics when the membership changes and every five seconds, and at a partition when its state
changes. It commits what `headrace.core.cluster.controller` decides, in a lane of its own, in steps.

Whether this broker is the controller is read from the image before each commit, and each commit checks the controller
epoch. So a broker stops as soon as it knows that its session has ended, or that another broker is the controller, and
the store refuses what it commits before it knows.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Final, NamedTuple, TypeAlias

from headrace.broker.context import LatestTime
from headrace.broker.metadata.commit_lane import Change, CommitError
from headrace.broker.metadata.metadata_writer import MetadataWriter
from headrace.broker.partitions.topic import Topic
from headrace.broker.partitions.topics import Topics
from headrace.broker.replication.replicas import Replicas
from headrace.broker.session import Session
from headrace.broker.waiting.purgatory import Alarm, Purgatory
from headrace.broker.waiting.steps import ENTRY_COST, Steps, Work, logged
from headrace.core.cluster.controller import (
    PARTITIONS_A_COMMIT,
    Commit,
    ControlledTopic,
    Decisions,
    StateChange,
    commits_of,
    controller_epoch_check,
    deleting_commits,
)
from headrace.core.cluster.damping import Damping
from headrace.core.cluster.membership import NO_CONTROLLER, Membership, MembershipChanges
from headrace.core.cluster.records import (
    CONTROLLER_EPOCH_KEY,
    CONTROLLER_KEY,
    LIVE_BROKERS,
    REGISTRATIONS,
    STATES,
    ControllerRecord,
    broker_id_of,
    decode,
    encode,
)
from headrace.errors import ApiError, ErrorCode, StorageError
from headrace.ports import Check, Conflict, Journal, Put, check_of

RECONCILE_INTERVAL_MS: Final = 5_000
"""The time after which the controller looks at all topics again, in milliseconds."""
RETRY_INTERVAL_MS: Final = 1_000
"""The time after which a broker repeats what the store could not commit, in milliseconds."""
_SCANNED: Final = 300
"""The number of partitions whose states are compared between two pieces of work."""
_SCAN_COST: Final = ENTRY_COST // 10
"""The cost of comparing the state of a partition."""
_ELECTION_COST: Final = 4 * ENTRY_COST
"""The cost of an election: the commit, and its notification."""

Decide: TypeAlias = Callable[[ControlledTopic, Iterable[int]], Iterator[StateChange]]
"""Yields the changes that partitions of a topic need, by the numbers of the partitions."""


class _Piece(NamedTuple):
    """Partitions of a topic that are looked at without a pause."""

    topic: Topic
    indexes: Sequence[int]


class Control:
    """This broker as the controller, or as a candidate."""

    __slots__ = (
        "_alarm",
        "_damped_until_ms",
        "_damping",
        "_failed",
        "_is_running",
        "_journal",
        "_keys",
        "_lane",
        "_looks_at_all",
        "_membership",
        "_metadata",
        "_purgatory",
        "_replicas",
        "_steps",
        "_time",
        "_topics",
        "_was_controller",
        "decisions",
    )

    def __init__(
        self,
        topics: Topics,
        replicas: Replicas,
        metadata: MetadataWriter,
        membership: Membership,
        *,
        purgatory: Purgatory,
        steps: Steps,
        time: LatestTime,
        journal: Journal,
    ) -> None:
        """Follow the membership and the states from now on.

        Args:
            topics: The topics, and the states of their partitions.
            replicas: Knows the registration of this broker.
            metadata: The metadata store.
            membership: The live brokers and the controller.
            purgatory: Has the deadlines.
            steps: Runs the decisions.
            time: The time of the latest call of the broker.
            journal: Receives the log events.
        """
        self._topics = topics
        self._replicas = replicas
        self._metadata = metadata
        self._lane = metadata.lane("controller")
        self._membership = membership
        self._purgatory = purgatory
        self._steps = steps
        self._time = time
        self._journal = journal
        self.decisions = Decisions(metadata.image, topics.states, membership)
        """The changes that the present image asks for."""
        self._damping = Damping()
        self._damped_until_ms: int | None = None
        """The time until which leaders that are gone are not replaced; None if they are replaced at once."""
        self._alarm = Alarm(self._look_at_all)
        self._looks_at_all = False
        """Whether all topics have to be looked at."""
        self._keys: dict[str, None] = {}
        """The keys of changed states, to look at in the order of the changes."""
        self._is_running = False
        """Whether `_run` is in progress."""
        self._failed = False
        """Whether the store could not commit something in the present run."""
        self._was_controller = False
        """Whether this broker was the controller when it last looked, for the log."""
        membership.listeners.append(self._membership_changed)
        topics.states.listeners.append(self._states_changed)
        purgatory.deliver_later(self._look_at_all)

    # Occasions

    def registered(self) -> None:
        """Become the controller if there is none: this broker has registered."""
        self._look_at_all()

    @property
    def is_controller(self) -> bool:
        """Whether the image has this registration of the broker as the controller."""
        entry = self._metadata.image.get(CONTROLLER_KEY)
        if entry is None or self._replicas.registration < 0:
            return False
        try:
            record = decode(entry, ControllerRecord)
        except StorageError:
            return False  # a newer broker is the controller
        return (record.broker, record.broker_epoch) == (
            self._replicas.broker_id,
            self._replicas.registration,
        )

    @property
    def _is_candidate(self) -> bool:
        """Whether this broker may become the controller: there is none, and this broker is registered and runs."""
        own = self._replicas.broker_id
        # The entry of an earlier process of this broker is replaced.
        if self._membership.controller_id not in {NO_CONTROLLER, own} or self.is_controller:
            return False
        live = self._membership.live.get(own)
        return (
            live is not None
            and live.broker_epoch == self._replicas.registration
            and not live.is_draining
        )

    def _membership_changed(self, changes: MembershipChanges) -> None:
        if self._was_controller and not self.is_controller:
            self._was_controller = False
            self._journal.warning("controller_replaced", controller=self._membership.controller_id)
        if self._was_controller and (changes.registered or changes.gone):
            self._damp()
        self._look_at_all()

    def _damp(self) -> None:
        live, now_ms = self._membership.live, self._time.now_ms
        self._damped_until_ms = self._damping.waits_until_ms(live, now_ms)

    def _states_changed(self, keys: Iterable[str], _brokers: Iterable[int]) -> None:
        if self._was_controller:
            self._keys.update(dict.fromkeys(keys))
            self._wake()

    def _look_at_all(self) -> None:
        self._looks_at_all = True
        self._wake()

    def _wake(self) -> None:
        if not self._is_running and (self.is_controller or self._is_candidate):
            self._is_running = True
            work = logged(self._run(), "controller", self._journal)
            self._steps.run(work, Session(is_local=True), finishes=True, postponed=True)

    # Decisions

    def _run(self) -> Work[None]:
        """Become the controller, and decide until there is nothing left to decide."""
        self._failed = False
        try:
            while not self._failed and (self._looks_at_all or self._keys):
                if self._is_candidate:
                    yield from self._become()
                if not self.is_controller:
                    return
                if not self._was_controller:
                    self._begin()
                everything, self._looks_at_all = self._looks_at_all, False
                keys, self._keys = self._keys, {}
                yield from self._reconcile(keys, everything=everything)
        finally:
            self._is_running = False
            if self.is_controller or self._is_candidate:
                self._purgatory.add(self._alarm, self._time.now_ms + self._pause_ms)

    @property
    def _pause_ms(self) -> int:
        """The time until all topics are looked at again, in milliseconds."""
        if self._failed or not self.is_controller:
            return RETRY_INTERVAL_MS
        if self._damped_until_ms is None:
            return RECONCILE_INTERVAL_MS
        return max(1, min(RECONCILE_INTERVAL_MS, self._damped_until_ms - self._time.now_ms))

    def _become(self) -> Work[None]:
        """Become the controller, unless another broker is faster."""
        image, broker_id = self._metadata.image, self._replicas.broker_id
        record = encode(ControllerRecord(broker_id, self._replicas.registration))
        registration, previous = f"{REGISTRATIONS}{broker_id}", image.get(CONTROLLER_KEY)
        checks = [
            controller_epoch_check(image),
            check_of(registration, image.get(registration)),
            Check(f"{LIVE_BROKERS}{broker_id}", "exists"),
        ]
        if previous is None:
            checks.append(Check(CONTROLLER_KEY, "absent"))
        puts = [Put(CONTROLLER_KEY, record, ephemeral=True), Put(CONTROLLER_EPOCH_KEY, record)]
        if (yield from self._stored(Commit(checks, puts))) is not None:
            self._failed = True

    def _begin(self) -> None:
        """Begin to decide: the image has this broker as the controller."""
        image = self._metadata.image
        self._was_controller = self._looks_at_all = True
        epoch = image.get(CONTROLLER_EPOCH_KEY)
        self._journal.info("became_controller", controller_epoch=epoch and epoch.version)
        registered = image.list(REGISTRATIONS)
        self._damping = Damping(broker_id_of(each.key, REGISTRATIONS) for each in registered)
        self._damp()

    def _reconcile(self, keys: Collection[str], *, everything: bool) -> Work[None]:
        """Commit what the image asks for, and the image after each commit."""
        pieces = list(self._pieces(self._topics)) if everything else list(self._pieces_of(keys))
        if self._damped_until_ms is not None:
            self._damp()
        yield from self._elect(pieces, self._leaders_gone, "leader gone")
        if any(each.is_draining for each in self._membership.live.values()):
            yield from self._elect(pieces, self.decisions.leaders_draining, "leader draining")
        if everything:
            yield from self._end_deletions()

    def _leaders_gone(
        self, topic: ControlledTopic, indexes: Iterable[int]
    ) -> Iterator[StateChange]:
        """Yield the elections for partitions without a live leader; none while this broker waits for most brokers."""
        for change in self.decisions.leaders_gone(topic, indexes):
            if self._damped_until_ms is not None:  # perhaps since the commit of earlier changes
                return
            yield change

    def _end_deletions(self) -> Work[None]:
        """Delete the states of deleted topics of which no live broker has files."""
        for entry in self.decisions.deletions():
            deletes = self.decisions.left_states(entry)
            for commit in deleting_commits(deletes, controller_epoch_check(self._metadata.image)):
                if self._failed or not self.is_controller:
                    return
                self._failed |= (yield from self._stored(commit)) is not None
            yield _SCAN_COST

    def _pieces(self, topics: Iterable[Topic]) -> Iterator[_Piece]:
        for topic in topics:
            for first in range(0, topic.partitions_count, _SCANNED):
                yield _Piece(topic, range(first, min(first + _SCANNED, topic.partitions_count)))

    def _pieces_of(self, keys: Iterable[str]) -> Iterator[_Piece]:
        """Yield the partitions whose states have these keys."""
        changed: dict[str, list[int]] = {}
        for key in keys:
            topic_id, _, index = key.removeprefix(STATES).partition("/")
            if index.isdecimal():
                changed.setdefault(topic_id, []).append(int(index))
        for topic_id, indexes in changed.items():
            topic = self._topics.by_id(bytes.fromhex(topic_id))
            if topic is not None:
                yield _Piece(topic, [i for i in indexes if i < topic.partitions_count])

    def _elect(self, pieces: Iterable[_Piece], decide: Decide, reason: str) -> Work[None]:
        """Commit the elections that partitions need."""
        wanted: list[StateChange] = []
        elected = 0
        for topic, indexes in pieces:
            if self._topics.by_id(topic.topic_id) is topic:
                for change in decide(controlled(topic), indexes):
                    wanted.append(change)
                    if len(wanted) == PARTITIONS_A_COMMIT:
                        elected += yield from self._store(wanted, decide)
                        wanted = []
            yield len(indexes) * _SCAN_COST
            if self._failed or not self.is_controller:
                break
        if wanted:
            elected += yield from self._store(wanted, decide)
        if elected:
            self._journal.info("leaders_elected", partitions=elected, reason=reason)

    def _store(self, changes: Sequence[StateChange], decide: Decide) -> Work[int]:
        """Commit changes together. If one of them is refused, commit each by itself, decided again.

        Returns:
            The number of changes that are stored.
        """
        error = yield from self._commit(changes)
        if error is None:
            return len(changes)
        stored = 0
        if len(changes) > 1 and isinstance(error, Conflict):
            for change in changes:
                for again in decide(change.topic, (change.partition,)):
                    stored += (yield from self._commit([again])) is None
        # What is refused again is looked at when the image has the reason.
        return stored

    def _commit(self, changes: Sequence[StateChange]) -> Work[CommitError]:
        """Commit changes of states together; return the error."""
        if self._failed or not self.is_controller:
            return Conflict(0)
        (commit,) = commits_of(changes, controller_epoch_check(self._metadata.image))
        yield len(changes) * _ELECTION_COST
        error = yield from self._stored(commit)
        if error is None:
            self._report_unclean(changes)
        elif not isinstance(error, Conflict):
            self._failed = True
        return error

    def change_states(self, decide: Callable[[], Sequence[StateChange]]) -> Work[CommitError]:
        """Commit the changes that a request asks for; return the error.

        Args:
            decide: Returns at most `PARTITIONS_A_COMMIT` changes of the present image. It is called again if the image
                changes before they are stored.
        """
        changes: list[StateChange] = []

        def merge() -> Change | None:
            changes[:] = decide()
            if not self.is_controller:
                raise ApiError(ErrorCode.NOT_CONTROLLER)
            epoch = controller_epoch_check(self._metadata.image)
            return next(commits_of(changes, epoch), None)

        result = self._lane.merge(merge)
        error: CommitError = result.value if result.done else (yield result)
        if error is None:
            self._report_unclean(changes)
            self._journal.info("leaders_elected", partitions=len(changes), reason="requested")
        return error

    def _report_unclean(self, changes: Iterable[StateChange]) -> None:
        for change in changes:
            if change.is_unclean:
                topic = self._topics.by_id(change.topic.topic_id)
                self._journal.error(
                    "unclean_leader_elected",
                    topic=change.topic.topic_id.hex() if topic is None else topic.name,
                    partition=change.partition,
                    leader=change.after.leader,
                    leader_epoch=change.after.leader_epoch,
                    isr_before=change.before.isr,
                )

    def _stored(self, commit: Commit) -> Work[CommitError]:
        result = self._lane.commit(commit.checks, commit.operations)
        error: CommitError = result.value if result.done else (yield result)
        return error


def controlled(topic: Topic) -> ControlledTopic:
    """Return a topic as the controller needs it."""
    config = topic.config
    return ControlledTopic(
        topic.topic_id,
        topic.replicas,
        config.min_insync_replicas,
        config.unclean_leader_election_enable,
    )
