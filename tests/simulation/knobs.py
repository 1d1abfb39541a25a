"""The values that a seed determines: settings, faults and their rates. Most seeds leave most faults out."""

from __future__ import annotations

import random
from typing import Any

from tests.simulation.machine import DOWN_MS
from tests.simulation.network import NetworkConditions

FAULTS = {
    "power": 1.0,
    "kill": 1.0,
    "cut": 4.0,
    "stall": 3.0,
    "pause": 2.0,
    "die": 1.5,
    "repeat": 10.0,
    "marker": 3.0,
}
"""The rate of each fault, per second of virtual time."""
PAUSES_MS = (50, 500, 2000)
LONG_PAUSES_MS = (300, 1500)
"""The durations of a pause, in milliseconds, after which a member finds that it was replaced."""
REPLACEMENT_DELAYS_MS = (0, 100, 1000)
"""The times from the end of a member to the start of its replacement, in milliseconds."""
STALLS_MS = (30, 300, 900)
CODECS = ("uncompressed", "gzip", "snappy", "lz4", "zstd")
CALL_LIMIT_MS = 2_000
"""The time-out of a program's calls, in milliseconds."""
CATCHING_UP_MS = 4_000
"""The time in which members process the backlog in some tens of transactions without faults, in milliseconds."""


class Knobs:
    """The settings of one run."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        chance = random.Random(f"knobs {seed}")
        self.inputs = chance.choice([1, 2, 3])
        self.outputs = chance.choice([1, 2, 3])
        self.members = chance.choice([2, 2, 3])
        self.produce_ms = chance.choice([20, 60, 150])
        self.session_ms = chance.choice([400, 800, 1500])
        self.rebalance_ms = 3 * self.session_ms
        """`max.poll.interval.ms`, for which the group waits for a member."""
        self.transaction_ms = chance.choice([150, 400, 1000])
        self.transactions_ms = (self.transaction_ms, 3 * self.transaction_ms)
        """The time-outs of members' transactions."""
        self.assignor = chance.choice(["range", "roundrobin", "cooperative-sticky"])
        self.new_groups = chance.random() < 0.4
        """Whether members use the protocol of KIP-848."""
        self.membership: dict[str, Any] = {"group_protocol": "consumer"}
        if not self.new_groups:
            self.membership = {
                "session_timeout_ms": self.session_ms,
                "heartbeat_interval_ms": self.session_ms // 4,
            }
        self.durability = chance.choice(["fsync", "fsync", "fsync", "interval:50", "os"])
        self.sync_ms = chance.choice([0, 2, 20, 100])
        self.topic = {
            "segment.bytes": chance.choice(["1024", "1024", "1048576"]),
            "index.interval.bytes": chance.choice(["1", "100", "4096"]),
            "headrace.durability": self.durability,
        }
        codecs = random.Random(f"codecs {seed}")  # a separate source, so that the other values stay
        self.topic["compression.type"] = codecs.choice(["producer", "producer", *CODECS])
        self.codec_ms = codecs.choice([0, 1, 30, 200])
        """The longest time in which a thread compresses a batch, in milliseconds; 0 if the broker has no threads."""
        self.client: dict[str, Any] = {
            "bootstrap_servers": "127.0.0.1:9092",
            "request_timeout_ms": chance.choice([300, 600, 1500]),
            "socket_connection_setup_timeout_ms": 500,
            "retry_backoff_ms": chance.choice([2, 10, 30]),
            "retry_backoff_max_ms": 100,
        }
        self.broker = {
            "offsets_topic_num_partitions": 1,
            "transaction_state_log_num_partitions": chance.choice([1, 2]),
            "offsets_topic_segment_bytes": chance.choice([1024, 1 << 20]),
            "transaction_state_log_segment_bytes": chance.choice([1024, 1 << 20]),
            "group_initial_rebalance_delay_ms": chance.choice([0, 100]),
            "group_min_session_timeout_ms": 10,
            "group_consumer_session_timeout_ms": self.session_ms,
            "group_consumer_heartbeat_interval_ms": self.session_ms // 4,
            "producer_id_expiration_ms": chance.choice([86_400_000, 8_000]),
            "log_cleaner_backoff_ms": chance.choice([300, 15_000]),
            "log_retention_check_interval_ms": chance.choice([1000, 300_000]),
        }
        self.conditions = NetworkConditions(
            delay_ms=chance.choice([1, 3, 10]), spike=chance.choice([0.0, 0.0, 0.02])
        )
        self.duration_ms = 5_000
        self.calm = False
        """Whether the faults have ended, and programs only finish their work."""
        self.faults = {
            name: rate * chance.choice([0, 0.3, 1, 1, 2]) for name, rate in FAULTS.items()
        }
        if self.durability != "fsync":
            self.faults["power"] = (
                0.0  # with this durability a power cut may lose acknowledged data
            )
        self.careless = chance.random() < 0.4
        """Whether there is a producer that does not wait for its batches."""
        self.raw_producers = True
        """Whether some producers send each request by themselves, to the only broker."""
        self._generations = chance.choice(["all old", "all new", "mixed"])
        self.loads_in_steps = random.Random(f"loading {seed}").random() < 0.5
        """Whether the broker handles requests while it loads the coordinators, as it does with large ones."""

    @property
    def settling_ms(self) -> int:
        """The longest time that a run needs to settle after the faults: the sum of the steps, in milliseconds."""
        return sum(
            {
                "paused and killed members continue": max(
                    PAUSES_MS + LONG_PAUSES_MS + REPLACEMENT_DELAYS_MS
                ),
                "requests in flight arrive": max(STALLS_MS) + self.conditions.longest_ms,
                "the broker starts": max(DOWN_MS),
                "a call that fails times out": CALL_LIMIT_MS,
                "the next call finds the broker": CALL_LIMIT_MS,
                "the session of a missing member expires": self.session_ms,
                "a rebalance waits for a member": self.rebalance_ms,
                "a member that was left out joins again": self.rebalance_ms,
                "an abandoned transaction times out": max(self.transactions_ms),
                "the backlog is processed": CATCHING_UP_MS,
            }.values()
        )

    def speaks_v2(self, name: str) -> bool:
        """Return whether a process uses transaction version 2."""
        if self._generations == "mixed":
            return random.Random(f"{self.seed} {name}").random() < 0.5
        return self._generations == "all new"
