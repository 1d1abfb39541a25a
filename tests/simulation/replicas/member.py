"""The registration of a process: it registers, renews its session, and leaves the ISRs first if it has lost records."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

from headrace.core.cluster.controller import StateChange
from headrace.core.cluster.election import without
from headrace.core.cluster.records import (
    LIVE_BROKERS,
    REGISTRATIONS,
    LiveRecord,
    RegistrationRecord,
    decode,
    encode,
)
from headrace.core.cluster.registration import Registration, RegistrationState
from headrace.ports import Delete, MetadataSession, Put, check_of
from tests.simulation.replicas.disk import Key

if TYPE_CHECKING:
    from tests.simulation.replicas.process import Process

RETRY_MS = 500
NOT_REGISTERED = -1


class Member:
    """The registration of one process."""

    def __init__(self, process: Process) -> None:
        """Begin without a registration."""
        self._process = process
        self._core = Registration()
        self._is_registering = False
        self.has_lost_power = not process.disk.is_clean
        self.has_new_disk = not process.disk.is_registered
        self.is_draining = False

    @property
    def is_suspect(self) -> bool:
        """Whether the lease has ended."""
        process = self._process
        return self._core.state(process.time.now_ms) is RegistrationState.SUSPECT

    def loses(self, key: Key) -> bool:
        """Return whether the replica of a partition may have lost records before this process began."""
        syncs_first = self._process.simulation.settings[key[0]].syncs_first
        return self.has_new_disk or (self.has_lost_power and not syncs_first)

    def check(self) -> None:
        """Renew the session, or register again if it has ended."""
        process = self._process
        session = process.store.session
        if process.registration != NOT_REGISTERED:
            self._core.renewed(session)
            if self._core.state(process.time.now_ms) is RegistrationState.EXPIRED:
                self.expire()
        process.writer.commit([], [])
        self.register()

    def apply(self) -> None:
        """Look at the image: without its live entry, the process is not registered."""
        process = self._process
        registered = process.membership.epoch_of(process.broker_id)
        if process.registration not in (NOT_REGISTERED, registered):
            self.expire()

    def expire(self) -> None:
        """End all roles, until the process has registered again."""
        process = self._process
        process.simulation.trace("%s: its registration has expired", process)
        self._core.expired()
        process.registration = NOT_REGISTERED
        process.stale()

    def register(self) -> None:
        """Begin to register, unless the process is registered, or registers already."""
        process = self._process
        if self._is_registering or process.registration != NOT_REGISTERED:
            return
        self._is_registering = True
        if self.has_lost_power or self.has_new_disk:
            self._commit(is_live=False)
        else:
            self._commit(is_live=True)

    def drain(self) -> None:
        """Say that the broker shuts down, so that others lead."""
        process = self._process
        self.is_draining = True
        if process.registration != NOT_REGISTERED:
            registration = f"{REGISTRATIONS}{process.broker_id}"
            check = check_of(registration, process.image.get(registration))
            value = self._live(process.registration)
            put = Put(f"{LIVE_BROKERS}{process.broker_id}", value, ephemeral=True)
            process.writer.commit([check], [put])

    def _live(self, broker_epoch: int) -> bytes:
        process = self._process
        knobs = process.simulation.knobs
        rack = f"r{process.broker_id % knobs.racks}" if knobs.racks else None
        state: Any = "draining" if self.is_draining else "running"
        return encode(LiveRecord(broker_epoch, str(process.disk.incarnation), {}, rack, state))

    def _commit(self, *, is_live: bool) -> None:
        process = self._process
        key = f"{REGISTRATIONS}{process.broker_id}"
        entry = process.image.get(key)
        epoch = 0 if entry is None else decode(entry, RegistrationRecord).broker_epoch + 1
        live = f"{LIVE_BROKERS}{process.broker_id}"
        change = Put(live, self._live(epoch), ephemeral=True) if is_live else Delete(live)
        result = process.writer.commit(
            [check_of(key, entry)], [Put(key, encode(RegistrationRecord(epoch))), change]
        )
        if is_live:
            result.on_done(partial(self._registered, epoch, process.store.session))
        else:
            result.on_done(self._raised)

    def _raised(self, error: object) -> None:
        """Leave the ISRs: with another broker epoch, no proposal for an earlier process can be stored any more."""
        if error is None:
            self._process.later(self._leave)
        else:
            self._failed()

    def _failed(self) -> None:
        self._is_registering = False
        self._process.after(RETRY_MS, self.register)

    def _registered(self, epoch: int, session: MetadataSession, error: object) -> None:
        if error is not None:
            self._failed()
            return
        process = self._process
        self._is_registering = False
        process.registration = epoch
        self._core.registered(epoch, session)
        process.simulation.trace("%s: registered with the broker epoch %s", process, epoch)
        has_left = self.has_lost_power or self.has_new_disk
        process.simulation.checker.registered(process, has_left=has_left)
        process.disk.is_clean = process.disk.is_registered = True
        self.has_lost_power = self.has_new_disk = False
        process.stale()

    # Leaving

    def _leave(self) -> None:
        """Leave the ISRs and ELRs of replicas that may have lost records, in several commits."""
        process = self._process
        most = process.simulation.knobs.partitions_a_commit
        changes = list(islice(self._changes(), most))
        if not changes:
            self._commit(is_live=True)
            return
        checks = [each.state for each in changes]
        registrations = dict.fromkeys(each.registration for each in changes if each.registration)
        result = process.writer.commit([*checks, *registrations], [each.put for each in changes])
        result.on_done(self._left)

    def _changes(self) -> Iterator[StateChange]:
        process = self._process
        for topic in process.topics.values():
            for index, replicas in enumerate(topic.replicas):
                present = process.states.get(topic.topic_id, index, replicas)
                if (
                    len(replicas) > 1
                    and process.broker_id in (*present.isr, *present.elr)
                    and self.leaves((topic.topic_id, index))
                ):
                    after = without(present, process.broker_id)
                    yield process.decisions.change(topic, index, present, after)

    def leaves(self, key: Key) -> bool:
        """Return whether the replica of a partition has to leave the ISR."""
        return self.loses(key)

    def _left(self, error: object) -> None:
        if error is None:
            self._process.later(self._leave)
        else:
            self._process.after(RETRY_MS, self._leave)
