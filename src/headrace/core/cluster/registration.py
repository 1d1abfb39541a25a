"""The registration of a broker of a cluster, and its lease.

The metadata store ends the session of a broker that has sent nothing for the session timeout. Then other brokers
lead the partitions. The broker itself may learn this late: it was paused, or its connection is broken. So the broker
counts from the newest write that the store has acknowledged, and knows by its own clock for how long its session lasts
at least. That time is the lease. No safety depends on it: an old leader cannot commit records, because its followers
follow the new leader. But a record with `acks=1` is acknowledged without them.

    INIT      The broker has not registered.
    ACTIVE    The broker has registered, and its lease lasts.
    SUSPECT   The lease has ended: the session may have ended, too. Requests with acks=1 wait like those with acks=all.
    EXPIRED   The session has ended. The broker has no role until it has registered again, with the next broker epoch.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

from headrace.ports import MetadataSession

HEARTBEATS: Final = 6
"""The number of heartbeats in the session timeout. The broker writes so long after its last acknowledged write."""
_LEASE: Final = 2
"""The number of leases in the session timeout. The lease begins with the sending of an acknowledged write.

A store may count the session timeout from an earlier message (one heartbeat), and in steps, two of which are up to a
quarter of it. The clocks of store and broker may differ a little, and the broker needs time to act."""


class RegistrationState(Enum):
    """The state of a registration."""

    INIT = "init"
    ACTIVE = "active"
    SUSPECT = "suspect"
    EXPIRED = "expired"


class Registration:
    """The registration of one process of a broker."""

    __slots__ = ("_session", "_until_ms", "broker_epoch")

    def __init__(self) -> None:
        """Begin in the state INIT."""
        self.broker_epoch: int | None = None
        """The broker epoch of the last registration; None before the first one."""
        self._session: int | None = None
        """The number of the session with the live entry; None without one."""
        self._until_ms: int | None = None
        """The end of the lease; None if the store is in this process, where the lease does not end."""

    def registered(self, broker_epoch: int, session: MetadataSession) -> None:
        """Note that the broker has registered in a session of the metadata store."""
        self.broker_epoch, self._session = broker_epoch, session.number
        self.renewed(session)

    def renewed(self, session: MetadataSession) -> None:
        """Note what is known of the session. If another session has begun, the registration has expired."""
        if session.number != self._session:
            self._session = None
        elif session.acknowledged_ms is None:
            self._until_ms = None
        else:
            self._until_ms = session.acknowledged_ms + session.timeout_ms // _LEASE

    def expired(self) -> None:
        """Note that the session has ended, or that its live entry is gone."""
        self._session = None

    @property
    def until_ms(self) -> int | None:
        """The end of the lease; None if the lease does not end, or has no session."""
        return None if self._session is None else self._until_ms

    def state(self, now_ms: int) -> RegistrationState:
        """Return the state at a time."""
        if self.broker_epoch is None:
            return RegistrationState.INIT
        if self._session is None:
            return RegistrationState.EXPIRED
        is_suspect = self._until_ms is not None and now_ms >= self._until_ms
        return RegistrationState.SUSPECT if is_suspect else RegistrationState.ACTIVE


def next_heartbeat_ms(session: MetadataSession) -> int | None:
    """Return the time at which the broker has to write something again; None if the store is in this process."""
    acknowledged_ms = session.acknowledged_ms
    return None if acknowledged_ms is None else acknowledged_ms + heartbeat_interval_ms(session)


def heartbeat_interval_ms(session: MetadataSession) -> int:
    """Return the time between two heartbeats in milliseconds."""
    return session.timeout_ms // HEARTBEATS
