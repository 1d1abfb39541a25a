"""Transactions in a log against a list of all that was appended: readers, the last stable offset, aborted ranges."""

from __future__ import annotations

from dataclasses import dataclass, replace

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from headrace.core.log.config import LogConfig
from headrace.core.log.control_batch import Marker
from headrace.core.log.partition_log import PartitionLog
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

PRODUCERS = (1, 2, 3)
KEYS = st.sampled_from([b"a", b"b", b"c", b"d" * 20])


@dataclass
class Appended:
    """A batch; a marker has no records."""

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
    """One transaction as the whole list tells it."""

    producer: int
    batches: list[Appended]
    marker: Appended | None = None


class TransactionsMachine(RuleBasedStateMachine):
    """The model: `appended`, from the first batch on. Everything else is found out by going through it."""

    @initialize(
        segment_bytes=st.sampled_from([300, 900, 1 << 20]),
        interval=st.sampled_from([1, 150, 4096]),
        compacts=st.booleans(),
        delete_retention_ms=st.sampled_from([0, 50]),
    )
    def start(
        self, *, segment_bytes: int, interval: int, compacts: bool, delete_retention_ms: int
    ) -> None:
        self.files = self.new_files()
        self.config = LogConfig(
            segment_bytes=segment_bytes,
            index_interval_bytes=interval,
            retention_ms=-1,
            compacts=compacts,
            min_cleanable_dirty_ratio=0.0,
            delete_retention_ms=delete_retention_ms,
        )
        self.appended: list[Appended] = []
        self.now_ms = NOW_MS
        self.count = 0
        self.clean_offset = 0
        self.recovery_point = 0
        self.start_offset = 0
        self.log: PartitionLog = open_log(self.files, self.config)

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

    @rule(keys=st.lists(KEYS, min_size=1, max_size=3))
    def append_plain(self, keys: list[bytes]) -> None:
        records = self.values(keys)
        base = self.end_offset
        info = self.log.append(keyed(*records), leader_epoch=0, now_ms=self.now_ms)
        assert info.base_offset == base
        self.appended.append(Appended(base, tuple(records)))

    @rule(keys=st.lists(KEYS, min_size=1, max_size=3), producer=st.sampled_from(PRODUCERS))
    def append_transactional(self, keys: list[bytes], producer: int) -> None:
        records = self.values(keys)
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

    @rule(producer=st.sampled_from(PRODUCERS), committed=st.booleans(), raises=st.booleans())
    def end_transaction(self, *, producer: int, committed: bool, raises: bool) -> None:
        self.now_ms += 10
        entry, base = self.log.producers.get(producer), self.end_offset
        marker = Marker(producer, (entry.epoch if entry else 0) + raises, 3, committed)
        info = self.log.append_marker(marker, leader_epoch=0, now_ms=self.now_ms)
        assert info.base_offset == base
        self.appended.append(Appended(base, (), producer, committed=committed))

    @rule()
    def roll(self) -> None:
        self.log.roll(self.now_ms)

    @rule()
    def make_durable(self) -> None:
        sync(self.log)
        self.recovery_point = self.end_offset
        self.log.advance_high_watermark(self.end_offset)

    @precondition(lambda self: self.appended)
    @rule()
    def save(self) -> None:
        self.log._write_caches(self.log.segments.active)

    @rule(where=st.floats(0, 1))
    def advance_high_watermark(self, where: float) -> None:
        behind = [batch.next for batch in self.appended if batch.next > self.log.high_watermark]
        if behind:
            self.log.advance_high_watermark(behind[int(where * (len(behind) - 1))])

    # What goes

    @rule()
    def apply_retention(self) -> None:
        stable = self.log.last_stable_offset
        self.log.config = replace(self.config, retention_bytes=300)
        self.log.delete_old_segments(self.now_ms)
        self.log.purge()
        self.log.config = self.config
        assert self.log.log_start_offset <= max(stable, self.start_offset)
        self.start_offset = self.log.log_start_offset

    @rule(where=st.floats(0, 1))
    def delete_records(self, where: float) -> None:
        room = self.log.high_watermark - self.start_offset
        self.start_offset += int(where * room)
        self.log.advance_log_start_offset(self.start_offset)

    @precondition(lambda self: self.config.compacts)
    @rule(pause=st.sampled_from([0, 60]))
    def compact(self, pause: int) -> None:
        self.now_ms += pause
        task = run_round(self.files, self.log, self.clean_offset, now_ms=self.now_ms, max_keys=3)
        if task is not None:
            self.clean_offset = task.clean_end_offset

    # Life and death

    def reopen(self, *, clean: bool) -> None:
        self.log = open_log(
            self.files,
            self.config,
            clean=clean,
            recovery_point=self.recovery_point,
            log_start_offset=self.start_offset,
            now_ms=self.now_ms,
        )

    @rule()
    def restart_clean(self) -> None:
        self.log.close(self.now_ms)
        self.recovery_point = self.end_offset
        self.reopen(clean=True)
        assert self.log.recovery.scanned_bytes == 0

    @rule()
    def kill(self) -> None:
        self.files.sync_directory("")
        self.reopen(clean=False)
        self.recovery_point = self.end_offset

    @rule(suffix=st.sampled_from([".txnindex", ".snapshot", ".index"]), clean=st.booleans())
    def lose_caches(self, *, suffix: str, clean: bool) -> None:
        self.log.close(self.now_ms)
        self.recovery_point = self.end_offset
        for name in self.files.list("events-0") if self.appended else ():
            if name.endswith(suffix):
                self.files.remove(f"events-0/{name}")
        self.reopen(clean=clean)

    # What must be so

    @invariant()
    def the_last_stable_offset_is_where_the_first_undecided_transaction_begins(self) -> None:
        if not hasattr(self, "log"):
            return
        assert self.log.log_end_offset == self.end_offset
        lowest = highest = self.log.high_watermark
        for one in self.undecided():
            kept = [batch.base for batch in one.batches if batch.next > self.start_offset]
            lowest = min(lowest, max(one.batches[0].base, self.start_offset))
            # What was deleted may be forgotten at a start.
            highest = min(highest, max(kept[0], self.start_offset)) if kept else highest
        assert lowest <= self.log.last_stable_offset <= highest

    @invariant()
    def readers_agree_with_the_model(self) -> None:
        if not hasattr(self, "log"):
            return
        self.agree(read_uncommitted(self.log), self.log.high_watermark, committed=False)
        for max_bytes in (1, 400, 1 << 20):
            found = read_committed(self.log, max_bytes=max_bytes)
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

    @rule(where=st.floats(0, 1), max_bytes=st.sampled_from([1, 250, 1 << 20]))
    def aborted_transactions_are_those_that_overlap(self, where: float, max_bytes: int) -> None:
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


