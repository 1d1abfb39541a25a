"""The disks of the brokers: logs whose records are numbers, with leader epochs and what a power cut leaves."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from headrace.core.log.index.leader_epochs import LeaderEpochCache

Record = tuple[int, int]
"""The leader epoch of a record, and a number that no other record of the run has."""
Key = tuple[bytes, int]
"""The topic id and the partition."""


class ReplicaLog:
    """The log of a replica. Truncations and log start offsets are durable at once, as those of a real log."""

    __slots__ = (
        "cuts",
        "epochs",
        "high_watermark",
        "log_start_offset",
        "records",
        "saved_high_watermark",
        "synced_offset",
    )

    def __init__(self) -> None:
        """Begin an empty log."""
        self.records: list[Record] = []
        """The records from the log start offset on."""
        self.log_start_offset = 0
        self.synced_offset = 0
        self.high_watermark = 0
        self.saved_high_watermark = 0
        """The high watermark in the checkpoint, with which the log is opened."""
        self.cuts = 0
        """The number of truncations, which end the syncs that run."""
        self.epochs = LeaderEpochCache()

    @property
    def log_end_offset(self) -> int:
        return self.log_start_offset + len(self.records)

    @property
    def leader_epoch(self) -> int:
        return self.epochs.latest

    def epoch_at(self, offset: int) -> int:
        return self.epochs.epoch_at(offset)

    def end_offset_for_epoch(self, epoch: int) -> tuple[int, int]:
        return self.epochs.end_offset_for(epoch, self.log_end_offset)

    def slice(self, start: int, end: int) -> list[Record]:
        """Return the records of a range of offsets, as far as the log has them."""
        base = self.log_start_offset
        return self.records[max(0, start - base) : max(0, end - base)]

    def append(self, record: Record) -> None:
        """Append a record at the end."""
        if record[0] < self.epochs.latest:  # this replica led, and appended nothing
            self.epochs.truncate_to_end(self.log_end_offset)
        self.epochs.assign(record[0], self.log_end_offset)
        self.records.append(record)

    def truncate(self, end_offset: int) -> None:
        """Remove the records from an offset on."""
        del self.records[max(0, end_offset - self.log_start_offset) :]
        self.synced_offset = min(self.synced_offset, self.log_end_offset)
        self.epochs.truncate_to_end(self.log_end_offset)
        self.cuts += 1

    def begin_at(self, offset: int) -> None:
        """Remove all records, and begin at an offset."""
        self.records.clear()
        self.log_start_offset = self.synced_offset = self.high_watermark = offset
        self.saved_high_watermark = offset
        self.epochs = LeaderEpochCache()
        self.cuts += 1

    def start_at(self, offset: int) -> None:
        """Delete the records below an offset."""
        if offset > self.log_start_offset:
            del self.records[: offset - self.log_start_offset]
            self.log_start_offset = offset
            self.synced_offset = max(self.synced_offset, offset)
            self.epochs.truncate_to_start(offset)

    def reopen(self) -> None:
        """Open the log after its process has ended: what is there is synced, and the leader epochs follow from it."""
        self.cuts += 1
        self.synced_offset = self.log_end_offset
        self.epochs = LeaderEpochCache()
        for offset, (epoch, _) in enumerate(self.records, self.log_start_offset):
            self.epochs.assign(epoch, offset)
        self.high_watermark = max(
            self.log_start_offset, min(self.saved_high_watermark, self.log_end_offset)
        )
        self.saved_high_watermark = self.high_watermark


@dataclass
class Disk:
    """The data directory of a broker.

    Attributes:
        incarnation: The id of the directory. A wiped disk has another one.
        logs: The logs.
        is_clean: Whether no power cut has happened, or the replicas have left the ISRs since the last one.
        is_new: Whether no replica has left the ISRs since the directory was created.
        is_registered: Whether a process with this directory has registered.
    """

    incarnation: int
    logs: dict[Key, ReplicaLog] = field(default_factory=dict)
    is_clean: bool = True
    is_new: bool = True
    is_registered: bool = False

    def cut_power(self, chance: random.Random) -> None:
        """Remove some of the records that are not synced."""
        self.is_clean = False
        for log in self.logs.values():
            unsynced = log.log_end_offset - log.synced_offset
            if unsynced > 0:
                log.truncate(
                    log.log_end_offset - chance.choice([0, unsynced, chance.randint(0, unsynced)])
                )
