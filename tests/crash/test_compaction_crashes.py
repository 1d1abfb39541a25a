"""Power cuts at any operation of compaction: no last value of a key is lost, and no deleted key comes back."""

from __future__ import annotations

import contextlib
import random

import pytest

from headrace.core.log import LogCleaner, LogConfig, LogManager, PartitionLog, PartitionSpec
from headrace.core.log.cleaning.cleaner import BACKOFF_MS
from headrace.core.log.segments.replacement import Replacement, swap_path
from headrace.errors import StorageError
from headrace.records.compression import Compression
from headrace.types import FileRange, TopicPartition
from tests.fixtures.compaction import keyed, latest
from tests.fixtures.crash_files import CrashFileSystem, PowerCut
from tests.fixtures.logs import NOW_MS, RecordingJournal, raw_batches, records_of

PARTITIONS = [TopicPartition("a", 0), TopicPartition("b", 3)]
TOPIC_IDS = {partition: bytes([number + 1]) * 16 for number, partition in enumerate(PARTITIONS)}
KEYS = [b"k%d" % number for number in range(6)]
LONG_KEY = b"a key that is longer than its digest"

Fields = tuple[bytes, bytes | None]


class Harness:
    """A broker's storage that compacts, crashes and restarts. `known` has the acknowledged records by offset."""

    def __init__(self, seed: int, *, retention_bytes: int = -1) -> None:
        self.chance = random.Random(seed)
        self.files = CrashFileSystem()
        self.now_ms = NOW_MS
        self.epoch = 0
        self.known: dict[TopicPartition, dict[int, Fields]] = {p: {} for p in PARTITIONS}
        self.pending: dict[TopicPartition, dict[int, list[Fields]]] = {p: {} for p in PARTITIONS}
        self.held: list[tuple[FileRange, bytes]] = []
        self.max_keys = self.chance.choice([2, 4, 1000])
        self.config = LogConfig(
            compacts=True,
            min_cleanable_dirty_ratio=self.chance.choice([0.0, 0.3]),
            delete_retention_ms=self.chance.choice([0, 0, 50_000, 10**9]),
            segment_bytes=self.chance.choice([250, 600, 3000]),
            retention_ms=-1,
            retention_bytes=retention_bytes,
            index_interval_bytes=self.chance.choice([1, 200]),
        )
        self.rounds = 0

    def start(self) -> None:
        self.held.clear()
        self.journal = RecordingJournal()
        self.manager = LogManager.open(self.files, cluster_id="c", node_id=1, journal=self.journal)
        self.cleaner = LogCleaner(self.manager, self.files, self.journal, max_keys=self.max_keys)
        self.manager.load(
            [PartitionSpec(p, TOPIC_IDS[p], self.config) for p in PARTITIONS], self.now_ms
        )
        assert not self.manager.failed, self.manager.failed

    def log(self, partition: TopicPartition) -> PartitionLog:
        log = self.manager.get(partition)
        assert log is not None
        return log

    def work(self, operations: int) -> None:
        actions = [self.append, self.sync, self.compact, self.read, self.roll, self.tick]
        weights = [40, 15, 35, 5, 5, 2]
        actions += [self.restart, self.elect]
        weights += [1, 2]
        for _ in range(operations):
            self.now_ms += self.chance.choice([0, 1, 20_000])
            self.chance.choices(actions, weights)[0]()

    def append(self) -> None:
        partition = self.chance.choice(PARTITIONS)
        log = self.log(partition)
        records: list[Fields] = [
            (
                self.chance.choice([*KEYS, LONG_KEY]),
                None if self.chance.random() < 0.3 else b"%d" % self.chance.randrange(10**6),
            )
            for _ in range(self.chance.randint(1, 3))
        ]
        offset = log.log_end_offset
        for number, fields in enumerate(records):
            self.pending[partition].setdefault(offset + number, []).append(fields)
        codec = self.chance.choice([Compression.NONE, Compression.NONE, Compression.LZ4])
        batch = keyed(*records, compression=codec, timestamp=self.now_ms)
        log.append(batch, leader_epoch=self.epoch, now_ms=self.now_ms)

    def sync(self) -> None:
        batch = self.manager.start_sync()
        if batch is not None:
            batch.run()
            for log in self.manager.finish_sync(batch):
                log.advance_high_watermark(log.synced_offset)
                self.acknowledge(log)

    def acknowledge(self, log: PartitionLog) -> None:
        known, pending = self.known[log.topic_partition], self.pending[log.topic_partition]
        for offset in sorted(pending):
            if offset < log.synced_offset:
                known[offset] = pending.pop(offset)[-1]

    def compact(self) -> None:
        self.now_ms += BACKOFF_MS
        self.cleaner.tick(self.now_ms)
        for _ in range(self.chance.choice([1, 2, 50])):
            task = self.cleaner.start()
            if task is None:
                return
            error: Exception | None = None
            try:
                task.run()
            except FileNotFoundError as caught:  # retention
                error = caught
            self.cleaner.finish(task, error, self.now_ms)
            if self.chance.random() < 0.1:
                self.tick()
            self.rounds += task.finished
            self.check_log(task.log)

    def read(self) -> None:
        log = self.log(self.chance.choice(PARTITIONS))
        if log.log_end_offset > log.log_start_offset:
            found = log.read(
                self.chance.randrange(log.log_start_offset, log.log_end_offset),
                max_bytes=self.chance.choice([1, 300, 10**6]),
                up_to=log.log_end_offset,
                minimum_one=True,
            )
            assert found is not None
            self.held.append((found, found.read()))

    def roll(self) -> None:
        self.log(self.chance.choice(PARTITIONS)).roll(self.now_ms)

    def tick(self) -> None:
        self.now_ms += 400_000
        self.manager.tick(self.now_ms)

    def restart(self) -> None:
        self.sync()
        before = [raw_batches(self.log(partition)) for partition in PARTITIONS]
        self.manager.close(self.now_ms)
        for partition in PARTITIONS:
            self.acknowledge(self.log(partition))
        self.start()
        assert before == [raw_batches(self.log(partition)) for partition in PARTITIONS]

    def elect(self) -> None:
        self.epoch += 1

    # Invariants

    def check_log(self, log: PartitionLog) -> None:
        """Check that a reader finds the last acknowledged record of each key last, and no unknown record."""
        known = self.known[log.topic_partition]
        expected: dict[bytes, bytes] = {}
        last: dict[bytes, int] = {}
        for offset in sorted(known):
            key, value = known[offset]
            last[key] = offset
            if value is None:
                expected.pop(key, None)
            else:
                expected[key] = value
        synced = [record for record in records_of(log) if record.offset < log.synced_offset]
        found: dict[bytes, bytes] = {}
        for record in synced:
            assert record.key is not None
            assert (record.key, record.value) == known[record.offset]
            if record.value is None:
                found.pop(record.key, None)
            else:
                found[record.key] = record.value
        expected = {
            key: value for key, value in expected.items() if last[key] >= log.log_start_offset
        }
        assert found == expected

    def check_readers(self) -> None:
        for held, content in self.held:
            assert held.read() == content

    def recovered(self) -> None:
        """Take the records after a start: records that were appended but not acknowledged count from now on."""
        for partition in PARTITIONS:
            log, known = self.log(partition), self.known[partition]
            assert log.log_end_offset > max(known, default=-1)
            assert log.synced_offset == log.log_end_offset
            first_new = max(known, default=-1) + 1
            for record in records_of(log):
                if record.offset >= first_new:
                    assert record.key is not None
                    fields = (record.key, record.value)
                    assert fields in self.pending[partition][record.offset]
                    known[record.offset] = fields
            # No record above the acknowledged offset had been compacted.
            assert sorted(known) == list(range(log.log_end_offset))
            self.pending[partition].clear()
            self.check_log(log)


