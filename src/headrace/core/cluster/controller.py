"""The decisions of the controller: which partitions need another leader, and the commits that store these leaders.

The decisions depend on the image only. They are made again after every change, and repeat themselves until a commit has
stored them. So a controller may end at any moment, and the next one continues. Two controllers may run for some time:
each commit checks what it depends on.

* The version of `controller_epoch`: no other broker has become the controller.
* The version of the state that is replaced: no other broker has elected a leader or changed the ISR.
* The version of the registration of that state's leader: the leader has begun no leader epoch (`present_state`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Final, NamedTuple

from headrace.core.cluster.election import elect, elect_preferred
from headrace.core.cluster.image import MetadataImage
from headrace.core.cluster.membership import Membership
from headrace.core.cluster.partition_states import PartitionStates, state_key
from headrace.core.cluster.records import (
    CONTROLLER_EPOCH_KEY,
    DELETED,
    NO_LEADER,
    REGISTRATIONS,
    STATES,
    PartitionState,
    TombstoneRecord,
    decode,
    encode,
)
from headrace.errors import ErrorCode, StorageError
from headrace.ports import Check, Delete, MetadataEntry, Put, check_of

PARTITIONS_A_COMMIT: Final = 30
"""The greatest number of partitions in a commit. Each one needs up to three checks and operations."""
DELETES_A_COMMIT: Final = 90
"""The greatest number of entries that one commit deletes."""


class ControlledTopic(NamedTuple):
    """A topic, as the controller needs it.

    Attributes:
        topic_id: The id of the topic.
        replicas: The replicas of each partition.
        min_isr: `min.insync.replicas` of the topic.
        is_unclean: `unclean.leader.election.enable` of the topic.
    """

    topic_id: bytes
    replicas: Sequence[tuple[int, ...]]
    min_isr: int = 1
    is_unclean: bool = False


class StateChange(NamedTuple):
    """A change of the state of a partition.

    Attributes:
        topic: The topic of the partition.
        partition: The number of the partition.
        before: The present state.
        after: The state after the change.
        state: The check that no other commit has changed the state.
        registration: The check that the replaced leader has not registered again; None if there was no leader.
        put: The operation that stores the state.
    """

    topic: ControlledTopic
    partition: int
    before: PartitionState
    after: PartitionState
    state: Check
    registration: Check | None
    put: Put

    @property
    def is_unclean(self) -> bool:
        """Whether the new leader may lack committed records: it was neither in the ISR nor in the ELR."""
        leader = self.after.leader
        return leader != NO_LEADER and leader not in {*self.before.isr, *self.before.elr}


class Commit(NamedTuple):
    """A commit of the controller."""

    checks: Sequence[Check]
    operations: Sequence[Put | Delete]


class Decisions:
    """The changes that the present image asks for."""

    __slots__ = ("_image", "_membership", "_states")

    def __init__(
        self, image: MetadataImage, states: PartitionStates, membership: Membership
    ) -> None:
        """Decide by an image, and by the states and the membership that follow it."""
        self._image = image
        self._states = states
        self._membership = membership

    def leaders_gone(
        self, topic: ControlledTopic, indexes: Iterable[int] | None = None
    ) -> Iterator[StateChange]:
        """Yield the elections for partitions without a live leader, as far as a replica can lead.

        Args:
            topic: The topic.
            indexes: The numbers of the partitions to look at; None for all.
        """
        for index, present in self._present(topic, indexes):
            if present.leader not in self._membership.live:
                yield from self._election(topic, index, present)

    def leaders_draining(
        self, topic: ControlledTopic, indexes: Iterable[int] | None = None
    ) -> Iterator[StateChange]:
        """Yield the elections for partitions whose leader is draining, as far as another replica can lead.

        Args:
            topic: The topic.
            indexes: The numbers of the partitions to look at; None for all.
        """
        for index, present in self._present(topic, indexes):
            leader = self._membership.live.get(present.leader)
            if leader is not None and leader.is_draining:
                yield from self._election(topic, index, present)

    def _present(
        self, topic: ControlledTopic, indexes: Iterable[int] | None
    ) -> Iterator[tuple[int, PartitionState]]:
        for index in range(len(topic.replicas)) if indexes is None else indexes:
            yield index, self._states.get(topic.topic_id, index, topic.replicas[index])

    def _election(
        self, topic: ControlledTopic, index: int, present: PartitionState
    ) -> Iterator[StateChange]:
        replicas = topic.replicas[index]
        elected = elect(
            present,
            replicas,
            self._membership,
            min_isr=topic.min_isr,
            is_unclean=topic.is_unclean,
        )
        if elected is not None:
            yield self.change(topic, index, present, elected)

    def preferred_leader(self, topic: ControlledTopic, index: int) -> StateChange | ErrorCode:
        """Return the election of the first replica of a partition.

        Returns:
            ELECTION_NOT_NEEDED if the first replica leads, PREFERRED_LEADER_NOT_AVAILABLE if it cannot lead.
        """
        replicas = topic.replicas[index]
        present = self._states.get(topic.topic_id, index, replicas)
        if present.leader == replicas[0] and present.leader in self._membership.live:
            return ErrorCode.ELECTION_NOT_NEEDED
        elected = elect_preferred(present, replicas, self._membership)
        if elected is None:
            return ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE
        return self.change(topic, index, present, elected)

    def any_leader(self, topic: ControlledTopic, index: int) -> StateChange | ErrorCode:
        """Return the election of a leader for a partition without one, if need be of a replica that is not in sync.

        Returns:
            ELECTION_NOT_NEEDED if a live broker leads, ELIGIBLE_LEADERS_NOT_AVAILABLE if no replica is live.
        """
        replicas = topic.replicas[index]
        present = self._states.get(topic.topic_id, index, replicas)
        if present.leader in self._membership.live:
            return ErrorCode.ELECTION_NOT_NEEDED
        elected = elect(present, replicas, self._membership, min_isr=topic.min_isr, is_unclean=True)
        if elected is None:
            return ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE
        return self.change(topic, index, present, elected)

    def change(
        self, topic: ControlledTopic, index: int, present: PartitionState, after: PartitionState
    ) -> StateChange:
        """Return the change from the present state of a partition to another one, with its checks."""
        key, leader = state_key(topic.topic_id, index), present.leader
        registration = None if leader == NO_LEADER else self._check(f"{REGISTRATIONS}{leader}")
        put = Put(key, encode(after))
        return StateChange(topic, index, present, after, self._check(key), registration, put)

    def _check(self, key: str) -> Check:
        return check_of(key, self._image.get(key))

    def deletions(self) -> Sequence[MetadataEntry]:
        """Return the tombstones of deleted topics."""
        return self._image.list(DELETED)

    def left_states(self, entry: MetadataEntry) -> Iterator[Delete]:
        """Yield the deletes of the states of a deleted topic, if no live broker has files of the topic.

        The tombstone stays until the other brokers have started again, and have removed their files.

        Args:
            entry: The tombstone.
        """
        try:
            tombstone = decode(entry, TombstoneRecord)
        except StorageError:
            return  # a newer broker has written the tombstone, and completes the deletion
        if self._membership.live.keys().isdisjoint(tombstone.brokers):
            prefix = f"{STATES}{entry.key.removeprefix(DELETED)}/"
            for index in range(tombstone.partitions_count):
                if self._image.get(f"{prefix}{index}") is not None:
                    yield Delete(f"{prefix}{index}")


def commits_of(changes: Iterable[StateChange], controller_epoch: Check) -> Iterator[Commit]:
    """Yield the commits that store changes of states, at most `PARTITIONS_A_COMMIT` in each."""
    left = iter(changes)
    while some := list(islice(left, PARTITIONS_A_COMMIT)):
        states = [change.state for change in some]
        registrations = dict.fromkeys(each.registration for each in some if each.registration)
        yield Commit([controller_epoch, *states, *registrations], [change.put for change in some])


def deleting_commits(deletes: Iterable[Delete], controller_epoch: Check) -> Iterator[Commit]:
    """Yield the commits that delete entries."""
    left = iter(deletes)
    while some := list(islice(left, DELETES_A_COMMIT)):
        yield Commit([controller_epoch], some)


def controller_epoch_check(image: MetadataImage) -> Check:
    """Return the check that no other broker has become the controller since the image."""
    return check_of(CONTROLLER_EPOCH_KEY, image.get(CONTROLLER_EPOCH_KEY))
