"""The position up to which a group has finished a shard."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from headrace.errors import ConfigError

_TIMESTAMP: Final = "AT_TIMESTAMP:"
_SEQUENCE_NUMBER: Final = re.compile(r"[0-9]{1,128}", re.ASCII)


class Checkpoint(NamedTuple):
    """The position from which a shard is read on: behind a record, or a start position if no record was read yet.

    Sequence numbers have 56 digits today. They are stored as text, because they exceed 38 digits, and are compared as
    integers, never as text.
    """

    position: str
    """`TRIM_HORIZON`, `AT_TIMESTAMP:<ms since 1970>`, the sequence number of the last record, or `SHARD_END`."""
    sub_sequence: int | None = None
    """The index (from 0) of the last finished user record in an aggregated record. None: the whole record."""

    @property
    def is_end(self) -> bool:
        """Whether the shard is closed and read to its end."""
        return self.position == SHARD_END.position

    @property
    def is_sequence_number(self) -> bool:
        """Whether the checkpoint is behind a record."""
        return self.position.isdecimal()

    @property
    def timestamp_ms(self) -> int | None:
        """The time at which reading starts, in milliseconds since 1970; None if the checkpoint is not a time."""
        if not self.position.startswith(_TIMESTAMP):
            return None
        return int(self.position.removeprefix(_TIMESTAMP))

    def is_before(self, other: Checkpoint) -> bool:
        """Whether another checkpoint is further in the shard. An equal checkpoint is not."""
        return self._order() < other._order()

    def _order(self) -> tuple[int, int, float]:
        if self.is_end:
            return (2, 0, 0)
        if not self.is_sequence_number:
            return (0, 0, 0)
        within = float("inf") if self.sub_sequence is None else self.sub_sequence
        return (1, int(self.position), within)


TRIM_HORIZON: Final = Checkpoint("TRIM_HORIZON")
SHARD_END: Final = Checkpoint("SHARD_END")


def at_timestamp(timestamp_ms: int) -> Checkpoint:
    """Return the checkpoint of a group that starts at a time in milliseconds since 1970."""
    return Checkpoint(f"{_TIMESTAMP}{timestamp_ms}")


def parse_checkpoint(position: str, sub_sequence: int | None = None) -> Checkpoint:
    """Return the checkpoint that a stored text means.

    Raises:
        ConfigError: The text is no checkpoint.
    """
    stamp = position.removeprefix(_TIMESTAMP)
    known = position in {TRIM_HORIZON.position, SHARD_END.position}
    timed = stamp != position and stamp.isascii() and stamp.isdecimal()
    if not known and not timed and not _SEQUENCE_NUMBER.fullmatch(position):
        raise ConfigError(
            f"{position[:80]!r} is no checkpoint. A checkpoint is TRIM_HORIZON, SHARD_END, AT_TIMESTAMP:<ms> or a "
            "sequence number"
        )
    return Checkpoint(position, sub_sequence if not known and not timed else None)
