"""A compacted log against a dictionary: it has the last value of each key after rolls, compactions and restarts."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from headrace.core.log import LogConfig, PartitionLog
from headrace.records.batch import TimestampType
from headrace.records.compression import Compression
from headrace.storage.memory_files import MemoryFileSystem
from tests.effort import examples
from tests.fixtures.compaction import keyed, latest, run_round, settle
from tests.fixtures.crash_files import CrashFileSystem
from tests.fixtures.logs import NOW_MS, open_log, records_of

KEYS = st.sampled_from([b"", b"a", b"b", b"c" * 15, b"c" * 16, b"c" * 17, b"d" * 300])
VALUES = st.one_of(st.none(), st.binary(max_size=40))


class CompactionMachine(RuleBasedStateMachine):
    """The model: `values` by key, and `last`, the offset of each key's last record."""

    @initialize(
        segment_bytes=st.sampled_from([400, 1500, 1 << 20]),
        delete_retention_ms=st.sampled_from([0, 50, 10**9]),
        append_time=st.booleans(),
        max_keys=st.sampled_from([1, 3, 100]),
    )
    def start(
        self, *, segment_bytes: int, delete_retention_ms: int, append_time: bool, max_keys: int
    ) -> None:
        self.files = self.new_files()
        self.config = LogConfig(
            segment_bytes=segment_bytes,
            index_interval_bytes=100,
            retention_ms=-1,
            compacts=True,
            min_cleanable_dirty_ratio=0.0,
            delete_retention_ms=delete_retention_ms,
            message_timestamp_type=TimestampType(append_time),
        )
        self.max_keys = max_keys
        self.now_ms = NOW_MS
        self.values: dict[bytes, bytes | None] = {}
        self.last: dict[bytes, int] = {}
        self.times: dict[int, int] = {}
        self.clean_offset = 0
        self.sequence = 0
        self.epoch = 0
        self.log: PartitionLog = open_log(self.files, self.config)

    def new_files(self):
        return MemoryFileSystem()

    @rule(
        records=st.lists(st.tuples(KEYS, VALUES), min_size=1, max_size=5),
        codec=st.sampled_from([Compression.NONE, Compression.LZ4]),
        idempotent=st.booleans(),
    )
    def append(
        self, *, records: list[tuple[bytes, bytes | None]], codec: Compression, idempotent: bool
    ) -> None:
        self.now_ms += 10
        identity = {"producer_id": 4, "producer_epoch": 0, "base_sequence": self.sequence}
        batch = keyed(
            *records,
            timestamp=self.now_ms,
            compression=codec,
            **(identity if idempotent else {}),
        )
        if len(batch) > self.config.segment_bytes:
            return
        base = self.log.append(batch, leader_epoch=self.epoch, now_ms=self.now_ms).base_offset
        settle(self.log)
        for number, (key, value) in enumerate(records):
            self.values[key], self.last[key] = value, base + number
            self.times[base + number] = self.now_ms
        if idempotent:
            self.sequence += len(records)

    @rule()
    def roll(self) -> None:
        self.log.roll(self.now_ms)

    @rule()
    def elect(self) -> None:
        self.epoch += 1

    @rule(pause=st.sampled_from([0, 60]))
    def compact(self, pause: int) -> None:
        self.now_ms += pause
        task = run_round(
            self.files, self.log, self.clean_offset, now_ms=self.now_ms, max_keys=self.max_keys
        )
        if task is not None:
            assert task.clean_end_offset > self.clean_offset
            self.clean_offset = task.clean_end_offset
            offsets: dict[bytes, list[int]] = {}
            for record in records_of(self.log):
                if record.offset < self.clean_offset:
                    assert record.key is not None
                    offsets.setdefault(record.key, []).append(record.offset)
            assert all(len(found) == 1 for found in offsets.values())  # the clean part is clean

    @rule(clean=st.booleans())
    def reopen(self, *, clean: bool) -> None:
        end_offset, epochs = self.log.log_end_offset, self.log.epochs.entries
        if clean:
            self.log.close(self.now_ms)
        self.log = open_log(
            self.files, self.config, clean=clean, recovery_point=end_offset, now_ms=self.now_ms
        )
        assert self.log.log_end_offset == end_offset
        assert self.log.epochs.entries == epochs
        self.log.advance_high_watermark(end_offset)

    @rule(where=st.floats(0, 1))
    def look_up_time(self, where: float) -> None:
        timestamp = NOW_MS + int(where * (self.now_ms - NOW_MS + 20))
        found = self.log.offset_for_timestamp(timestamp)
        expected = next((r for r in records_of(self.log) if r.timestamp >= timestamp), None)
        assert (found and found.offset) == (expected and expected.offset)

    @rule()
    def retry(self) -> None:
        entry = self.log.producers.get(4)
        assert (entry is None) == (self.sequence == 0)
        if entry is not None:
            assert entry.batches[-1].last_sequence == self.sequence - 1

    @invariant()
    def the_last_value_of_each_key_is_there(self) -> None:
        if not hasattr(self, "log"):
            return
        expected = {key: value for key, value in self.values.items() if value is not None}
        assert latest(self.log) == expected
        by_offset = {record.offset: record for record in records_of(self.log)}
        for key in expected:
            assert by_offset[self.last[key]].key == key
        for offset, record in by_offset.items():
            assert record.timestamp == self.times[offset]


class CrashingCompactionMachine(CompactionMachine):
    """A machine with power cuts. Everything appended was synced, so nothing may be lost."""

    def new_files(self):
        return CrashFileSystem()

    @rule(seed=st.integers(0, 1000))
    def cut_power(self, seed: int) -> None:
        end_offset = self.log.log_end_offset
        self.files = self.files.after_power_cut(seed)
        self.log = open_log(
            self.files, self.config, clean=False, recovery_point=end_offset, now_ms=self.now_ms
        )
        assert self.log.log_end_offset == end_offset
        self.log.advance_high_watermark(end_offset)


TestCompaction = CompactionMachine.TestCase
TestCrashingCompaction = CrashingCompactionMachine.TestCase
TestCompaction.settings = settings(max_examples=examples(50), stateful_step_count=40, deadline=None)
TestCrashingCompaction.settings = settings(
    max_examples=examples(50), stateful_step_count=40, deadline=None
)
