"""The values that a seed determines for a run with several brokers."""

from __future__ import annotations

import random
from typing import Any

from tests.simulation.knobs import Knobs

BROKERS = 3
BROKER_FAULTS = {
    "kill a broker": 0.2,
    "cut the power of a broker": 0.2,
    "stop a broker": 0.1,
    "kill all brokers": 0.05,
    "pause a broker": 0.2,
    "cut a link": 0.3,
    "lose messages": 0.3,
    "cut the store": 0.15,
}
"""The rate of each fault of brokers, per second of virtual time."""
CLIENT_FAULTS = ("cut", "stall", "pause", "die", "repeat")
DOWN_MS = (0, 50, 500, 4_000)
"""The times from the end of a broker to its start, in milliseconds. Sessions expire in the longest one."""
BROKER_PAUSES_MS = (20, 300, 4_000)
OUTAGES_MS = (50, 500, 4_000)
"""The durations of cuts between brokers, and from the store, in milliseconds."""
SETTLING_MS = 30_000
"""The longest time in which replicas are in sync again after the faults, in milliseconds."""
BACKLOG_MS = 60_000
"""The longest time in which members copy the backlog, in milliseconds: ten records take up to 0.4 s."""


class ClusterKnobs(Knobs):
    """The settings of one run."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        chance = random.Random(f"brokers {seed}")
        self.session_timeout_ms = chance.choice([1_500, 3_000])
        """The time after which the metadata store ends the session of a broker, in milliseconds."""
        self.link_ms = chance.choice([1, 5, 30])
        """The longest delay between brokers, in milliseconds."""
        self.store_ms = chance.choice([1, 5, 50])
        """The longest delay to the metadata store, in milliseconds."""
        self.duration_ms = 8_000
        self.raw_producers = self.careless = False
        self.client["bootstrap_servers"] = ",".join(
            f"10.0.0.{broker_id}:9092" for broker_id in range(1, BROKERS + 1)
        )
        self.broker.update(
            {
                # The run is shorter than the default, 30 s, within which a slow follower stays in the ISR.
                "replica_lag_time_max_ms": chance.choice([1_000, 30_000]),
                "min_insync_replicas": chance.choice([1, 2]),
                "default_replication_factor": BROKERS,
            }
        )
        self.broker_faults = {
            name: rate * chance.choice([0, 0.5, 1, 1, 2]) for name, rate in BROKER_FAULTS.items()
        }
        self.client_faults = {name: self.faults[name] / 2 for name in CLIENT_FAULTS}
        if self.durability != "fsync":
            self.broker_faults["cut the power of a broker"] = 0.0

    @property
    def settling_ms(self) -> int:
        """The longest time that a run needs to settle after the faults, in milliseconds."""
        return super().settling_ms + SETTLING_MS + BACKLOG_MS

    @property
    def options(self) -> dict[str, Any]:
        """The settings of each broker."""
        return self.broker
