"""Transactions in a log against a list of all batches: readers, the last stable offset, aborted transactions."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest

from headrace.core.log import LogConfig, Marker, PartitionLog, Shared
from headrace.core.log.producers.aborted_history import AbortedCache
from headrace.records.batch import iterate_headers
from headrace.storage.memory_files import MemoryFileSystem
from tests.fixtures.compaction import keyed, run_round
from tests.fixtures.crash_files import CrashFileSystem, PowerCut
from tests.fixtures.logs import NOW_MS, open_log, sync
from tests.fixtures.transactions import (
    Found,
    pieces,
    read_committed,
    read_uncommitted,
    transactional,
)

pytestmark = pytest.mark.slow  # not in `make check`

PRODUCERS = (1, 2, 3)
KEYS = (b"a", b"b", b"c", b"d" * 20)


@dataclass
class Appended:
    """An appended batch. A marker has no records."""

    base: int
    records: tuple[tuple[bytes, bytes], ...]
    producer: int = -1
    transactional: bool = False
    committed: bool | None = None

    @property
    def next(self) -> int:
        return self.base + max(len(self.records), 1)

    @property
    def found(self) -> list[Found]:
        return [(self.base + number, *fields) for number, fields in enumerate(self.records)]


@dataclass
class Transaction:
    """One transaction, as the list of batches shows it."""

    producer: int
    batches: list[Appended]
    marker: Appended | None = None


class Harness:
    """A log and its model: `appended`, the list of all batches, from which everything else is computed."""

    def __init__(self, seed: int) -> None:
        self.chance = chance = random.Random(seed)
        self.files = self.new_files()
        self.config = LogConfig(
            segment_bytes=chance.choice([300, 900, 1 << 20]),
            index_interval_bytes=chance.choice([1, 150, 4096]),
            retention_ms=-1,
            compacts=chance.random() < 0.5,
            min_cleanable_dirty_ratio=0.0,
            delete_retention_ms=chance.choice([0, 50]),
        )
        self.appended: list[Appended] = []
        self.now_ms = NOW_MS
        self.count = 0
        self.clean_offset = 0
        self.recovery_point = 0
        self.start_offset = 0
        self.shared = Shared()
        self.shared.aborted = AbortedCache(
            most_cached=chance.choice([1, 4, 1000]), most_in_segment=chance.choice([1, 2, 1000])
        )
        self.log: PartitionLog = open_log(self.files, self.config, shared=self.shared)

    @property
    def actions(self) -> dict[Callable[[], None], int]:
        """Return the possible actions with their weights."""
        return {
            self.write: 10,
            self.make_durable: 4,
            self.save: 1,
            self.apply_retention: 1,
            self.delete_records: 1,
            self.compact: 4,
            self.restart_clean: 1,
            self.kill: 1,
            self.lose_caches: 1,
        }

    def new_files(self):
        return MemoryFileSystem()

    # The model

    @property
    def end_offset(self) -> int:
        return self.appended[-1].next if self.appended else 0

    def transactions(self) -> list[Transaction]:
        found: list[Transaction] = []
        is_open: dict[int, Transaction] = {}
        for batch in self.appended:
            if batch.committed is not None:
                ended = is_open.pop(batch.producer, None)
                if ended is not None:
                    ended.marker = batch
            elif batch.transactional:
                if batch.producer not in is_open:
                    is_open[batch.producer] = Transaction(batch.producer, [])
                    found.append(is_open[batch.producer])
                is_open[batch.producer].batches.append(batch)
        return found

    def undecided(self) -> list[Transaction]:
        high_watermark = self.log.high_watermark
        return [
            one
            for one in self.transactions()
            if one.marker is None or one.marker.base >= high_watermark
        ]

    def aborted(self) -> list[Transaction]:
        return [one for one in self.transactions() if one.marker and one.marker.committed is False]

    def records(self, end_offset: int, *, committed: bool) -> list[Found]:
        left_out = {id(batch) for one in self.aborted() for batch in one.batches if committed}
        return [
            entry
            for batch in self.appended
            if id(batch) not in left_out and batch.next <= end_offset
            for entry in batch.found
            if entry[0] >= self.start_offset
        ]

    # Appends

    def values(self, keys: list[bytes]) -> list[tuple[bytes, bytes]]:
        self.now_ms += 10
        self.count += 1
        return [(key, b"%d" % self.count) for key in keys]

    def write(self) -> None:
        """Append plain and transactional batches and markers, begin segments, let the high watermark follow."""
        actions = (
            self.append_plain,
            self.append_transactional,
            self.end_transaction,
            self.roll,
            self.advance_high_watermark,
        )
        for _ in range(self.chance.randint(1, 8)):
            self.chance.choices(actions, weights=(2, 4, 4, 2, 2))[0]()

    def append_plain(self) -> None:
        records = self.values(self.chance.choices(KEYS, k=self.chance.randint(1, 3)))
        base = self.end_offset
        info = self.log.append(keyed(*records), leader_epoch=0, now_ms=self.now_ms)
        assert info.base_offset == base
        self.appended.append(Appended(base, tuple(records)))

    def append_transactional(self) -> None:
        producer = self.chance.choice(PRODUCERS)
        records = self.values(self.chance.choices(KEYS, k=self.chance.randint(1, 3)))
        entry, base = self.log.producers.get(producer), self.end_offset
        batch = transactional(
            *records,
            producer_id=producer,
            epoch=entry.epoch if entry else 0,
            sequence=entry.batches[-1].last_sequence + 1 if entry and entry.batches else 0,
        )
        info = self.log.append(batch, leader_epoch=0, now_ms=self.now_ms)
        assert (info.base_offset, info.duplicate) == (base, False)
        self.appended.append(Appended(base, tuple(records), producer, transactional=True))

    def end_transaction(self) -> None:
        self.now_ms += 10
        producer, committed = self.chance.choice(PRODUCERS), self.chance.random() < 0.5
        entry, base = self.log.producers.get(producer), self.end_offset
        epoch = (entry.epoch if entry else 0) + (self.chance.random() < 0.2)
        marker = Marker(producer, epoch, 3, committed)
        info = self.log.append_marker(marker, leader_epoch=0, now_ms=self.now_ms)
        assert info.base_offset == base
        self.appended.append(Appended(base, (), producer, committed=committed))

    def roll(self) -> None:
        self.log.roll(self.now_ms)

    def advance_high_watermark(self) -> None:
        behind = [batch.next for batch in self.appended if batch.next > self.log.high_watermark]
        if behind:
            self.log.advance_high_watermark(self.chance.choice(behind))

    def make_durable(self) -> None:
        sync(self.log)
        self.recovery_point = self.end_offset
        self.log.advance_high_watermark(self.end_offset)

    def save(self) -> None:
        if self.appended:
            self.log._log_files.write_caches(self.log.segments.active)

    # Deletion

    def apply_retention(self) -> None:
        stable = self.log.last_stable_offset
        self.log.config = replace(self.config, retention_bytes=300)
        self.log.delete_old_segments(self.now_ms)
        self.log.purge()
        self.log.config = self.config
        assert self.log.log_start_offset <= max(stable, self.start_offset)
        self.start_offset = self.log.log_start_offset

    def delete_records(self) -> None:
        room = self.log.high_watermark - self.start_offset
        self.start_offset += int(self.chance.random() * room)
        self.log.advance_log_start_offset(self.start_offset)

    def compact(self) -> None:
        if not self.config.compacts:
            return
        self.now_ms += self.chance.choice([0, 60])
        if self.chance.random() < 0.7:
            self.make_durable()
            self.roll()
        task = run_round(self.files, self.log, self.clean_offset, now_ms=self.now_ms, max_keys=3)
        if task is not None:
            self.clean_offset = task.clean_end_offset

    # Restarts and crashes

    def reopen(self, *, clean: bool) -> None:
        self.log = open_log(
            self.files,
            self.config,
            clean=clean,
            recovery_point=self.recovery_point,
            log_start_offset=self.start_offset,
            now_ms=self.now_ms,
            shared=self.shared,
        )

    def restart_clean(self) -> None:
        self.log.close(self.now_ms)
        self.recovery_point = self.end_offset
        self.reopen(clean=True)
        assert self.log.recovery.scanned_bytes == 0

    def kill(self) -> None:
        self.files.sync_directory("")
        self.reopen(clean=False)
        self.recovery_point = self.end_offset

    def lose_caches(self) -> None:
        suffix = self.chance.choice([".txnindex", ".snapshot", ".index"])
        self.log.close(self.now_ms)
        self.recovery_point = self.end_offset
        for name in self.files.list("events-0") if self.appended else ():
            if name.endswith(suffix):
                self.files.remove(f"events-0/{name}")
        self.reopen(clean=self.chance.random() < 0.5)

    # Invariants

    def check(self) -> None:
        """Check readers, the last stable offset and the aborted transactions against the model."""
        self.check_last_stable_offset()
        self.check_readers()
        self.check_aborted_transactions(self.chance.random(), self.chance.choice([1, 250, 1 << 20]))
        self.check_memory()

    def check_last_stable_offset(self) -> None:
        assert self.log.log_end_offset == self.end_offset
        lowest = highest = self.log.high_watermark
        for one in self.undecided():
            kept = [batch.base for batch in one.batches if batch.next > self.start_offset]
            lowest = min(lowest, max(one.batches[0].base, self.start_offset))
            # A start may forget deleted transactions.
            highest = min(highest, max(kept[0], self.start_offset)) if kept else highest
        assert lowest <= self.log.last_stable_offset <= highest

    def check_readers(self) -> None:
        self.agree(read_uncommitted(self.log), self.log.high_watermark, committed=False)
        for max_bytes in (1, 400, 1 << 20):
            most_listed = self.chance.choice([1, 2, 3, 4096])
            found = read_committed(self.log, max_bytes=max_bytes, most_listed=most_listed)
            self.agree(found, self.log.last_stable_offset, committed=True)

    def agree(self, found: list[Found], end_offset: int, *, committed: bool) -> None:
        expected = self.records(end_offset, committed=committed)
        if not self.config.compacts:
            assert found == expected
            return
        assert set(found) <= set(expected)
        assert found == sorted(found)
        if committed:
            latest = {key: (offset, value) for offset, key, value in expected}
            assert {key: (offset, value) for offset, key, value in found} == latest

    def check_aborted_transactions(self, where: float, max_bytes: int) -> None:
        stable = self.log.last_stable_offset
        offset = self.start_offset + int(where * max(stable - self.start_offset, 0))
        expected = self.records(stable, committed=True)
        if not self.config.compacts:
            found = read_committed(self.log, offset, max_bytes=max_bytes)
            assert found == [entry for entry in expected if entry[0] >= offset]
        for data, aborted in pieces(self.log, offset, up_to=stable, max_bytes=max_bytes):
            end_offset = [header.next_offset for _, header in iterate_headers(data)][-1]
            told = {(entry.producer_id, entry.last_offset) for entry in aborted}
            assert len(told) == len(aborted)
            within: set[tuple[int, int]] = set()
            required: set[tuple[int, int]] = set()
            for one in self.aborted():
                assert one.marker is not None
                first = one.batches[0].base
                if first < end_offset and one.marker.base >= offset:
                    within.add((one.producer, one.marker.base))
                    if first >= self.start_offset:
                        required.add((one.producer, one.marker.base))
            assert told <= within
            assert self.config.compacts or required <= told
            offset = end_offset

    def check_memory(self) -> None:
        """Check the limit of aborted transactions in a segment, and that sealed segments have theirs in files."""
        aborted, cache = self.log.producers.transactions.aborted, self.shared.aborted
        active = self.log.segments.active.base_offset
        counts = [part.count for part in aborted.parts]
        counts.append(sum(one.last_offset >= active for one in aborted))
        assert max(counts) <= cache.most_in_segment
        assert len(cache) <= max(1000, *counts)
        assert not any(part.unsaved for part in aborted.parts)


class CrashingHarness(Harness):
    """A harness with power cuts: unsynced batches may be lost from the end."""

    def new_files(self):
        return CrashFileSystem()

    @property
    def actions(self) -> dict[Callable[[], None], int]:
        actions = super().actions | {self.cut_power: 1, self.cut_power_during: 3}
        # A log manager makes log starts durable.
        del actions[self.apply_retention], actions[self.delete_records]
        return actions

    def cut_power(self) -> None:
        self.files = self.files.after_power_cut(self.chance.randrange(1000))
        self.reopen(clean=False)
        end_offset = self.log.log_end_offset
        assert end_offset >= self.recovery_point
        self.appended = [batch for batch in self.appended if batch.next <= end_offset]
        self.recovery_point = end_offset

    def cut_power_during(self) -> None:
        """Cut the power during an action, and possibly during the recovery too."""
        choices: list[Callable[[], object]] = [self.restart_clean, self.recover, self.roll]
        what = self.chance.choice([*choices, self.save, self.compact])
        known = self.recovery_point
        self.files.fuse = self.files.operations + self.chance.randint(1, 15)
        with contextlib.suppress(PowerCut):
            what()
        self.files.fuse = None
        self.recovery_point = known
        self.cut_power()

    def compact(self) -> None:
        self.make_durable()  # a group commit always precedes a round of compaction
        super().compact()

    def recover(self) -> None:
        self.reopen(clean=False)


def run(harness: Harness, steps: int) -> None:
    actions = harness.actions
    for _ in range(steps):
        harness.chance.choices(list(actions), weights=list(actions.values()))[0]()
        harness.check()


@pytest.mark.parametrize("seed", range(24))
def test_readers_agree_with_the_list(seed: int) -> None:
    run(Harness(seed), 50)


@pytest.mark.parametrize("seed", [*range(24), 185, 225])  # the last two found faults
def test_readers_agree_with_the_list_after_power_cuts(seed: int) -> None:
    run(CrashingHarness(seed), 50)
