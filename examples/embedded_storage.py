"""Store topics in different storages of one broker with a data directory.

It prints:

before: files 1 array 1 own 1
after a restart: files 1 array 0 own 0
"""

from __future__ import annotations

from collections.abc import Sequence

import headrace

Buffer = bytes | bytearray | memoryview
PLACES = ("files", "array", "own")


class ListOfBatches:
    """A storage in this program, which keeps a list of batches; see `headrace.ports.SegmentStorage`."""

    def __init__(self) -> None:
        self._batches: list[bytes] = []

    @property
    def size(self) -> int:
        """The size of the segment in bytes."""
        return sum(map(len, self._batches))

    def append(self, buffers: Sequence[Buffer]) -> None:
        """Append the buffers as one batch."""
        self._batches.append(b"".join(buffers))

    def read(self, position: int, size: int) -> bytes:
        """Return up to `size` bytes from the byte position on."""
        return b"".join(self._batches)[position : position + size]

    def truncate(self, size: int) -> None:
        """Keep only the first `size` bytes."""
        self._batches = [self.read(0, size)]

    def roll(self) -> ListOfBatches:
        """Return the storage of the next segment."""
        return ListOfBatches()


def counts(broker: headrace.Broker) -> str:
    """Return the number of records in each topic, as text."""
    return " ".join(f"{place} {len(broker.read(place, 0, 0))}" for place in PLACES)


def main() -> None:
    """Write a record to each topic, restart the broker, and count the records again."""
    headrace.register_storage("own", ListOfBatches)
    with headrace.Broker("embedded-storage-data") as broker:
        for place in PLACES:
            broker.create_topic(place, storage=place)
            broker.publish(place, b"x")
        print("before:", counts(broker))
    with headrace.Broker("embedded-storage-data") as broker:
        print("after a restart:", counts(broker))


if __name__ == "__main__":
    main()
