"""The operations of a run's clients, in the form that the checker of histories reads."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from headrace.types import TopicPartition
from tests.fixtures.history.operations import INVOKE, OK, Operation


class Recorder:
    """Records the operations of each process, one at a time."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self.operations: list[Operation] = []
        self._now_ms = now_ms

    def write(self, process: str, type_: str, f: str, value: list[Any]) -> None:
        # Each event has its own time: a later event has a greater time.
        time_ns = self._now_ms() * 1_000_000_000 + len(self.operations)
        self.operations.append(Operation(time_ns, process, type_, f, value))

    def at_once(self, process: str, f: str, value: list[Any]) -> None:
        """Record an operation that takes no time."""
        self.write(process, INVOKE, f, value)
        self.write(process, OK, f, value)


def polled(records: Iterable[Any]) -> list[Any]:
    """Return a poll as a step of an operation."""
    found: dict[str, list[Any]] = {}
    for record in records:
        name = place(TopicPartition(record.topic, record.partition))
        found.setdefault(name, []).append([record.offset, text(record.value)])
    return ["poll", found]


def sent(name: TopicPartition, value: bytes, offset: int | None = None) -> list[Any]:
    """Return a send as a step of an operation."""
    return ["send", place(name), text(value) if offset is None else [offset, text(value)]]


def place(name: TopicPartition) -> str:
    """Return the name of a partition."""
    return f"{name.topic}-{name.partition}"


def text(value: bytes | None) -> str:
    """Return a value without its padding."""
    return (value or b"").rstrip(b"x").decode()
