"""Small types shared by every layer: names for plain integers, a topic partition, and ranges of stored bytes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, NewType, Protocol

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
