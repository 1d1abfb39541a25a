"""Leaders and leader epochs that follow from stored states and registrations."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from headrace.core.cluster.image import MetadataImage
from headrace.core.cluster.partition_states import PartitionStates, present_state, state_key
from headrace.core.cluster.records import (
    REGISTRATIONS,
    PartitionState,
    Record,
    RegistrationRecord,
    encode,
)
from headrace.errors import StorageError
from headrace.ports import MetadataBatch, MetadataEntry

TOPIC = bytes(range(16))


def entry(key: str, record: Record) -> MetadataEntry:
    return MetadataEntry(key, encode(record), 1)


def registration(broker_id: int, broker_epoch: int) -> MetadataEntry:
    return entry(f"{REGISTRATIONS}{broker_id}", RegistrationRecord(broker_epoch))


def image_of(*entries: MetadataEntry) -> MetadataImage:
    image = MetadataImage()
    image.apply(MetadataBatch(snapshot=True, puts=entries))
    return image


def states_of(image: MetadataImage) -> PartitionStates:
    states = PartitionStates()
    states.consume(image)
    return states


def test_a_partition_without_a_stored_state_is_led_by_its_first_replica() -> None:
    states = states_of(image_of(registration(1, 7), registration(2, 3)))
    assert states.get(TOPIC, 0, (2, 1)) == PartitionState(2, 3, (2, 1), (), 3)


def test_a_registration_begins_a_leader_epoch_also_without_a_stored_state() -> None:
    image = image_of(registration(1, 7))
    states = states_of(image)
    assert states.get(TOPIC, 0, (1,)).leader_epoch == 7
    image.apply(MetadataBatch(snapshot=False, puts=[registration(1, 8)]))
    assert states.get(TOPIC, 0, (1,)) == PartitionState(1, 8, (1,), (), 8)


def test_each_registration_of_the_leader_begins_a_leader_epoch() -> None:
    image = image_of(entry(state_key(TOPIC, 4), PartitionState(1, 20, (1, 2), (), 7)))
    states = states_of(image)
    for broker_epoch, leader_epoch in ((7, 20), (8, 21), (11, 24)):
        image.apply(MetadataBatch(snapshot=False, puts=[registration(1, broker_epoch)]))
        expected = PartitionState(1, leader_epoch, (1, 2), (), broker_epoch)
        assert states.get(TOPIC, 4, (2, 1)) == expected


def test_a_registration_of_a_follower_begins_no_leader_epoch() -> None:
    stored = PartitionState(1, 20, (1, 2), (), 7)
    assert present_state(stored, [1, 2], {1: 7, 2: 90}) == stored


def test_a_registration_that_is_older_than_the_state_does_not_lower_the_leader_epoch() -> None:
    stored = PartitionState(1, 20, (1,), (), 7)
    assert present_state(stored, [1], {1: 2}) == stored
    assert present_state(stored, [1], {}) == stored


def test_a_partition_without_a_leader_keeps_its_leader_epoch() -> None:
    stored = PartitionState(-1, 20, (1,), (), 0)
    assert present_state(stored, [1], {1: 9}) == stored


def test_a_deleted_state_has_no_effect() -> None:
    image = image_of(entry(state_key(TOPIC, 0), PartitionState(1, 20, (1,))))
    states = states_of(image)
    assert states.get(TOPIC, 0, (1,)).leader_epoch == 20
    image.apply(MetadataBatch(snapshot=False, puts=[], deletes=[state_key(TOPIC, 0)]))
    assert states.get(TOPIC, 0, (1,)).leader_epoch == 0


@pytest.mark.parametrize("broker_id", ["", "x", "-1", "1/2"])
def test_a_registration_of_no_broker_is_refused(broker_id: str) -> None:
    with pytest.raises(StorageError, match="not a broker id"):
        states_of(image_of(entry(REGISTRATIONS + broker_id, RegistrationRecord(1))))


class Cluster:
    """Three brokers that restart, elect leaders and change in-sync replicas of one partition, with delayed commits."""

    def __init__(self, seed: int, *, registration_is_checked: bool) -> None:
        self.random = random.Random(seed)
        self.registration_is_checked = registration_is_checked
        self.stored: PartitionState | None = None
        self.version = 0
        self.broker_epochs = dict.fromkeys((1, 2, 3), 0)
        self.prepared: list[Callable[[], None]] = []
        self.leaders: dict[int, tuple[int, int]] = {}
        """The leader and its broker epoch, by leader epoch."""

    @property
    def present(self) -> PartitionState:
        return present_state(self.stored, (1, 2, 3), self.broker_epochs)

    def prepare(self, state: PartitionState) -> None:
        """Prepare a commit that obeys the rules of `present_state`."""
        version, replaced = self.version, self.present

        def commit() -> None:
            is_registered = self.broker_epochs.get(replaced.leader, 0) == replaced.registration
            if self.version == version and (is_registered or not self.registration_is_checked):
                self.stored, self.version = state, version + 1

        self.prepared.append(commit)

    def step(self) -> None:
        present, broker = self.present, self.random.choice((1, 2, 3))
        match self.random.randrange(5):
            case 0:
                self.broker_epochs[broker] += 1
            case 1:
                isr = (present.leader, broker)
                self.prepare(
                    PartitionState(
                        present.leader, present.leader_epoch, isr, (), present.registration
                    )
                )
            case 2:
                epoch = self.broker_epochs[broker]
                self.prepare(PartitionState(broker, present.leader_epoch + 1, (broker,), (), epoch))
            case _ if self.prepared:
                self.prepared.pop(self.random.randrange(len(self.prepared)))()
            case _:
                pass
        after = self.present
        assert after.leader_epoch >= present.leader_epoch
        leads = after.leader, after.registration
        assert self.leaders.setdefault(after.leader_epoch, leads) == leads


def run(*, registration_is_checked: bool) -> None:
    for seed in range(2_000):
        cluster = Cluster(seed, registration_is_checked=registration_is_checked)
        for _ in range(60):
            cluster.step()


def test_no_leader_epoch_has_two_leaders_or_falls_however_commits_are_delayed() -> None:
    run(registration_is_checked=True)


def test_without_the_check_of_the_registration_a_leader_epoch_has_two_leaders() -> None:
    with pytest.raises(AssertionError):
        run(registration_is_checked=False)
