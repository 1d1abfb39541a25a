"""Scheduled records: delivered when due, in order, once. Errors of a producer are returned to it."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest

from headrace.broker import scheduled_records
from headrace.broker.replication.partition import Partition
from headrace.core.log import LogManager, PartitionSpec
from headrace.core.scheduled import schedule
from headrace.core.scheduled.division import divide
from headrace.errors import ApiError, ErrorCode, StorageError
from headrace.protocol.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsTopic,
)
from headrace.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from headrace.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from headrace.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from headrace.records.batch import iterate_headers
from headrace.records.builder import build_batch
from headrace.records.compression import Compression
from headrace.records.reader import Record, read_records
from headrace.storage.os_files import OsFileSystem
from tests.fixtures.broker_harness import START_MS, BrokerHarness, fetch_request, produce_request
from tests.fixtures.crash_files import CrashFileSystem

AT = "headrace.deliver-at-ms"
AFTER = "headrace.delay-ms"
DAY_MS = 86_400_000
Headers = tuple[tuple[str, bytes], ...]


def delayed(value: bytes, delay_ms: int) -> tuple[bytes, Headers]:
    return value, ((AFTER, b"%d" % delay_ms),)


def at(value: bytes, due_ms: int) -> tuple[bytes, Headers]:
    return value, ((AT, b"%d" % due_ms),)


def plain(value: bytes) -> tuple[bytes, Headers]:
    return value, ()


def records(*entries: tuple[bytes, Headers], **options: Any) -> bytes:
    return build_batch([(None, value, headers, START_MS) for value, headers in entries], **options)


class Harness(BrokerHarness):
    """A broker with a topic that schedules records."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.create_topic("later", headrace_delay_enable="true")

    def put(self, *entries: tuple[bytes, Headers], **options: Any) -> Any:
        part = self.call(produce_request("later", 0, records(*entries, **options)))
        return part.responses[0].partition_responses[0]

    def pass_time(self, milliseconds: int) -> None:
        """Let time pass, with every due sync."""
        end_ms = self.now_ms + milliseconds
        while True:
            while self.sync():
                pass
            deadline_ms = self.broker.next_deadline_ms
            if deadline_ms is None or deadline_ms > end_ms:
                break
            self.now_ms = max(self.now_ms, deadline_ms)
            self.broker.tick(self.now_ms)
        self.now_ms = end_ms

    def there(self) -> list[Record]:
        """Return all records of the partition, as a client that reads from the start."""
        found: list[Record] = []
        offset = 0
        while True:
            part = self.fetch("later", offset)
            assert part.error_code == ErrorCode.NONE
            if not part.records:
                return found
            found += read_records(part.records)
            offset = max(header.next_offset for _, header in iterate_headers(part.records))

    def values(self) -> list[bytes | None]:
        return [record.value for record in self.there()]

    @property
    def partition(self) -> Partition:
        return self.broker.services.partitions.require("later", 0)

    @property
    def pending(self) -> int:
        return self.broker.services.deliveries.pending(self.partition)


def test_a_scheduled_record_is_delivered_when_due_and_not_before() -> None:
    harness = Harness()
    part = harness.put(delayed(b"a", 1000))
    assert part.error_code == ErrorCode.NONE
    assert harness.values() == []
    harness.pass_time(999)
    assert harness.values() == []
    harness.pass_time(1)
    (record,) = harness.there()
    assert record.value == b"a"
    assert record.timestamp == START_MS + 1000
    assert record.headers == ((AFTER, b"1000"),)
    assert harness.pending == 0


def test_records_are_delivered_by_delivery_time_then_by_arrival() -> None:
    harness = Harness()
    harness.put(delayed(b"c", 30), delayed(b"a", 10), delayed(b"b1", 20))
    harness.put(at(b"b2", START_MS + 20), delayed(b"d", 40))
    harness.put(delayed(b"b3", 20))
    harness.pass_time(1000)
    assert harness.values() == [b"a", b"b1", b"b2", b"b3", b"c", b"d"]


def test_unscheduled_records_of_a_batch_are_appended_at_the_returned_offsets() -> None:
    harness = Harness()
    part = harness.put(plain(b"x"), delayed(b"later", 50), plain(b"y"))
    assert [(each.offset, each.value) for each in harness.there()] == [(0, b"x"), (2, b"y")]
    assert part.base_offset == 0
    assert harness.put(plain(b"z")).base_offset == 3
    harness.pass_time(50)
    assert harness.values() == [b"x", b"y", b"z", b"later"]


