"""What decides how a batch is divided into tasks."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from headrace.spark.options.source import SourceOptions

WORTH_A_TASK: Final = 100_000
"""Offsets that take a few times as long to read as a task takes to start, unless records are very small or large."""
LEAST_OF_A_TASK: Final = 2_000
"""Offsets that are read in less time than Spark takes to start another task and the Python worker beside it."""
_BEFORE: Final = {"worth": 20_000}
"""In checkpoints that do not say."""


@dataclass(frozen=True)
class TaskDivision:
    """What decides how a batch is divided into tasks.

    A stream's checkpoint keeps it with each batch: one that is run again, by another driver or with other options,
    has the same tasks, so that a sink may go by a task's number.
    """

    cores: int
    """Small ranges share as many tasks as this."""
    max_tasks: int | None = None
    """Never more tasks than this, however long they are."""
    min_partitions: int | None = None
    max_records: int | None = None
    worth: int = WORTH_A_TASK
    """There are more tasks than cores if they would have more offsets than this."""
    least: int = 1
    """There are fewer tasks than cores if they would have fewer offsets than this."""

    def to_json(self) -> dict[str, int]:
        """Return the form that checkpoints hold."""
        return {name: value for name, value in vars(self).items() if value is not None}

    @classmethod
    def from_json(cls, encoded: Mapping[str, Any]) -> TaskDivision:
        """Read what `to_json` returned."""
        return cls(**{**_BEFORE, **{name: int(value) for name, value in encoded.items()}})

    @classmethod
    def of(cls, options: SourceOptions) -> TaskDivision:
        """Return what the options say, and this machine where they are silent."""
        return cls(
            options.max_tasks or _cores(),
            options.max_tasks,
            options.min_partitions,
            options.max_records_per_partition,
            least=LEAST_OF_A_TASK,
        )


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):  # not on every system
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
