"""DeleteRecords: the move of the log start offset."""

from __future__ import annotations

import pytest

from headrace.errors import ErrorCode
from headrace.protocol.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from headrace.protocol.messages.find_coordinator import FindCoordinatorRequest
from headrace.storage.memory_files import MemoryFileSystem
from tests.fixtures.broker_harness import (
    BrokerHarness,
    batch,
    fetch_request,
    produce_request,
    values,
)
from tests.fixtures.compaction import keyed


@pytest.fixture
def harness() -> BrokerHarness:
    made = BrokerHarness()
    made.create_topic("t", partitions=2, segment_bytes="300")
    return made


def delete(harness, *wanted: tuple[str, int, int], version=2):
    topics = [
        DeleteRecordsTopic(
            name=name, partitions=[DeleteRecordsPartition(partition_index=index, offset=offset)]
        )
        for name, index, offset in wanted
    ]
    response = harness.call(DeleteRecordsRequest(topics=topics, timeout_ms=1000), version)
    return [
        (ErrorCode(part.error_code), part.low_watermark)
        for topic in response.topics
        for part in topic.partitions
    ]


def fill(harness, count: int = 6, partition: int = 0) -> None:
    for number in range(count):
        harness.produce("t", bytes([number]) * 100, partition=partition)


def segments(harness, partition: int = 0) -> list[str]:
    return [name for name in harness.files.list(f"t-{partition}") if name.endswith(".log")]


@pytest.mark.parametrize("version", range(3))
def test_records_below_the_offset_are_gone(harness, version):
    fill(harness)
    assert delete(harness, ("t", 0, 3), version=version) == [(ErrorCode.NONE, 3)]
    below, at = harness.fetch("t", 2), harness.fetch("t", 3)
    assert (below.error_code, below.log_start_offset) == (ErrorCode.OFFSET_OUT_OF_RANGE, 3)
    assert (at.error_code, at.log_start_offset) == (0, 3)
    assert values(at.records)[0] == b"\x03" * 100


def test_whole_segments_below_it_are_removed_at_once(harness):
    fill(harness)
    before = segments(harness)
    delete(harness, ("t", 0, 3))
    after = segments(harness)
    assert len(after) < len(before)
    assert after[0] <= f"{3:020d}.log"


@pytest.mark.parametrize("again", ["restart", "crash"])
def test_deleted_records_stay_deleted_after_a_restart(harness, again):
    fill(harness)
    delete(harness, ("t", 0, 3), ("t", 1, -1))
    getattr(harness, again)()
    assert harness.fetch("t", 2).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert harness.fetch("t", 3).log_start_offset == 3


def test_minus_one_means_up_to_the_high_watermark(harness):
    fill(harness)
    harness.send(produce_request("t", 0, batch(b"not durable yet")))
    assert delete(harness, ("t", 0, -1)) == [(ErrorCode.NONE, 6)]
    harness.sync()
    assert values(harness.fetch("t", 6).records) == [b"not durable yet"]


def test_an_emptied_log_continues_at_the_same_offset(harness):
    fill(harness)
    assert delete(harness, ("t", 0, -1)) == [(ErrorCode.NONE, 6)]
    assert len(segments(harness)) == 1
    harness.crash()
    assert harness.produce("t", b"a").base_offset == 6


def test_inside_a_batch_the_rest_of_the_batch_stays_readable(harness):
    harness.produce("t", b"a", b"b", b"c")
    assert delete(harness, ("t", 0, 2)) == [(ErrorCode.NONE, 2)]
    assert values(harness.fetch("t", 2).records) == [b"a", b"b", b"c"], "clients skip"


def test_the_start_never_moves_back(harness):
    fill(harness)
    delete(harness, ("t", 0, 4))
    assert delete(harness, ("t", 0, 2)) == [(ErrorCode.NONE, 4)]


@pytest.mark.parametrize(
    ("wanted", "error"),
    [
        (("t", 0, 7), ErrorCode.OFFSET_OUT_OF_RANGE),
        (("t", 0, -2), ErrorCode.OFFSET_OUT_OF_RANGE),
        (("t", 1, 1), ErrorCode.OFFSET_OUT_OF_RANGE),
        (("t", 2, 0), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (("t", -1, 0), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (("none", 0, 0), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (("compacted", 0, 0), ErrorCode.POLICY_VIOLATION),
        (("__consumer_offsets", 0, 0), ErrorCode.INVALID_TOPIC_EXCEPTION),
    ],
)
def test_a_refused_partition_does_not_stop_the_other_partitions(harness, wanted, error):
    fill(harness)
    harness.create_topic("compacted", cleanup_policy="compact")
    harness.call(FindCoordinatorRequest(key_type=0, coordinator_keys=["g"]))
    assert delete(harness, wanted, ("t", 0, 1)) == [(error, -1), (ErrorCode.NONE, 1)]


def test_compacted_topics_that_delete_too_are_allowed(harness):
    harness.create_topic("both", cleanup_policy="compact,delete")
    harness.call(produce_request("both", 0, keyed((b"key", b"a"))))
    assert delete(harness, ("both", 0, 1)) == [(ErrorCode.NONE, 1)]


def test_a_partition_that_is_named_twice_is_refused_the_second_time(harness):
    fill(harness)
    assert delete(harness, ("t", 0, 1), ("t", 0, 2)) == [
        (ErrorCode.NONE, 1),
        (ErrorCode.INVALID_REQUEST, -1),
    ]


def test_a_fetch_that_waits_below_the_new_start_is_answered(harness):
    fill(harness, 1)
    pending = harness.send(fetch_request(("t", 0, 0), min_bytes=100_000, max_wait_ms=60_000))
    delete(harness, ("t", 0, -1))
    (part,) = pending.response.responses[0].partitions
    assert part.error_code == ErrorCode.OFFSET_OUT_OF_RANGE


class FailingFiles(MemoryFileSystem):
    """A disk that refuses checkpoints."""

    fails = False

    def write_file(self, path: str, content: bytes) -> None:
        if self.fails:
            raise OSError(5, "Input/output error")
        super().write_file(path, content)


def test_a_deletion_that_is_not_durable_fails_the_directory():
    files = FailingFiles()
    harness = BrokerHarness(files=files)
    harness.create_topic("t")
    harness.produce("t", b"a")
    files.fails = True
    assert delete(harness, ("t", 0, -1)) == [(ErrorCode.KAFKA_STORAGE_ERROR, -1)]
    assert harness.broker.failed
    assert delete(harness, ("t", 0, -1)) == [(ErrorCode.KAFKA_STORAGE_ERROR, -1)]
