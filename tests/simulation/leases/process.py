"""A simulated process: a member of the group with its own clock, and readers of its shards."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from headrace.core.lease.actions import (
    UNKNOWN,
    Action,
    Assigned,
    Drain,
    Outcome,
    Request,
    Restart,
    Revoked,
    Why,
)
from headrace.core.lease.checkpoint import Checkpoint
from headrace.core.lease.lease import Lease, LeaseKey
from headrace.core.lease.machine import LeaseCore
from headrace.core.lease.names import most_of
from tests.simulation.leases.checker import ViolationError
from tests.simulation.leases.stream import Shard

if TYPE_CHECKING:
    from tests.simulation.leases.lease_simulation import LeaseSimulation


class Process:
    """A process, from its start until it is killed or has left the group."""

    def __init__(self, simulation: LeaseSimulation, name: str) -> None:
        self.simulation = simulation
        self.name = name
        chance = simulation.chance
        self._rate = 1 + chance.uniform(-1, 1) * simulation.knobs.drift
        self._began_ms = simulation.now_ms
        self._offset_ms = chance.randint(-(10**9), 10**9)
        self.wall_offset_ms = -chance.randint(0, simulation.knobs.wall_offset_ms)
        self.core = LeaseCore(
            "g", list(simulation.streams), name, simulation.knobs.settings, chance
        )
        self.most = most_of(name)
        self.readers: dict[LeaseKey, Reader] = {}
        self.is_alive = True
        self.is_leaving = False
        self.paused_until_ms = 0
        self.cut_until_ms = 0
        self._timer = 0
        self.wake()

    @property
    def now_ms(self) -> int:
        """The monotonic clock of the process, which begins at any value and is somewhat fast or slow."""
        return self._offset_ms + int((self.simulation.now_ms - self._began_ms) * self._rate)

    @property
    def wall_ms(self) -> int:
        return self.simulation.now_ms + self.wall_offset_ms

    def world_ms(self, wait_ms: int) -> int:
        """Return a duration of the process's clock in milliseconds of the simulation's clock."""
        return max(0, int(wait_ms / self._rate) + 1)

    def later(self, wait_ms: int, call: Callable[..., None], *arguments: object) -> None:
        """Schedule a call after a time. A pause delays the call, and a killed process never runs it."""
        self.simulation.at(self.simulation.now_ms + wait_ms, self._run, call, arguments)

    def _run(self, call: Callable[..., None], arguments: tuple[object, ...]) -> None:
        if not self.is_alive:
            return
        if self.simulation.now_ms < self.paused_until_ms:
            # Delayed calls run in any order.
            until_ms = self.paused_until_ms + self.simulation.chance.randrange(3)
            self.simulation.at(until_ms, self._run, call, arguments)
            return
        call(*arguments)

    # The member

    def wake(self) -> None:
        """Run the member's due work."""
        self.perform(self.core.tick(self.now_ms))

    def perform(self, actions: list[Action]) -> None:
        """Perform the actions that the member has decided."""
        for action in actions:
            match action:
                case Assigned(lease):
                    self.readers[lease.key] = Reader(self, lease)
                    if self.most is not None and len(self.readers) > self.most:
                        raise ViolationError(f"{self.name} has {len(self.readers)} shards")
                case Drain(key):
                    self.readers[key].drain()
                case Revoked(key, why):
                    self._revoked(key, why)
                case Restart():
                    self.simulation.counts["restarts"] += 1
                case _:
                    self.simulation.send(self, action)
        self._set_timer()
        if self.core.is_closed:
            self.is_alive = False

    def _revoked(self, key: LeaseKey, why: Why) -> None:
        reader = self.readers.pop(key)
        self.simulation.counts[f"revoked: {why}"] += 1
        self.simulation.log(f"{self.name} {key.shard} is revoked: {why}")
        reader.stop(why)

    def replied(self, request: Request, sent: tuple[int, int], outcome: Outcome) -> None:
        """Pass the response to a request, or its absence, to the member."""
        if outcome is UNKNOWN:
            self.simulation.counts["requests without an answer"] += 1
        now_ms = self.now_ms
        self.perform(self.core.on_reply(request, sent[0], now_ms, outcome, sent[1]))

    def close(self) -> None:
        """Stop reading, and release the reader's records."""
        self.perform(self.core.close(self.now_ms))

    def _set_timer(self) -> None:
        due_ms = self.core.next_deadline_ms
        if due_ms is None:
            return
        at_ms = self.simulation.now_ms + self.world_ms(due_ms - self.now_ms)
        if self._timer > self.simulation.now_ms and self._timer <= at_ms:
            return
        self._timer = at_ms
        self.later(at_ms - self.simulation.now_ms, self._timed, at_ms)

    def _timed(self, at_ms: int) -> None:
        if at_ms == self._timer or self._timer <= self.simulation.now_ms:
            self._timer = 0
            self.wake()


