"""The leader epochs of a log, with the first offset of each (KIP-101, KIP-279).

The epochs are a list of (epoch, start offset), both strictly increasing. The list says where an epoch ended. With that
followers and consumers find out that logs have diverged.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import Final

from headrace.core.log.files.checkpoints import decode_checkpoint, encode_checkpoint

EPOCHS_FILE: Final = "leader-epoch-checkpoint"
UNDEFINED_EPOCH = -1
UNDEFINED_OFFSET = -1

_KIND = "leader-epochs"


class LeaderEpochCache:
    """The leader epochs of one log."""

    __slots__ = ("_epochs", "_starts")

    def __init__(self, entries: Sequence[tuple[int, int]] = ()) -> None:
        self._epochs = [epoch for epoch, _ in entries]
        self._starts = [start for _, start in entries]

    @property
    def entries(self) -> list[tuple[int, int]]:
        """(epoch, start offset) of every epoch, oldest first."""
        return list(zip(self._epochs, self._starts, strict=True))

    @property
    def latest(self) -> int:
        """The newest epoch, -1 before the first."""
        return self._epochs[-1] if self._epochs else UNDEFINED_EPOCH

    def assign(self, epoch: int, start_offset: int) -> bool:
        """Begin an epoch at an offset. An epoch that wrote nothing is replaced.

        Returns:
            Whether anything changed: false when the epoch is the newest one or older.
        """
        if epoch <= self.latest:
            return False
        while self._starts and self._starts[-1] >= start_offset:
            self._epochs.pop()
            self._starts.pop()
        self._epochs.append(epoch)
        self._starts.append(start_offset)
        return True

    def end_offset_for(self, epoch: int, log_end_offset: int) -> tuple[int, int]:
        """Return the largest epoch at or below `epoch`, and the offset after its last record.

        The result is (-1, -1) when `epoch` is newer than all known epochs, or none is known. When `epoch` is older than
        the first known epoch, the result is `epoch` itself and the start of the first known epoch.
        """
        if not self._epochs or epoch == UNDEFINED_EPOCH or epoch > self.latest:
            return UNDEFINED_EPOCH, UNDEFINED_OFFSET
        if epoch == self.latest:
            return epoch, log_end_offset
        higher = bisect_right(self._epochs, epoch)
        return (self._epochs[higher - 1] if higher else epoch), self._starts[higher]

    def epoch_at(self, offset: int) -> int:
        """Return the epoch that wrote an offset, -1 before the first."""
        number = bisect_right(self._starts, offset) - 1
        return self._epochs[number] if number >= 0 else UNDEFINED_EPOCH

    def truncate_to_end(self, end_offset: int) -> bool:
        """Remove epochs that begin at or after the log end offset. Returns whether there were any."""
        count = len(self._starts)
        while self._starts and self._starts[-1] >= end_offset:
            self._epochs.pop()
            self._starts.pop()
        return len(self._starts) != count

    def truncate_to_start(self, start_offset: int) -> bool:
        """Remove epochs that ended before the log start offset. The epoch of that offset begins there from now on.

        Returns:
            Whether anything changed.
        """
        number = bisect_right(self._starts, start_offset) - 1
        if number < 0 or (number == 0 and self._starts[0] == start_offset):
            return False
        del self._epochs[:number], self._starts[:number]
        self._starts[0] = start_offset
        return True

    def encode(self, end_offset: int) -> bytes:
        """Return the content of the checkpoint file. It is complete below `end_offset`."""
        lines = (f"{epoch} {start}" for epoch, start in self.entries)
        return encode_checkpoint(_KIND, (str(end_offset), *lines))

    @classmethod
    def decode(cls, content: bytes | None) -> tuple[LeaderEpochCache, int]:
        """Return the epochs in the checkpoint file, and the offset below which they are complete.

        For an unusable file there are no epochs, and the offset is 0.
        """
        lines = decode_checkpoint(_KIND, content)
        if not lines:
            return cls(), 0
        entries = [(int(epoch), int(start)) for epoch, start in map(str.split, lines[1:])]
        return cls(entries), int(lines[0])
