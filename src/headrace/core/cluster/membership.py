"""The brokers of the cluster that are live, and the controller, as the image has them.

A broker is live while its entry `brokers/live/<id>` exists. The entry belongs to the session of the broker's process.
If the process restarts, or loses its session and begins another, it registers again: then the broker has the next
broker epoch. The change may be one notification, so a broker that registers again need not have been gone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from operator import attrgetter
from typing import Final, NamedTuple

from headrace.core.cluster.image import Changes, MetadataImage
from headrace.core.cluster.records import (
    CONTROLLER_KEY,
    LIVE_BROKERS,
    ControllerRecord,
    LiveRecord,
    broker_id_of,
    decode,
)
from headrace.ports import MetadataEntry

NO_CONTROLLER: Final = -1
"""The controller while the cluster has none."""


class LiveBroker(NamedTuple):
    """A live broker.

    Attributes:
        broker_id: The id of the broker.
        broker_epoch: The broker epoch of its process.
        incarnation: The id of the broker's first log directory.
        endpoints: Host and port of each listener, by the name of the listener. Empty if the broker is not in a cluster.
        rack: The rack of the broker; None if it has none.
        is_draining: Whether the broker shuts down: it leads no new partitions, and its replicas stay out of the ISR.
    """

    broker_id: int
    broker_epoch: int
    incarnation: str = ""
    endpoints: Mapping[str, tuple[str, int]] = {}
    rack: str | None = None
    is_draining: bool = False


class MembershipChanges(NamedTuple):
    """A change of the membership.

    Attributes:
        registered: The brokers that are live with a new broker epoch, whether they were live before or not.
        gone: The brokers that are not live any more.
        updated: The brokers whose addresses, rack or state changed, with the same broker epoch.
        controller_changed: Whether the cluster has another controller, or none.
    """

    registered: frozenset[int] = frozenset()
    gone: frozenset[int] = frozenset()
    updated: frozenset[int] = frozenset()
    controller_changed: bool = False


class Membership:
    """The live brokers and the controller."""

    __slots__ = ("changes", "controller_id", "listeners", "live")

    def __init__(self) -> None:
        """Begin without live brokers and controller."""
        self.live: Mapping[int, LiveBroker] = {}
        """The live brokers by id, in ascending order. Another object after every change."""
        self.controller_id = NO_CONTROLLER
        """The id of the controller; -1 if there is none."""
        self.changes = 0
        """A number that rises with every change."""
        self.listeners: list[Callable[[MembershipChanges], object]] = []
        """Functions to call after every change, in order. They must not raise."""

    @classmethod
    def of_one(cls, broker_id: int, broker_epoch: int, rack: str | None = None) -> Membership:
        """Return the membership of a broker without a cluster: the broker itself, which is also the controller."""
        membership = cls()
        membership.live = {broker_id: LiveBroker(broker_id, broker_epoch, rack=rack)}
        membership.controller_id = broker_id
        return membership

    def consume(self, image: MetadataImage) -> None:
        """Take the live brokers and the controller in the image, and follow their changes.

        Raises:
            StorageError: An entry cannot be read.
        """
        live = image.consume(LIVE_BROKERS, _live_broker, self._apply_live)
        self.live = _by_id(live.values())
        controllers = image.consume(CONTROLLER_KEY, _controller, self._apply_controller)
        self.controller_id = controllers.get(CONTROLLER_KEY, NO_CONTROLLER)

    @property
    def running(self) -> dict[int, LiveBroker]:
        """The live brokers by id that are not draining: new partitions are placed on them."""
        return {number: each for number, each in self.live.items() if not each.is_draining}

    def epoch_of(self, broker_id: int) -> int | None:
        """Return the broker epoch of a live broker; None if the broker is not live."""
        broker = self.live.get(broker_id)
        return None if broker is None else broker.broker_epoch

    def _apply_live(self, changes: Changes[LiveBroker]) -> None:
        before = self.live
        deleted = {key.removeprefix(LIVE_BROKERS) for key in changes.deletes}
        left = [each for each in before.values() if str(each.broker_id) not in deleted]
        self.live = _by_id([*left, *changes.puts.values()])
        changed = [each for number, each in self.live.items() if before.get(number) != each]
        updated = frozenset(
            each.broker_id
            for each in changed
            if each.broker_id in before and before[each.broker_id].broker_epoch == each.broker_epoch
        )
        registered = frozenset(each.broker_id for each in changed) - updated
        gone = frozenset(before.keys() - self.live.keys())
        self._report(MembershipChanges(registered, gone, updated))

    def _apply_controller(self, changes: Changes[int]) -> None:
        before = self.controller_id
        # The key `controller_epoch` has the same prefix.
        left = NO_CONTROLLER if CONTROLLER_KEY in changes.deletes else before
        self.controller_id = changes.puts.get(CONTROLLER_KEY, left)
        self._report(MembershipChanges(controller_changed=self.controller_id != before))

    def _report(self, changes: MembershipChanges) -> None:
        if changes != _NOTHING:
            self.changes += 1
            for listener in self.listeners:
                listener(changes)


_NOTHING: Final = MembershipChanges()


def _by_id(brokers: Iterable[LiveBroker]) -> dict[int, LiveBroker]:
    return {each.broker_id: each for each in sorted(brokers, key=attrgetter("broker_id"))}


def _live_broker(entry: MetadataEntry) -> LiveBroker:
    record = decode(entry, LiveRecord)
    return LiveBroker(
        broker_id_of(entry.key, LIVE_BROKERS),
        record.broker_epoch,
        record.incarnation,
        record.endpoints,
        record.rack,
        record.state == "draining",
    )


def _controller(entry: MetadataEntry) -> int:
    return decode(entry, ControllerRecord).broker
