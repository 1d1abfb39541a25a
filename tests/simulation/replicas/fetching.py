"""The fetch loops of followers, one for each leader broker, and their requests and responses."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from headrace.core.replica.following import (
    Append,
    BeginAt,
    Fetched,
    Position,
    Truncate,
    offsets_after,
)
from headrace.core.replica.role import Role
from tests.simulation.replicas.checker import ViolationError
from tests.simulation.replicas.disk import Key, Record
from tests.simulation.replicas.partition import SimPartition

if TYPE_CHECKING:
    from tests.simulation.replicas.process import Process

WAIT_MS = 500
TIMEOUT_MS = 2_500
BACKOFF_MS = 400


@dataclass(eq=False, slots=True)
class Fetch:
    """A request of a follower.

    Attributes:
        loop: The sender.
        follower: The broker id of the follower.
        broker_epoch: The broker epoch of its process.
        positions: Where it fetches.
        is_full: Whether the follower may not have received the last response.
        sent_ms: The time.
        is_handled: Whether the request has arrived. It may arrive once more.
    """

    loop: FetchLoop
    follower: int
    broker_epoch: int
    positions: list[tuple[Key, Position]]
    is_full: bool
    sent_ms: int
    is_handled: bool = False


@dataclass(slots=True)
class Answer:
    """The response for one partition. `fetched` is None for an error."""

    key: Key
    position: Position
    fetched: Fetched | None
    records: list[Record] = field(default_factory=list)


class FetchLoop:
    """The loop of a process for one leader broker."""

    def __init__(self, process: Process, leader: int) -> None:
        """Begin to follow one leader broker, without partitions."""
        self.process = process
        self.leader = leader
        self.partitions: dict[Key, SimPartition] = {}
        self._in_flight: Fetch | None = None
        self._pauses = False
        self._is_full = True

    def add(self, partition: SimPartition) -> None:
        """Fetch a partition from now on."""
        self.partitions[partition.key] = partition
        self._is_full = True  # a response to an earlier role may have been lost
        self.process.later(self.send)

    def remove(self, partition: SimPartition) -> None:
        """Fetch a partition no longer."""
        self.partitions.pop(partition.key, None)

    def send(self) -> None:
        """Send a fetch, unless one is in flight, or records have to be synced first."""
        if self._in_flight is not None or self._pauses or not self.partitions:
            return
        positions = []
        for partition in self.partitions.values():
            following = partition.following
            assert following is not None, "the loop has followers only"
            if not following.is_ready(partition.log):
                return
            positions.append((partition.key, partition))
        process = self.process
        fetch = Fetch(
            self,
            process.broker_id,
            process.registration,
            [
                (key, partition.following.begin(partition.log))
                for key, partition in positions
                if partition.following is not None
            ],
            self._is_full,
            process.simulation.now_ms,
        )
        self._in_flight, self._is_full = fetch, False
        process.simulation.network.send(
            process, self.leader, lambda target: target.serving.handle(fetch)
        )

    def check_timeout(self) -> None:
        """Give a request up that got no response."""
        fetch = self._in_flight
        if fetch is not None and self.process.simulation.now_ms - fetch.sent_ms > TIMEOUT_MS:
            self._in_flight = None
            self._is_full = self._pauses = True
            self.process.after(BACKOFF_MS, self._end_pause)

    def _end_pause(self) -> None:
        self._pauses = False
        self.send()

    def received(self, fetch: Fetch, answers: list[Answer]) -> None:
        """Handle a response. A late one reaches the replicas too: they have to ignore it."""
        is_expected = fetch is self._in_flight
        if is_expected:
            self._in_flight = None
        for answer in answers:
            partition = self.process.partitions.get(answer.key)
            if partition is None or partition.following is None:
                continue
            if answer.fetched is None:
                if is_expected and answer.key in self.partitions:
                    self._delay(partition)
            else:
                self._handle(partition, answer, answer.fetched)
        if is_expected:
            self.process.later(self.send)

    def _delay(self, partition: SimPartition) -> None:
        self.remove(partition)
        self.process.after(BACKOFF_MS, partial(self._resume, partition, partition.leader_epoch))

    def _resume(self, partition: SimPartition, leader_epoch: int) -> None:
        process = self.process
        if (
            partition.leader_epoch == leader_epoch
            and partition.role is Role.FOLLOWER
            and partition.newest.leader == self.leader
            and process.partitions.get(partition.key) is partition
        ):
            self.add(partition)

    def _handle(self, partition: SimPartition, answer: Answer, fetched: Fetched) -> None:
        process, log = self.process, partition.log
        assert partition.following is not None, "checked before"
        decision = partition.following.decide(answer.position, fetched, log)
        process.simulation.trace(
            "%s: %s at %s, %s: %s", process, partition, answer.position, fetched, decision
        )
        match decision:
            case None:
                self._is_full = True
                if fetched.is_out_of_range and answer.key in self.partitions:
                    self._delay(partition)
            case Append():
                for record in answer.records:
                    log.append(record)
                high_watermark, start = offsets_after(fetched, log)
                log.start_at(start)
                process.advance(partition, high_watermark)
                if answer.records:
                    process.written(partition)
            case Truncate(end_offset):
                process.simulation.checker.truncates(process, partition, end_offset)
                log.truncate(end_offset)
            case BeginAt(offset):
                process.simulation.checker.begins_at(partition, offset)
                log.begin_at(offset)
            case stopped:
                raise ViolationError(f"broker {process.broker_id} stops {partition}: {stopped}")
