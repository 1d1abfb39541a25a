"""Power cuts at any operation of a log manager: acknowledged batches are durable, and no batch is incomplete."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest

from headrace.core.log import (
    LogConfig,
    LogManager,
    Marker,
    PartitionLog,
    PartitionSpec,
    SyncTask,
    build_marker,
    read_marker,
)
from headrace.core.log.append import log_files
from headrace.records.batch import check_batch
from headrace.types import TopicPartition
from tests.fixtures.crash_files import CrashFileSystem, PowerCut
from tests.fixtures.logs import NOW_MS, RecordingJournal, batch_of, raw_batches
from tests.fixtures.transactions import transactional

PARTITIONS = [TopicPartition("a", 0), TopicPartition("b", 3)]
TOPIC_IDS = {partition: bytes([number + 1]) * 16 for number, partition in enumerate(PARTITIONS)}


@dataclass
class History:
    """The batches that were appended to one partition, and how many of them were acknowledged."""

    values: dict[int, set[bytes]] = field(
        default_factory=dict
    )  # offset -> every batch ever put there
    acknowledged: dict[int, bytes] = field(default_factory=dict)
    sequences: list[tuple[int, int, bytes]] = field(
        default_factory=list
    )  # acknowledged idempotent batches
    start_offset: int = 0


class Harness:
    """A broker's storage that appends, syncs, crashes and restarts."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.files = CrashFileSystem()
        self.histories = {partition: History() for partition in PARTITIONS}
        self.now_ms = NOW_MS
        self.epoch = 0
        self.sequence = 0
        self.config = LogConfig(
            segment_bytes=self.chance.choice([400, 1500, 20_000]),
            retention_bytes=self.chance.choice([-1, -1, -1, 3000]),
            retention_ms=self.chance.choice([-1, -1, -1, 1_000_000]),
            index_interval_bytes=self.chance.choice([1, 200, 4096]),
        )
        self.manager: LogManager | None = None

    def start(self) -> LogManager:
        manager = LogManager.open(self.files, cluster_id="c", node_id=1, journal=RecordingJournal())
        manager.load(
            [
                PartitionSpec(partition, TOPIC_IDS[partition], self.config)
                for partition in PARTITIONS
            ],
            self.now_ms,
        )
        assert not manager.failed, manager.failed
        self.manager = manager
        return manager

    def work(self, operations: int) -> None:
        assert self.manager is not None
        for _ in range(operations):
            self.now_ms += self.chance.choice([0, 1, 100_000])
            action = self.chance.choices(
                [
                    self.append,
                    self.append_idempotent,
                    self.transact,
                    self.sync,
                    self.tick,
                    self.save,
                    self.restart,
                    self.elect,
                ],
                weights=[50, 15, 15, 20, 4, 3, 2, 2],
            )[0]
            action()

    def append(self) -> None:
        partition = self.chance.choice(PARTITIONS)
        batch = batch_of(
            self.chance.randint(1, 3),
            tag=str(self.chance.random()),
            size=self.chance.choice([0, 100, 600 if self.config.segment_bytes > 2000 else 20]),
        )
        self._append(partition, batch)

    def append_idempotent(self) -> None:
        partition = PARTITIONS[0]
        batch = batch_of(1, producer_id=9, producer_epoch=0, base_sequence=self.sequence)
        self._append(partition, batch)
        self.sequence += 1

    def transact(self) -> None:
        """Continue a transaction, or end it."""
        partition, producer_id = PARTITIONS[1], self.chance.choice([20, 21])
        log = self.log(partition)
        entry = log.producers.get(producer_id)
        if producer_id in log.producers.transactions.open and self.chance.random() < 0.4:
            marker = Marker(producer_id, 0, 0, committed=self.chance.random() < 0.5)
            values = self.histories[partition].values.setdefault(log.log_end_offset, set())
            values.add(build_marker(marker, self.now_ms)[16:])
            log.append_marker(marker, leader_epoch=self.epoch, now_ms=self.now_ms)
            log.advance_high_watermark(log.synced_offset)
            return
        sequence = entry.batches[-1].last_sequence + 1 if entry and entry.batches else 0
        record = (None, str(self.chance.random()).encode())
        batch = transactional(record, producer_id=producer_id, sequence=sequence)
        self._append(partition, batch)

    def _append(self, partition: TopicPartition, batch: bytes) -> None:
        log = self.log(partition)
        offset = log.log_end_offset
        # Recorded before the attempt, because the power may fail during it.
        self.histories[partition].values.setdefault(offset, set()).add(batch[16:])
        info = log.append(batch, leader_epoch=self.epoch, now_ms=self.now_ms)
        assert info.base_offset == offset
        log.advance_high_watermark(log.synced_offset)

    def sync(self) -> None:
        assert self.manager is not None
        batch = self.manager.start_sync()
        if batch is None:
            return
        if self.chance.random() < 0.3:
            self.append()  # the running sync does not cover this batch
        batch.run()
        for log in self.manager.finish_sync(batch):
            self.acknowledge(log)

    def acknowledge(self, log: PartitionLog) -> None:
        history = self.histories[log.topic_partition]
        log.advance_high_watermark(log.synced_offset)
        for offset, batch in raw_batches(log).items():
            if offset < log.synced_offset:
                history.acknowledged[offset] = batch

    def tick(self) -> None:
        assert self.manager is not None
        self.now_ms += 400_000
        self.manager.tick(self.now_ms)
        for partition in PARTITIONS:
            self.histories[partition].start_offset = self.log(partition).log_start_offset

    def save(self) -> None:
        """Write caches and snapshots, for synced and unsynced batches."""
        assert self.manager is not None
        for partition in PARTITIONS:
            self.log(partition).maybe_write_caches()
        if self.chance.random() < 0.5:
            self.manager.write_checkpoints()

    def restart(self) -> None:
        assert self.manager is not None
        before = [
            (log.log_start_offset, log.log_end_offset, raw_batches(log))
            for log in map(self.log, PARTITIONS)
        ]
        self.manager.close(self.now_ms)
        self.start()
        logs = [self.log(partition) for partition in PARTITIONS]
        assert before == [
            (log.log_start_offset, log.log_end_offset, raw_batches(log)) for log in logs
        ]
        assert not any(log.recovery.scanned_bytes for log in logs)

    def elect(self) -> None:
        self.epoch += 1

    def log(self, partition: TopicPartition) -> PartitionLog:
        assert self.manager is not None
        log = self.manager.get(partition)
        assert log is not None
        return log

    def check(self) -> None:
        """Check that acknowledged batches are there, unchanged and in order, and that every batch was appended."""
        for partition, history in self.histories.items():
            log = self.log(partition)
            found = raw_batches(log)
            assert log.synced_offset == log.high_watermark == log.log_end_offset
            expected = next(iter(found), log.log_end_offset)
            for offset, batch in found.items():
                assert offset == expected
                expected = check_batch(batch).next_offset
                assert batch[16:] in history.values[offset]
            assert expected == log.log_end_offset
            for offset, batch in history.acknowledged.items():
                if offset >= log.log_start_offset:
                    assert found[offset] == batch
            if self.config.retention_bytes < 0 and self.config.retention_ms < 0:
                assert log.log_start_offset == 0
            history.acknowledged = dict(found)  # recovery synced it
            check_transactions(log, found)

    def check_retries(self) -> None:
        """Check that a retry of an acknowledged idempotent batch gets the offset of the batch."""
        log = self.log(PARTITIONS[0])
        acknowledged = [
            (offset, batch)
            for offset, batch in self.histories[PARTITIONS[0]].acknowledged.items()
            if check_batch(batch).producer_id == 9 and offset >= log.log_start_offset
        ][-5:]
        for offset, batch in acknowledged:
            header = check_batch(batch)
            retry = b"\0" * 8 + batch[8:]
            info = log.append(retry, leader_epoch=self.epoch, now_ms=self.now_ms)
            assert (info.base_offset, info.duplicate) == (offset, True), header
        # Retention may have deleted the batches. The state of their producer is kept.
        entry = log.producers.get(9)
        self.sequence = entry.batches[-1].last_sequence + 1 if entry else 0
        if acknowledged:
            assert self.sequence == check_batch(acknowledged[-1][1]).base_sequence + 1


