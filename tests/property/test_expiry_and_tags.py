"""Times to live and tags against a model, over random batches, transactions, rolls, cleaning, restarts and power cuts.

The model is a list of records with times and tags, each open, committed or aborted. After any operations on the log
each reader finds exactly the unexpired records with its tags, and reaches the end in a bounded number of reads.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest

from headrace.broker.replication.partition import READ_COMMITTED, Partition
from headrace.clients.consumer.records import FetchedBatches
from headrace.clients.flows.fetch import FetchedPartition
from headrace.core.log import AbortedLookup, LogConfig, Marker, PartitionLog, SelectiveReading
from headrace.core.log.cleaning.expiry_cleaning import (
    PARTLY_EXPIRED_MS,
    ExpiryCleaning,
    plan_expiry,
)
from headrace.records.batch import check_batch, iterate_headers
from headrace.records.builder import BatchBuilder
from headrace.records.compression import Compression
from headrace.records.directives import directives
from headrace.records.tags import TagFilter
from headrace.types import FileRange
from tests.fixtures.crash_files import CrashFileSystem, PowerCut
from tests.fixtures.logs import NOW_MS, PARTITION, open_log, sync

SEEDS = range(30)
STEPS = 60
PRODUCERS = (1, 2)
TAGS = ("red", "green", "blue")
CONFIG = LogConfig(
    expires=True, filters=True, retention_ms=-1, segment_bytes=1500, index_interval_bytes=100
)
CODECS = list(Compression)


@dataclass
class Entry:
    """A record of the model."""

    offset: int
    expires_ms: float
    tags: frozenset[str]
    producer: int | None
    marker: int | None = None
    """The offset of the marker that ended the record's transaction; None while the transaction is open."""
    aborted: bool = False

    @property
    def is_open(self) -> bool:
        return self.producer is not None and self.marker is None


@dataclass
class Model:
    """A log, and the records that it must contain."""

    chance: random.Random
    files: CrashFileSystem = field(default_factory=CrashFileSystem)
    now_ms: int = NOW_MS
    entries: list[Entry] = field(default_factory=list)
    log: PartitionLog = field(init=False)

    def __post_init__(self) -> None:
        self.log = open_log(self.files, CONFIG)

    def settle(self) -> None:
        sync(self.log)
        self.log.advance_high_watermark(self.log.synced_offset)

    # Operations on the log

    def produce(self) -> None:
        chance = self.chance
        producer = chance.choice((None, *PRODUCERS))
        builder = BatchBuilder(chance.choice(CODECS), transactional=producer is not None)
        entries = []
        base_offset = self.log.log_end_offset
        for number in range(chance.randint(1, 6)):
            ttl_ms = chance.choice((None, 0, 10, 50, 200, 200, 1000))
            tags = chance.sample(TAGS, chance.choice((0, 1, 1, 2)))
            timestamp = self.now_ms - chance.randint(0, 20)
            headers = directives((("x", b"headrace.ttl-ms"),), ttl_ms=ttl_ms, tags=tags)
            builder.append(b"k", b"v" * chance.randint(0, 40), headers, timestamp)
            expires_ms = float("inf") if ttl_ms is None else timestamp + ttl_ms
            entries.append(Entry(base_offset + number, expires_ms, frozenset(tags), producer))
        if producer is None:
            batch = builder.build()
        else:
            sequence = sum(entry.producer == producer for entry in self.entries)
            batch = builder.build(producer, 0, sequence)
        self.log.append(batch, leader_epoch=0, now_ms=self.now_ms)
        self.entries += entries

    def end_transaction(self) -> None:
        open_ones = [entry for entry in self.entries if entry.is_open]
        if open_ones:
            producer = self.chance.choice(open_ones).producer
            assert producer is not None
            aborted = self.chance.random() < 0.5
            marker = Marker(producer, 0, 0, committed=not aborted)
            info = self.log.append_marker(marker, leader_epoch=0, now_ms=self.now_ms)
            for entry in open_ones:
                if entry.producer == producer:
                    entry.marker, entry.aborted = info.base_offset, aborted

    def pass_time(self) -> None:
        self.now_ms += self.chance.choice((1, 10, 60, 300))

    def roll(self) -> None:
        self.log.roll(self.now_ms)

    def delete(self) -> None:
        self.settle()
        self.log.delete_old_segments(self.now_ms)
        self.log.purge()

    def clean(self, *, crashes: bool = True) -> None:
        self.settle()
        for segment in self.log.segments:
            segment.looked_through_ms = 0
        segments = plan_expiry(self.log, self.now_ms)
        if segments:
            task = ExpiryCleaning(self.files, self.log, segments, self.now_ms)
            cut_at = self.chance.randint(1, 60) if crashes else -1
            while not task.finished:
                task.run()
                self.log.settle()
                for segment, expiries in task.learned:
                    segment.expiries.learn(expiries, segment.size, keep=segment.loaded)
                task.learned.clear()
                replacement, task.replacement = task.replacement, None
                if replacement is not None:
                    self.log.install(replacement)
                cut_at -= 1
                if not cut_at:
                    self.crash()
                    return

    def restart(self) -> None:
        self.settle()
        start = self.log.log_start_offset
        self.log.close(self.now_ms)
        self.log = open_log(
            self.files,
            CONFIG,
            recovery_point=self.log.synced_offset,
            log_start_offset=start,
            now_ms=self.now_ms,
        )

    def crash(self) -> None:
        start, point = self.log.log_start_offset, self.log.synced_offset
        self.files = self.files.after_power_cut(self.chance.randint(0, 1 << 30))
        self.log = open_log(
            self.files,
            CONFIG,
            clean=False,
            recovery_point=point,
            log_start_offset=start,
            now_ms=self.now_ms,
        )
        end = self.log.log_end_offset
        self.log.advance_high_watermark(end)
        self.entries = [entry for entry in self.entries if entry.offset < end]
        for entry in self.entries:
            if entry.marker is not None and entry.marker >= end:
                entry.marker, entry.aborted = None, False

    # Readers

    def check(self, isolation_level: int, tags: frozenset[str] | None) -> None:
        partition = Partition(
            PARTITION,
            self.log,
            None,  # type: ignore[arg-type]  # reads do not use the directory
            is_internal=False,
        )
        end = partition.visible_end(isolation_level)
        wanted = [
            entry.offset
            for entry in self.entries
            if self.log.log_start_offset <= entry.offset < end
            and entry.expires_ms > self.now_ms
            and (tags is None or tags & entry.tags)
            and (isolation_level != READ_COMMITTED or not (entry.is_open or entry.aborted))
        ]
        seen: list[int] = []
        offset = self.log.log_start_offset
        while offset < end:
            reading = SelectiveReading(
                self.now_ms,
                None if tags is None else TagFilter.of(tags),
                self.chance.choice((100, 2000, 1 << 20)),
            )
            records, aborted = partition.select(
                offset,
                reading,
                max_bytes=self.chance.choice((0, 300, 1 << 20)),
                isolation_level=isolation_level,
                minimum_one=True,
                lookup=AbortedLookup(self.chance.choice((1, 2, 4096))),
            )
            assert records is not None
            data = records.read() if isinstance(records, FileRange) else records
            told = tuple((entry.producer_id, entry.first_offset) for entry in aborted or ())
            fetched = FetchedPartition(bytes(data), aborted_transactions=told)
            batches = FetchedBatches(PARTITION, fetched, check_crcs=True)
            while (part := batches.next_slice()) is not None:
                seen += [record.offset for record in part.records if record.offset >= offset]
            headers = [check_batch(data, position) for position, _ in iterate_headers(data)]
            offsets = [header.base_offset for header in headers]
            assert offsets == sorted(offsets)
            assert offset < headers[-1].next_offset <= end
            offset = headers[-1].next_offset
        assert seen == wanted


