"""How long a lease lasts, how often things are looked at, and where a group begins."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from headrace.core.lease.checkpoint import TRIM_HORIZON, Checkpoint
from headrace.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseSettings:
    """Settings of a member of a group; the members of one group must agree on `duration_ms` and `margin_ms`.

    Attributes:
        start: Where a group begins in shards that are there when it begins; None is LATEST, which is turned into the
            time of that moment, once. Shards that come later are read from their beginning.
        starts: By shard, where a group begins elsewhere than at `start`: behind a sequence number, which only the
            shard that it belongs to has.
        duration_ms: How long after a renewal a lease that is not renewed goes to another member.
        renew_ms: How often a lease is renewed; a checkpoint is a renewal, too.
        margin_ms: By how much a holder stops before, and by how much others wait longer. What two clocks may differ
            in speed, over `duration_ms`, has to be below it.
        scan_ms: How often the leases of a group are read; a quarter more or less, by chance.
        asking_ms: The same while another member is asked for a lease: nobody reads the shard between hand-over and
            the next scan. A member that has every shard of a stream does so every `list_ms` instead: its own renewals
            tell it who asks.
        asked_at_once: How many leases a member that has too few asks others for at once.
        max_shards: How many shards a member reads at most; None: as many as there are. Others learn of it by the
            member's name, see `named`.
        list_ms: How often the shards of a stream are listed; besides, whenever a shard ends.
        checkpoint_ms: How often a checkpoint of a shard is written at most, on average; one that leaves nothing to be
            handled again, as all is finished that was begun, may be written half of it earlier.
        retry_ms: How long to wait, on average, after a store did not answer.
        call_timeout_ms: How long a store has to answer; after that the outcome is not known.
        handover_timeout_ms: How long a shard that another member asks for may take to finish what it has begun.
        handover_forced: Whether it is given away then, so that what was not finished comes again at the other
            member; if not, it is given away whenever it has finished.
        drain_timeout_ms: The same for a member that is closed; what is not finished then comes again elsewhere.
        stalled_ms: How long a shard may bring no completed fetch before its reader is restarted; and as long again
            before its lease is given up. None where fetches are not reported (`progressed`).
        rate_ms: Over which time bytes per second are averaged.
    """

    start: Checkpoint | None = TRIM_HORIZON
    starts: Mapping[str, Checkpoint] = field(default_factory=dict)
    duration_ms: int = 30_000
    renew_ms: int = 10_000
    margin_ms: int = 3_000
    scan_ms: int = 10_000
    asking_ms: int = 1_000
    asked_at_once: int = 32
    max_shards: int | None = None
    list_ms: int = 60_000
    checkpoint_ms: int = 1_000
    retry_ms: int = 1_000
    call_timeout_ms: int = 5_000
    handover_timeout_ms: int = 30_000
    handover_forced: bool = True
    drain_timeout_ms: int = 30_000
    stalled_ms: int | None = None
    rate_ms: int = 60_000

    @property
    def reserved_ms(self) -> int:
        """How long a lease that was given to a member is left to it: it looks every `asking_ms`, or has died."""
        return self.asking_ms + self.call_timeout_ms

    def __post_init__(self) -> None:
        numbers = {name: getattr(self, name) for name in (*self.__slots__,)}
        for name, value in numbers.items():
            if isinstance(value, int) and not isinstance(value, bool) and value < 1:
                raise ConfigError(f"{name} is {value}: it has to be 1 or more")
        if 2 * self.checkpoint_ms > self.duration_ms:
            raise ConfigError(
                f"checkpoint_ms={self.checkpoint_ms} is too much for leases of duration_ms={self.duration_ms}, which "
                "are renewed with every checkpoint: it has to be half of it at most"
            )
        if self.renew_ms + self.call_timeout_ms + self.margin_ms >= self.duration_ms:
            raise ConfigError(
                f"a lease of duration_ms={self.duration_ms} ends before a renewal can be repeated: "
                f"it has to be longer than renew_ms={self.renew_ms}, call_timeout_ms={self.call_timeout_ms} "
                f"and margin_ms={self.margin_ms} together"
            )
