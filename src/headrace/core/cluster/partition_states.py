"""The leaders and leader epochs of partitions, from the stored states and the registrations of brokers.

A broker that leads thousands of partitions takes all of them again with one entry: its registration. So the present
state of a partition is derived from two entries (`present_state`):

1. `state/<topic id>/<partition>` says that the leader began to lead in a leader epoch, and at which broker epoch.
2. `brokers/registration/<id>` has the present broker epoch of the leader. Each start of the leader since 1 has
   incremented the broker epoch, and has begun another leader epoch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from msgspec.structs import replace

from headrace.core.cluster.image import Changes, MetadataImage
from headrace.core.cluster.records import (
    REGISTRATIONS,
    STATES,
    PartitionState,
    RegistrationRecord,
    broker_id_of,
    decode,
)
from headrace.ports import MetadataEntry


def state_key(topic_id: bytes, partition: int) -> str:
    """Return the key of a partition's state."""
    return f"{STATES}{topic_id.hex()}/{partition}"


def present_state(
    stored: PartitionState | None, replicas: Sequence[int], broker_epochs: Mapping[int, int]
) -> PartitionState:
    """Return the present state of a partition.

    Without a stored state, the first replica leads, all replicas are in sync, and the leader epoch is the broker epoch
    of the leader. While no process of the leader runs, no broker leads. Either the next registration of the leader, or
    another stored state begins the next leader epoch.

    A leader epoch has one leader, and never decreases, because every commit that writes a state obeys three rules:

    * The commit checks the version of the state that it replaces, and of the registration of that state's leader.
    * If the commit changes the leader, the new leader epoch is above the present one. `registration` is the broker
      epoch of the new leader. If only the in-sync replicas change, the leader epoch is the present one, and
      `registration` is the present broker epoch.
    * A commit that changes the replicas of a partition without a stored state stores the state too.

    Without the check of the registration, two brokers could lead in one epoch: (1) Broker 1 leads in epoch 5. (2)
    Another broker prepares the election of broker 2 for epoch 6. (3) Broker 1 registers again, and leads in epoch 6.
    (4) The election is stored.

    Args:
        stored: The stored state; None if there is none.
        replicas: The replicas of the partition.
        broker_epochs: The present broker epoch of each broker.
    """
    if stored is None:
        epoch = broker_epochs.get(replicas[0], 0)
        return PartitionState(replicas[0], epoch, tuple(replicas), (), epoch)
    starts = broker_epochs.get(stored.leader, 0) - stored.registration
    if starts <= 0:
        return stored
    return replace(
        stored,
        leader_epoch=stored.leader_epoch + starts,
        registration=stored.registration + starts,
    )


class PartitionStates:
    """The states of all partitions."""

    __slots__ = ("_initial", "_stored", "broker_epochs", "changes", "listeners")

    def __init__(self) -> None:
        self.changes = 0
        """A number that rises with every change after `consume`."""
        self.listeners: list[Callable[[Iterable[str], Iterable[int]], object]] = []
        """Functions to call with the keys of changed states, and the ids of brokers that have registered."""
        self.broker_epochs: dict[int, int] = {}
        """The present broker epoch of each broker that has ever registered."""
        self._stored: dict[str, PartitionState] = {}
        """The stored states, by key."""
        self._initial: dict[tuple[int, ...], PartitionState] = {}
        """The present states of partitions without a stored state, by replicas."""

    def consume(self, image: MetadataImage) -> None:
        """Take the states and registrations in the image, and follow their changes.

        Raises:
            StorageError: An entry cannot be read.
        """
        registrations = image.consume(REGISTRATIONS, _registration, self._apply_registrations)
        self.broker_epochs.update(registrations.values())
        self._stored.update(image.consume(STATES, _state, self._apply_states))

    def _apply_registrations(self, changes: Changes[tuple[int, int]]) -> None:
        self.broker_epochs.update(changes.puts.values())
        self._initial.clear()
        self.changes += 1
        self._report((), [broker_id for broker_id, _ in changes.puts.values()])

    def _apply_states(self, changes: Changes[PartitionState]) -> None:
        for key in changes.deletes:
            self._stored.pop(key, None)
        self._stored.update(changes.puts)
        self.changes += 1
        self._report(changes.puts, ())

    def _report(self, keys: Iterable[str], brokers: Iterable[int]) -> None:
        for listener in self.listeners:
            listener(keys, brokers)

    def get(self, topic_id: bytes, partition: int, replicas: tuple[int, ...]) -> PartitionState:
        """Return the present state of a partition."""
        stored = self._stored.get(state_key(topic_id, partition)) if self._stored else None
        if stored is not None:
            return present_state(stored, replicas, self.broker_epochs)
        state = self._initial.get(replicas)
        if state is None:
            state = present_state(None, replicas, self.broker_epochs)
            self._initial[replicas] = state
        return state


def _state(entry: MetadataEntry) -> PartitionState:
    return decode(entry, PartitionState)


def _registration(entry: MetadataEntry) -> tuple[int, int]:
    """Return the id and the broker epoch of a broker."""
    broker_id = broker_id_of(entry.key, REGISTRATIONS)
    return broker_id, decode(entry, RegistrationRecord).broker_epoch
