"""The checkpoints of a data directory: how far each log is synced, and where it begins."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from headrace.core.log.files.checkpoints import decode_checkpoint, encode_checkpoint
from headrace.core.log.partition_log import PartitionLog
from headrace.ports import FileSystem

RECOVERY_FILE: Final = "recovery-point-offset-checkpoint"
START_FILE: Final = "log-start-offset-checkpoint"


class LogOffsets:
    """The content of the checkpoints. The keys of logs are those of `LogManager.checkpoint_key`."""

    __slots__ = ("_files", "_recovery_points", "_start_offsets", "_starts_known")

    def __init__(self, files: FileSystem) -> None:
        """Read the checkpoints of a directory."""
        self._files = files
        self._recovery_points = self._read(RECOVERY_FILE) or {}
        start_offsets = self._read(START_FILE)
        self._starts_known = start_offsets is not None
        self._start_offsets = start_offsets or {}

    def recovery_point(self, key: str) -> int:
        """Return the offset below which a log is known to be synced."""
        return self._recovery_points.get(key, 0)

    def start_offset(self, key: str) -> int | None:
        """Return the log start offset of a log, None if it is unknown."""
        return self._start_offsets.get(key, 0 if self._starts_known else None)

    def forget(self, key: str) -> None:
        """Leave a deleted log out of the next checkpoint."""
        self._recovery_points.pop(key, None)
        self._start_offsets.pop(key, None)

    def write(self, logs: Iterable[tuple[str, PartitionLog]]) -> None:
        """Write how far the logs are synced and where they start, if that has changed."""
        points, starts = dict(self._recovery_points), dict(self._start_offsets)
        for key, log in logs:
            if log.synced_offset:
                points[key] = log.synced_offset
            if log.log_start_offset:
                starts[key] = log.log_start_offset
        # Log start offsets first: a start offset older than the recovery point does no harm.
        if starts != self._start_offsets:
            self._write(START_FILE, starts)
            self._start_offsets = starts
        if points != self._recovery_points:
            self._write(RECOVERY_FILE, points)
            self._recovery_points = points

    def lower(self, key: str, end_offset: int, start_offset: int) -> None:
        """Make durable that a log is known to be synced up to an offset at most, and where it starts.

        Raises:
            OSError: A checkpoint could not be written.
        """
        if self.recovery_point(key) > end_offset:
            points = self._recovery_points | {key: end_offset}
            self._write(RECOVERY_FILE, points)
            self._recovery_points = points
        # The file still has the start offset of a log that was forgotten.
        if self._start_offsets.get(key) != start_offset:
            starts = self._start_offsets | {key: start_offset}
            self._write(START_FILE, starts)
            self._start_offsets = starts

    def vouch_for_starts(self, logs: Iterable[tuple[str, PartitionLog]]) -> None:
        """Write all log start offsets if there is no such checkpoint yet.

        From then on a log that begins later than its checkpoint says has lost its beginning.
        """
        if not self._starts_known:
            self.write(logs)
            self._write(START_FILE, self._start_offsets)
            self._starts_known = True

    def _read(self, name: str) -> dict[str, int] | None:
        lines = decode_checkpoint(name, self._files.read_file(name))
        if lines is None:
            return None
        return {key: int(offset) for key, _, offset in (line.rpartition(" ") for line in lines)}

    def _write(self, name: str, offsets: Mapping[str, int]) -> None:
        lines = (f"{key} {offset}" for key, offset in sorted(offsets.items()))
        self._files.write_file(name, encode_checkpoint(name, lines))
