"""Enhanced fan-out."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.testing.kinesis.stream import Stream


@dataclass(slots=True)
class Consumer:
    """A registered consumer of fan-out."""

    name: str
    arn: str
    stream: Stream
    created_ms: int


class Subscription:
    """What is pushed of a shard."""