@pytest.mark.parametrize("codec", [Compression.GZIP, Compression.ZSTD, Compression.LZ4])
def test_the_records_of_a_compressed_batch_are_checked(codec: Compression) -> None:
    harness = Harness()
    harness.put(plain(b"x"), delayed(b"later", 50), compression=codec)
    assert harness.values() == [b"x"]
    harness.pass_time(50)
    assert harness.values() == [b"x", b"later"]


def test_records_with_a_past_delivery_time_are_delivered_at_once() -> None:
    harness = Harness()
    harness.put(at(b"old", 5), at(b"older", 0), delayed(b"none", 0))
    harness.pass_time(0)
    assert harness.values() == [b"old", b"older", b"none"]
    assert {record.timestamp for record in harness.there()} == {START_MS}


@pytest.mark.parametrize(
    ("headers", "what"),
    [
        (((AFTER, b"-1"),), "decimal number"),
        (((AT, b"soon"),), "decimal number"),
        (((AT, b""),), "decimal number"),
        (((AT, b"253402300800000"),), "decimal number"),
        (((AT, b"253402300799999"),), "headrace.delay.max.ms"),
        (((AFTER, b"%d" % (400 * DAY_MS)),), "headrace.delay.max.ms"),
        (((AFTER, b"1"), (AT, b"1")), "not several"),
        (((AFTER, b"1"), (AFTER, b"1")), "not several"),
    ],
)
def test_a_batch_with_an_invalid_delay_header_is_refused(headers: Headers, what: str) -> None:
    harness = Harness()
    part = harness.put(plain(b"x"), (b"wrong", headers), delayed(b"y", 5))
    assert part.error_code == ErrorCode.INVALID_RECORD
    assert what in part.error_message
    assert [error.batch_index for error in part.record_errors] == [1]
    harness.pass_time(1000)
    assert harness.values() == []
    assert harness.put(delayed(b"right", 5)).error_code == ErrorCode.NONE
    harness.pass_time(1000)
    assert harness.values() == [b"right"]


def test_topics_without_the_option_take_the_headers_as_they_are() -> None:
    harness = Harness()
    harness.create_topic("plain")
    harness.call(produce_request("plain", 0, records((b"now", ((AFTER, b"nonsense"),)))))
    part = harness.fetch("plain", 0)
    assert [record.value for record in read_records(part.records)] == [b"now"]


def test_compacted_topics_cannot_delay() -> None:
    harness = Harness()
    with pytest.raises(AssertionError, match=r"cleanup\.policy=delete"):
        harness.create_topic("c", cleanup_policy="compact", headrace_delay_enable="true")


def test_a_retry_of_an_idempotent_producer_is_not_scheduled_twice() -> None:
    harness = Harness()
    identity = {"producer_id": 7, "producer_epoch": 0, "base_sequence": 0}
    first = harness.put(plain(b"x"), delayed(b"a", 50), **identity)
    again = harness.put(plain(b"x"), delayed(b"a", 50), **identity)
    assert (first.error_code, first.base_offset) == (again.error_code, again.base_offset)
    all_later = {"producer_id": 7, "producer_epoch": 0, "base_sequence": 2}
    first = harness.put(delayed(b"b", 60), delayed(b"c", 60), **all_later)
    harness.crash()
    again = harness.put(delayed(b"b", 60), delayed(b"c", 60), **all_later)
    assert (first.error_code, first.base_offset) == (again.error_code, again.base_offset)
    following = {"producer_id": 7, "producer_epoch": 0, "base_sequence": 4}
    assert harness.put(plain(b"y"), **following).error_code == ErrorCode.NONE
    harness.pass_time(1000)
    assert harness.values() == [b"x", b"y", b"a", b"b", b"c"]


def test_a_gap_in_the_sequence_is_refused_if_all_earlier_records_were_scheduled() -> None:
    harness = Harness()
    harness.put(delayed(b"a", 50), producer_id=7, producer_epoch=0, base_sequence=0)
    part = harness.put(delayed(b"c", 50), producer_id=7, producer_epoch=0, base_sequence=2)
    assert part.error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    harness.pass_time(1000)
    assert harness.values() == [b"a"]


def test_a_produce_gets_its_response_after_the_sync_of_the_schedule() -> None:
    harness = Harness()
    pending = harness.send(produce_request("later", 0, records(delayed(b"a", 0))))
    harness.advance(100)
    assert not pending.done
    assert harness.values() == []
    harness.pass_time(0)
    assert pending.response.responses[0].partition_responses[0].error_code == ErrorCode.NONE
    assert harness.values() == [b"a"]


