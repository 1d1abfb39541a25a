"""The parameters by which a batch is divided into tasks."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from headrace.spark.options.source import SourceOptions

TASK_OFFSETS: Final = 100_000
"""The offsets for which reading takes a few times as long as starting a task, for records of usual size."""
LEAST_TASK_OFFSETS: Final = 2_000
"""The offsets for which reading takes less time than starting a task with its Python worker."""
_BEFORE: Final = {"worth": 20_000}
"""The values for checkpoints of earlier versions, which do not contain them."""


@dataclass(frozen=True)
class TaskDivision:
    """The parameters by which a batch is divided into tasks.

    A stream's checkpoint stores them with each batch. So a repeated batch has the same tasks, even with another driver
    or other options, and a sink may identify a task by its number.
    """

    cores: int
    """The number of tasks that small ranges share."""
    max_tasks: int | None = None
    """The most tasks, of any size; None is no limit."""
    min_partitions: int | None = None
    max_records: int | None = None
    worth: int = TASK_OFFSETS
    """The most offsets of a task. If there are more, the batch has more tasks than cores."""
    least: int = 1
    """The least offsets of a task. If there are fewer, the batch has fewer tasks than cores."""

    def to_json(self) -> dict[str, int]:
        """Encode the parameters for a checkpoint."""
        return {name: value for name, value in vars(self).items() if value is not None}

    @classmethod
    def from_json(cls, encoded: Mapping[str, Any]) -> TaskDivision:
        """Read what `to_json` returned."""
        return cls(**{**_BEFORE, **{name: int(value) for name, value in encoded.items()}})

    @classmethod
    def of(cls, options: SourceOptions) -> TaskDivision:
        """Return the parameters for these options. Without `maxTasks` the machine's number of cores counts."""
        return cls(
            options.max_tasks or _cores(),
            options.max_tasks,
            options.min_partitions,
            options.max_records_per_partition,
            least=LEAST_TASK_OFFSETS,
        )


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):  # not on every system
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
