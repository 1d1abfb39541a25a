"""The membership of this broker in its cluster: its registration, its lease, and the renewal of both.

The broker registers when its logs are open. Until then all its replicas are offline. One commit raises the broker
epoch and writes the live entry, which ends with the session of the metadata store. When the image has the commit, each
replica gets the role that follows from it (`RoleChanges`). If replicas may lack records that they had, they leave the
in-sync replicas between the registration and the live entry (`unclean_start.py`).

The broker writes something at least every heartbeat interval. An acknowledged write extends the lease
(`headrace.core.cluster.registration`). If the lease ends, `Replicas.is_suspect` is set. If another session begins, the
old one has ended together with the live entry:

1. All replicas go offline.
2. The broker registers in the new session, with the next broker epoch.
3. The replicas get their roles.

The start of another process of this broker ends the membership for good: the earlier process has no role, writes
nothing any more, and ends as after a failure of its first log directory.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from msgspec.structs import replace

from headrace.broker.cluster.offline_replicas import OfflineReplicas
from headrace.broker.cluster.unclean_start import Departing, Departures
from headrace.broker.context import LatestTime
from headrace.broker.metadata.commit_lane import Change, CommitError, CommitLane
from headrace.broker.metadata.metadata_writer import MetadataWriter
from headrace.broker.metadata.store_client import BROKER_PROCESSES, TAKEN_OVER
from headrace.broker.partitions.role_changes import RoleChanges
from headrace.broker.replication.replicas import Replicas
from headrace.broker.waiting.purgatory import Alarm, Purgatory
from headrace.core.cluster.controller import PARTITIONS_A_COMMIT
from headrace.core.cluster.image import Changes
from headrace.core.cluster.membership import Membership, MembershipChanges
from headrace.core.cluster.records import (
    LIVE_BROKERS,
    REGISTRATIONS,
    BrokerState,
    LiveRecord,
    RegistrationRecord,
    decode,
    encode,
)
from headrace.core.cluster.registration import (
    Registration,
    RegistrationState,
    heartbeat_interval_ms,
    next_heartbeat_ms,
)
from headrace.core.replica.role import NO_REGISTRATION
from headrace.deferred import Deferred, resolved
from headrace.errors import ApiError, StorageError
from headrace.ports import (
    Check,
    Delete,
    Journal,
    MetadataEntry,
    MetadataSession,
    Put,
    check_of,
)

RETRY_INTERVAL_MS: Final = 1_000
"""The time until a registration that has failed is tried again, in milliseconds."""


def _ignore() -> None:
    pass


class Member:
    """The membership of one process of a broker."""

    __slots__ = (
        "_alarm",
        "_attempt",
        "_beat_ms",
        "_departures",
        "_is_beating",
        "_is_registering",
        "_journal",
        "_lane",
        "_live",
        "_live_key",
        "_metadata",
        "_purgatory",
        "_registration_key",
        "_replicas",
        "_retry_ms",
        "_roles",
        "_time",
        "is_taken_over",
        "membership",
        "on_registered",
        "registration",
    )

    def __init__(
        self,
        live: LiveRecord,
        replicas: Replicas,
        roles: RoleChanges,
        metadata: MetadataWriter,
        membership: Membership,
        *,
        departures: Departures,
        purgatory: Purgatory,
        time: LatestTime,
        journal: Journal,
    ) -> None:
        """Begin without a registration; `start` registers.

        Args:
            live: The description of the broker for the other brokers. Its broker epoch is set with each registration.
            replicas: The replicas of this broker.
            roles: Gives the replicas their roles.
            metadata: The metadata store.
            membership: The live brokers.
            departures: Finds the replicas that may lack records, and what removes them from the in-sync replicas.
            purgatory: Has the deadlines.
            time: The time of the latest call of the broker.
            journal: Receives the log events.
        """
        self._live = live
        self._replicas = replicas
        self._roles = roles
        self._metadata = metadata
        self._departures = departures
        self.membership = membership
        """The live brokers, as the image has them."""
        self._purgatory = purgatory
        self._time = time
        self._journal = journal
        self._lane: CommitLane = metadata.lane("member")
        self._alarm = Alarm(self._check)
        broker_id = replicas.broker_id
        self._registration_key = f"{REGISTRATIONS}{broker_id}"
        self._live_key = f"{LIVE_BROKERS}{broker_id}"
        self.registration = Registration()
        """The registration of this process, and its lease."""
        self.is_taken_over = False
        """Whether another process of this broker has begun. Then this process ends as after a failure of its disk."""
        self.on_registered: Callable[[], object] = _ignore
        """Called after each registration."""
        self._attempt = NO_REGISTRATION, metadata.session
        """The broker epoch of the registration that is committed, and the session in which it was sent."""
        self._is_registering = self._is_beating = False
        self._beat_ms = 0
        """The time of the last heartbeat."""
        self._retry_ms = 0
        """The time before which a registration is not tried again."""

    # Start

    def start(self) -> None:
        """Register, and give the replicas their roles. The broker begins to serve.

        Raises:
            StorageError: The registration is not stored, or its outcome is unknown.
        """
        departing = self._departures.find(self._live.incarnation)
        if departing:
            # The registration makes proposals void that would add a replica to the ISR by its earlier progress.
            self._wait(self._lane.merge(self._registering_unseen))
            self._leave(departing)
        self._replicas.store.forget_losses()
        self._wait(self._lane.merge(self._entering if departing else self._registering))
        self._registered()
        self._roles.finish()
        self._follow()

    def _leave(self, departing: Sequence[Departing]) -> None:
        """Remove the replicas from ISR and ELR that may lack records."""
        for first in range(0, len(departing), PARTITIONS_A_COMMIT):
            some = departing[first : first + PARTITIONS_A_COMMIT]
            self._wait(self._lane.merge(partial(self._departures.leave, some)))
        for reason, count in Counter(each.reason for each in departing).items():
            self._journal.warning("replicas_left_isr", reason=reason, replicas=count)

    def _wait(self, result: Deferred[CommitError]) -> None:
        error = self._metadata.wait(result)
        if isinstance(error, ApiError):
            raise StorageError(error.message) from error
        if error is not None:
            raise error

    def _follow(self) -> None:
        """Notice from now on when the live entry or the session ends, and when another process begins."""
        OfflineReplicas(
            self._replicas,
            self._departures,
            self._lane,
            purgatory=self._purgatory,
            time=self._time,
            journal=self._journal,
        )
        self.membership.listeners.append(self._membership_changed)
        self._metadata.on_renewed(self._check_soon)
        claim = f"{BROKER_PROCESSES}{self._replicas.broker_id}"
        self._metadata.image.consume(claim, _version_of, self._claim_changed)
        self._check_soon()

    def _membership_changed(self, _changes: MembershipChanges) -> None:
        state = self.registration.state(self._time.now_ms)
        if state in {RegistrationState.ACTIVE, RegistrationState.SUSPECT}:
            own = self.membership.live.get(self._replicas.broker_id)
            if own is None or own.broker_epoch != self.registration.broker_epoch:
                self.registration.expired()
                self._check_soon()

    def _claim_changed(self, _changes: Changes[int]) -> None:
        self._check_soon()

    # The registration

    def _registering(self) -> Change:
        """Return the change that registers this process."""
        check, put, broker_epoch = self._next_registration()
        return [check], [put, self._live_put(broker_epoch)]

    def _registering_unseen(self) -> Change:
        """Return the change that registers this process without a live entry. It must not be elected yet.

        The registration keeps the earlier incarnation: if this start ends before all replicas have left, the next start
        has to find that the directory was replaced.
        """
        check, put, _ = self._next_registration(keeps_incarnation=True)
        return [check], [put, Delete(self._live_key)]

    def _next_registration(self, *, keeps_incarnation: bool = False) -> tuple[Check, Put, int]:
        entry, incarnation = (
            self._metadata.image.get(self._registration_key),
            self._live.incarnation,
        )
        broker_epoch = 0
        if entry is not None:
            before = decode(entry, RegistrationRecord)
            broker_epoch = before.broker_epoch + 1
            incarnation = before.incarnation if keeps_incarnation else incarnation
        self._attempt = broker_epoch, self._metadata.session
        put = self._registration_put(broker_epoch, incarnation)
        return check_of(self._registration_key, entry), put, broker_epoch

    def _registration_put(self, broker_epoch: int, incarnation: str) -> Put:
        live = self._live
        record = RegistrationRecord(broker_epoch, incarnation, live.endpoints, live.rack)
        return Put(self._registration_key, encode(record))

    def _entering(self) -> Change:
        """Return the change that writes the live entry of the present registration, and the incarnation to it."""
        entry = self._metadata.image.get(self._registration_key)
        broker_epoch, _ = self._attempt
        self._attempt = broker_epoch, self._metadata.session
        put = self._registration_put(broker_epoch, self._live.incarnation)
        return [check_of(self._registration_key, entry)], [put, self._live_put(broker_epoch)]

    def _live_put(self, broker_epoch: int) -> Put:
        live = replace(self._live, broker_epoch=broker_epoch)
        return Put(self._live_key, encode(live), ephemeral=True)

    def _registered(self) -> None:
        """Give the replicas the roles that follow from the registration, which is stored."""
        broker_epoch, session = self._attempt
        self.registration.registered(broker_epoch, session)
        self._replicas.registration = broker_epoch
        self._replicas.trust()
        self._roles.registration_changed()
        self._journal.info("broker_registered", broker_epoch=broker_epoch)
        self.on_registered()

    def _register_again(self) -> None:
        self._is_registering = True
        self._lane.merge(self._registering).on_done(self._registered_again)

    def _registered_again(self, error: CommitError) -> None:
        self._is_registering = False
        if error is None:
            self._registered()
        else:
            self._retry_ms = self._time.now_ms + RETRY_INTERVAL_MS
            self._journal.warning("broker_not_registered", error=str(error))
        self._check_soon()

    def set_state(self, state: BrokerState) -> Deferred[CommitError]:
        """Let the other brokers know that this broker shuts down, or runs.

        Returns:
            None when the image has the state, otherwise the error; see `CommitError`.
        """
        self._live = replace(self._live, state=state)
        if self._replicas.registration == NO_REGISTRATION:  # the next registration has the state
            return resolved(None)
        return self._lane.merge(self._updating)

    def _updating(self) -> Change | None:
        """Return the change that updates the live entry of the present registration; None if there is none."""
        entry = self._metadata.image.get(self._registration_key)
        broker_epoch = self._replicas.registration
        self.registration.renewed(self._metadata.session)
        state = self.registration.state(self._time.now_ms)
        if broker_epoch == NO_REGISTRATION or state is RegistrationState.EXPIRED:
            return None
        return [check_of(self._registration_key, entry)], [self._live_put(broker_epoch)]

    # The lease

    def _check_soon(self) -> None:
        self._purgatory.add(self._alarm, 0)

    def _check(self) -> None:
        """Do what the state of the registration requires, and set the time of the next check."""
        if self.is_taken_over:
            return
        if self._metadata.is_taken_over:
            self._end()
            return
        now_ms, session = self._time.now_ms, self._metadata.session
        self.registration.renewed(session)
        state = self.registration.state(now_ms)
        if state is RegistrationState.EXPIRED:
            self._expired(now_ms)
            return
        if state is RegistrationState.SUSPECT:
            self._suspect()
        elif self._replicas.is_suspect:
            self._replicas.trust()
        self._beat(session, now_ms)

    def _suspect(self) -> None:
        if not self._replicas.is_suspect:
            self._replicas.is_suspect = True
            self._journal.warning("broker_lease_ended", broker_epoch=self.registration.broker_epoch)

    def _expired(self, now_ms: int) -> None:
        if self._replicas.registration != NO_REGISTRATION:
            self._journal.warning("broker_session_ended", broker_epoch=self._replicas.registration)
            self._drop_roles()
        if self._is_registering:
            return
        if now_ms < self._retry_ms:
            self._purgatory.add(self._alarm, self._retry_ms)
        else:
            self._register_again()

    def _drop_roles(self) -> None:
        self._replicas.is_suspect = True
        self._replicas.registration = NO_REGISTRATION
        self._roles.registration_changed()

    def _end(self) -> None:
        """End the membership: another process of this broker has begun."""
        self.is_taken_over = True
        self._drop_roles()
        self._journal.error("broker_taken_over", broker_id=self._replicas.broker_id)
        store = self._replicas.store
        store.fail(store.dirs.first, OSError(TAKEN_OVER))

    def _beat(self, session: MetadataSession, now_ms: int) -> None:
        """Write a heartbeat if it is due."""
        due_ms = next_heartbeat_ms(session)
        if due_ms is None:
            return
        due_ms = max(due_ms, self._beat_ms + heartbeat_interval_ms(session))
        if now_ms >= due_ms and not self._is_beating:
            self._is_beating, self._beat_ms = True, now_ms
            self._lane.commit([], []).on_done(self._beaten)
        until_ms = self.registration.until_ms
        times = [] if self._is_beating else [due_ms]
        if until_ms is not None and not self._replicas.is_suspect:
            times.append(until_ms)
        if times:
            self._purgatory.add(self._alarm, min(times))

    def _beaten(self, _error: CommitError) -> None:
        self._is_beating = False
        self._check_soon()


def _version_of(entry: MetadataEntry) -> int:
    return entry.version
