"""Records that have to stay in order, what is sent at once, and pauses."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from headrace.kinesis.producing.records import Outgoing


@dataclass(slots=True, eq=False)
class Lane:
    """Records of one partition key, or of one shard: the next leaves when the one before is written.

    A lane is in one of four places: it waits to be sent, it is under way, it pauses, or it is empty and forgotten.
    """

    name: object
    waiting: deque[Outgoing] = field(default_factory=deque)
    size: int = 0
    attempts: int = 0
    alone: bool = False
    """Whether its next record is sent in a request of its own: one like it may be to blame for a refusal."""

    def add(self, record: Outgoing) -> None:
        """Put a record behind the others."""
        record.waiting = True
        self.waiting.append(record)
        self.size += record.size

    def take(self) -> Outgoing:
        """Take the first record out."""
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
        """Return the first record that is not given up; those before it are dropped."""
        while self.waiting and self.waiting[0].done:
            self.take()
        return self.waiting[0] if self.waiting else None


@dataclass(slots=True, eq=False)
class Parcel:
    """What becomes one record of the stream."""

    lane: Lane
    records: list[Outgoing]
    partition_key: str
    explicit_hash_key: str | None
    data: bytes
    shard: str | None
    """Where it goes, as far as is known."""

    @property
    def size(self) -> int:
        """Bytes that count against Kinesis' limits."""
        return len(self.data) + len(self.partition_key.encode())

    @property
    def aggregated(self) -> bool:
        """Whether it is many in one."""
        return len(self.records) > 1


class PutResult(NamedTuple):
    """What Kinesis says of one record of a request."""

    shard: str = ""
    sequence_number: str = ""
    error: str = ""
    message: str = ""


class RetryPause:
    """Full jitter: each pause is anything up to a limit that doubles while failures go on."""

    __slots__ = ("attempts", "until_ms")

    def __init__(self) -> None:
        self.attempts = 0
        self.until_ms = 0

    def extend(self, now_ms: int, base_ms: int, max_ms: int, random: Callable[[], float]) -> None:
        """Note a failure; those that come during a pause belong to it."""
        if now_ms < self.until_ms:
            return
        longest_ms = min(max_ms, base_ms << min(self.attempts, 20))
        self.attempts += 1
        self.until_ms = now_ms + 1 + int(random() * longest_ms)