def test_a_retry_without_records_in_the_schedule_waits_for_the_schedule() -> None:
    harness = Harness()
    batch = records(delayed(b"a", 10), producer_id=7, producer_epoch=0, base_sequence=0)
    first = harness.call(produce_request("later", 0, batch)).responses[0].partition_responses[0]
    harness.files.remove_tree("~later-0")  # the state after a power failure before the first sync
    harness.crash()
    pending = harness.send(produce_request("later", 0, batch))
    assert not pending.done
    harness.sync()
    part = pending.response.responses[0].partition_responses[0]
    assert (part.error_code, part.base_offset) == (ErrorCode.NONE, first.base_offset)
    harness.pass_time(1000)
    assert harness.values() == [b"a"]


def test_scheduled_records_are_delivered_once_across_crashes_and_restarts() -> None:
    harness = Harness()
    harness.put(*(delayed(b"%d" % number, number * 10) for number in range(10)))
    harness.pass_time(35)
    harness.crash()
    harness.pass_time(20)
    assert harness.values() == [b"%d" % number for number in range(6)]
    harness.restart()
    harness.pass_time(1000)
    assert harness.values() == [b"%d" % number for number in range(10)]
    harness.restart()
    harness.pass_time(1000)
    assert len(harness.values()) == 10


def test_scheduled_records_are_delivered_after_the_option_is_switched_off() -> None:
    harness = Harness()
    harness.put(delayed(b"a", 500), delayed(b"b", 5000))
    config = AlterableConfig(name="headrace.delay.enable", config_operation=0, value="false")
    resource = AlterConfigsResource(resource_type=2, resource_name="later", configs=[config])
    harness.call(IncrementalAlterConfigsRequest(resources=[resource]))
    harness.put(delayed(b"now", 5000))
    harness.pass_time(1000)
    harness.crash()
    assert harness.values() == [b"now", b"a"]
    harness.pass_time(10_000)
    assert harness.values() == [b"now", b"a", b"b"]


def test_deleting_a_topic_deletes_its_schedule() -> None:
    harness = Harness()
    harness.put(delayed(b"a", 500))
    assert "~later-0" in harness.files.list("")
    harness.call(DeleteTopicsRequest(topics=[DeleteTopicState(name="later")]))
    assert harness.files.list("~later-0") == []
    harness.create_topic("later", headrace_delay_enable="true")
    harness.put(delayed(b"new", 300))
    harness.pass_time(1000)
    assert harness.values() == [b"new"]
    harness.crash()
    harness.pass_time(1000)
    assert harness.values() == [b"new"]


def test_a_clock_set_back_before_a_restart_neither_delays_nor_repeats_records() -> None:
    harness = Harness()
    harness.put(delayed(b"a", 10), delayed(b"c", 2 * DAY_MS))
    harness.now_ms += DAY_MS  # a day too late
    harness.put(delayed(b"b", 10))
    harness.pass_time(1000)
    assert harness.values() == [b"a", b"b"]
    harness.now_ms = START_MS + 5000
    harness.crash()
    harness.put(delayed(b"soon", 100))
    harness.pass_time(1000)
    assert harness.values() == [b"a", b"b", b"soon"]
    harness.crash()
    harness.pass_time(1000)
    harness.crash()
    harness.pass_time(3 * DAY_MS)
    assert harness.values() == [b"a", b"b", b"soon", b"c"]


def test_a_record_with_another_time_type_gets_the_time_of_its_append() -> None:
    harness = Harness()
    harness.create_topic(
        "stamped", headrace_delay_enable="true", message_timestamp_type="LogAppendTime"
    )
    harness.call(produce_request("stamped", 0, records(delayed(b"a", 100))))
    harness.pass_time(100)
    part = harness.fetch("stamped", 1)
    assert [record.timestamp for record in read_records(part.records)] == [START_MS + 100]


def test_fetches_that_wait_are_woken_by_a_release() -> None:
    harness = Harness()
    harness.put(delayed(b"a", 100))
    pending = harness.send(fetch_request(("later", 0, 1), max_wait_ms=60_000))
    assert not pending.done
    harness.pass_time(100)
    assert pending.done


def test_transactions_do_not_delay() -> None:
    harness = Harness()
    entries = [(None, b"a", ((AFTER, b"5"),), START_MS)]
    batch = bytearray(build_batch(entries, producer_id=1, producer_epoch=0, base_sequence=0))
    batch[22] |= 0x10
    with pytest.raises(ApiError, match="not transactional"):
        divide(bytes(batch), now_ms=START_MS, max_delay_ms=DAY_MS)
    assert harness.values() == []


