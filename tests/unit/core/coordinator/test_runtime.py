"""The shard: append, replay, park until the high watermark, load, unload."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import pytest

from headrace.core.coordinator.runtime import (
    NOTHING,
    CoordinatorLog,
    Reply,
    Result,
    ShardRuntime,
    ShardState,
    Timers,
    gather,
)
from headrace.core.deadlines import Deadlines
from headrace.deferred import Deferred
from headrace.errors import ApiError, CorruptRecordError, ErrorCode
from headrace.records.builder import build_batch
from headrace.records.reader import read_records
from tests.fixtures.group_harness import FakeLog, now, parked
from tests.fixtures.logs import RecordingJournal


class Numbers:
    """A state machine that keeps a list."""

    def __init__(self) -> None:
        self.values: list[int] = []
        self.unloaded_with: list[ErrorCode] = []

    def replay(self, record: int) -> None:
        self.values.append(record)

    def encode(self, records: Sequence[int], now_ms: int) -> bytes:
        return build_batch([(b"n", str(value).encode(), (), now_ms) for value in records])

    def decode(self, batches) -> Iterable[tuple[int, int | None]]:
        for record in read_records(batches):
            text = (record.value or b"").decode()
            if text == "damaged":
                raise CorruptRecordError("damaged")
            yield record.offset, (int(text) if text.isdigit() else None)

    def loaded(self, now_ms: int):
        return []

    def unloaded(self, error: ErrorCode) -> Iterator[None]:
        self.values = []
        self.unloaded_with.append(error)
        return iter(())


class Bench:
    def __init__(self, *, manual: bool = True) -> None:
        self.log = FakeLog(manual=manual)
        self.machine = Numbers()
        self.timers: Timers = Deadlines()
        self.notes = RecordingJournal()
        log: CoordinatorLog = self.log
        self.shard: ShardRuntime[int] = ShardRuntime(
            0,
            log,
            self.machine,
            timers=self.timers,
            commit_timeout_ms=5_000,
            journal=self.notes,
        )

    def put(self, *numbers: int, now_ms: int = 0) -> Reply[str]:
        return self.shard.execute(
            lambda: Result(f"put {numbers}", numbers), lambda error: error.name, now_ms
        )

    def read(self) -> Reply[str]:
        return self.shard.execute(
            lambda: Result(str(self.machine.values)), lambda error: error.name, 0
        )

    def sync(self) -> None:
        self.shard.high_watermark_advanced(self.log.sync(0))


@pytest.fixture
def bench() -> Bench:
    bench = Bench()
    bench.shard.load(0)
    return bench


def test_a_response_waits_until_the_high_watermark_has_passed_its_records(bench):
    reply = bench.put(1, 2)
    assert parked(reply)
    assert bench.machine.values == [1, 2]
    bench.shard.high_watermark_advanced(1)
    assert parked(reply)
    bench.shard.high_watermark_advanced(2)
    assert now(reply) == "put (1, 2)"


def test_a_synced_operation_is_answered_at_once():
    bench = Bench(manual=False)
    bench.shard.load(0)
    assert bench.put(1) == "put (1,)"


def test_a_read_waits_until_earlier_appends_are_durable(bench):
    assert bench.read() == "[]"
    first = bench.put(1)
    read = bench.read()
    second = bench.put(2)
    assert parked(read)
    bench.shard.high_watermark_advanced(1)
    assert (now(first), now(read)) == ("put (1,)", "[1]")
    assert parked(second)


def test_an_error_response_waits_until_earlier_appends_are_durable(bench):
    bench.put(1)

    def refuse() -> Result[str]:
        raise ApiError(ErrorCode.ILLEGAL_GENERATION)

    reply = bench.shard.execute(refuse, lambda error: error.name, 0)
    assert parked(reply)
    bench.sync()
    assert now(reply) == "ILLEGAL_GENERATION"


def test_responses_leave_in_the_order_of_their_records(bench):
    left: list[str] = []
    for number in range(5):
        reply = bench.put(number)
        assert isinstance(reply, Deferred)
        reply.on_done(left.append)
    bench.sync()
    assert left == [f"put ({number},)" for number in range(5)]


@pytest.mark.parametrize(
    ("code", "told"),
    [
        (ErrorCode.KAFKA_STORAGE_ERROR, "NOT_COORDINATOR"),
        (ErrorCode.NOT_LEADER_OR_FOLLOWER, "NOT_COORDINATOR"),
        (ErrorCode.NOT_ENOUGH_REPLICAS, "COORDINATOR_NOT_AVAILABLE"),
        (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "COORDINATOR_NOT_AVAILABLE"),
        (ErrorCode.MESSAGE_TOO_LARGE, "UNKNOWN_SERVER_ERROR"),
    ],
)
def test_a_failed_append_changes_nothing(bench, code, told):
    bench.log.failure = ApiError(code)
    assert bench.put(1) == told
    assert bench.machine.values == []
    bench.log.failure = None
    assert parked(bench.put(2))
    assert bench.machine.values == [2]


def test_after_gets_the_result_of_the_append(bench):
    told: list[ErrorCode] = []
    operation = lambda: Result("x", (1,), told.append)  # noqa: E731 - the operation is the subject here
    bench.shard.execute(operation, lambda error: error.name, 0)
    bench.log.failure = ApiError(ErrorCode.KAFKA_STORAGE_ERROR)
    bench.shard.execute(operation, lambda error: error.name, 0)
    assert told == [ErrorCode.NONE, ErrorCode.NOT_COORDINATOR]


def test_a_response_that_waits_too_long_becomes_an_error(bench):
    early = bench.put(1, now_ms=1_000)
    late = bench.put(2, now_ms=3_000)
    assert bench.timers.next_ms == 6_000
    bench.timers.expire(6_000)
    bench.shard.expire_parked(6_000)
    assert now(early) == "COORDINATOR_NOT_AVAILABLE"
    assert parked(late)
    assert bench.timers.next_ms == 8_000
    bench.sync()
    assert now(late) == "put (2,)"
    assert bench.timers.next_ms is None


def test_before_and_after_its_life_a_shard_refuses():
    bench = Bench()
    assert bench.put(1) == "COORDINATOR_LOAD_IN_PROGRESS"
    bench.shard.load(0)
    waiting = bench.put(1)
    bench.shard.unload()
    assert now(waiting) == "NOT_COORDINATOR"
    assert bench.put(1) == "NOT_COORDINATOR"
    assert bench.timers.next_ms is None


def test_loading_replays_the_log_and_reads_wait_for_its_unsynced_end(bench):
    bench.put(1, 2)
    bench.sync()
    bench.put(3)
    bench.shard.unload()
    bench.shard.load(0)
    assert bench.machine.values == [1, 2, 3]
    read = bench.read()
    assert parked(read)
    bench.sync()
    assert now(read) == "[1, 2, 3]"


def test_unknown_records_are_skipped_and_reported(bench):
    bench.log.append(0, build_batch([(b"n", b"x", (), 0), (b"n", b"7", (), 0)]), 0)
    bench.shard.load(0)
    assert bench.machine.values == [7]
    assert ("warning", "coordinator_unknown_records") in [note[:2] for note in bench.notes.events]


def test_a_damaged_record_keeps_the_shard_out_of_service(bench):
    bench.put(1)
    bench.log.append(0, build_batch([(b"n", b"damaged", (), 0)]), 0)
    with pytest.raises(CorruptRecordError):
        bench.shard.load(0)
    assert bench.shard.state is ShardState.FAILED
    assert bench.read() == "NOT_COORDINATOR"


def test_a_request_during_an_append_is_handled_after_the_append(bench):
    nested: list[Reply[str]] = []
    bench.log.on_append = lambda partition: nested.append(bench.read()) if not nested else None
    bench.put(1)
    bench.sync()
    assert now(nested[0]) == "[1]"


def test_the_high_watermark_may_advance_during_the_append(bench):
    bench.log.on_append = lambda partition: bench.sync()
    assert bench.put(1) == "put (1,)"


def test_an_unload_during_an_append_answers_all_requests(bench):
    earlier = bench.put(1)

    def fail(partition: int) -> None:
        bench.shard.unload()
        raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR)

    bench.log.on_append = fail
    reply = bench.put(2)
    assert now(earlier) == "NOT_COORDINATOR"
    assert now(reply) == "NOT_COORDINATOR"


def test_a_response_may_begin_the_next_request(bench):
    seen: list[str] = []

    def next_request(_: str) -> None:
        reply = bench.read()
        seen.append(now(reply))

    first = bench.put(1)
    assert isinstance(first, Deferred)
    first.on_done(next_request)
    second = bench.put(2)
    bench.sync()
    assert seen == ["[1, 2]"]
    assert now(second) == "put (2,)"


def test_gathering_no_replies_returns_an_empty_list(bench):
    assert bench.shard.execute(lambda: NOTHING, lambda error: None, 0) is None
    assert bench.log.end_offset(0) == 0


def test_gather_keeps_the_order_and_waits_for_the_last():
    assert gather([1, 2]) == [1, 2]
    assert gather([]) == []
    one, two = Deferred[int](), Deferred[int]()
    gathered = gather([one, 5, two])
    two.resolve(3)
    assert parked(gathered)
    one.resolve(1)
    assert now(gathered) == [1, 5, 3]
