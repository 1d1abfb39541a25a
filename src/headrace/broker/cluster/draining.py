"""A controlled shutdown: other brokers lead the partitions of a broker before it ends.

1. The broker writes the state "draining" to its live entry. It continues to serve.
2. The controller, which may be this broker, elects other leaders for the partitions that the broker leads.
3. When the broker leads no partition that another broker could lead, the shell closes the broker.

A partition whose other replicas are not in sync is waited for: a replica may join the ISR meanwhile. The shell limits
the time.
"""

from __future__ import annotations

from headrace.broker.cluster.member import Member
from headrace.broker.replication.replicas import Replicas


class Draining:
    """The controlled shutdown of this broker."""

    __slots__ = ("_announcement", "_member", "_replicas")

    def __init__(self, member: Member, replicas: Replicas) -> None:
        """Announce the shutdown to the other brokers."""
        self._member = member
        self._replicas = replicas
        self._announcement = member.set_state("draining")

    @property
    def partitions_left(self) -> int | None:
        """The number of led partitions that another running broker has a replica of; None while this is not known.

        0 also if the store has not taken the announcement.
        """
        if not self._announcement.done:
            return None
        if self._announcement.value is not None:
            return 0
        live = self._member.membership.live.values()
        running = {each.broker_id for each in live if not each.is_draining}
        running.discard(self._replicas.broker_id)
        led = self._replicas.replicated
        return sum(not running.isdisjoint(partition.newest.replicas) for partition in led)
