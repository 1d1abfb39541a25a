"""The live brokers and the controller that follow from entries of the metadata store."""

from __future__ import annotations

from itertools import count

import pytest

from headrace.core.cluster.image import MetadataImage
from headrace.core.cluster.membership import (
    NO_CONTROLLER,
    LiveBroker,
    Membership,
    MembershipChanges,
)
from headrace.core.cluster.records import (
    CONTROLLER_EPOCH_KEY,
    CONTROLLER_KEY,
    LIVE_BROKERS,
    BrokerState,
    ControllerRecord,
    LiveRecord,
    Record,
    encode,
)
from headrace.errors import StorageError
from headrace.ports import MetadataBatch, MetadataEntry

VERSIONS = count(1)


def entry(key: str, record: Record) -> MetadataEntry:
    return MetadataEntry(key, encode(record), next(VERSIONS))


def live(broker_id: int, broker_epoch: int = 0, state: BrokerState = "running") -> MetadataEntry:
    endpoints = {"PLAINTEXT": ("localhost", 9000 + broker_id)}
    record = LiveRecord(broker_epoch, f"disk-{broker_id}", endpoints, f"rack-{broker_id}", state)
    return entry(f"{LIVE_BROKERS}{broker_id}", record)


def controller(broker_id: int) -> MetadataEntry:
    return entry(CONTROLLER_KEY, ControllerRecord(broker_id, 1))


class Followed:
    """A membership that follows an image, and the changes that it has reported."""

    def __init__(self, *entries: MetadataEntry) -> None:
        self.image, self.membership = MetadataImage(), Membership()
        self.apply(*entries, snapshot=True)
        self.membership.consume(self.image)
        self.reported: list[MembershipChanges] = []
        self.membership.listeners.append(self.reported.append)

    def apply(
        self, *puts: MetadataEntry, deletes: tuple[str, ...] = (), snapshot: bool = False
    ) -> None:
        assert not self.image.apply(MetadataBatch(snapshot, puts, deletes))


def test_a_live_broker_has_the_addresses_rack_and_epoch_of_its_entry() -> None:
    membership = Followed(live(12, 7, "draining"), live(3)).membership
    endpoints = {"PLAINTEXT": ("localhost", 9012)}
    assert membership.live[12] == LiveBroker(
        12, 7, "disk-12", endpoints, "rack-12", is_draining=True
    )
    assert list(membership.live) == [3, 12], "in the order of the ids, not of the keys"
    assert (membership.epoch_of(12), membership.epoch_of(4)) == (7, None)


def test_a_broker_registers_and_goes() -> None:
    followed = Followed(live(1))
    followed.apply(live(2))
    followed.apply(deletes=(f"{LIVE_BROKERS}1",))
    assert followed.reported == [
        MembershipChanges(registered=frozenset({2})),
        MembershipChanges(gone=frozenset({1})),
    ]
    assert list(followed.membership.live) == [2]


def test_a_broker_that_registers_again_at_once_is_registered_and_not_gone() -> None:
    followed = Followed(live(1, 4))
    followed.apply(live(1, 5))
    assert followed.reported == [MembershipChanges(registered=frozenset({1}))]


def test_a_broker_that_drains_is_updated() -> None:
    followed = Followed(live(1))
    followed.apply(live(1, 0, "draining"))
    assert followed.reported == [MembershipChanges(updated=frozenset({1}))]
    assert followed.membership.live[1].is_draining


def test_an_entry_that_is_written_again_without_a_change_is_not_reported() -> None:
    followed = Followed(live(1), controller(1))
    followed.apply(live(1), controller(1))
    assert (followed.reported, followed.membership.changes) == ([], 0)


def test_a_snapshot_reports_the_brokers_that_went_meanwhile() -> None:
    followed = Followed(live(1), live(2), controller(1))
    followed.apply(live(2), controller(2), snapshot=True)
    assert followed.reported == [
        MembershipChanges(gone=frozenset({1})),
        MembershipChanges(controller_changed=True),
    ]


@pytest.mark.parametrize("broker_id", [0, 1])
def test_the_controller_is_the_broker_in_its_entry_whatever_the_controller_epoch_says(
    broker_id: int,
) -> None:
    epoch = entry(CONTROLLER_EPOCH_KEY, ControllerRecord(9, 1))
    followed = Followed(epoch)
    assert followed.membership.controller_id == NO_CONTROLLER
    followed.apply(controller(broker_id))
    assert followed.membership.controller_id == broker_id
    followed.apply(deletes=(CONTROLLER_KEY,))
    assert followed.membership.controller_id == NO_CONTROLLER
    assert Followed(epoch, controller(broker_id)).membership.controller_id == broker_id


def test_a_broker_without_a_cluster_knows_itself_as_the_controller() -> None:
    membership = Membership.of_one(3, 8)
    assert (list(membership.live), membership.controller_id, membership.epoch_of(3)) == ([3], 3, 8)


@pytest.mark.parametrize("broker_id", ["", "x", "-1"])
def test_a_live_entry_of_no_broker_is_refused(broker_id: str) -> None:
    with pytest.raises(StorageError, match="not a broker id"):
        Followed(entry(LIVE_BROKERS + broker_id, LiveRecord(1, "")))