def test_a_full_disk_puts_a_release_off_and_keeps_the_order() -> None:
    files = CrashFileSystem()
    harness = Harness(files=files)
    harness.put(delayed(b"b", 2000), delayed(b"a", 1000))
    files.fault = lambda kind, _path: errno.ENOSPC if kind in {"append", "create"} else None
    harness.pass_time(5000)
    assert harness.pending == 2
    assert harness.put(plain(b"x")).error_code == ErrorCode.KAFKA_STORAGE_ERROR
    assert harness.put(delayed(b"x", 1)).error_code == ErrorCode.KAFKA_STORAGE_ERROR
    files.fault = None
    harness.pass_time(20_000)
    assert harness.values() == [b"a", b"b"]
    assert harness.pending == 0


def test_added_partitions_do_not_move_scheduled_records() -> None:
    harness = Harness()
    harness.put(delayed(b"a", 1000))
    topic = CreatePartitionsTopic(name="later", count=3, assignments=None)
    harness.call(CreatePartitionsRequest(topics=[topic], timeout_ms=1000))
    harness.call(produce_request("later", 2, records(delayed(b"b", 500))))
    harness.crash()
    harness.pass_time(2000)
    assert harness.values() == [b"a"]
    assert [each.value for each in read_records(harness.fetch("later", 1, 2).records)] == [b"b"]


def test_a_record_that_the_disk_has_damaged_does_not_hold_up_the_others() -> None:
    files = CrashFileSystem()
    harness = Harness(files=files)
    harness.put(delayed(b"aaaa", 1000), delayed(b"bbbb", 2000))
    (path,) = [path for path in files.contents() if path.startswith("~later-0") and ".log" in path]
    content = files._entries[path].content
    content[content.index(b"aaaa")] ^= 1
    harness.pass_time(5000)
    assert harness.values() == [b"bbbb"]
    assert "delayed_record_damaged" in harness.journal.events("error")
    assert harness.pending == 0


def test_many_partitions_take_their_turns() -> None:
    harness = Harness()
    harness.create_topic("wide", partitions=30, headrace_delay_enable="true")
    for index in range(30):
        harness.call(produce_request("wide", index, records(delayed(b"a", 100 + index))))
    harness.pass_time(1000)
    for index in range(30):
        (record,) = read_records(harness.fetch("wide", 1, index).records)
        assert record.timestamp == START_MS + 100 + index


def test_a_time_to_live_begins_with_the_delivery() -> None:
    harness = Harness()
    harness.create_topic("both", headrace_delay_enable="true", headrace_ttl_enable="true")
    headers = ((AFTER, b"1000"), ("headrace.ttl-ms", b"50"))
    harness.call(produce_request("both", 0, records((b"a", headers))))
    wrong = ((AFTER, b"1000"), ("headrace.ttl-ms", b"long"))
    part = harness.call(produce_request("both", 0, records((b"b", wrong)))).responses[0]
    assert part.partition_responses[0].error_code == ErrorCode.INVALID_RECORD
    harness.pass_time(1010)
    found = harness.fetch("both", 1).records
    assert [record.value for record in read_records(found)] == [b"a"]
    harness.pass_time(100)
    assert not [*read_records(harness.fetch("both", 1).records or b"")]


def test_a_scheduled_record_with_a_now_invalid_time_to_live_is_delivered() -> None:
    harness = Harness()
    headers = ((AFTER, b"1000"), ("headrace.ttl-ms", b"long"))
    harness.put((b"a", headers), delayed(b"b", 2000))
    config = AlterableConfig(name="headrace.ttl.enable", config_operation=0, value="true")
    resource = AlterConfigsResource(resource_type=2, resource_name="later", configs=[config])
    harness.call(IncrementalAlterConfigsRequest(resources=[resource]))
    harness.pass_time(5000)
    assert harness.values() == [b"a", b"b"]


def test_many_schedules_share_one_memory_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduled_records, "IN_MEMORY", 100)
    monkeypatch.setattr(scheduled_records, "LEAST_IN_MEMORY", 4)
    harness = Harness()
    harness.create_topic("wide", partitions=20, headrace_delay_enable="true")
    for _ in range(2):
        for index in range(20):
            entries = [delayed(b"%d" % number, 1000 - number) for number in range(30)]
            harness.call(produce_request("wide", index, records(*entries)))
    assert harness.broker.services.deliveries.in_memory <= 100 + 20 * 2 * 60 // 4
    harness.pass_time(2000)
    for index in range(20):
        found = [each.value for each in read_records(harness.fetch("wide", 60, index).records)]
        assert found == [b"%d" % number for number in reversed(range(30)) for _ in range(2)]


