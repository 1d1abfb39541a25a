"""One run of a log against its model: a program of steps, on a file system that can lose power at any operation.

The log is a leader's and a follower's in turn. Syncs and rounds of cleaning are in flight while other steps run: before
each operation on files that a thread would do, the run may do other steps.
"""

from __future__ import annotations

import errno
import random
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from unittest.mock import patch

from headrace.core.log import (
    LogCleaner,
    LogManager,
    Marker,
    PartitionLog,
    PartitionSpec,
    Rewriting,
    SyncBatch,
    build_marker,
    is_passing,
)
from headrace.core.log.append import log_files
from headrace.errors import ApiError, OffsetOutOfRangeError, StorageError
from headrace.storage.memory_files import MemoryFileSystem
from headrace.types import FileRange
from tests.fixtures.crash_files import CrashFileSystem, PowerCut
from tests.fixtures.logs import NOW_MS, PARTITION, RecordingJournal
from tests.simulation.log.batches import PLAIN, TRANSACTIONAL, Writer, at, spoiled
from tests.simulation.log.checks import Checker, batches_of, last_batches
from tests.simulation.log.knobs import Knobs, Step
from tests.simulation.log.model import Batch, Model, ViolationError, require

TOPIC_ID = b"\x07" * 16
MEANWHILE = (
    "append",
    "append_idempotent",
    "transact",
    "end_transaction",
    "replicate",
    "truncate",
    "truncate",
    "truncate_fully",
    "roll",
    "advance_high_watermark",
    "save_caches",
)
"""The steps that may be done while a thread syncs or cleans."""
CHECKED_EACH = 12
"""A full comparison follows one in so many steps, and each truncation and recovery."""