class Reader:
    """Reads a shard while the member has its lease: fetches records, processes a few at a time, reports progress."""

    def __init__(self, process: Process, lease: Lease) -> None:
        self.process = process
        self.lease = lease
        simulation = process.simulation
        self.shard: Shard = simulation.streams[lease.key.stream].shards[lease.key.shard]
        self.next = self.shard.index_after(lease.checkpoint)
        self.is_stopped = False
        self.is_draining = False
        self.is_busy = False
        self.has_drained = False
        simulation.log(f"{process.name} {lease.key.shard} is assigned: {lease}")
        process.later(simulation.chance.randint(1, 300), self.fetch)

    def stop(self, why: Why) -> None:
        """End the reading.

        A shard that has drained or ended is released when its last checkpoint is written. A shard with a deadline for
        draining is released at the deadline, even if the write has not finished.
        """
        self.is_stopped = True
        if why is Why.ENDED or (why is not Why.LOST and self.has_drained):
            self.process.simulation.checker.clean.add((self.lease.key, self.lease.epoch))

    def drain(self) -> None:
        """Begin no new record."""
        self.is_draining = True
        if not self.is_busy:
            self.process.later(0, self._drained)

    def _drained(self) -> None:
        if not self.is_stopped:
            process = self.process
            self.has_drained = True
            process.perform(process.core.on_drained(self.lease.key, process.now_ms))

    def fetch(self) -> None:
        """Fetch new records, if there are any."""
        process, simulation = self.process, self.process.simulation
        if self.is_stopped or self.is_draining:
            return
        if not simulation.is_stuck(self.shard.shard):
            process.core.progressed(self.lease.key, process.now_ms, self._size())
            if self.shard.shard in simulation.streams[self.lease.key.stream].gone:
                self.next = len(self.shard.times)
            if self.next < len(self.shard.times):
                self.handle(min(len(self.shard.times) - self.next, simulation.chance.randint(1, 4)))
                return
            if self.shard.closed:
                self._end()
                return
        process.later(simulation.chance.randint(800, 1200), self.fetch)

    def _size(self) -> int:
        return 1000 * (self.shard.number + 1) if self.process.simulation.knobs.has_rates else 0

    def handle(self, count: int) -> None:
        """Process some records, and check the lease before each record."""
        process, simulation = self.process, self.process.simulation
        for _ in range(count):
            if not process.core.valid(self.lease.key, process.now_ms):
                break
            simulation.checker.handled(process.name, self.lease, self.next)
            self.next += 1
        self.is_busy = True
        slow = simulation.knobs.slow_handlers and simulation.chance.random() < 0.02
        process.later(
            20_000 if slow else simulation.chance.randint(10, 200), self._handled, self.next
        )

    def _handled(self, index: int) -> None:
        self.is_busy = False
        if self.is_stopped:
            return
        process = self.process
        if index:
            checkpoint = Checkpoint(self.shard.sequence_number(index - 1))
            in_flight = process.simulation.chance.random() < 0.5
            process.perform(
                process.core.advance(
                    self.lease.key, checkpoint, process.now_ms, in_flight=in_flight
                )
            )
        if self.is_draining:
            self._drained()
        else:
            self.fetch()

    def _end(self) -> None:
        process = self.process
        said = self.shard.children if process.simulation.chance.random() < 0.7 else []
        process.perform(process.core.on_ended(self.lease.key, said, process.now_ms))
        if process.core.valid(self.lease.key, process.now_ms):
            raise AssertionError(f"{self.lease.key} goes on after its end")