class CrashingTransactionsMachine(TransactionsMachine):
    """With power cuts; what was not synced may be lost from its end."""

    def new_files(self):
        return CrashFileSystem()

    @rule(seed=st.integers(0, 1000))
    def cut_power(self, seed: int) -> None:
        self.files = self.files.after_power_cut(seed)
        self.reopen(clean=False)
        end_offset = self.log.log_end_offset
        assert end_offset >= self.recovery_point
        self.appended = [batch for batch in self.appended if batch.next <= end_offset]
        self.recovery_point = end_offset

    @precondition(lambda self: self.appended)
    @rule(
        what=st.sampled_from(["close", "recover", "roll", "save", "compact"]),
        steps=st.integers(1, 15),
        seed=st.integers(0, 1000),
    )
    def cut_power_during(self, *, what: str, steps: int, seed: int) -> None:
        self.files.fuse = self.files.operations + steps
        try:
            if what == "close":
                self.log.close(self.now_ms)
                self.reopen(clean=True)
            elif what == "recover":
                self.reopen(clean=False)
            elif what == "roll":
                self.log.roll(self.now_ms)
            elif what == "save":
                self.save()
            elif self.config.compacts:
                run_round(self.files, self.log, self.clean_offset, now_ms=self.now_ms)
        except PowerCut:
            pass
        self.files.fuse = None
        self.cut_power(seed)

    # A log manager makes log starts durable.
    apply_retention = None  # type: ignore[assignment]  # takes the rule out
    delete_records = None  # type: ignore[assignment]  # takes the rule out


TestTransactions = TransactionsMachine.TestCase
TestCrashingTransactions = CrashingTransactionsMachine.TestCase
TestTransactions.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)
TestCrashingTransactions.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)
