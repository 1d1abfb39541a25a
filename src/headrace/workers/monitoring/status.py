"""The status of workers, for health checks and metrics."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from headrace.types import PartitionStatus
from headrace.workers.monitoring.counters import Counters

WorkerState = Literal["starting", "running", "waiting", "stopping", "stopped", "failed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerStatus:
    """The status of one worker."""

    name: str
    group: str
    state: WorkerState
    """The state of the worker. "starting" is until it has joined its group. "waiting" means that it cannot read: no
    broker answers, a topic does not exist, or the group does not accept the member. "stopped" is before and after a
    run."""
    error: str | None = None
    """The reason for the state "failed" or "waiting"; None in other states."""
    counters: Counters
    """The counters at this moment."""
    partitions: list[PartitionStatus] = field(default_factory=list)
    """The partitions that are assigned to this worker."""

    @property
    def healthy(self) -> bool:
        """Whether the worker runs and can read all its partitions."""
        return self.state == "running" and not any(each.error for each in self.partitions)

    @property
    def lag_ms(self) -> int | None:
        """The largest lag of a Kinesis shard in milliseconds; None if no lag is known."""
        lags = [each.lag_ms for each in self.partitions if each.lag_ms is not None]
        return max(lags, default=None)

    @property
    def lag_records(self) -> int | None:
        """The sum of the lags of all topic partitions in records; None if no lag is known."""
        lags = [each.lag_records for each in self.partitions if each.lag_records is not None]
        return sum(lags) if lags else None

    def as_dict(self) -> dict[str, Any]:
        """Return the fields and the properties as a dictionary for JSON."""
        own = {"healthy": self.healthy, "lag_ms": self.lag_ms, "lag_records": self.lag_records}
        return {**asdict(self), **own}
