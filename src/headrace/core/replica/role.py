"""The role of a replica: a function of the newest state of its partition.

Each state is complete, so a broker may skip states. It never goes back: a state with an older leader epoch is ignored.
"""

from __future__ import annotations

from enum import Enum
from typing import Final, NamedTuple

NO_LEADER: Final = -1
"""The leader of a partition that no broker leads."""
NO_EPOCH: Final = -1
"""The leader epoch of a replica that has no role yet."""
NO_REGISTRATION: Final = -1
"""The broker epoch of a broker that is not registered. All its replicas are offline."""


class Role(Enum):
    """The role of a replica."""

    LEADER = "leader"
    """The broker takes appends, and serves clients and followers."""
    FOLLOWER = "follower"
    """The broker copies the log of the leader."""
    OFFLINE = "offline"
    """No broker leads the partition, or the leader is an earlier process of this broker; or this broker is not
    registered."""


class Leadership(NamedTuple):
    """The leader of a partition.

    Attributes:
        leader: The broker id of the leader; -1 if no broker leads the partition.
        leader_epoch: The leader epoch. Each change of the leader increments it.
        isr: The broker ids of the in-sync replicas.
        registration: The broker epoch of the leader's process.
        elr: The broker ids of the eligible leader replicas.
        replicas: The broker ids of all replicas, in the order of the topic's entry.
        unclean_epoch: The leader epoch that the last unclean election began; -1 if there was none.
    """

    leader: int
    leader_epoch: int
    isr: frozenset[int]
    registration: int
    elr: frozenset[int] = frozenset()
    replicas: tuple[int, ...] = ()
    unclean_epoch: int = NO_EPOCH


UNKNOWN_LEADERSHIP: Final = Leadership(NO_LEADER, NO_EPOCH, frozenset(), 0)
"""The leadership of a partition whose state is not known yet."""


def next_role(
    present_epoch: int, newest: Leadership, *, broker_id: int, registration: int
) -> Role | None:
    """Return the role of a replica in the leader epoch of a state; None if the state is older than the present role.

    Args:
        present_epoch: The leader epoch of the present role.
        newest: The newest state of the partition that the broker knows.
        broker_id: The broker that has the replica.
        registration: The broker epoch of the broker's process; -1 while it is not registered.
    """
    if newest.leader_epoch < present_epoch:
        return None
    if registration == NO_REGISTRATION:
        return Role.OFFLINE
    if newest.leader == broker_id:
        return Role.LEADER if newest.registration == registration else Role.OFFLINE
    return Role.OFFLINE if newest.leader == NO_LEADER else Role.FOLLOWER
