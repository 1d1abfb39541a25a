"""The values that a seed determines: settings, faults and their rates. Most seeds leave most faults out."""

from __future__ import annotations

import random
from typing import Any

from tests.simulation.machine import DOWN_MS
from tests.simulation.network import Weather

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
"""Rate of each fault, per second of virtual time."""
PAUSES_MS = (50, 500, 2000)
SWOONS_MS = (300, 1500)
"""For how long a member is stopped that has a successor when it wakes up."""
VACANT_MS = (0, 100, 1000)
"""For how long the place of a member that died stays empty."""
STALLS_MS = (30, 300, 900)
CODECS = ("uncompressed", "gzip", "snappy", "lz4", "zstd")
CALL_LIMIT_MS = 2_000
"""How long a call of a program may take."""
CATCHING_UP_MS = 4_000
"""The transactions in which what has piled up is worked on; there are some tens, and no faults any more."""


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
        """How long a member may go without a poll, and the group waits for it."""
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
        codecs = random.Random(f"codecs {seed}")  # of its own, so that the other knobs stay
        self.topic["compression.type"] = codecs.choice(["producer", "producer", *CODECS])
        self.codec_ms = codecs.choice([0, 1, 30, 200])
        """How long a thread of the broker may take to compress a batch; 0 when it has no threads."""
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
        self.weather = Weather(
            delay_ms=chance.choice([1, 3, 10]), spike=chance.choice([0.0, 0.0, 0.02])
        )
        self.duration_ms = 5_000
        self.calm = False
        """Whether the faults have ended, and programs do nothing but finish their work."""
        self.faults = {
            name: rate * chance.choice([0, 0.3, 1, 1, 2]) for name, rate in FAULTS.items()
        }
        if self.durability != "fsync":
            self.faults["power"] = (
                0.0  # what was acknowledged may go with it: that is what was asked for
            )
        self.careless = chance.random() < 0.4
        """Whether there is a producer that does not wait for its batches."""
        self._generations = chance.choice(["all old", "all new", "mixed"])

    @property
    def settling_ms(self) -> int:
        """Return the longest time that everything in flight may take after the faults end, one after the other, in
        milliseconds."""
        return sum(
            {
                "who is stopped, or has died, comes back": max(PAUSES_MS + SWOONS_MS + VACANT_MS),
                "what is in flight arrives": max(STALLS_MS) + self.weather.longest_ms,
                "the broker starts": max(DOWN_MS),
                "the call that went wrong ends": CALL_LIMIT_MS,
                "the next one finds the broker": CALL_LIMIT_MS,
                "a member that is gone is missed": self.session_ms,
                "the group waits for a member": self.rebalance_ms,
                "which comes again when it was left out": self.rebalance_ms,
                "a transaction that nobody ends is aborted": max(self.transactions_ms),
                "what has piled up is worked on": CATCHING_UP_MS,
            }.values()
        )

    def speaks_v2(self, name: str) -> bool:
        """Whether a process shall use the second generation of the transaction protocol."""
        if self._generations == "mixed":
            return random.Random(f"{self.seed} {name}").random() < 0.5
        return self._generations == "all new"
