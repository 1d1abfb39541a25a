"""The values that a seed determines: the settings of the log, and its program, a list of steps."""

from __future__ import annotations

import random
from typing import NamedTuple

from headrace.core.log import LogConfig

STEPS = {
    "append": 14,
    "append_idempotent": 8,
    "transact": 10,
    "end_transaction": 6,
    "retry": 2,
    "replicate": 22,
    "replicate_refused": 2,
    "elect": 3,
    "truncate": 9,
    "truncate_fully": 1,
    "roll": 4,
    "seal": 6,
    "sync": 12,
    "begin_sync": 5,
    "run_sync": 4,
    "end_sync": 5,
    "fail_sync": 1,
    "advance_high_watermark": 8,
    "save_caches": 3,
    "checkpoint": 2,
    "clean": 8,
    "delete_records": 2,
    "retain": 2,
    "pass_time": 4,
    "refuse_operation": 2,
    "arm": 6,
    "cut_power": 2,
    "kill": 2,
    "restart": 3,
    "check": 3,
}
"""The steps and their weights."""
LENGTHS = (15, 40, 80, 120)


class Step(NamedTuple):
    """One step of a program. The seed determines everything that is random in it."""

    name: str
    seed: int


class Knobs:
    """The settings of one run."""

    def __init__(self, seed: int) -> None:
        chance = random.Random(f"log {seed}")
        kind = chance.choice(["plain", "plain", "plain", "compacts", "compacts", "expires"])
        self.config = LogConfig(
            segment_bytes=chance.choice([300, 700, 1500, 1 << 20]),
            index_interval_bytes=chance.choice([1, 150, 4096]),
            retention_ms=-1,
            retention_bytes=chance.choice([-1, -1, 1500]),
            compacts=kind == "compacts",
            expires=kind == "expires",
            min_cleanable_dirty_ratio=0.0,
            delete_retention_ms=chance.choice([0, 50, 10**9]),
        )
        self.in_memory = chance.random() < 0.08
        """Whether the log is on a storage in memory, which knows no power cuts."""
        self.caches_after_bytes = chance.choice([200, 16 << 20])
        self.visible_when_synced = chance.random() < 0.7
        """Whether the high watermark stays below the synced offset, as with durability `fsync`."""
        self.is_replicated = chance.random() < 0.9
        """Whether a start uses the stored high watermark."""
        self.unclean = chance.random() < 0.3
        """Whether the high watermark may be lower after a restart, as after an unclean election."""
        weights = {name: weight * chance.choice([0, 1, 1, 2]) for name, weight in STEPS.items()}
        weights["replicate"] += 1
        self.program = [
            Step(name, chance.randrange(1 << 32))
            for name in chance.choices(
                list(weights), list(weights.values()), k=chance.choice(LENGTHS)
            )
        ]
