"""A streaming query as Spark's driver runs one, without Spark: offsets in and out, tasks, commits, restarts."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from headrace.spark.kinesis.access import access
from headrace.spark.kinesis.options import read_options
from headrace.spark.kinesis.planner import RoundPlanner
from headrace.spark.kinesis.stream import KinesisStreamReader
from headrace.testing.kinesis import FakeAws

KEYS = 1 << 128


@dataclass
class Query:
    """Goes batch by batch; `checkpoint` has what Spark's would have."""

    given: Mapping[str, str]
    available_now: bool = True
    clock: Callable[[], int] | None = None
    """The driver's, if it is not the machine's."""
    checkpoint: list[str] = field(default_factory=list)
    """The offsets that were written, each before its batch was read."""
    done: int = 0
    """How many of them are of finished batches."""
    batches: list[list[str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.restart()

    def restart(self, *, available_now: bool | None = None, **changed: str) -> None:
        """Begin again as a new driver would."""
        self.given = {**self.given, **changed}
        options = read_options(self.given, streaming=True)
        self.reader = KinesisStreamReader(options)
        if self.clock is not None:
            self.reader._planner = RoundPlanner(options, access(), self.clock)
        if self.available_now if available_now is None else available_now:
            self.reader.prepareForTriggerAvailableNow()
        self.reader.initialOffset()
        self.first = self.reader.initialOffset()

    @property
    def end(self) -> dict[str, Any]:
        """The last offset that was written, or the initial one."""
        return dict(json.loads(self.checkpoint[-1])) if self.checkpoint else self.first

    def plan(self) -> bool:
        """Ask for the next batch, and write it down; whether there is one."""
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
        """Return the tasks of the batch that was written down last."""
        start = json.loads(self.checkpoint[-2]) if len(self.checkpoint) > 1 else self.first
        return list(self.reader.partitions(start, self.end))

    def rows(self) -> list[str]:
        """Read the batch that was written down last."""
        return [row for task in self.tasks() for row in self.read(task)]

    def read(self, task: Any) -> list[str]:
        """Run one task, and return its rows."""
        return [
            value.decode()
            for batch in self.reader.read(task)
            for value in batch.column("data").to_pylist()
        ]

    def batch(self) -> bool:
        """Plan a batch, or take the one that is not done, and do it; whether there was one."""
        if self.done == len(self.checkpoint) and not self.plan():
            return False
        self.batches.append(self.rows())
        self.done = len(self.checkpoint)
        return True

    def run(self, most: int = 50) -> list[str]:
        """Do batches until there are no more; return all rows so far, sorted."""
        count = 0
        while self.batch():
            count += 1
            assert count < most, "the run does not end"
        return sorted(value for batch in self.batches for value in batch)


def put_numbers(fake: FakeAws, stream: str, numbers: range) -> list[str]:
    """Put records with numbers, over all open shards."""
    new = [f"{each:06d}" for each in numbers]
    for each in new:
        spread = int(each) * 2654435761 % 1000 * (KEYS // 1000)
        fake.kinesis.put(stream, each.encode(), f"key-{each}", explicit_hash_key=spread)
    return new