@pytest.mark.parametrize("retention_bytes", [-1, 2000])
@pytest.mark.parametrize("seed", range(60))
def test_no_last_value_is_lost_and_no_deleted_key_comes_back(
    seed: int, retention_bytes: int
) -> None:
    harness = Harness(seed, retention_bytes=retention_bytes)
    for life in range(4):
        harness.files.fuse = harness.files.operations + harness.chance.randint(1, 400)
        try:
            harness.start()
            harness.recovered()
            harness.work(200)
        except PowerCut:
            pass
        harness.check_readers()
        if harness.chance.random() < 0.6:
            harness.files = harness.files.after_power_cut(seed * 10 + life)
    for attempt in range(4):
        harness.files.fuse = harness.files.operations + harness.chance.randint(1, 12)
        try:
            harness.start()
        except PowerCut:
            if harness.chance.random() < 0.6:
                harness.files = harness.files.after_power_cut(seed * 100 + attempt)
    harness.files.fuse = None
    harness.start()
    harness.recovered()
    contents = segment_contents(harness.files)
    harness.files = harness.files.after_power_cut(seed)
    harness.start()
    assert segment_contents(harness.files) == contents
    harness.recovered()
    # The log can be used again: it can be compacted completely.
    for partition in PARTITIONS:
        harness.log(partition).roll(harness.now_ms)
    for _ in range(200):
        harness.compact()
    for partition in PARTITIONS:
        harness.check_log(harness.log(partition))