def test_the_log_has_the_number_of_scheduled_records() -> None:
    harness = Harness()
    harness.put(delayed(b"a", DAY_MS), delayed(b"b", 90_000))
    harness.pass_time(240_000)
    told = [fields for _, event, fields in harness.journal.lines if event == "delayed_records"]
    assert told == [{"pending": 2, "partitions": 1}, {"pending": 1, "partitions": 1}]


def test_the_schedule_deletes_delivered_records() -> None:
    harness = Harness()
    for _ in range(3):
        harness.put(*(delayed(b"x" * 1000, 10) for _ in range(100)))
        harness.pass_time(200_000)
    companion = harness.broker.services.loader.companion(
        harness.broker.services.partitions.require("later", 0), harness.now_ms, create=False
    )
    assert companion is not None
    assert companion.log.log_start_offset > 300
    harness.crash()
    harness.put(delayed(b"y", 10))
    harness.pass_time(1000)
    assert harness.values() == [b"x" * 1000] * 300 + [b"y"]


def put_into(harness: Harness, topic: str, *entries: tuple[bytes, Headers], **options: Any) -> Any:
    part = harness.call(produce_request(topic, 0, records(*entries, **options)))
    return part.responses[0].partition_responses[0].error_code


def waiting_in(harness: Harness, topic: str) -> int:
    return harness.broker.services.deliveries.pending(
        harness.broker.services.partitions.require(topic, 0)
    )


def test_many_due_records_are_delivered_in_batches_that_fit_into_segments() -> None:
    harness = Harness()
    harness.create_topic("small", headrace_delay_enable="true", segment_bytes="4000")
    for _ in range(20):
        assert put_into(harness, "small", delayed(b"x" * 1000, 10)) == ErrorCode.NONE
    harness.pass_time(1000)
    assert waiting_in(harness, "small") == 0


def test_a_waiting_batch_larger_than_a_segment_is_refused() -> None:
    harness = Harness()
    harness.create_topic("small", headrace_delay_enable="true", segment_bytes="4000")
    refused = put_into(harness, "small", delayed(b"x" * 5000, 10))
    assert refused == ErrorCode.RECORD_LIST_TOO_LARGE
    assert waiting_in(harness, "small") == 0


def test_a_compressed_record_larger_than_a_segment_is_delivered() -> None:
    harness = Harness()
    harness.create_topic("small", headrace_delay_enable="true", segment_bytes="4000")
    noise = b"".join(b"%d" % (number**7) for number in range(500))  # gzip compresses less
    value = noise * 9
    entry = delayed(value, 10)
    assert put_into(harness, "small", entry, compression=Compression.ZSTD) == ErrorCode.NONE
    assert put_into(harness, "small", delayed(b"next", 20)) == ErrorCode.NONE
    harness.pass_time(1000)
    assert waiting_in(harness, "small") == 0
    assert harness.fetch("small", 3).high_watermark == 4


def test_a_small_batch_of_very_many_records_is_not_decoded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for module in ("headrace.core.scheduled.division", "headrace.records.expiry"):
        monkeypatch.setattr(f"{module}.MAX_DIRECTED", 3)
    harness = Harness()
    harness.create_topic("dies", headrace_ttl_enable="true")
    dies = (b"", (("headrace.ttl-ms", b"10"),))
    for few, many, topic in (
        ([delayed(b"", 10)] * 3, [delayed(b"", 10)] * 4, "later"),
        ([dies] * 3, [dies] * 4, "dies"),
    ):
        codec = Compression.ZSTD
        assert put_into(harness, topic, *few, compression=codec) == ErrorCode.NONE
        refused = put_into(harness, topic, *many, compression=codec)
        assert refused == ErrorCode.MESSAGE_TOO_LARGE


def test_a_schedule_ends_and_begins_with_the_role_of_its_partition(tmp_path: Path) -> None:
    harness = Harness(files=OsFileSystem(tmp_path))
    harness.put(delayed(b"a", 10), delayed(b"b", 1000))
    harness.pass_time(10)
    assert harness.values() == [b"a"]
    deliveries, partition = harness.broker.services.deliveries, harness.partition
    deliveries.end(partition)
    harness.pass_time(2000)
    assert harness.values() == [b"a"]
    deliveries.begin(partition, harness.now_ms)
    harness.pass_time(10)
    assert harness.values() == [b"a", b"b"]
    deliveries.end(partition)
    deliveries.begin(partition, harness.now_ms)
    harness.pass_time(10)
    assert harness.values() == [b"a", b"b"], "a mark of the first role covers both"


