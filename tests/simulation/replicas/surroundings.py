"""The parts around the real controller and membership of a process: topics, logs, roles, the journal and the store.

`Control`, `Member` and `Departures` of `headrace.broker.cluster` run unchanged. They find the attributes here that they
use of a broker's topics, partitions, log directories and roles.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from headrace.core.cluster.partition_states import PartitionStates
from headrace.core.cluster.records import TOPICS, PartitionState
from headrace.deferred import Deferred
from headrace.metadata_stores.sessions import SimulatedMetadataStore
from headrace.ports import Unavailable
from tests.simulation.replicas.checker import ViolationError
from tests.simulation.replicas.disk import Disk

if TYPE_CHECKING:
    from tests.simulation.replicas.partition import SimPartition
    from tests.simulation.replicas.process import Process
    from tests.simulation.replicas.replica_simulation import Settings

T = TypeVar("T")

WAIT_MS = 10_000
"""The longest time for which a start waits for the store, in milliseconds."""


class SimTopic(NamedTuple):
    """A topic, with the attributes that the controller uses of a real topic."""

    name: str
    topic_id: bytes
    replicas: Sequence[tuple[int, ...]]
    config: Settings

    @property
    def partitions_count(self) -> int:
        return len(self.replicas)


class SimTopics:
    """The topics of a process, as its image has them."""

    def __init__(self, states: PartitionStates) -> None:
        """Begin without any topic of the image."""
        self.states = states
        self.by_key: dict[str, SimTopic] = {}

    def __iter__(self) -> Iterator[SimTopic]:
        return iter(list(self.by_key.values()))

    def get(self, name: str) -> SimTopic | None:
        return self.by_key.get(TOPICS + name)

    def by_id(self, topic_id: bytes) -> SimTopic | None:
        return next((each for each in self.by_key.values() if each.topic_id == topic_id), None)

    def state(self, topic: SimTopic, index: int) -> PartitionState:
        return self.states.get(topic.topic_id, index, topic.replicas[index])


class SimLogDir:
    """The log directory of one partition: what a start may find to be lost."""

    def __init__(self, disk: Disk, topic_id: bytes, *, syncs_first: bool) -> None:
        """Look at a disk."""
        self._disk = disk
        self._syncs_first = syncs_first
        self.logs: Any = SimpleNamespace(topic_id=lambda _: topic_id)
        self.unsynced = self

    @property
    def is_new(self) -> bool:
        return self._disk.is_new

    def may_have_lost(self, _topic_id: bytes) -> bool:
        return not self._disk.is_clean and not self._syncs_first


class SimLogStore:
    """The log directories of a process."""

    def __init__(self, process: Process) -> None:
        """Begin with one directory."""
        self._process = process
        self.dirs: Any = SimpleNamespace(first=None)

    def forget_losses(self) -> None:
        """Forget what may be lost, also for the next process."""
        disk = self._process.disk
        disk.is_clean, disk.is_new = True, False

    def fail(self, _log_dir: object, _error: OSError) -> None:
        """End the process, as the failure of the first directory does."""
        self._process.close()


class Roles:
    """The roles of the replicas: they follow the image and the registration."""

    def __init__(self, process: Process) -> None:
        """Give roles to the replicas of a process."""
        self._process = process

    def finish(self) -> None:
        self._process.apply_image()

    def registration_changed(self) -> None:
        self._process.stale()

    def of(self, topic: SimTopic) -> list[SimPartition | None]:
        """Return the partitions of a topic; None for those without a replica that this broker serves."""
        process = self._process
        return [
            process.partition(key)
            if process.broker_id in replicas and process.serves(key := (topic.topic_id, index))
            else None
            for index, replicas in enumerate(topic.replicas)
        ]

    @property
    def broker_id(self) -> int:
        return self._process.broker_id


class ProcessJournal:
    """Counts the log events of a process, and lets the checker see some of them."""

    def __init__(self, process: Process) -> None:
        """Receive the log events of a process."""
        self._process = process

    def info(self, event: str, **fields: object) -> None:
        simulation = self._process.simulation
        simulation.counts[event] += 1
        simulation.trace("%s: %s %s", self._process, event, fields)
        if event == "became_controller":
            simulation.checker.controls(self._process, fields["controller_epoch"])
        elif event == "broker_registered":
            self._process.registered()
        elif event == "work_failed":
            simulation.failure = ViolationError(f"{self._process}: {fields}")

    warning = error = info


class ProcessStore(SimulatedMetadataStore):
    """The session of one process. A process that waits for the store does nothing else meanwhile."""

    process: Process | None = None
    """The process, as soon as a wait takes time."""

    def wait(self, deferred: Deferred[T]) -> T:
        """Let everything happen until the deferred is resolved.

        Raises:
            Unavailable: The process has ended, or the store has not responded for long.
        """
        if self.process is None:
            return super().wait(deferred)
        simulation = self.process.simulation
        end_ms = simulation.now_ms + WAIT_MS
        while not deferred.done:
            if self.process.is_dead or simulation.now_ms > end_ms:
                raise Unavailable("the store does not respond")
            simulation.step()
        return deferred.value