def segment_contents(files: CrashFileSystem) -> dict[str, bytes]:
    return {path: data for path, data in files.contents().items() if path.endswith(".log")}


def build(seed: int) -> Harness:
    """Build a log of several small segments with all kinds of acknowledged records, and one pending round."""
    harness = Harness(seed)
    harness.config = LogConfig(
        compacts=True,
        min_cleanable_dirty_ratio=0.0,
        delete_retention_ms=0,
        segment_bytes=400,
        retention_ms=-1,
    )
    harness.max_keys = 1000
    harness.start()
    for _ in range(40):
        harness.append()
        harness.sync()
        if harness.chance.random() < 0.2:
            harness.epoch += 1
    # A first round writes delete horizons, which have expired in the second round.
    for partition in PARTITIONS:
        harness.log(partition).roll(harness.now_ms)
    harness.sync()
    for _ in range(6):
        harness.compact()
    for _ in range(12):
        harness.append()
        harness.sync()
    for partition in PARTITIONS:
        harness.log(partition).roll(harness.now_ms)
    harness.sync()
    return harness


def rounds(harness: Harness) -> None:
    for _ in range(30):
        harness.compact()


def test_power_cuts_at_every_operation_of_a_round() -> None:
    reference = build(1)
    start = reference.files.operations
    rounds(reference)
    assert reference.rounds >= 2
    operations = reference.files.operations - start
    assert operations > 20
    for number in range(1, operations + 1):
        for image in range(2):
            harness = build(1)
            assert harness.files.operations == start
            harness.files.fuse = start + number
            with pytest.raises(PowerCut):
                rounds(harness)
            if image:  # otherwise only the process was killed
                harness.files = harness.files.after_power_cut(number * 7 + image)
            recover_with_interruptions(harness, number)
            contents = segment_contents(harness.files)
            harness.files = harness.files.after_power_cut(image)
            harness.start()
            assert segment_contents(harness.files) == contents
            harness.recovered()
            rounds(harness)
            for partition in PARTITIONS:
                harness.check_log(harness.log(partition))
            assert latest(harness.log(PARTITIONS[0])) == latest(reference.log(PARTITIONS[0]))


def recover_with_interruptions(harness: Harness, seed: int) -> None:
    for cut in range(1, 6):
        harness.files.fuse = harness.files.operations + cut
        try:
            harness.start()
        except PowerCut:
            harness.files = harness.files.after_power_cut(seed + cut)
    harness.files.fuse = None
    harness.start()
    harness.recovered()
    for path in harness.files.contents():
        assert not path.endswith((".swap", ".cleaned"))


def test_the_check_finds_a_missing_directory_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without step 4 of the protocol removed segments come back beside their replacement."""
    monkeypatch.setattr(
        Replacement,
        "name",
        lambda self, files: files.rename(swap_path(self.first, self.owner), self.first.path),
    )
    failures = 0
    for number in range(1, 60):
        harness = build(1)
        harness.files.fuse = harness.files.operations + number
        with contextlib.suppress(PowerCut):
            rounds(harness)
        harness.files = harness.files.after_power_cut(number)
        try:
            harness.start()
            harness.recovered()
        except (AssertionError, StorageError):
            failures += 1
    assert failures
