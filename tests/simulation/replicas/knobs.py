"""The settings of a simulation run, all from its seed."""

from __future__ import annotations

import random
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Knobs:
    """Settings of one run. Times are in milliseconds of the simulation, probabilities are per message or commit."""

    brokers: int
    racks: int
    """The number of racks; 0 if the brokers have none."""
    topics: int
    busy_ms: int
    """The time with faults. After it all faults end, and the cluster has to settle."""
    faults: int
    """The number of faults."""
    fsync: float
    """The share of topics whose records are synced before they are acknowledged."""
    unclean: float
    """The share of topics with `unclean.leader.election.enable`."""
    lag_ms: int
    lag_messages: int | None
    session_ms: int
    """The time without a connection after which the store ends a session."""
    delay_ms: int
    """The longest usual time of a message between brokers."""
    store_delay_ms: int
    """The longest usual time of a message to or from the store."""
    sync_ms: int
    """The longest usual time of a sync."""
    late: float
    """The probability that a message takes seconds."""
    lost: float
    """The probability that a message does not arrive."""
    twice: float
    """The probability that a message arrives twice."""
    drift: int
    """The greatest deviation of a clock, in milliseconds per second."""
    commit_faults: float
    """The probability that a commit is lost, doubled or late, or its outcome is unknown."""
    records_ms: int
    """The average time between two appends by clients."""
    fetched_records: int
    """The greatest number of records of one partition in a response."""
    partitions_a_commit: int
    """The greatest number of partitions in a commit of the controller."""
    written_back: float
    """The probability that an operating system writes back a log within half a second."""


def draw(seed: int) -> Knobs:
    """Return the settings of a run."""
    chance = random.Random(seed)
    is_clean = chance.random() < 0.05

    def often(most: float) -> float:
        return 0.0 if is_clean or chance.random() < 0.4 else chance.random() * most

    brokers = chance.choice([3, 3, 3, 4, 5])
    lag_ms = chance.choice([500, 1_000, 3_000, 10_000])
    return Knobs(
        brokers=brokers,
        racks=chance.choice([0, 0, 2, brokers]),
        topics=chance.randint(1, 3),
        busy_ms=60_000,
        faults=0 if is_clean else chance.randint(10, 34),
        fsync=chance.choice([0.0, 0.5, 1.0, 1.0]),
        lag_ms=lag_ms,
        lag_messages=chance.choice([None, None, 2]),
        session_ms=chance.choice([2_000, 4_000, 9_000]),
        delay_ms=chance.choice([2, 5, 20]),
        store_delay_ms=chance.choice([2, 5, 40]),
        sync_ms=chance.choice([2, 10, 60]),
        late=often(0.03),
        twice=often(0.1),
        lost=often(0.03),
        drift=chance.choice([0, 0, 1, 20]),
        commit_faults=often(0.2),
        records_ms=chance.choice([100, 200, 400]),
        fetched_records=chance.choice([1, 5, 100]),
        partitions_a_commit=chance.choice([1, 2, 30]),
        written_back=chance.choice([0.05, 0.5, 1.0]),
        unclean=chance.choice([0.0, 0.0, 0.2]),
    )
