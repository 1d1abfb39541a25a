"""The invariants of a run, checked whenever the store, a high watermark or a leader changes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from headrace.broker.metadata.metadata_writer import BROKER_COMMITS
from headrace.core.cluster.image import MetadataImage
from headrace.core.cluster.membership import Membership
from headrace.core.cluster.partition_states import PartitionStates
from headrace.core.cluster.records import (
    CONTROLLER_EPOCH_KEY,
    NO_LEADER,
    TOPICS,
    ControllerRecord,
    LastKnown,
    PartitionState,
    TopicRecord,
    decode,
)
from headrace.core.replica.progress import ALL_IN_SYNC
from headrace.core.replica.role import NO_EPOCH, Role
from headrace.metadata_stores.memory import MemoryMetadata
from tests.simulation.replicas.disk import Key, Record, ReplicaLog
from tests.simulation.replicas.faults import is_lost

if TYPE_CHECKING:
    from tests.simulation.replicas.partition import SimPartition, Waiting
    from tests.simulation.replicas.process import Process
    from tests.simulation.replicas.replica_simulation import ReplicaSimulation


class ViolationError(AssertionError):
    """An invariant does not hold."""


class Checker:
    """The checker: it knows what is stored and committed, and who has led."""

    def __init__(self, simulation: ReplicaSimulation, content: MemoryMetadata) -> None:
        """Follow the metadata without any delay."""
        self._simulation = simulation
        self._content = content
        self._version = 0
        self.image, self.states, self.membership = MetadataImage(), PartitionStates(), Membership()
        self.states.consume(self.image)
        self.membership.consume(self.image)
        self.image.consume(TOPICS, lambda entry: decode(entry, TopicRecord), lambda _: None)
        self.replicas: dict[Key, tuple[int, ...]] = {}
        """The replicas of every partition that exists."""
        self.committed: dict[Key, list[Record]] = {}
        """The records that any leader had below its high watermark, by offset."""
        self._ends: dict[Key, list[tuple[int, int]]] = {}
        """The leader epoch of each commit of records, with the end offset."""
        self.deleted: dict[Key, int] = {}
        """The greatest log start offset that a leader has chosen."""
        self._before: dict[Key, PartitionState] = {}
        self._known: dict[Key, dict[LastKnown, int]] = {}
        """The end of the committed records that a replica had when it left after a power cut, by its entry."""
        self._unclean: dict[Key, int] = {}
        """The leader epoch of the last election of a replica that was not in sync."""
        self._leaders: dict[tuple[Key, int], tuple[int, int]] = {}
        self._processes: dict[tuple[Key, int], int] = {}
        self._controllers: dict[int, int] = {}
        self.counts: Counter[str] = Counter()
        content.listeners[self] = self._changed

    # The store

    def _changed(self) -> None:
        while self._version < self._content.version:
            self._version += 1
            batch = self._content.change(self._version)
            assert batch is not None, "the change log has the newest change"
            errors = self.image.apply(batch)
            assert not errors
            keys = [*batch.deletes, *(entry.key for entry in batch.puts)]
            self._check_controller(keys)
            if any(key.startswith(TOPICS) for key in keys):
                self._topics_changed()
            if any(key.startswith(("state/", "brokers/registration/", TOPICS)) for key in keys):
                for key, replicas in self.replicas.items():
                    self._state_changed(key, replicas)

    def _check_controller(self, keys: Sequence[str]) -> None:
        """Check that what a controller has committed was committed by the newest one."""
        entry = self.image.get(CONTROLLER_EPOCH_KEY)
        for key in keys:
            if key.startswith(BROKER_COMMITS) and key.endswith("/controller") and len(keys) > 1:
                broker = int(key.removeprefix(BROKER_COMMITS).removesuffix("/controller"))
                if entry is None or decode(entry, ControllerRecord).broker != broker:
                    raise ViolationError(
                        f"broker {broker} changes {keys}, but {entry} is the controller"
                    )
                self._simulation.faults.controller_commits(broker)

    def _topics_changed(self) -> None:
        self.replicas = {
            (bytes.fromhex(record.topic_id), index): replicas
            for entry in self.image.list(TOPICS)
            for record in [decode(entry, TopicRecord)]
            for index, replicas in enumerate(record.replicas)
        }

    def state(self, key: Key) -> PartitionState:
        """Return the present state of a partition."""
        return self.states.get(*key, self.replicas[key])

    def _state_changed(self, key: Key, replicas: tuple[int, ...]) -> None:
        after, before = self.states.get(*key, replicas), self._before.get(key)
        if after == before:
            return
        self._before[key] = after
        self._simulation.trace("STORED %s: %s", _name(key), after)
        if before is not None and after.leader_epoch < before.leader_epoch:
            raise ViolationError(f"the leader epoch of {_name(key)} falls: {before}, then {after}")
        if after.leader != NO_LEADER:
            leads = after.leader, after.registration
            known = self._leaders.setdefault((key, after.leader_epoch), leads)
            if known != leads:
                raise ViolationError(
                    f"two leaders of an epoch of {_name(key)}: {known} and {after}"
                )
        if before is not None:
            self._check_election(key, before, after)
            self._check_known(key, before, after)
        self._check_candidates(key, after, 0)
        self._check_maximal_isr(key, after)

    def _check_election(self, key: Key, before: PartitionState, after: PartitionState) -> None:
        if before.leader != after.leader != NO_LEADER:
            self.counts["elections"] += 1
            if after.leader not in {*before.isr, *before.elr}:
                self._check_outside(key, before, after)
            if not set(after.isr) <= {*before.isr, after.leader}:
                raise ViolationError(f"an election adds replicas: {before}, then {after}")

    def _check_known(self, key: Key, before: PartitionState, after: PartitionState) -> None:
        """Note which records replicas have that leave after a power cut. The last of them has to be known."""
        last = {*before.isr, *before.elr} - {each.broker for each in after.last_known}
        if after.last_known and last and not (after.isr or after.elr):
            raise ViolationError(f"{last} may have more than {after.last_known}: {before}")
        kept = self._known.pop(key, {})
        if after.last_known:
            self._known[key] = {
                each: kept[each] if each in kept else self._kept_by(key, each.broker)
                for each in after.last_known
            }

    def _check_outside(self, key: Key, before: PartitionState, after: PartitionState) -> None:
        """Check an election of a replica that was not in sync, and forget the committed records that are lost."""
        if not (is_lost(before) or self._is_unclean(key)):
            self._check_newest(key, before, after)
            self.counts["elections of the newest log"] += 1
        log = self._log_of(key, after)
        if log is None:
            return  # an empty disk has replaced the leader's: the replica leaves before it leads
        self._unclean[key] = after.leader_epoch
        committed = self.committed.setdefault(key, [])
        kept = self._kept(key, log)
        self.counts["lost by elections"] += len(committed) - kept
        del committed[kept:]
        self._ends[key] = [(epoch, min(end, kept)) for epoch, end in self._ends.get(key, [])]

    def _check_newest(self, key: Key, before: PartitionState, after: PartitionState) -> None:
        """Check an election after power cuts of all replicas.

        The leader has the newest record of the replicas that were in sync. So it has the committed records that any of
        them had when it left. Nothing is lost of a topic whose records are synced before they are acknowledged.
        """
        if self._simulation.settings[key[0]].syncs_first:
            raise ViolationError(f"an election loses what is synced: {before}, then {after}")
        ends = {each.broker: (each.leader_epoch, each.log_end_offset) for each in before.last_known}
        if before.isr or before.elr or ends.get(after.leader) != max(ends.values(), default=None):
            raise ViolationError(f"an election from outside: {before}, then {after}")
        log, wanted = self._log_of(key, after), max(self._known[key].values())
        if log is not None and (kept := self._kept(key, log)) < wanted:
            raise ViolationError(f"{after} has {kept} committed records, not {wanted}: {before}")

    def _is_unclean(self, key: Key) -> bool:
        return self._simulation.settings[key[0]].unclean_leader_election_enable

    def _log_of(self, key: Key, state: PartitionState) -> ReplicaLog | None:
        """Return the log of the leader of a state; None if no process has opened the disk that replaced its disk."""
        for process in self._simulation.all_processes():
            if (process.broker_id, process.registration) == (state.leader, state.registration):
                return process.disk.logs.get(key, ReplicaLog())
        disk, newest = (
            self._simulation.disks[state.leader],
            self._simulation.processes[state.leader],
        )
        if not disk.is_registered and newest.is_dead:
            return None
        return disk.logs.get(key, ReplicaLog())

    def _kept_by(self, key: Key, broker: int) -> int:
        return self._kept(key, self._simulation.disks[broker].logs.get(key, ReplicaLog()))

    def _kept(self, key: Key, log: ReplicaLog) -> int:
        """Return the offset up to which a log has the committed records."""
        committed, offset = self.committed.get(key, []), log.log_start_offset
        for record, other in zip(log.records, committed[offset:], strict=False):
            if record != other:
                break
            offset += 1
        return min(offset, len(committed))

    def _check_maximal_isr(self, key: Key, state: PartitionState) -> None:
        """Check that the leader lets all replicas hold back the high watermark that may lead."""
        process = self._simulation.processes.get(state.leader)
        partition = process.partitions.get(key) if process is not None else None
        if (
            partition is not None
            and partition.isr is not None
            and partition.leader_epoch == state.leader_epoch
        ):
            counted = partition.isr.progress.maximal_isr
            if not counted >= set(state.isr):
                raise ViolationError(f"the leader counts {set(counted)}, stored is {state}")

    def _check_candidates(self, key: Key, state: PartitionState, start: int) -> None:
        """Check that all replicas which may lead have the committed records from an offset on."""
        committed = self.committed.get(key)
        if not committed:
            return
        for broker in (*state.isr, *state.elr):
            disk = self._simulation.disks[broker]
            log = disk.logs.get(key)
            if not disk.is_clean or not disk.is_registered or log is None:
                continue  # the broker has to leave before it registers; or it has not read the topic
            self._check_complete(key, log, start, f"broker {broker} may lead ({state})")

    def _check_complete(
        self, key: Key, log: ReplicaLog, start: int, who: str, end: int | None = None
    ) -> None:
        committed = self.committed[key][:end]
        start = max(start, log.log_start_offset)
        if log.log_start_offset > self.deleted.get(key, 0):
            raise ViolationError(f"{who} of {_name(key)}: starts at {log.log_start_offset}")
        found = log.slice(start, len(committed))
        if found != committed[start:]:
            raise ViolationError(
                f"{who} of {_name(key)} without committed records: from {start} on it has {found}, "
                f"committed are {committed[start:]}"
            )

    # Replicas

    def leads(self, process: Process, partition: SimPartition) -> None:
        """Check a process that begins to lead."""
        key, epoch = partition.key, partition.leader_epoch
        known = self._processes.setdefault((key, epoch), process.number)
        if known != process.number:
            raise ViolationError(f"two processes lead {_name(key)} in epoch {epoch}")
        self.counts["leaders"] += 1
        unclean, ends = self._unclean.get(key, NO_EPOCH), self._ends.get(key, [])
        if 0 <= unclean <= epoch and all(by < unclean for by, _ in ends):
            # The replica may know that more was committed before its election.
            committed, log = self.committed.setdefault(key, []), partition.log
            if log.log_start_offset <= len(committed):
                committed += log.slice(len(committed), log.high_watermark)
        if key in self.committed:
            # The process may be behind: a leader of a later epoch may have committed records already.
            earlier = [end for by, end in self._ends[key] if by < epoch]
            who = f"broker {process.broker_id} leads epoch {epoch}"
            self._check_complete(key, partition.log, 0, who, max(earlier, default=0))

    def advanced(self, process: Process, partition: SimPartition, old: int, new: int) -> None:
        """Check what a replica's high watermark has passed."""
        key, log = partition.key, partition.log
        if self._is_outdated(process, partition):
            return
        if new < old:
            raise ViolationError(f"the high watermark of {_name(key)} falls from {old} to {new}")
        committed = self.committed.setdefault(key, [])
        end, old = len(committed), max(old, log.log_start_offset)
        visible = log.slice(old, new)
        if visible[: max(0, end - old)] != committed[old:new]:
            raise ViolationError(
                f"broker {process.broker_id} shows {visible} of {_name(key)} from {old} on, "
                f"committed are {committed[old:new]}"
            )
        self._simulation.trace("%s: high watermark of %s is %s", process, _name(key), new)
        if new <= end:
            return
        if partition.role is not Role.LEADER:
            raise ViolationError(
                f"a follower of {_name(key)} has the high watermark {new}, not {end}"
            )
        if old > end:
            raise ViolationError(f"{_name(key)} is committed from {old} on, and ends at {end}")
        committed += visible[end - old :]
        self._ends.setdefault(key, []).append((partition.leader_epoch, new))
        self.counts["committed"] += new - end
        if key in self.replicas:
            self._check_candidates(key, self.state(key), end)

    def acknowledged(self, process: Process, partition: SimPartition, waiting: Waiting) -> None:
        """Check an acknowledgement: the records are committed, or k replicas have them."""
        acks, offset, record = waiting
        key = partition.key
        if self._is_outdated(process, partition):
            return
        self.counts[f"acks={'all' if acks < 0 else acks}"] += 1
        if acks == ALL_IN_SYNC:
            if self.committed[key][offset : offset + 1] != [record]:
                raise ViolationError(f"{record} of {_name(key)} is acknowledged, and not committed")
            return
        if not partition.syncs_first or key not in self.replicas:
            return
        state = self.state(key)
        disks = [self._simulation.disks[broker] for broker in self.replicas[key]]
        if (state.leader_epoch, state.leader) != (partition.leader_epoch, process.broker_id):
            return
        if not all(disk.is_registered for disk in disks):
            return  # a replaced disk has lost what its replica has promised
        disks += [former.disk for former in self._simulation.former]
        logs = [disk.logs.get(key) for disk in disks]
        having = [
            log
            for log in logs
            if log is not None
            and log.synced_offset > offset
            and (log.log_start_offset > offset or log.slice(offset, offset + 1) == [record])
        ]
        if len(having) < acks:
            raise ViolationError(
                f"{record} of {_name(key)} is on {len(having)} replicas, acks={acks}"
            )

    def _is_outdated(self, process: Process, partition: SimPartition) -> bool:
        """Return whether a replica may show records that are lost.

        The disk of the only replica has been replaced while its process goes on, or a replica leads in a later leader
        epoch that was not in sync.
        """
        is_replaced = process.disk is not self._simulation.disks[process.broker_id]
        return (is_replaced and len(partition.newest.replicas) == 1) or (
            partition.leader_epoch < self._unclean.get(partition.key, NO_EPOCH)
        )

    def truncates(self, process: Process, partition: SimPartition, end_offset: int) -> None:
        """Check that a truncation removes no committed record."""
        self.counts["truncations"] += 1
        if end_offset < partition.log.high_watermark:
            raise ViolationError(
                f"broker {process.broker_id} truncates {partition.log} below its high watermark"
            )

    def begins_at(self, partition: SimPartition, offset: int) -> None:
        """Check a follower that begins an empty log."""
        self.counts["new beginnings"] += 1
        if offset > self.deleted.get(partition.key, 0):
            raise ViolationError(f"a follower begins {_name(partition.key)} at {offset}")

    def deletes(self, key: Key, offset: int) -> None:
        """Note the deletion of records."""
        self.deleted[key] = max(self.deleted.get(key, 0), offset)

    # Brokers

    def controls(self, process: Process, version: Any) -> None:
        """Check a process that has become the controller."""
        known = self._controllers.setdefault(version, process.number)
        if known != process.number:
            raise ViolationError(f"two controllers of the epoch {version}")
        self.counts["controllers"] += 1

    def registered(self, process: Process, *, has_left: bool) -> None:
        """Check a process that has registered after it had lost records."""
        self.counts["registrations"] += 1
        if not has_left:
            return
        for key, replicas in self.replicas.items():
            if process.broker_id in replicas and len(replicas) > 1 and process.has_lost(key):
                state = self.state(key)
                log = process.disk.logs.get(key, ReplicaLog())
                if process.broker_id in (*state.isr, *state.elr) and self.committed.get(key):
                    self._check_complete(key, log, 0, f"broker {process.broker_id} has registered")

    def lost(self, broker: int) -> None:
        """Forget committed records of partitions whose only replica has lost them."""
        for key, replicas in self.replicas.items():
            if replicas == (broker,) and key in self.committed:
                log = self._simulation.disks[broker].logs.get(key)
                end = 0 if log is None else log.log_end_offset
                if end < len(self.committed[key]):
                    del self.committed[key][end:]
                    self.counts["lost by one replica"] += 1


def _name(key: Key) -> str:
    return f"{int.from_bytes(key[0])}-{key[1]}"
