"""Lanes of records that keep their order, parcels that are sent at once, and pauses before retries."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from headrace.kinesis.producing.records import Outgoing


@dataclass(slots=True, eq=False)
class Lane:
    """Records of one partition key, or of one shard. A record is sent after the record before it was written.

    A lane is in one of four states: it is ready, it has a parcel in flight, it pauses, or it is empty and dropped.
    """

    name: object
    waiting: deque[Outgoing] = field(default_factory=deque)
    size: int = 0
    attempts: int = 0
    alone: bool = False
    """Whether the next record is sent in a request of its own, because such a record may be the cause of a refusal."""

    def add(self, record: Outgoing) -> None:
        """Append a record behind the others."""
        record.waiting = True
        self.waiting.append(record)
        self.size += record.size

    def take(self) -> Outgoing:
        """Remove the first record, and return it."""
        record = self.waiting.popleft()
        record.waiting = False
        self.size -= record.size
        return record

    def give_back(self, records: Iterable[Outgoing]) -> None:
        """Put records before all others, in their order."""
        for record in reversed(list(records)):
            record.waiting = True
            self.waiting.appendleft(record)
            self.size += record.size

    def head(self) -> Outgoing | None:
        """Return the first record that is not given up, or None. Records before it are dropped."""
        while self.waiting and self.waiting[0].done:
            self.take()
        return self.waiting[0] if self.waiting else None


@dataclass(slots=True, eq=False)
class Parcel:
    """The content of one stored record: one record of the program, or an aggregate of several."""

    lane: Lane
    records: list[Outgoing]
    partition_key: str
    explicit_hash_key: str | None
    data: bytes
    shard: str | None
    """The id of the shard to which the parcel belongs; None if it is not known."""

    @property
    def size(self) -> int:
        """The bytes that count for Kinesis' limits."""
        return len(self.data) + len(self.partition_key.encode())

    @property
    def aggregated(self) -> bool:
        """Whether the parcel is an aggregate of several records."""
        return len(self.records) > 1


class PutResult(NamedTuple):
    """The response of Kinesis for one record of a request."""

    shard: str = ""
    sequence_number: str = ""
    error: str = ""
    message: str = ""


class RetryPause:
    """Pauses with full jitter: each pause is a random part of a limit that doubles with each failure."""

    __slots__ = ("attempts", "until_ms")

    def __init__(self) -> None:
        self.attempts = 0
        self.until_ms = 0

    def extend(self, now_ms: int, base_ms: int, max_ms: int, random: Callable[[], float]) -> None:
        """Note a failure. A failure during a pause does not extend the pause."""
        if now_ms < self.until_ms:
            return
        longest_ms = min(max_ms, base_ms << min(self.attempts, 20))
        self.attempts += 1
        self.until_ms = now_ms + 1 + int(random() * longest_ms)
