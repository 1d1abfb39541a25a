"""Small types that every layer uses: numbers, a partition and its status, ranges of stored bytes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple, NewType, Protocol

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

MIN_INT64: Final = -(2**63)
MAX_INT64: Final = 2**63 - 1
NEVER_MS: Final = 1 << 62
"""A time in milliseconds that is never reached; for fields where None would need a check at each comparison."""
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
    """The progress of a group member in one of its partitions or shards.

    Attributes:
        topic: The name of the topic or the stream.
        partition: The number of the partition or the shard; None for a shard whose id has no number.
        shard: The id of the shard; None for a partition of a topic.
        lag_records: The number of offsets that are not finished, as of the last fetch; None if it is not known, and for
            shards.
        lag_ms: The age in milliseconds of the shard's oldest record that is not finished; 0 if there is none. None for
            topics, and before the first fetch.
        error: The reason why the partition or shard cannot be read at present; None if there is none.
    """

    topic: str
    partition: int | None
    shard: str | None = None
    lag_records: int | None = None
    lag_ms: int | None = None
    error: str | None = None


class ReadableFile(Protocol):
    """A file that a `FileRange` refers to."""

    def fileno(self) -> int | None:
        """Return the descriptor for `sendfile`; None if there is no file of the operating system."""

    def buffers(self, position: int, size: int) -> Sequence[Buffer]:
        """Return `size` bytes from byte `position` on, in the pieces in which they are stored.

        The pieces stay valid and unchanged after later appends, truncations and removal of the file.
        """


class FileRange:
    """Whole record batches in a segment file: `size` bytes from byte `position` on.

    A range refers to the file and copies nothing: `sendfile` moves the bytes from the page cache to the socket. The
    segment may be deleted meanwhile, because the file closes after the last range that refers to it is gone.
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
        """Return a copy of the bytes as one object, for tests and for readers that parse records."""
        return b"".join(self.file.buffers(self.position, self.size))


Payload = Buffer | FileRange
"""The value of a message's `records` field: bytes in memory, or a range of a file."""