@pytest.mark.parametrize("seed", SEEDS)
def test_readers_find_unexpired_records_with_their_tags(seed: int) -> None:
    chance = random.Random(seed)
    model = Model(chance)
    ways = [model.produce] * 8 + [model.end_transaction] * 2 + [model.pass_time] * 3
    ways += [model.roll, model.roll, model.delete, model.clean, model.restart, model.crash]
    for _ in range(STEPS):
        chance.choice(ways)()
        if chance.random() < 0.3:
            model.settle()
            for isolation_level in (0, READ_COMMITTED):
                tags = chance.choice((None, frozenset(chance.sample(TAGS, 2))))
                model.check(isolation_level, tags)


def test_a_round_of_cleaning_removes_expired_records_and_the_next_round_waits() -> None:
    for seed in range(5):
        model = Model(random.Random(seed))
        for _ in range(40):
            model.produce()
        for _ in PRODUCERS:
            model.end_transaction()
        model.roll()
        size = model.log.size_bytes
        model.now_ms += 2000
        model.delete()
        planned = plan_expiry(model.log, model.now_ms)
        assert all(
            segment.expiries.half_expired_ms(segment.size) <= model.now_ms for segment in planned
        )
        assert len(planned) < 3
        model.now_ms += PARTLY_EXPIRED_MS
        model.clean(crashes=False)
        assert plan_expiry(model.log, model.now_ms + PARTLY_EXPIRED_MS) == []
        assert model.log.size_bytes < size / 2


def test_a_power_cut_during_cleaning_loses_no_unexpired_record() -> None:
    cut_at, cuts = 0, 0
    while cuts == cut_at:
        cut_at += 1
        model = Model(random.Random(7))
        for _ in range(25):
            model.produce()
        for _ in PRODUCERS:
            model.end_transaction()
        model.roll()
        model.now_ms += 2000
        model.settle()
        model.files.fuse = model.files.operations + cut_at
        try:
            model.clean(crashes=False)
        except PowerCut:
            cuts += 1
            model.chance.seed(cut_at)
            model.crash()
        model.files.fuse = None
        for isolation_level in (0, READ_COMMITTED):
            model.check(isolation_level, None)
        assert model.log.log_end_offset > model.entries[-1].offset
    assert cuts > 10
