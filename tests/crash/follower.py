"""A recorded process that keeps one log as a follower: `python -m tests.crash.follower DATA RECORDING SEED ...`.

No server truncates a log without a second broker. So this process calls the log manager as a follower's broker does.
It appends what a leader sends, syncs in a thread, and truncates while a sync may be in flight. It notes each batch and
each truncation before and after.
"""

from __future__ import annotations

import os
import random
import sys
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from headrace.core.log import LogConfig, LogManager, PartitionLog, PartitionSpec, SyncBatch
from headrace.storage.os_files import OsFileSystem
from tests.crash.recording import Marker
from tests.fixtures.logs import NOW_MS, PARTITION, RecordingJournal
from tests.simulation.log.batches import Writer
from tests.simulation.log.defences import without
from tests.simulation.log.model import Batch, State

TOPIC_ID = b"\x07" * 16
CONFIG = LogConfig(segment_bytes=700, index_interval_bytes=150, retention_ms=-1)


def open_manager(directory: Path) -> LogManager:
    """Open the log manager of a data directory, and its log."""
    manager = LogManager.open(
        OsFileSystem(directory), cluster_id="c", node_id=1, journal=RecordingJournal()
    )
    manager.load([PartitionSpec(PARTITION, TOPIC_ID, CONFIG, is_replicated=True)], NOW_MS)
    assert not manager.failed, manager.failed
    return manager


def log_of(manager: LogManager) -> PartitionLog:
    """Return the only log of a manager."""
    log = manager.get(PARTITION)
    assert log is not None
    return log


class Follower:
    """A follower, and the leader that it has just now."""

    def __init__(self, data: Path, marker: Marker, seed: int, batches: list[Batch]) -> None:
        self._chance = random.Random(seed)
        self._marker = marker
        self._writer = Writer(expires=False, compacts=False)
        self._writer.now_ms = NOW_MS + seed * 1000
        self._thread = ThreadPoolExecutor(1)
        self._sync: tuple[SyncBatch, Future[None]] | None = None
        self._manager = open_manager(data)
        self._log = log_of(self._manager)
        self._batches = [batch for batch in batches if batch.end <= self._log.log_end_offset]
        self._epoch = max(self._log.leader_epoch, 0)
        marker.note(what="opened", end=self._log.log_end_offset)

    def work(self, steps: int) -> None:
        """Do so many random steps."""
        actions = [self._replicate, self._sync_some, self._truncate, self._save]
        for _ in range(steps):
            self._chance.choices(actions, [10, 8, 3, 1])[0]()

    def _replicate(self) -> None:
        state = State.after(self._batches)
        end = self._log.log_end_offset
        found = self._writer.replicated(self._chance, state, end, self._epoch)
        for batch in found:
            self._marker.note(what="replicating", batch=batch.hex())
        self._log.append_replicated(b"".join(found), now_ms=NOW_MS)
        self._batches += map(Batch, found)

    def _sync_some(self) -> None:
        """Begin a sync in the thread, or finish the one that runs."""
        if self._sync is not None:
            batch, running = self._sync
            running.result()
            self._sync = None
            self._manager.finish_sync(batch)
            self._marker.note(what="synced", end=self._log.synced_offset)
            if self._chance.random() < 0.3:
                self._log.advance_high_watermark(self._log.synced_offset)
        started = self._manager.start_sync()
        if started is not None:
            self._sync = started, self._thread.submit(started.run)

    def _truncate(self) -> None:
        """Follow another leader, which has less."""
        log = self._log
        self._epoch += 1
        offset = self._chance.randint(log.high_watermark, log.log_end_offset)
        end = log.truncated_end(offset)
        self._marker.note(what="truncating", end=end)
        self._manager.truncate(log, offset, NOW_MS)
        self._marker.note(what="truncated", end=end)
        self._batches = [batch for batch in self._batches if batch.end <= end]

    def _save(self) -> None:
        self._manager.write_checkpoints()
        self._manager.high_watermarks.write()


def main(data: str, recording: str, seed: str, *more: str) -> None:
    """Run a follower, and end the process without closing anything.

    Args:
        data: The data directory.
        recording: The file of the recorder, for the notes.
        seed: The seed of the steps.
        more: The number of steps; the file with the batches of earlier lives; the defence to leave out, if any.
    """
    steps, known, defence = more
    left_out: AbstractContextManager[object] = without(defence) if defence else nullcontext()
    batches = [Batch(bytes.fromhex(line)) for line in Path(known).read_text().split()]
    with left_out, Marker(Path(recording)) as marker:
        Follower(Path(data), marker, int(seed), batches).work(int(steps))
        os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