class LogSimulation:
    """A log, its model and the faults of one run."""

    def __init__(
        self, seed: int, program: Sequence[Step] | None = None, *, trace: bool = False
    ) -> None:
        self.knobs = Knobs(seed)
        self.program = self.knobs.program if program is None else program
        self.lines: list[str] = []
        self.counts: Counter[str] = Counter()
        self.model = Model()
        self._trace = trace
        config = self.knobs.config
        self._writer = Writer(expires=config.expires, compacts=config.compacts)
        self._now_ms = NOW_MS
        self._epoch = 0
        self._held: list[tuple[FileRange, bytes, int]] = []
        self._pending: list[Batch] = []
        """Batches that are being appended."""
        self._cutting: int | None = None
        """The end offset of a truncation that is running."""
        self._beginning: int | None = None
        """The offset at which an empty log is about to replace the log; None while no such step is running."""
        self._starting = 0
        """The highest log start offset that a running deletion may reach."""
        self._sync: SyncBatch | None = None
        self._sync_has_run = False
        self._task: Rewriting | None = None
        self._task_has_run = False
        self._rewriting = False
        """Whether a round of cleaning has begun and not ended."""
        self._thread: random.Random | None = None
        """Decides what happens between the operations of a thread; None while no thread runs."""
        self._caches_complete = True
        """Whether no operation was refused since the last clean start, so that the caches were written."""
        self._refused = False
        """Whether an operation was refused since the last deletion began."""
        self._refused_in = 0
        """The number of the operation that the file system refuses; 0 for none."""
        self._files: CrashFileSystem | MemoryFileSystem = (
            MemoryFileSystem() if self.knobs.in_memory else CrashFileSystem()
        )

    # Running

    def run(self) -> None:
        """Run the program, and recover the log at the end.

        Raises:
            ViolationError: The log differs from its model.
        """
        with patch.object(log_files, "CACHES_AFTER_BYTES", self.knobs.caches_after_bytes):
            self._start()
            for step in self.program:
                self._do(step)
            self._crash(random.Random(len(self.program)), power=True)

    def _do(self, step: Step) -> None:
        chance = random.Random(step.seed)
        self._writer.now_ms = self._now_ms
        try:
            self._step(step.name, chance)
            self._compare(chance, whole=chance.randrange(CHECKED_EACH) == 0)
        except PowerCut:
            self._note("power cut")
            self._crash(chance, power=chance.random() < 0.8)
        except (AssertionError, ViolationError):
            self._note(f"{step}: a violation")
            raise

    def _step(self, name: str, chance: random.Random) -> None:
        """Do a step. An operation that was refused leaves the log as it was, or takes it out of service."""
        self.counts[name] += 1
        try:
            getattr(self, f"do_{name}")(chance)
        except OSError as error:
            if not is_passing(error) or name in {"restart", "kill"}:
                raise
            self._note(f"{name} was refused")
            self.counts["operation refused"] += 1
            self._settle_pending()
            if self._log.failure is not None or self._manager.failure is not None:
                self._crash(chance, power=False)
                return
            self._cutting = None
            self.model.start = self._log.log_start_offset
        finally:
            if name != "refuse_operation":
                self._refused_in = 0

    def _note(self, line: str) -> None:
        if self._trace:
            self.lines.append(line)

    @property
    def _log(self) -> PartitionLog:
        log = self._manager.get(PARTITION)
        assert log is not None
        return log

    @property
    def _spec(self) -> PartitionSpec:
        replicated = self.knobs.is_replicated
        return PartitionSpec(PARTITION, TOPIC_ID, self.knobs.config, is_replicated=replicated)

    @property
    def _checker(self) -> Checker:
        return Checker(self.model, self.knobs.config, self._now_ms)

    def _compare(self, chance: random.Random, *, whole: bool) -> None:
        log, model = self._log, self.model
        require(log.log_end_offset == model.end, f"the log ends at {log!r}, expected {model.end}")
        require(log.synced_offset <= log.log_end_offset, f"{log!r} is synced beyond its end")
        clean_offset = self._cleaner.clean_offset(log)
        require(clean_offset <= model.end, f"{log!r} is clean up to {clean_offset}")
        gave_up = self._journal.named("log_cannot_be_compacted")
        require(not gave_up, f"cleaning failed: {gave_up}")
        model.floor = log.synced_offset
        model.high_watermark = max(model.high_watermark, log.high_watermark)
        if whole:
            self._checker.check(log, chance)
            for found, content, _ in self._held:
                require(found.read() == content, "a range that a reader holds has changed")
            self._hold(chance)

    def _hold(self, chance: random.Random) -> None:
        log = self._log
        if log.log_start_offset < log.high_watermark:
            offset = chance.randrange(log.log_start_offset, log.high_watermark)
            found = log.read(offset, max_bytes=500, up_to=log.high_watermark, minimum_one=True)
            if isinstance(found, FileRange):
                self._held = [
                    *self._held[-3:],
                    (found, found.read(), log.high_watermark),
                ]

    # Starts and crashes

    def _start(self) -> None:
        self._held.clear()
        self._journal = RecordingJournal()
        self._sync = self._task = self._thread = None
        self._manager, self._cleaner = self._open(self._files)
        if isinstance(self._files, CrashFileSystem):
            self._files.fault = self._before_operation

    def _open(self, files: CrashFileSystem | MemoryFileSystem) -> tuple[LogManager, LogCleaner]:
        manager = LogManager.open(files, cluster_id="c", node_id=1, journal=self._journal)
        cleaner = LogCleaner(manager, files, self._journal, max_keys=3)
        manager.load([self._spec], self._now_ms)
        require(not manager.failed, f"the log is not served: {manager.failed}")
        return manager, cleaner

    def _crash(self, chance: random.Random, *, power: bool) -> None:
        """Cut the power, or kill the process, and recover the log. The recovery may be interrupted too."""
        files = self._files
        for attempt in range(4):
            if isinstance(files, CrashFileSystem):
                files.fuse = files.fault = None
                if power:
                    self.counts["power cut"] += 1
                    files = files.after_power_cut(chance.randrange(1 << 32))
                if attempt < 3 and chance.random() < 0.3:
                    files.fuse = files.operations + chance.randint(1, 15)
            self._files = files
            try:
                self._start()
                break
            except PowerCut:
                self._note("power cut during recovery")
                self.counts["recovery interrupted"] += 1
                power = chance.random() < 0.7
        if isinstance(files, CrashFileSystem):
            files.fuse = None
        self._recovered(chance)

    def _recovered(self, chance: random.Random) -> None:
        """Compare a recovered log with the model, which loses what the crash has taken."""
        log, model = self._log, self.model
        self._note(f"recovered {log!r}")
        for batch in self._pending:
            model.add(batch)
        self._pending = []
        if self._has_begun_anew(log):
            model = self.model = Model(log.log_start_offset)
        floor = model.floor if self._cutting is None else min(model.floor, self._cutting)
        self._cutting = None
        start, end = log.log_start_offset, log.log_end_offset
        require(end >= floor, f"the log ends at {end}, and was synced up to {floor}")
        require(
            model.durable_start <= start <= max(model.start, self._starting),
            f"the log begins at {start}, expected {model.durable_start}..{self._starting}",
        )
        model.start = model.durable_start = start
        self._starting = 0
        known = {batch.end for batch in model.batches}
        require(
            end in known or end in {start, model.empty_end},
            f"the log ends at {end}, where no batch of {model.batches} ends",
        )
        if end < model.end:
            self.counts["batches lost above the synced offset"] += 1
            model.cut(end)
        model.empty_epoch = -1  # an epoch begins durably with its first batch
        if self._rewriting:
            self._adopt()
            self._rewriting = False
        model.high_watermark = min(model.high_watermark, end)
        require(
            not self.knobs.is_replicated or log.high_watermark <= max(model.high_watermark, start),
            f"{log!r} has a high watermark above {model.high_watermark}",
        )
        model.floor = log.synced_offset
        require(log.synced_offset == end, f"recovery has not synced {log!r}")
        self._checker.check(log, chance)
        if isinstance(self._files, CrashFileSystem):
            self._recover_again(self._files, chance)

    def _has_begun_anew(self, log: PartitionLog) -> bool:
        """Return whether a crash has left an empty log in place of the old one, whose directory is removed at once."""
        offset, self._beginning = self._beginning, None
        start = log.log_start_offset
        begun = offset is not None and start == log.log_end_offset
        return begun and start in {offset, self.model.start}

    def _recover_again(self, files: CrashFileSystem, chance: random.Random) -> None:
        """Cut the power right after a recovery: a second recovery finds the same."""
        found = self._batches()
        image = files.after_power_cut(chance.randrange(1 << 32))
        manager, _ = self._open(image)
        log = manager.get(PARTITION)
        assert log is not None
        require(batches_of(log) == found, "a second recovery changes the batches")
        self._checker.check(log, chance)

    def _batches(self) -> list[Batch]:
        return batches_of(self._log)

    def _adopt(self) -> None:
        """Check what cleaning has left, and expect that from now on."""
        log, model = self._log, self.model
        found = self._batches()
        self._checker.require_reduction(found, log.segments.start_offset)
        model.adopt(found)

    # Operations on files

    def _before_operation(self, kind: str, path: str) -> int | None:
        """Refuse an operation if that was decided, and do other steps between the operations of a thread."""
        if self._refused_in:
            self._refused_in -= 1
            if not self._refused_in:
                self._note(f"refused: {kind} {path}")
                self._caches_complete, self._refused = False, True
                return errno.ENOSPC
        chance = self._thread
        if chance is not None and chance.random() < 0.25:
            self._thread = None
            try:
                name = chance.choice(MEANWHILE)
                self._note(f"before {kind} {path}:")
                self._step(name, random.Random(chance.randrange(1 << 32)))
            finally:
                self._thread = chance
        return None

    def _in_thread(self, chance: random.Random, work: Callable[[], object]) -> None:
        self._thread = chance
        try:
            work()
        finally:
            self._thread = None

    # Appends

    def _write(self, batches: Sequence[bytes], append: Callable[[], object]) -> None:
        self._pending = [Batch(batch) for batch in batches]
        append()
        for batch in self._pending:
            self.model.add(batch)
        self._note(f"  appended {self._pending}")
        self._pending = []

    def _settle_pending(self) -> None:
        """Note what an append that failed has left."""
        pending, self._pending = self._pending, []
        for batch in pending:
            if batch.end <= self._log.log_end_offset:
                self.model.add(batch)
        state = self.model.state
        if self._log.leader_epoch > (state.epochs[-1][0] if state.epochs else -1):
            self.model.empty_epoch = self._log.leader_epoch

    def _lead(self, batch: bytes) -> None:
        log = self._log

        def append() -> None:
            info = log.append(batch, leader_epoch=self._epoch, now_ms=self._now_ms)
            require(not info.duplicate, f"the batch {batch!r} is taken for a retry")

        producer_id = Batch(batch).header.producer_id
        known, model = log.producers.get(producer_id), self.model.state.producers
        if known is not None and not known.batches and model[producer_id].batches:
            return  # the log has a marker, and the batches before it were deleted: it expects sequence 0, as Kafka does
        if len(batch) <= self.knobs.config.segment_bytes:
            self._write([at(batch, self.model.end, self._epoch)], append)

    def do_append(self, chance: random.Random) -> None:
        self._lead(self._writer.data(chance))

    def do_append_idempotent(self, chance: random.Random) -> None:
        self._lead(self._writer.data(chance, chance.choice(PLAIN), self.model.state))

    def do_transact(self, chance: random.Random) -> None:
        producer_id = chance.choice(TRANSACTIONAL)
        state = self.model.state
        self._lead(self._writer.data(chance, producer_id, state, transactional=True))

    def do_end_transaction(self, chance: random.Random) -> None:
        state = self.model.state
        producer_id = chance.choice(list(state.open) or TRANSACTIONAL)
        marker = self._writer.marker(
            producer_id, state, committed=chance.random() < 0.5, bump=chance.random() < 0.2
        )
        self._mark(marker)

    def _mark(self, marker: Marker) -> None:
        log = self._log
        batch = at(build_marker(marker, self._now_ms), self.model.end, self._epoch)
        self._write(
            [batch],
            lambda: log.append_marker(marker, leader_epoch=self._epoch, now_ms=self._now_ms),
        )

    def do_retry(self, chance: random.Random) -> None:
        """Repeat a batch that the log knows."""
        log = self._log
        known = {
            (producer_id, entry.epoch, *batch[:4])
            for producer_id, entry in log.producers.items()
            for batch in entry.batches
        }
        batches = [
            batch
            for batch in self.model.batches
            if len(batch.raw) <= self.knobs.config.segment_bytes
            and (header := batch.header).records_count == header.last_offset_delta + 1
            and (
                header.producer_id,
                header.producer_epoch,
                header.base_sequence,
                header.last_sequence,
                batch.base,
                batch.end - 1,
            )
            in known
        ]
        if batches:
            batch = chance.choice(batches)
            repeated = bytes(8) + batch.raw[8:]
            info = log.append(repeated, leader_epoch=self._epoch, now_ms=self._now_ms)
            require(
                (info.duplicate, info.base_offset, info.last_offset)
                == (True, batch.base, batch.end - 1),
                f"a retry of {batch} is answered with {info}",
            )

    def do_replicate(self, chance: random.Random) -> None:
        log, model = self._log, self.model
        epoch = chance.randint(max(log.leader_epoch, 0), max(self._epoch, log.leader_epoch))
        self._epoch = max(self._epoch, epoch)
        batches = self._writer.replicated(chance, model.state, model.end, epoch)
        self._write(batches, lambda: log.append_replicated(b"".join(batches), now_ms=self._now_ms))

    def do_replicate_refused(self, chance: random.Random) -> None:
        log, model = self._log, self.model
        epoch = max(log.leader_epoch, 0)
        good = list(self._writer.replicated(chance, model.state, model.end, epoch))
        bad = spoiled(chance, good[-1], model.end, log.leader_epoch)
        if bad is None:
            return
        with suppress(ApiError):
            log.append_replicated(b"".join([*good[:-1], bad]), now_ms=self._now_ms)
            raise ViolationError("a follower has taken a batch that it must refuse")

    def do_elect(self, chance: random.Random) -> None:
        self._epoch += 1
        if chance.random() < 0.5:
            self._log.become_leader(self._epoch)
            self.model.empty_epoch = self._epoch

    # Truncation

    def do_truncate(self, chance: random.Random) -> None:
        log, model = self._log, self.model
        committed = log.high_watermark if self.knobs.unclean else model.high_watermark
        if chance.random() < 0.85:
            offset = chance.randint(max(committed, model.start), model.end + 1)
        else:
            offset = chance.randint(0, model.end + 1)
        end = model.truncated_end(offset)
        if not self.knobs.unclean and log.high_watermark <= end < committed:
            return  # no leader has less than what is committed
        if offset < model.start or end < log.high_watermark:
            with suppress(OffsetOutOfRangeError):
                self._manager.truncate(log, offset, self._now_ms)
                raise ViolationError(f"{log!r} was truncated to {offset}")
            return
        self._cutting = end
        self._note(f"  truncate to {offset}: {end}")
        known = last_batches(log, end)
        found = self._manager.truncate(log, offset, self._now_ms)
        require(found == end, f"a truncation to {offset} ends at {found}, expected {end}")
        kept = last_batches(log, end)
        require(
            known.items() <= kept.items(), f"the last batches of producers were {known}: {kept}"
        )
        if end < model.end:
            self.counts["batches truncated"] += 1
        model.cut(end)
        model.high_watermark = min(model.high_watermark, end)
        self._cutting = None
        self._held = [held for held in self._held if held[2] <= end]
        self._compare(chance, whole=chance.random() < 0.5)

    def do_truncate_fully(self, chance: random.Random) -> None:
        """Begin an empty log, as a follower does whose next offset the leader has deleted."""
        last = self.model.end + chance.choice([1, 7, 300])
        offset = last if chance.random() < 0.7 else chance.randint(0, last)
        self._note(f"  begin at {offset}")
        self._beginning = offset
        try:
            log = self._manager.truncate_fully_and_start_at(self._spec, offset, self._now_ms)
        except OSError as error:
            if not is_passing(error):
                raise
            self._note("truncate_fully was refused")
            log = self._manager.truncate_fully_and_start_at(self._spec, offset, self._now_ms)
        self._beginning, self._rewriting = None, False
        self.model = Model(offset)
        found = log.log_start_offset, log.log_end_offset, log.high_watermark
        require(found == (offset,) * 3, f"{log!r} does not begin at {offset}")
        self._compare(chance, whole=True)

    # Durability

    def do_begin_sync(self, _chance: random.Random) -> None:
        if self._sync is None:
            self._sync, self._sync_has_run = self._manager.start_sync(), False

    def do_run_sync(self, chance: random.Random) -> None:
        if self._sync is not None and not self._sync_has_run:
            try:
                self._in_thread(chance, self._sync.run)
            except OSError as error:
                self._finish_sync(error)
                return
            self._sync_has_run = True

    def do_end_sync(self, _chance: random.Random) -> None:
        if self._sync is not None and self._sync_has_run:
            self._finish_sync(None)

    def _finish_sync(self, error: OSError | None) -> None:
        batch, self._sync = self._sync, None
        assert batch is not None
        self._manager.finish_sync(batch, error)
        if error is not None:
            self._manager.mark_dirty(self._log)
            if self._manager.failure is not None:
                raise error

    def do_sync(self, chance: random.Random) -> None:
        for _ in range(2):
            self.do_run_sync(chance)
            self.do_end_sync(chance)
            self.do_begin_sync(chance)

    def do_fail_sync(self, chance: random.Random) -> None:
        """Let a sync fail, because it could not begin, or because the disk has lost the data."""
        self.do_begin_sync(chance)
        if self._sync is None or self._sync_has_run:
            return
        if chance.random() < 0.5 or not isinstance(self._files, CrashFileSystem):
            self._finish_sync(OSError(errno.EMFILE, "too many open files"))
            return
        tasks = self._sync.tasks
        self._files.fault = lambda kind, _: errno.EIO if kind.startswith("sync") else None
        with suppress(OSError):
            self.do_run_sync(chance)
        self._files.fault = self._before_operation
        if all(task.abandoned for task in tasks):
            return  # no request waits for the log that was deleted
        require(self._manager.failure is not None, "a failed sync was ignored")
        self._crash(chance, power=False)

    def do_advance_high_watermark(self, chance: random.Random) -> None:
        log = self._log
        limit = log.synced_offset if self.knobs.visible_when_synced else log.log_end_offset
        ends = [batch.end for batch in self.model.batches if batch.end <= limit]
        if ends:
            log.advance_high_watermark(chance.choice([ends[-1], chance.choice(ends)]))
            self.model.high_watermark = max(self.model.high_watermark, log.high_watermark)

    def do_save_caches(self, _chance: random.Random) -> None:
        self._log.maybe_write_caches()

    def do_checkpoint(self, chance: random.Random) -> None:
        self._manager.write_checkpoints()
        if chance.random() < 0.5:
            self._manager.high_watermarks.write()

    # Cleaning and deletion

    def do_clean(self, chance: random.Random) -> None:
        for _ in range(chance.choice([1, 2, 8, 40])):
            if self._task is None:
                self._now_ms += 20_000
                self._cleaner.tick(self._now_ms)
                self._task, self._task_has_run = self._cleaner.start(), False
                if self._task is None:
                    return
                self._rewriting = True
                end = self._task.segments[-1].end_offset
                self.model.rewritten = max(self.model.rewritten, end)
            elif not self._task_has_run:
                self._run_task(chance)
            else:
                self._finish_task(None)

    def _run_task(self, chance: random.Random) -> None:
        assert self._task is not None
        try:
            self._in_thread(chance, self._task.run)
        except (OSError, ValueError, StorageError) as error:
            self._finish_task(error)
            return
        self._task_has_run = True

    def _finish_task(self, error: Exception | None) -> None:
        task, self._task = self._task, None
        assert task is not None
        try:
            self._cleaner.finish(task, error, self._now_ms)
        except OSError:  # the directory is out of service
            self._crash(random.Random(self._now_ms), power=False)
            return
        self._adopt()
        if task.finished:
            self._rewriting = False
            self.counts["rounds of cleaning"] += 1

    def do_delete_records(self, chance: random.Random) -> None:
        log = self._log
        offset = chance.randint(log.log_start_offset, log.high_watermark)
        self._deleting(offset)
        log.advance_log_start_offset(offset)
        self._manager.delete_below_start([log], self._now_ms)
        self._deleted(offset)

    def do_retain(self, chance: random.Random) -> None:
        self._now_ms += 400_000
        self._log.follows = chance.random() < 0.2
        self._deleting(0)
        if self._log.follows:
            self._starting = self._log.log_start_offset
        self._manager.tick(self._now_ms)
        self._deleted(0)

    def _deleting(self, offset: int) -> None:
        self._refused = False
        self._starting = max(offset, self._log.last_stable_offset)

    def _deleted(self, offset: int) -> None:
        log, model = self._log, self.model
        require(
            max(model.start, offset) <= log.log_start_offset <= max(model.start, self._starting),
            f"{log!r} begins at another offset than {max(model.start, offset)}",
        )
        model.start, self._starting = log.log_start_offset, 0
        if not self._refused:
            model.durable_start = model.start

    # Other steps

    def do_roll(self, _chance: random.Random) -> None:
        self._log.roll(self._now_ms)

    def do_seal(self, chance: random.Random) -> None:
        """Make the log durable and visible, and begin a segment, so that the one before can be cleaned."""
        self.do_sync(chance)
        self._log.advance_high_watermark(self._log.synced_offset)
        self.model.high_watermark = max(self.model.high_watermark, self._log.high_watermark)
        self._log.roll(self._now_ms)

    def do_pass_time(self, chance: random.Random) -> None:
        self._now_ms += chance.choice([1, 60, 1000])

    def do_check(self, chance: random.Random) -> None:
        self._compare(chance, whole=True)

    def do_refuse_operation(self, chance: random.Random) -> None:
        """Refuse one operation of the next step."""
        if isinstance(self._files, CrashFileSystem):
            self._refused_in = chance.randint(1, 8)

    def do_arm(self, chance: random.Random) -> None:
        """Let the power fail at one of the next operations."""
        if isinstance(self._files, CrashFileSystem) and self._files.fuse is None:
            self._files.fuse = self._files.operations + chance.randint(1, 25)

    def do_cut_power(self, chance: random.Random) -> None:
        self._crash(chance, power=True)

    def do_kill(self, chance: random.Random) -> None:
        self._crash(chance, power=False)

    def do_restart(self, chance: random.Random) -> None:
        """Stop cleanly and start again: the log is the same, and no segment is read."""
        self._refused_in = 0
        self.do_run_sync(chance)
        self.do_end_sync(chance)
        if self._log.failure is not None:
            return
        self._manager.close(self._now_ms)
        self.model.durable_start = self.model.start
        self._start()
        log = self._log
        require(
            not log.recovery.scanned_bytes or not self._caches_complete,
            f"a clean start reads {log.recovery}",
        )
        self._caches_complete = True
        self.model.empty_epoch = -1
        if self._rewriting:
            self._adopt()
            self._rewriting = False
        self._checker.check(log, chance)
