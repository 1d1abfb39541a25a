"""A streaming query without Spark, which calls the reader like Spark's driver: offsets, tasks, commits, restarts."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from headrace.spark.kinesis.connections import shared_connections
from headrace.spark.kinesis.options import read_options
from headrace.spark.kinesis.planner import RoundPlanner
from headrace.spark.kinesis.stream import KinesisStreamReader
from headrace.testing.kinesis import FakeAws

KEYS = 1 << 128


@dataclass
class Query:
    """Runs batch by batch. `checkpoint` has the content of Spark's checkpoint."""

    given: Mapping[str, str]
    available_now: bool = True
    clock: Callable[[], int] | None = None
    """The driver's clock; None is the machine's clock."""
    checkpoint: list[str] = field(default_factory=list)
    """The offsets that were logged, each before its batch was read."""
    done: int = 0
    """The number of logged offsets whose batches are finished."""
    batches: list[list[str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.restart()

    def restart(self, *, available_now: bool | None = None, **changed: str) -> None:
        """Restart the query with a new reader, as a new driver does."""
        self.given = {**self.given, **changed}
        options = read_options(self.given, streaming=True)
        self.reader = KinesisStreamReader(options)
        if self.clock is not None:
            self.reader._planner = RoundPlanner(options, shared_connections(), self.clock)
        if self.available_now if available_now is None else available_now:
            self.reader.prepareForTriggerAvailableNow()
        self.reader.initialOffset()
        self.first = self.reader.initialOffset()

    @property
    def end(self) -> dict[str, Any]:
        """Return the last logged offset, or the initial offset."""
        return dict(json.loads(self.checkpoint[-1])) if self.checkpoint else self.first

    def plan(self) -> bool:
        """Request the next batch and log its offset. Return whether there is one."""
        limit = self.reader.getDefaultReadLimit()
        start = self.end
        end = json.loads(json.dumps(self.reader.latestOffset(start, limit)))
        if end == start:
            return False
        self.checkpoint.append(json.dumps(end))
        if len(self.checkpoint) > 1:
            self.reader.commit(json.loads(self.checkpoint[-2]))
        return True

    def tasks(self) -> list[Any]:
        """Return the tasks of the batch that was logged last."""
        start = json.loads(self.checkpoint[-2]) if len(self.checkpoint) > 1 else self.first
        return list(self.reader.partitions(start, self.end))

    def rows(self) -> list[str]:
        """Read the batch that was logged last."""
        return [row for task in self.tasks() for row in self.read(task)]

    def read(self, task: Any) -> list[str]:
        """Run one task, and return its rows."""
        return [
            value.decode()
            for batch in self.reader.read(task)
            for value in batch.column("data").to_pylist()
        ]

    def batch(self) -> bool:
        """Read and commit the next batch, or the unfinished one. Return whether there was one."""
        if self.done == len(self.checkpoint) and not self.plan():
            return False
        self.batches.append(self.rows())
        self.done = len(self.checkpoint)
        return True

    def run(self, most: int = 50) -> list[str]:
        """Read and commit batches until there are no more. Return all rows so far, sorted."""
        count = 0
        while self.batch():
            count += 1
            assert count < most, "the run does not end"
        return sorted(value for batch in self.batches for value in batch)


def put_numbers(fake: FakeAws, stream: str, numbers: range) -> list[str]:
    """Put records with numbers, distributed over all open shards."""
    new = [f"{each:06d}" for each in numbers]
    for each in new:
        spread = int(each) * 2654435761 % 1000 * (KEYS // 1000)
        fake.kinesis.put(stream, each.encode(), f"key-{each}", explicit_hash_key=spread)
    return new
