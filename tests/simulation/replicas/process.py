"""The process of a broker: its image, the roles of its replicas, and what it does as a leader."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from headrace.broker.cluster.control import Control
from headrace.broker.cluster.member import Member
from headrace.broker.cluster.unclean_start import Departures
from headrace.broker.context import LatestTime
from headrace.broker.metadata.metadata_writer import MetadataWriter
from headrace.broker.replication.isr_changes import IsrChanges
from headrace.broker.waiting.purgatory import Purgatory
from headrace.broker.waiting.steps import Steps
from headrace.core.cluster.image import Changes
from headrace.core.cluster.membership import Membership
from headrace.core.cluster.partition_states import PartitionStates
from headrace.core.cluster.records import DELETED, TOPICS, LiveRecord, TopicRecord, decode
from headrace.core.replica.acks import AckQueues
from headrace.core.replica.following import Following
from headrace.core.replica.isr import InSync, Isr, LagLimits
from headrace.core.replica.progress import ALL_IN_SYNC, own_progress
from headrace.core.replica.role import NO_REGISTRATION, Leadership, Role, next_role
from headrace.ports import MetadataEntry
from tests.simulation.replicas.disk import Disk, Key, ReplicaLog
from tests.simulation.replicas.fetching import FetchLoop
from tests.simulation.replicas.partition import SimPartition
from tests.simulation.replicas.serving import Serving
from tests.simulation.replicas.surroundings import (
    ProcessJournal,
    ProcessStore,
    Roles,
    SimLogDir,
    SimLogStore,
    SimTopic,
    SimTopics,
)

if TYPE_CHECKING:
    from tests.simulation.replicas.replica_simulation import ReplicaSimulation

CHECK_MS = 500
"""The time between two checks for timeouts, and between two checkpoints."""


class Process:
    """One process of a broker, with its real membership, controller and ISR changes.

    They use the process as the replicas of a broker (`headrace.broker.replication.replicas`).
    """

    def __init__(self, simulation: ReplicaSimulation, broker_id: int, disk: Disk) -> None:
        """Open the logs, and follow the store. `begin` registers.

        Raises:
            StorageError: The store cannot be reached.
        """
        knobs = simulation.knobs
        self.simulation = simulation
        self.broker_id = broker_id
        self.number = simulation.next_number()
        """A number that no other process has."""
        self.disk = disk
        self.has_lost_power, self.has_new_disk = not disk.is_clean, disk.is_new
        self.lag_limits = LagLimits(knobs.lag_ms, knobs.lag_messages)
        self.is_dead = self.is_draining = False
        self.is_starting = True
        """Whether the process has not registered yet, and handles no requests."""
        self.paused_until_ms = 0
        self._backlog: list[Callable[[], object]] = []
        self.registration = NO_REGISTRATION
        """The broker epoch of this process."""
        self.is_suspect = True
        """Whether the lease of the registration has ended. Real membership sets it."""
        self.partitions: dict[Key, SimPartition] = {}
        self.has_failed_disk = False
        """Whether the directory of the partitions with odd numbers has failed."""
        self._loops: dict[int, FetchLoop] = {}
        self._syncs = False
        self._moved = self._is_stale = False
        self._alarm_ms: int | None = None
        self._wakes_ms: int | None = None
        for log in disk.logs.values():
            log.reopen()
        self.time = LatestTime()
        self.time.now_ms = self.clock_ms
        self.purgatory = Purgatory()
        self.later = self.purgatory.deliver_later
        self.steps = Steps(self.purgatory)
        self.metadata = ProcessStore(
            simulation.content,
            simulation.timeline,
            delay_ms=self._store_delay,
            timeout_ms=knobs.session_ms,
        )
        self.metadata.down = simulation.is_store_cut(broker_id)
        journal: Any = ProcessJournal(self)
        self.writer = MetadataWriter(self.metadata, broker_id, self.number.to_bytes(4), journal)
        self.image = self.writer.image
        self.membership, self.states = Membership(), PartitionStates()
        self.topics = SimTopics(self.states)
        self.on_in_sync_change: Callable[[Any], object] = lambda _: None
        self.on_lead: Callable[[Any], object] = lambda _: None
        self.on_directory_failed: Callable[[], object] = lambda: None
        self.replicated: dict[SimPartition, None] = {}
        self.store = SimLogStore(self)
        try:
            self.writer.begin()
        except Exception:
            self.close()
            raise
        self.metadata.process = self
        self.states.consume(self.image)
        self.states.listeners.append(self._states_changed)
        self.membership.consume(self.image)
        self.topics.by_key.update(self.image.consume(TOPICS, self._topic, self._topics_changed))
        self.membership.listeners.append(lambda _: self.stale())
        self.serving = Serving(self)
        self._add_cluster(journal)

    def _add_cluster(self, journal: Any) -> None:
        """Add the parts that a real broker of a cluster has."""
        this: Any = self
        topics: Any = self.topics
        roles: Any = Roles(self)
        writer, membership = self.writer, self.membership
        shared: Any = {"purgatory": self.purgatory, "time": self.time, "journal": journal}
        self.changes = IsrChanges(this, writer, membership, **shared)
        self.control = Control(topics, this, writer, membership, steps=self.steps, **shared)
        racks = self.simulation.knobs.racks
        rack = f"r{self.broker_id % racks}" if racks else None
        live = LiveRecord(NO_REGISTRATION, str(self.disk.incarnation), {}, rack)
        departures = Departures(topics, roles, writer, membership)
        self.member = Member(live, this, roles, writer, membership, departures=departures, **shared)
        self.member.on_registered = self.control.registered

    def begin(self) -> None:
        """Register, and begin to serve. Other processes run meanwhile, and this one may be killed.

        Raises:
            StorageError: The process could not register.
        """
        try:
            self.member.start()
        except Exception:
            self.close()
            raise
        self.is_starting = False
        self.after(CHECK_MS, self._check)
        self.resume()

    def registered(self) -> None:
        """Note a registration: from now on the replicas may be elected."""
        has_left = self.has_lost_power or self.has_new_disk
        self.simulation.checker.registered(self, has_left=has_left)
        self.disk.is_registered = True
        self.has_lost_power = self.has_new_disk = False

    def trust(self) -> None:
        """Answer as `acks` says: the lease lasts again."""
        self.is_suspect = False
        for partition in self.replicated:
            self.progressed(partition)

    def drain(self) -> None:
        """Let the other brokers know that this broker shuts down."""
        self.is_draining = True
        self.member.set_state("draining")

    def __repr__(self) -> str:
        return f"broker {self.broker_id} ({self.number})"

    # Time

    @property
    def clock_ms(self) -> int:
        """The time of the process's own clock."""
        return self.simulation.clock_ms(self.broker_id)

    def run(self, function: Callable[[], object]) -> None:
        """Call a function in this process: at once, after its pause, or never if it has ended."""
        if self.is_dead:
            return
        if self.is_starting or self.simulation.now_ms < self.paused_until_ms:
            self._backlog.append(function)
            return
        self.time.now_ms = self.clock_ms
        function()
        self.turn()

    def resume(self) -> None:
        """Handle what has arrived during a pause."""
        if self.simulation.now_ms >= self.paused_until_ms:
            backlog, self._backlog = self._backlog, []
            for function in backlog:
                self.run(function)
            self.run(lambda: None)

    @property
    def is_due(self) -> bool:
        """Whether the process has something to do without a message."""
        if self.is_dead or self.is_starting or self.simulation.now_ms < self.paused_until_ms:
            return False
        now_ms, due_ms, alarm_ms = self.clock_ms, self.writer.next_deadline_ms, self._alarm_ms
        return (due_ms is not None and due_ms <= now_ms) or (
            alarm_ms is not None and alarm_ms <= now_ms
        )

    def turn(self) -> None:
        """Do all that has become due."""
        writer, purgatory, now_ms = self.writer, self.purgatory, self.time.now_ms
        while not self.is_dead:
            due_ms, alarm_ms = writer.next_deadline_ms, purgatory.next_deadline_ms
            if due_ms is not None and due_ms <= now_ms:
                writer.tick(now_ms)
            elif self._is_stale:
                self._is_stale = False
                self.apply_image()
            elif purgatory.deliver():
                pass
            elif len(self.steps):
                self.steps.begin_round()
                self.steps.tick()
            elif alarm_ms is not None and alarm_ms <= now_ms:
                purgatory.expire(now_ms)
            elif self._moved:
                self._moved = False
                self.serving.moved()
            else:
                break
        self._alarm_ms = purgatory.next_deadline_ms
        due = [each for each in (writer.next_deadline_ms, self._alarm_ms) if each is not None]
        if due and (wakes_ms := min(due)) != self._wakes_ms and not self.is_dead:
            self._wakes_ms = wakes_ms
            self.after(wakes_ms - now_ms, lambda: None)

    def after(self, delay_ms: int, function: Callable[[], object]) -> None:
        """Call a function in this process after a time."""
        at_ms = self.simulation.now_ms + max(0, delay_ms)
        self.simulation.timeline.at(at_ms, partial(self.run, function))

    def close(self) -> None:
        """End: nothing of this process happens any more. The store learns it by the end of the session."""
        self.is_dead = True
        self.metadata.down = True
        self.writer.close()

    def _store_delay(self) -> int:
        return 0 if self.metadata.process is None else self.simulation.store_delay_ms()

    def _check(self) -> None:
        """Look for timeouts, and write a checkpoint."""
        for loop in self._loops.values():
            loop.check_timeout()
        for partition in self.partitions.values():
            log = partition.log
            log.saved_high_watermark = log.high_watermark
            if not partition.syncs_first and self.simulation.is_written_back():
                log.synced_offset = log.log_end_offset
        self.after(CHECK_MS, self._check)

    def fail_disk(self) -> None:
        """Let one of two log directories fail: the process serves its partitions no more."""
        self.has_failed_disk = True
        for partition in self.partitions.values():
            if not self.serves(partition.key):
                self._release(partition)
        self.on_directory_failed()

    def serves(self, key: Key) -> bool:
        """Return whether the log directory of a partition works."""
        return not self.has_failed_disk or key[1] % 2 == 0

    # Metadata

    def stale(self) -> None:
        """Look at all partitions soon."""
        self._is_stale = True

    def _states_changed(self, _keys: object, _brokers: object) -> None:
        self._is_stale = True

    def _topic(self, entry: MetadataEntry) -> SimTopic:
        record = decode(entry, TopicRecord)
        topic_id = bytes.fromhex(record.topic_id)
        name, settings = entry.key.removeprefix(TOPICS), self.simulation.settings[topic_id]
        return SimTopic(name, topic_id, record.replicas, settings)

    def _topics_changed(self, changes: Changes[SimTopic]) -> None:
        for key in changes.deletes:
            self.topics.by_key.pop(key, None)
        self.topics.by_key.update(changes.puts)
        self._is_stale = True

    def apply_image(self) -> None:
        """Give the replicas the roles that follow from the image and the registration."""
        present = set()
        for topic in self.topics:
            for index, replicas in enumerate(topic.replicas):
                if self.broker_id in replicas:
                    key = (topic.topic_id, index)
                    present.add(key)
                    if self.serves(key):
                        self._apply_state(self.partition(key), replicas)
        for key in [each for each in self.partitions if each not in present]:
            self._release(self.partitions.pop(key))
        for key in [each for each in self.disk.logs if each not in present]:
            if self.image.get(f"{DELETED}{key[0].hex()}") is not None:
                del self.disk.logs[key]

    def partition(self, key: Key) -> SimPartition:
        """Return a partition of which this broker has a replica; its log is opened if need be."""
        partition = self.partitions.get(key)
        if partition is None:
            log = self.disk.logs.get(key)
            if log is None:
                log = self.disk.logs[key] = ReplicaLog()
            settings = self.simulation.settings[key[0]]
            partition = self.partitions[key] = SimPartition(
                key,
                log,
                SimLogDir(self.disk, key[0], syncs_first=settings.syncs_first),
                settings,
            )
        return partition

    def _release(self, partition: SimPartition) -> None:
        partition.role, partition.following, partition.isr = Role.OFFLINE, None, None
        self.replicated.pop(partition, None)
        for loop in self._loops.values():
            loop.remove(partition)

    def _apply_state(self, partition: SimPartition, replicas: tuple[int, ...]) -> None:
        state = self.states.get(*partition.key, replicas)
        newest = Leadership(
            state.leader,
            state.leader_epoch,
            frozenset(state.isr),
            state.registration,
            frozenset(state.elr),
            replicas,
            state.unclean_epoch,
        )
        epoch = partition.leader_epoch
        role = next_role(epoch, newest, broker_id=self.broker_id, registration=self.registration)
        if role is None:
            return
        if self.registration == NO_REGISTRATION:
            role = Role.OFFLINE
        partition.newest = newest
        if role is partition.role and newest.leader_epoch == epoch:
            if role is Role.LEADER and partition.isr is not None:
                partition.isr.newest(InSync(newest.isr, newest.elr))
                self.in_sync_changed(partition)
                self.on_in_sync_change(partition)
            return
        self._release(partition)
        partition.waiting, partition.acks = [], None
        partition.role, partition.leader_epoch = role, newest.leader_epoch
        self._moved = True
        self.written(partition)
        self.simulation.trace(
            "%s: %s of %s in epoch %s", self, role.value, partition, newest.leader_epoch
        )
        if role is Role.LEADER:
            self._lead(partition)
        elif role is Role.FOLLOWER:
            partition.following = Following(
                newest.leader_epoch,
                syncs_first=partition.syncs_first,
                unclean_epoch=newest.unclean_epoch,
            )
            loop = self._loops.get(newest.leader)
            if loop is None:
                loop = self._loops[newest.leader] = FetchLoop(self, newest.leader)
            loop.add(partition)

    # Leading

    def _lead(self, partition: SimPartition) -> None:
        newest, log = partition.newest, partition.log
        self.simulation.checker.leads(self, partition)
        log.epochs.assign(partition.leader_epoch, log.log_end_offset)
        if len(newest.replicas) > 1:
            isr = partition.isr = Isr(
                self.broker_id,
                newest.replicas,
                InSync(newest.isr, newest.elr),
                min_insync_replicas=partition.min_insync_replicas,
                epoch_start_offset=log.log_end_offset,
                limits=self.lag_limits,
                now_ms=self.time.now_ms,
            )
            partition.acks = AckQueues(isr.progress)
            self.replicated[partition] = None
        self.progressed(partition)
        if partition.isr is not None:
            self.on_lead(partition)

    def in_sync_changed(self, partition: SimPartition) -> None:
        """Move the high watermark after a change of the in-sync replicas."""
        self.progressed(partition)
        if partition.acks is not None and partition.isr is not None:
            partition.acks.clear_above(partition.isr.size)

    def progressed(self, partition: SimPartition) -> None:
        """Move the high watermark, and complete the requests that waited for it."""
        log, isr, acks = partition.log, partition.isr, partition.acks
        own = end = own_progress(
            log.log_end_offset, log.synced_offset, syncs_first=partition.syncs_first
        )
        if isr is not None:
            end = isr.progress.high_watermark(
                own, present=log.high_watermark, log_end_offset=log.log_end_offset
            )
        self.advance(partition, max(end, log.high_watermark))
        released = []
        while partition.waiting and partition.waiting[0][1] < log.high_watermark:
            released.append(partition.waiting.pop(0))
        if acks is not None:
            released += acks.release(own, log.high_watermark, only_committed=self.is_suspect)
        for waiting in released:
            self.simulation.checker.acknowledged(self, partition, waiting)

    def advance(self, partition: SimPartition, high_watermark: int) -> None:
        """Set the high watermark."""
        old = partition.log.high_watermark
        if high_watermark != old:
            partition.log.high_watermark = high_watermark
            self.simulation.checker.advanced(self, partition, old, high_watermark)
            self._moved = True

    def produce(self, partition: SimPartition, number: int, acks: int) -> None:
        """Append a record of a client, if the broker leads the partition."""
        isr, log = partition.isr, partition.log
        if partition.refusal:
            return
        if isr is not None and (isr.is_below_min if acks == ALL_IN_SYNC else acks > isr.size):
            self.simulation.counts["not enough replicas"] += 1
            return
        offset = log.log_end_offset
        record = (partition.leader_epoch, number)
        log.append(record)
        self.simulation.trace("%s: %s of %s is appended at %s", self, record, partition, offset)
        if acks == ALL_IN_SYNC or partition.acks is None:
            partition.waiting.append((ALL_IN_SYNC, offset, record))
        elif acks:
            partition.acks.add(acks, offset + 1, (acks, offset, record))
        self.written(partition)
        self.progressed(partition)
        self._moved = True

    def delete_records(self, partition: SimPartition, offset: int) -> None:
        """Delete the records below an offset that is committed."""
        if not partition.refusal:
            offset = min(offset, partition.log.high_watermark)
            self.simulation.checker.deletes(partition.key, offset)
            partition.log.start_at(offset)
            self._moved = True

    # Syncs

    def written(self, partition: SimPartition) -> None:
        """Sync all logs together, a little later, if this one has records that have to be synced."""
        log = partition.log
        if partition.syncs_first and not self._syncs and log.synced_offset < log.log_end_offset:
            self._syncs = True
            self.after(0, self._begin_sync)

    def _begin_sync(self) -> None:
        batch = [
            (partition, partition.log.log_end_offset, partition.log.cuts)
            for partition in self.partitions.values()
            if partition.syncs_first and partition.log.synced_offset < partition.log.log_end_offset
        ]
        self.after(self.simulation.sync_ms(self.broker_id), partial(self._synced, batch))

    def _synced(self, batch: list[tuple[SimPartition, int, int]]) -> None:
        self._syncs = False
        for partition, end_offset, cuts in batch:
            log = partition.log
            if log.cuts == cuts:
                log.synced_offset = max(log.synced_offset, end_offset)
            if partition.role is Role.LEADER:
                self.progressed(partition)
        for partition in self.partitions.values():
            self.written(partition)
        for loop in self._loops.values():
            loop.send()

    def has_lost(self, key: Key) -> bool:
        """Return whether the broker's replica may have lost records when the process began."""
        syncs_first = self.simulation.settings[key[0]].syncs_first
        return self.has_new_disk or (self.has_lost_power and not syncs_first)
