"""Commits the changes of in-sync replicas that the leaders on this broker propose (`headrace.core.replica.isr`).

One commit at a time is in flight, in a lane of its own. Proposals of other partitions gather meanwhile and share the
next commit. If a commit of several proposals is refused, each of them is committed by itself.

A commit checks the state that it replaces, and the registration of this broker: the store refuses it when another
broker leads, or another process of this broker. For a replica that joins, the commit checks the registration of its
broker too: a broker that has restarted meanwhile may have lost records.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Final, NamedTuple

from headrace.broker.context import LatestTime
from headrace.broker.metadata.commit_lane import CommitError, CommitLane
from headrace.broker.metadata.metadata_writer import MetadataWriter
from headrace.broker.replication.partition import Partition
from headrace.broker.replication.replicas import Replicas
from headrace.broker.waiting.purgatory import Alarm, Purgatory
from headrace.core.cluster.membership import Membership, MembershipChanges
from headrace.core.cluster.partition_states import present_state, state_key
from headrace.core.cluster.records import (
    REGISTRATIONS,
    PartitionState,
    RegistrationRecord,
    decode,
    encode,
)
from headrace.core.replica.isr import InSync, Phase
from headrace.errors import RequestTimedOutError, StorageError
from headrace.ports import Check, Conflict, Journal, Put, check_of

RETRY_INTERVAL_MS: Final = 1_000
"""The time until a change that was refused is proposed again, in milliseconds."""
PARTITIONS_A_COMMIT: Final = 30
"""The greatest number of partitions whose in-sync replicas one commit changes."""


class _Change(NamedTuple):
    """A proposal, with the conditions under which it is stored."""

    partition: Partition
    proposal: InSync
    checks: Sequence[Check]
    put: Put


class IsrChanges:
    """The changes of in-sync replicas of all partitions that this broker leads."""

    __slots__ = (
        "_checks",
        "_is_in_flight",
        "_is_scheduled",
        "_journal",
        "_lane",
        "_membership",
        "_metadata",
        "_purgatory",
        "_replicas",
        "_retries",
        "_single",
        "_time",
        "_wanted",
    )

    def __init__(
        self,
        replicas: Replicas,
        metadata: MetadataWriter,
        membership: Membership,
        *,
        purgatory: Purgatory,
        time: LatestTime,
        journal: Journal,
    ) -> None:
        """Follow the replicas and the membership from now on.

        Args:
            replicas: The partitions of this broker.
            metadata: The metadata store.
            membership: The live brokers.
            purgatory: Has the deadlines.
            time: The time of the latest call of the broker.
            journal: Receives the log events.
        """
        self._replicas = replicas
        self._metadata = metadata
        self._lane: CommitLane = metadata.lane("isr")
        self._membership = membership
        self._purgatory = purgatory
        self._time = time
        self._journal = journal
        self._wanted: dict[Partition, None] = {}
        """The partitions whose in-sync replicas may have to change, in the order in which they came."""
        self._single: dict[Partition, None] = {}
        """The partitions whose next proposal is committed by itself."""
        self._retries: dict[Partition, None] = {}
        """The partitions to look at again when the retry is due."""
        self._is_in_flight = False
        self._checks = False
        """Whether a check for replicas that lag is planned."""
        self._is_scheduled = False
        """Whether `_send` will be called when no state is being changed."""
        replicas.on_in_sync_change = self.consider
        replicas.on_lead = self._led
        membership.listeners.append(self._membership_changed)

    # Occasions

    def consider(self, partition: Partition) -> None:
        """Look soon whether the in-sync replicas of a partition, or of the partition of a schedule, have to change."""
        partition = partition.schedules or partition
        self._wanted[partition] = None
        if not self._is_scheduled and not self._is_in_flight:
            self._is_scheduled = True
            self._purgatory.deliver_later(self._send)

    def _led(self, partition: Partition) -> None:
        """Look at a partition that this broker leads since now; its replicas may be gone already."""
        self.consider(partition)
        if not self._checks:
            self._check_later()

    def _check_later(self) -> None:
        self._checks = True
        interval_ms = self._replicas.lag_limits.check_interval_ms
        self._purgatory.add(Alarm(self._check), self._time.now_ms + interval_ms)

    def _membership_changed(self, changes: MembershipChanges) -> None:
        if changes.registered or changes.gone or changes.updated:
            for partition in self._replicas.replicated:
                if partition.isr is not None:
                    partition.isr.forget_restarted(self._membership.live)
                self.consider(partition)

    def _check(self) -> None:
        """Look for replicas that lag. The check ends when this broker leads no replicated partition any more."""
        self._checks = False
        for partition in self._replicas.replicated:
            self.consider(partition)
        if self._replicas.replicated:
            self._check_later()

    def _retry_later(self, partition: Partition) -> None:
        if not self._retries:
            self._purgatory.add(Alarm(self._retry), self._time.now_ms + RETRY_INTERVAL_MS)
        self._retries[partition] = None

    def _retry(self) -> None:
        retries, self._retries = self._retries, {}
        for partition in retries:
            if partition.refusal:  # another broker leads, or the topic was deleted
                continue
            isr = partition.isr
            if isr is not None and isr.phase is Phase.UNRESOLVED and self._lane.is_idle:
                # The image has the change, if it was stored; then the role follows soon.
                if self._present(partition) is not None:
                    isr.settled()
                    self._replicas.in_sync_changed(partition)
                else:
                    self._retry_later(partition)
            elif isr is not None and isr.phase is Phase.UNRESOLVED:
                self._retry_later(partition)
            self.consider(partition)

    # Commits

    def _send(self) -> None:
        """Commit the proposals of partitions that have one."""
        self._is_scheduled = False
        if self._is_in_flight:
            return
        changes: list[_Change] = []
        for partition in list(self._wanted):
            if changes and (len(changes) == PARTITIONS_A_COMMIT or partition in self._single):
                break
            del self._wanted[partition]
            change = self._change(partition)
            if change is not None:
                changes.append(change)
                if partition in self._single:
                    break
        if not changes:
            return
        self._is_in_flight = True
        checks = dict.fromkeys(check for change in changes for check in change.checks)
        result = self._lane.commit(list(checks), [change.put for change in changes])
        result.on_done(partial(self._committed, changes))

    def _change(self, partition: Partition) -> _Change | None:
        isr, log = partition.isr, partition.log
        if isr is None or partition.refusal or isr.phase is not Phase.STABLE:
            return None
        present = self._present(partition)
        if present is None:  # a newer state is about to change the role
            return None
        state, state_check = present
        proposal = isr.propose(
            self._membership.live,
            log_start_offset=log.log_start_offset,
            high_watermark=log.high_watermark,
            log_end_offset=log.log_end_offset,
            now_ms=self._time.now_ms,
            behind=self._behind(partition),
        )
        if proposal is None:
            self._single.pop(partition, None)
            return None
        joining = sorted(proposal.isr - isr.committed.isr)
        if not all(map(self._is_registered, joining)):
            isr.decided(proposal, accepted=False)
            return None
        replicas = partition.newest.replicas
        put = PartitionState(
            state.leader,
            state.leader_epoch,
            tuple(each for each in replicas if each in proposal.isr),
            tuple(each for each in replicas if each in proposal.elr),
            state.registration,
            state.unclean_epoch,
        )
        checks = [
            state_check,
            self._registration(self._replicas.broker_id),
            *map(self._registration, joining),
        ]
        return _Change(partition, proposal, checks, Put(state_check.key, encode(put)))

    def _behind(self, partition: Partition) -> set[int]:
        """Return the replicas that may not be in sync because of the schedule of the partition."""
        schedule = partition.companion
        if schedule is None or schedule.isr is None:
            return set()
        log = schedule.log
        return schedule.isr.behind(
            self._membership.live,
            log_start_offset=log.log_start_offset,
            high_watermark=log.high_watermark,
            log_end_offset=log.log_end_offset,
            now_ms=self._time.now_ms,
        )

    def _is_registered(self, broker_id: int) -> bool:
        """Return whether the live process of a broker has the newest registration. Another process may be starting."""
        entry = self._metadata.image.get(f"{REGISTRATIONS}{broker_id}")
        if entry is None:
            return False
        registered = decode(entry, RegistrationRecord).broker_epoch
        return registered == self._membership.epoch_of(broker_id)

    def _registration(self, broker_id: int) -> Check:
        key = f"{REGISTRATIONS}{broker_id}"
        return check_of(key, self._metadata.image.get(key))

    def _present(self, partition: Partition) -> tuple[PartitionState, Check] | None:
        """Return the present state in the image with its check; None if it is not the state that the role follows."""
        replicas, newest, isr = self._replicas, partition.newest, partition.isr
        topic_id = partition.log_dir.logs.topic_id(partition.topic_partition)
        key = state_key(topic_id, partition.topic_partition.partition)
        entry = self._metadata.image.get(key)
        try:
            stored = None if entry is None else decode(entry, PartitionState)
        except StorageError:
            return None
        state = present_state(stored, newest.replicas, {replicas.broker_id: replicas.registration})
        if (
            isr is None
            or state.leader != replicas.broker_id
            or state.leader_epoch != partition.leader_epoch
            or state.registration != replicas.registration
            or InSync(frozenset(state.isr), frozenset(state.elr)) != isr.committed
        ):
            return None
        return state, check_of(key, entry)

    def _committed(self, changes: Sequence[_Change], error: CommitError) -> None:
        self._is_in_flight = False
        for partition, proposal, _, _ in changes:
            isr = partition.isr
            if isr is None:
                continue
            if error is None:
                self._stored(partition, proposal)
            elif isinstance(error, RequestTimedOutError):
                isr.unknown(proposal)
                self._retry_later(partition)
            else:
                isr.decided(proposal, accepted=False)
                self._replicas.in_sync_changed(partition)
                if isinstance(error, Conflict) and len(changes) > 1:
                    self._single[partition] = None
                    self.consider(partition)
                else:
                    self._single.pop(partition, None)
                    self._retry_later(partition)
        if self._wanted:
            self.consider(next(iter(self._wanted)))

    def _stored(self, partition: Partition, proposal: InSync) -> None:
        isr = partition.isr
        assert isr is not None, "checked before"
        self._single.pop(partition, None)
        if isr.pending is proposal:
            isr.decided(proposal, accepted=True)
            self._journal.info(
                "isr_changed",
                partition=str(partition.topic_partition),
                leader_epoch=partition.leader_epoch,
                isr=sorted(proposal.isr),
                elr=sorted(proposal.elr),
            )
            self._replicas.in_sync_changed(partition)
        self.consider(partition)
