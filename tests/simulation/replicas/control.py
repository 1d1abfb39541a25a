"""A process as the controller: it is elected, and commits its decisions one commit at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING

from headrace.core.cluster.controller import (
    Commit,
    StateChange,
    commits_of,
    controller_epoch_check,
    deleting_commits,
)
from headrace.core.cluster.damping import Damping
from headrace.core.cluster.records import (
    CONTROLLER_EPOCH_KEY,
    CONTROLLER_KEY,
    LIVE_BROKERS,
    REGISTRATIONS,
    ControllerRecord,
    broker_id_of,
    decode,
    encode,
)
from headrace.ports import Check, Conflict, Put, check_of

if TYPE_CHECKING:
    from tests.simulation.replicas.process import Process

NOT_REGISTERED = -1
RETRY_MS = 300


class Control:
    """The controller's part of a process."""

    def __init__(self, process: Process) -> None:
        """Begin without being the controller."""
        self._process = process
        self._lane = process.writer.lane("controller")
        self._was_controller = False
        self._damping = Damping()
        self._is_busy = False
        self._is_single = False
        self._refused: set[str] = set()
        """The keys of the states whose change was refused since the last commit that was applied."""
        self.wants_preferred = False
        """Whether the first replicas shall lead."""

    @property
    def is_controller(self) -> bool:
        """Whether the image has this registration of the broker as the controller."""
        process = self._process
        entry = process.image.get(CONTROLLER_KEY)
        if entry is None or process.registration == NOT_REGISTERED:
            return False
        record = decode(entry, ControllerRecord)
        return (record.broker, record.broker_epoch) == (process.broker_id, process.registration)

    def consider(self) -> None:
        """Become the controller if there is none; commit the next decisions if this process is the controller."""
        process = self._process
        if self._is_busy or process.registration == NOT_REGISTERED:
            return
        if self.is_controller:
            if not self._was_controller:
                self._begin()
            self._reconcile()
            return
        self._was_controller = False
        if process.image.get(CONTROLLER_KEY) is None or (
            process.membership.controller_id == process.broker_id
        ):
            self._become()

    def _become(self) -> None:
        process = self._process
        live = f"{LIVE_BROKERS}{process.broker_id}"
        if process.membership.epoch_of(process.broker_id) != process.registration:
            return
        record = encode(ControllerRecord(process.broker_id, process.registration))
        registration, previous = (
            f"{REGISTRATIONS}{process.broker_id}",
            process.image.get(CONTROLLER_KEY),
        )
        checks = [
            controller_epoch_check(process.image),
            check_of(registration, process.image.get(registration)),
            Check(live, "exists"),
        ]
        if previous is None:
            checks.append(Check(CONTROLLER_KEY, "absent"))
        puts = [Put(CONTROLLER_KEY, record, ephemeral=True), Put(CONTROLLER_EPOCH_KEY, record)]
        self._is_busy = True
        self._lane.commit(checks, puts).on_done(partial(self._done, ()))

    def _begin(self) -> None:
        """Begin to decide: the image has this process as the controller."""
        process = self._process
        self._was_controller = True
        registered = process.image.list(REGISTRATIONS)
        self._damping = Damping(broker_id_of(each.key, REGISTRATIONS) for each in registered)
        epoch = process.image.get(CONTROLLER_EPOCH_KEY)
        assert epoch is not None, "both entries are written together"
        process.simulation.checker.controls(process, epoch.version)
        process.simulation.trace("%s: is the controller", process)

    def _reconcile(self) -> None:
        process = self._process
        most = 1 if self._is_single else process.simulation.knobs.partitions_a_commit
        epoch = controller_epoch_check(process.image)
        changes = (each for each in self._changes() if each.put.key not in self._refused)
        commit = next(commits_of(islice(changes, most), epoch), None)
        if commit is None:
            self._is_single = False
            self._refused.clear()
            decisions = process.decisions
            deletes = (
                delete for entry in decisions.deletions() for delete in decisions.left_states(entry)
            )
            commit = next(deleting_commits(deletes, epoch), None)
        if commit is not None:
            self._send(commit)

    def _send(self, commit: Commit) -> None:
        self._is_busy = True
        keys = [each.key for each in commit.operations]
        self._lane.commit(commit.checks, commit.operations).on_done(partial(self._done, keys))

    def _changes(self) -> Iterator[StateChange]:
        process = self._process
        decisions, topics = process.decisions, list(process.topics.values())
        until_ms = self._damping.waits_until_ms(process.membership.live, process.time.now_ms)
        if until_ms is None:
            for topic in topics:
                yield from decisions.leaders_gone(topic)
        else:
            process.simulation.counts["damped"] += 1
        for topic in topics:
            yield from decisions.leaders_draining(topic)
        if self.wants_preferred:
            self.wants_preferred = False
            for topic in topics:
                for index in range(len(topic.replicas)):
                    change = decisions.preferred_leader(topic, index)
                    if isinstance(change, StateChange):
                        yield change

    def _done(self, keys: Sequence[str], error: object) -> None:
        process = self._process
        self._is_busy = False
        process.simulation.after_commit(process)
        if error is None:
            self._refused.clear()
            process.stale()
            return
        if isinstance(error, Conflict):
            if len(keys) > 1:
                self._is_single = True
            else:
                self._refused.update(keys)
        process.after(RETRY_MS, self.consider)
