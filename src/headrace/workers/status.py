"""The status of workers, for health checks and metrics."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from headrace.types import PartitionStatus
from headrace.workers.counters import Counters

WorkerState = Literal["starting", "running", "waiting", "stopping", "stopped", "failed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerStatus:
    """The status of one worker."""

    name: str
    group: str
    state: WorkerState
    """"starting" until it asks its group for partitions; "waiting" while it cannot read what it should: no broker
    answers, a topic does not exist, it has no place in its group; "stopped" before and after."""
    error: str | None = None
    """The reason for the state "failed" or "waiting"; None in other states."""
    counters: Counters
    """The counters at this moment."""
    partitions: list[PartitionStatus] = field(default_factory=list)
    """The partitions that are assigned to this worker."""

    @property
    def healthy(self) -> bool:
        """Whether it is running, and all its partitions can be read."""
        return self.state == "running" and not any(each.error for each in self.partitions)

    @property
    def lag_ms(self) -> int | None:
        """The lag of the shard that is furthest behind; None where that is not known of any."""
        lags = [each.lag_ms for each in self.partitions if each.lag_ms is not None]
        return max(lags, default=None)

    @property
    def lag_records(self) -> int | None:
        """The lag of all partitions of topics together; None where that is not known of any."""
        lags = [each.lag_records for each in self.partitions if each.lag_records is not None]
        return sum(lags) if lags else None

    def as_dict(self) -> dict[str, Any]:
        """Return it for JSON, with what the properties say."""
        own = {"healthy": self.healthy, "lag_ms": self.lag_ms, "lag_records": self.lag_records}
        return {**asdict(self), **own}