def test_a_release_is_marked_when_it_is_committed_and_not_when_it_is_only_synced(
    tmp_path: Path,
) -> None:
    """(1) The leader marks a release that only it has. (2) Another broker leads, without the release but with the mark.
    (3) The record is never delivered."""
    harness = Harness(files=OsFileSystem(tmp_path))
    harness.put(delayed(b"a", 10))
    harness.now_ms += 10
    harness.broker.tick(harness.now_ms)
    log = harness.partition.log
    schedule = harness.broker.services.deliveries._schedules[harness.partition]
    end_offset = schedule.log.log_end_offset
    task = log.start_sync()
    assert task is not None
    task.run()
    log.finish_sync(task)
    assert log.high_watermark < log.synced_offset
    schedule.settle(harness.now_ms)
    assert schedule.log.log_end_offset == end_offset
    log.advance_high_watermark(log.synced_offset)
    schedule.settle(harness.now_ms)
    assert schedule.log.log_end_offset == end_offset + 1


def test_a_broker_without_scheduling_topics_has_no_deadline() -> None:
    harness = Harness()
    harness.put(delayed(b"a", DAY_MS))
    harness.call(DeleteTopicsRequest(topics=[DeleteTopicState(name="later")], timeout_ms=1000))
    for _ in range(4):
        harness.now_ms += 60_000
        harness.broker.tick(harness.now_ms)
    assert harness.broker.services.deliveries.next_deadline_ms is None
    harness.create_topic("later", headrace_delay_enable="true")
    harness.put(delayed(b"b", 10))
    harness.pass_time(100_000)
    assert harness.values() == [b"b"]


def test_placeholders_of_scheduled_records_do_not_expire() -> None:
    # A group that had committed 0 would have to start again, perhaps at the end.
    harness = Harness()
    harness.create_topic("dies", headrace_delay_enable="true", headrace_ttl_enable="true")
    entry = (b"a", ((AFTER, b"1000"), ("headrace.ttl-ms", b"1000000")))
    assert put_into(harness, "dies", entry) == ErrorCode.NONE
    harness.pass_time(700_000)
    part = harness.fetch("dies", 0)
    assert part.error_code == ErrorCode.NONE
    assert [record.value for record in read_records(part.records)] == [b"a"]
    harness.pass_time(1_000_000)
    assert harness.fetch("dies", 0).error_code == ErrorCode.OFFSET_OUT_OF_RANGE


def alter(harness: Harness, name: str, value: str) -> None:
    config = AlterableConfig(name=name, config_operation=0, value=value)
    resource = AlterConfigsResource(resource_type=2, resource_name="later", configs=[config])
    answer = harness.call(IncrementalAlterConfigsRequest(resources=[resource]))
    assert answer.responses[0].error_code == ErrorCode.NONE


IDENTITY: dict[str, Any] = {"producer_id": 7, "producer_epoch": 0, "base_sequence": 0}


@pytest.mark.parametrize("batch", [(delayed(b"a", 100),), (plain(b"x"), delayed(b"a", 100))])
def test_a_retry_is_scheduled_after_the_option_is_switched_off(
    batch: tuple[tuple[bytes, Headers], ...],
) -> None:
    files = CrashFileSystem()
    harness = Harness(files=files)
    harness.put(delayed(b"first", 1))
    harness.pass_time(10)
    files.fault = lambda kind, path: (
        errno.ENOSPC if kind == "append" and path.startswith("~later-0") else None
    )
    assert harness.put(*batch, **IDENTITY).error_code == ErrorCode.KAFKA_STORAGE_ERROR
    files.fault = None
    harness.pass_time(20_000)
    alter(harness, "headrace.delay.enable", "false")
    for _ in range(2):
        assert harness.put(*batch, **IDENTITY).error_code == ErrorCode.NONE
    harness.pass_time(1000)
    assert sorted(filter(None, harness.values())) == sorted(
        [b"first", *(value for value, _ in batch)]
    )


def test_a_retry_of_an_undivided_batch_is_not_scheduled_by_a_later_option() -> None:
    harness = Harness()
    harness.put(delayed(b"first", 1))
    alter(harness, "headrace.delay.enable", "false")
    for _ in range(2):
        assert harness.put(delayed(b"a", 100), **IDENTITY).error_code == ErrorCode.NONE
    alter(harness, "headrace.delay.enable", "true")
    assert harness.put(delayed(b"a", 100), **IDENTITY).error_code == ErrorCode.NONE
    harness.pass_time(1000)
    assert harness.values().count(b"a") == 1