def check_transactions(log: PartitionLog, batches: dict[int, bytes]) -> None:
    """Check last stable offset and aborted transactions against the batches; retention must keep open transactions."""
    is_open: dict[int, int] = {}
    aborted: list[tuple[int, int]] = []
    for offset, batch in batches.items():
        header = check_batch(batch)
        marker = read_marker(batch) if header.is_control else None
        if marker is not None:
            first = is_open.pop(header.producer_id, None)
            if first is not None and not marker.committed:
                aborted.append((first, offset))
        elif header.is_transactional:
            is_open.setdefault(header.producer_id, offset)
    assert log.last_stable_offset == min(is_open.values(), default=log.high_watermark)
    known = {
        (max(entry.first_offset, log.log_start_offset), entry.last_offset)
        for entry in log.producers.transactions.aborted
    }
    # Retention has deleted all records, or the first records, of some transactions.
    assert {last for _, last in aborted} <= {last for _, last in known}
    assert known <= {*aborted, *((log.log_start_offset, last) for _, last in known)}


@pytest.mark.parametrize("seed", range(120))
def test_acknowledged_batches_survive_any_power_cut(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_files, "CACHES_AFTER_BYTES", 300)
    harness = Harness(seed)
    for life in range(3):
        harness.files.fuse = harness.files.operations + harness.chance.randint(1, 250)
        try:
            harness.start()
            if life:
                harness.check()
                harness.check_retries()
            harness.work(150)
        except PowerCut:
            pass
        # The power failed, or only the process was killed. After a kill the unsynced page cache is still there.
        if harness.chance.random() < 0.6:
            harness.files = harness.files.after_power_cut(seed * 10 + life)
    # Recovery is interrupted several times, and then completes.
    for attempt in range(4):
        harness.files.fuse = harness.files.operations + harness.chance.randint(1, 12)
        try:
            harness.start()
        except PowerCut:
            if harness.chance.random() < 0.6:
                harness.files = harness.files.after_power_cut(seed * 100 + attempt)
    harness.files.fuse = None
    harness.start()
    harness.check()
    harness.check_retries()
    # After a restart consumers may have read all records, so all count as acknowledged.
    harness.files = harness.files.after_power_cut(seed)
    harness.start()
    harness.check()


@pytest.mark.parametrize("what", ["nothing", "names", "directory", "data"])
def test_a_sync_that_leaves_something_out_loses_acknowledged_batches(
    what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first group commit of a log has to sync the data, the file names, and the name of the directory."""

    def careless(task: SyncTask) -> None:
        if what != "data":
            for file in task.file_list:
                file.sync()
            if task.metadata_path is not None:
                task._files.open(task.metadata_path).sync()
        if what != "names" and task.directory is not None:
            task._files.sync_directory(task.directory)
        if what != "directory" and task.is_new:
            task._files.sync_directory("")

    monkeypatch.setattr(SyncTask, "run", careless)
    lost = 0
    for seed in range(40):
        harness = Harness(seed)
        harness.start()
        harness.append()
        harness.sync()
        harness.files = harness.files.after_power_cut(seed)
        harness.start()
        ends = [harness.log(partition).log_end_offset for partition in PARTITIONS]
        lost += any(
            end <= max(harness.histories[partition].acknowledged, default=-1)
            for partition, end in zip(PARTITIONS, ends, strict=True)
        )
    assert (lost > 0) == (what != "nothing")
