"""The settings of a simulation run, all from its seed."""

from __future__ import annotations

import random
from dataclasses import dataclass

from headrace.core.lease.checkpoint import TRIM_HORIZON
from headrace.core.lease.settings import LeaseSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class Knobs:
    """Settings of one run. Probabilities are per request; times are in milliseconds of the simulation's clock."""

    is_clean: bool
    """Whether the run has no faults; members only join and leave."""
    is_latest: bool
    streams: int
    shards: int
    members: int
    joins: int
    leaves: int
    kills: int
    pauses: int
    reshards: int
    lost_requests: float
    lost_replies: float
    late: float
    """The probability that a request is executed after its client has stopped waiting for the response."""
    twice: float
    """The probability that a request is executed again, later."""
    stalls: float
    """The probability that a process pauses right after a request, so that the response has to wait."""
    cuts: int
    """The number of times that one member cannot reach the store for longer than the lease time."""
    throttled: int
    """The number of times that the store does not respond for some seconds."""
    slow_handlers: bool
    drift: float
    wall_offset_ms: int
    has_rates: bool
    has_bounds: bool
    """Whether some members have a limit of leases. After the faults at least one member has none."""
    trims: bool
    busy_ms: int
    """The time with events and faults. After it the run has to settle."""
    settings: LeaseSettings


def draw(seed: int) -> Knobs:
    """Return the settings of a run."""
    chance = random.Random(seed)
    clean = chance.random() < 0.25
    duration_ms = chance.choice([12_000, 20_000, 30_000])

    def often(most: float) -> float:
        return 0.0 if clean or chance.random() < 0.4 else chance.random() * most

    def times(most: int) -> int:
        return 0 if clean else chance.randrange(most + 1)

    latest = chance.random() < 0.35
    return Knobs(
        is_clean=clean,
        is_latest=latest,
        streams=1 if chance.random() < 0.8 else 2,
        shards=chance.randint(1, 6),
        members=chance.randint(1, 3),
        joins=chance.randrange(3),
        leaves=chance.randrange(3),
        kills=times(2),
        pauses=times(4),
        reshards=chance.randrange(6),
        lost_requests=often(0.1),
        lost_replies=often(0.1),
        late=often(0.05),
        twice=often(0.05),
        stalls=often(0.02),
        cuts=times(2),
        throttled=times(2),
        slow_handlers=not clean and chance.random() < 0.2,
        drift=chance.choice([0.0, 0.005, 0.02]),
        wall_offset_ms=chance.choice([0, 3_000, 90_000]),
        has_rates=chance.random() < 0.5,
        trims=chance.random() < 0.5,
        has_bounds=random.Random(seed + 2).random() < 0.3,
        busy_ms=chance.randint(40_000, 120_000),
        settings=LeaseSettings(
            start=None if latest else TRIM_HORIZON,
            duration_ms=duration_ms,
            renew_ms=duration_ms // 3,
            margin_ms=duration_ms // 10,
            scan_ms=duration_ms // 3,
            list_ms=chance.choice([20_000, 60_000]),
            checkpoint_ms=chance.choice([1_000, 3_000]),
            retry_ms=chance.choice([500, 1_000]),
            call_timeout_ms=duration_ms // 6,
            handover_timeout_ms=chance.choice([5_000, 30_000]),
            handover_forced=chance.random() < 0.8,
            drain_timeout_ms=chance.choice([5_000, 30_000]),
            stalled_ms=chance.choice([None, 20_000]),
        ),
    )