def told(harness: Harness, topic: str = "later", *, asked: bool = True) -> tuple[int, int] | None:
    """Return the offsets of scheduled records that ListOffsets reports."""
    wanted = ListOffsetsPartition(partition_index=0, timestamp=-1)
    request = ListOffsetsRequest(
        topics=[ListOffsetsTopic(name=topic, partitions=[wanted])], headrace_delayed=asked
    )
    (part,) = harness.call(request, 9).topics[0].partitions
    if part.error_code:
        raise ApiError.for_code(part.error_code, "ListOffsets")
    delayed = part.headrace_delayed
    return None if delayed is None else (delayed.pending, delayed.earliest_due_ms)


def test_list_offsets_reports_the_number_of_scheduled_records_and_the_next_time() -> None:
    harness = Harness()
    harness.create_topic("plain")
    assert (told(harness), told(harness, "plain")) == ((0, -1), None)
    harness.put(plain(b"x"), delayed(b"b", 2000), delayed(b"a", 1000))
    harness.put(delayed(b"c", 3000))
    assert told(harness) == (3, START_MS + 1000)
    assert told(harness, asked=False) is None
    harness.pass_time(1000)
    assert told(harness) == (2, START_MS + 2000)
    alter(harness, "headrace.delay.enable", "false")
    assert told(harness) == (2, START_MS + 2000)
    harness.pass_time(2000)
    assert told(harness) == (0, -1)


