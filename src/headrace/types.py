"""Small types shared by every layer: plain integers, a partition and how it gets on, ranges of stored bytes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, NewType, Protocol

if TYPE_CHECKING:
    from typing_extensions import TypeVar  # type variables have defaults in Python 3.13 and later

    V = TypeVar("V", default=Any)
    V_co = TypeVar("V_co", covariant=True, default=Any)
else:
    from typing import TypeVar

    V = TypeVar("V")
    V_co = TypeVar("V_co", covariant=True)

Offset = NewType("Offset", int)
LeaderEpoch = NewType("LeaderEpoch", int)
ProducerId = NewType("ProducerId", int)

NO_OFFSET = -1
NO_TIMESTAMP = -1
NO_PRODUCER_ID = -1
NO_PARTITION_LEADER_EPOCH = -1

Buffer = bytes | bytearray | memoryview


class TopicPartition(NamedTuple):
    """One partition of one topic."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionStatus:
    """How a member of a group is getting on with one of its partitions, or shards.

    Attributes:
        topic: The topic's name, or the stream's.
        partition: The partition's number, or the shard's; None for a shard whose id has none.
        shard: The shard's id; None for a partition of a topic.
        lag_records: How many offsets of a topic are not finished, as of the last fetch; None where it is not known.
        lag_ms: For how long the oldest record of a shard that is not finished has waited, 0 if there is none; None for
            topics, and before the first fetch.
        error: Why it cannot be read at present.
    """

    topic: str
    partition: int | None
    shard: str | None = None
    lag_records: int | None = None
    lag_ms: int | None = None
    error: str | None = None


class ReadableFile(Protocol):
    """What a `FileRange` needs of the file behind it."""

    def fileno(self) -> int | None:
        """Return the descriptor that `sendfile` may read from, or None when there is no real file."""

    def buffers(self, position: int, size: int) -> Sequence[Buffer]:
        """Return `size` bytes from byte `position` on, in as many pieces as they are stored in.

        The pieces stay valid and unchanged after later appends, truncations and removal of the file.
        """


class FileRange:
    """Whole record batches as they lie in a segment file: `size` bytes from byte `position` on.

    It holds the file, not a copy: the bytes go from the page cache to the socket. Removing the segment
    meanwhile is safe, the file closes when the last range that refers to it is gone.
    """

    __slots__ = ("file", "position", "size")

    def __init__(self, file: ReadableFile, position: int, size: int) -> None:
        self.file = file
        self.position = position
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __repr__(self) -> str:
        return f"FileRange(position={self.position}, size={self.size})"

    def read(self) -> bytes:
        """Return the bytes as one object (a copy; for tests and for readers that parse records)."""
        return b"".join(self.file.buffers(self.position, self.size))


Payload = Buffer | FileRange
"""What may stand in a message's `records` field: bytes at hand, or a range of a file."""
