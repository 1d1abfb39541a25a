"""The settings of leases: duration, intervals, and the positions at which a group begins."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from headrace.core.lease.checkpoint import TRIM_HORIZON, Checkpoint
from headrace.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseSettings:
    """Settings of a member of a group. All members of a group must have the same `duration_ms` and `margin_ms`.

    All times are in milliseconds.

    Attributes:
        start: The position at which a group begins in shards that exist when the group begins. None is LATEST: the
            first member replaces it by the present time. Shards that appear later are read from their first record.
        starts: Positions, by shard, at which the group begins instead of `start`. A sequence number is only valid in
            its own shard.
        duration_ms: The lease time, counted from the last renewal. The owner stops `margin_ms` before its end. Others
            may take the lease `margin_ms` after it.
        renew_ms: The time between renewals. A checkpoint is a renewal, too.
        margin_ms: The safety margin for clocks of different speed. Two clocks must differ by less than this within
            `duration_ms`.
        scan_ms: The average time between scans of the leases; each interval is longer or shorter by up to a quarter.
        asking_ms: The time between scans while this member asks another for a lease, because no member reads the shard
            between the transfer and the next scan. A member that owns every shard of a stream scans every `list_ms`
            instead: the responses to its renewals show which member asks.
        asked_at_once: The number of leases for which a member with too few leases asks at the same time.
        max_shards: The most shards that a member reads; None: no limit. Other members learn the limit from the
            member's name, see `named`.
        list_ms: The time between listings of the shards of a stream. A shard that ends causes a listing, too.
        checkpoint_ms: The least average time between two checkpoints of a shard. A checkpoint may come up to half of
            this earlier if all records that were begun are finished: then a crash repeats no record.
        retry_ms: The average pause after a store did not answer.
        call_timeout_ms: The time limit of a call to the store. After it the outcome of the call is unknown.
        handover_timeout_ms: The time limit for the records in progress of a shard that another member asks for.
        handover_forced: Whether the lease is transferred at that time limit: then the new owner handles the unfinished
            records again. If false, the lease is transferred when the records are finished.
        drain_timeout_ms: The time limit for the records in progress of a member that is closed. Unfinished records are
            handled again by other members.
        stalled_ms: The time without a completed fetch after which the member restarts the reader of a shard; after the
            same time again the member gives the lease up. None: fetches are not reported (`progressed`).
        rate_ms: The time over which bytes per second are averaged.
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
        """Milliseconds that a transferred lease is reserved for its new owner, which scans every `asking_ms`."""
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