@pytest.mark.parametrize("end", ["crash", "restart"])
def test_after_a_start_no_inexact_number_is_reported(
    end: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.core.scheduled.schedule._LOAD_BYTES", 200)
    harness = Harness()
    for number in range(20):
        harness.put(delayed(b"soon", 10), delayed(b"later", 5000 + number))
    harness.pass_time(10)
    assert told(harness) == (20, START_MS + 5000)
    getattr(harness, end)()
    answers: list[Any] = []
    for _ in range(1000):
        try:
            answers.append(told(harness))
            break
        except ApiError as error:
            answers.append(error.code)
            harness.broker.tick(harness.now_ms)
    assert len(answers) > 5
    assert set(answers[:-1]) == {ErrorCode.COORDINATOR_LOAD_IN_PROGRESS}
    assert answers[-1] == (20, START_MS + 5000)


def clean(harness: Harness) -> None:
    """Rewrite segments without expired records, like a server with threads."""
    harness.broker.tick(harness.now_ms)
    while (task := harness.broker.start_compaction()) is not None:
        task.run()
        harness.broker.finish_compaction(task, None, harness.now_ms)


def let_expire(harness: Harness) -> None:
    for name, value in (("headrace.ttl.enable", "true"), ("segment.bytes", "1000")):
        alter(harness, name, value)


def fill_a_segment(harness: Harness) -> None:
    for _ in range(10):
        assert harness.put(plain(b"." * 200)).error_code == ErrorCode.NONE
    harness.pass_time(10)


def living(value: bytes, headers: Headers = ()) -> tuple[bytes, Headers]:
    return value, (*headers, ("headrace.ttl-ms", b"1000"))


DELAYS: Headers = ((AFTER, b"100"),)


@pytest.mark.parametrize(
    "batch",
    [
        [living(b"a", DELAYS)],
        [living(b"a"), living(b"b", DELAYS)],
        [living(b"a"), (b"b", DELAYS)],
        [living(b"a", DELAYS), (b"b", DELAYS)],
        [(b"a", ()), living(b"b", DELAYS)],
    ],
    ids=["all expired", "both expired", "the other expired", "one expired", "it expired"],
)
def test_a_retry_of_an_undivided_batch_with_expired_records_is_not_scheduled(
    batch: list[tuple[bytes, Headers]],
) -> None:
    harness = Harness()
    harness.put(plain(b"stays"), delayed(b"first", 1))
    let_expire(harness)
    alter(harness, "headrace.delay.enable", "false")
    assert harness.put(*batch, **IDENTITY).error_code == ErrorCode.NONE
    fill_a_segment(harness)
    size = harness.partition.log.size_bytes
    harness.pass_time(4_000_000)
    assert harness.partition.log.size_bytes < size, "files in memory are cleaned by the clock"
    assert harness.put(*batch, **IDENTITY).error_code == ErrorCode.NONE
    assert harness.pending == 0


@pytest.mark.parametrize("delayed_lives", [False, True])
def test_a_retry_of_a_divided_batch_with_expired_records_is_recognised(
    *, delayed_lives: bool
) -> None:
    files = CrashFileSystem()
    harness = Harness(files=files)
    harness.put(plain(b"stays"), delayed(b"first", 1))
    let_expire(harness)
    harness.pass_time(10)
    files.fault = lambda kind, path: (
        errno.ENOSPC if kind == "append" and path.startswith("~later-0") else None
    )
    waits = living(b"b", DELAYS) if delayed_lives else (b"b", DELAYS)
    batch = [living(b"a"), (b"c", ()), waits]
    assert harness.put(*batch, **IDENTITY).error_code == ErrorCode.KAFKA_STORAGE_ERROR
    files.fault = None
    harness.pass_time(20_000)
    fill_a_segment(harness)
    size = harness.partition.log.size_bytes
    harness.pass_time(4_000_000)
    clean(harness)
    assert harness.partition.log.size_bytes < size
    for _ in range(3):
        assert harness.put(*batch, **IDENTITY).error_code == ErrorCode.NONE
        assert harness.pending == 1
    if not delayed_lives:
        return
    # The schedule knows it now, whatever the options are.
    alter(harness, "headrace.delay.enable", "false")
    assert harness.put(*batch, **IDENTITY).error_code == ErrorCode.NONE
    assert harness.pending == 1


def test_a_retry_with_a_now_too_long_delay_is_accepted() -> None:
    harness = Harness()
    first = harness.put(delayed(b"a", 100_000), **IDENTITY)
    alter(harness, "headrace.delay.max.ms", "1000")
    again = harness.put(delayed(b"a", 100_000), **IDENTITY)
    assert (again.error_code, again.base_offset) == (ErrorCode.NONE, first.base_offset)
    assert harness.put(delayed(b"b", 100_000)).error_code == ErrorCode.INVALID_RECORD
    harness.pass_time(100_000)
    assert harness.values() == [b"a"]


@pytest.mark.parametrize("damaged", ["mark", "log"])
def test_a_damaged_schedule_deletes_no_records_and_accepts_no_retry(
    damaged: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness = Harness()
    harness.put(delayed(b"a", 10), **IDENTITY)
    harness.pass_time(100_000)
    alter(harness, "headrace.delay.enable", "false")
    open_log = LogManager.open_log

    def fail(*_: object) -> None:
        raise StorageError("damaged")

    def open_sound(logs: LogManager, spec: PartitionSpec, *rest: Any) -> Any:
        return fail() if spec.topic_partition.topic == "~later" else open_log(logs, spec, *rest)

    with monkeypatch.context() as patch:
        if damaged == "mark":
            patch.setattr(schedule, "find_last_mark", fail)
        else:
            patch.setattr(LogManager, "open_log", open_sound)
        harness.crash()
        again = harness.put(delayed(b"a", 10), **IDENTITY)
        assert again.error_code == ErrorCode.KAFKA_STORAGE_ERROR
    assert harness.broker.services.partitions.require("later", 0).log.keep_from == 0
    assert told(harness) == (-1, -1)
    lines = [fields for _, event, fields in harness.journal.lines if event == "schedule_not_served"]
    assert any("nothing of the partition is deleted" in str(line["reason"]) for line in lines)
    harness.crash()
    assert harness.put(delayed(b"a", 10), **IDENTITY).error_code == ErrorCode.NONE
    harness.pass_time(100_000)
    assert harness.broker.services.partitions.require("later", 0).log.keep_from > 0
    assert harness.values() == [b"a"]


def test_the_due_records_of_many_partitions_are_delivered_in_several_ticks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("headrace.broker.scheduled_records.RECORDS_AT_ONCE", 4)
    monkeypatch.setattr("headrace.core.scheduled.schedule.RELEASE_RECORDS", 2)
    harness = Harness()
    harness.create_topic("many", partitions=8, headrace_delay_enable="true")
    partitions = [harness.broker.services.partitions.require("many", index) for index in range(8)]
    for index in range(8):
        entries = [delayed(b"x", 1000)] * (60 if index < 2 else 3)
        harness.call(produce_request("many", index, records(*entries)))

    def pending() -> list[int]:
        return [harness.broker.services.deliveries.pending(partition) for partition in partitions]

    harness.now_ms += 1000
    waiting = pending()
    ticks = 0
    while sum(waiting[2:]):
        assert harness.broker.next_deadline_ms is not None
        harness.now_ms = max(harness.now_ms, harness.broker.next_deadline_ms)
        harness.broker.tick(harness.now_ms)
        assert sum(waiting) - sum(pending()) <= 4 + 2 * 2
        waiting = pending()
        ticks += 1
    assert ticks > 3
    assert waiting[0] + waiting[1] > 0  # those with many have not delayed the others
    harness.pass_time(10_000)
    assert sum(pending()) == 0
