"""Damage to sealed segments that is found by a read: that partition reports an error, and everything else continues."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.errors import ErrorCode
from headrace.metadata_stores.memory import MemoryMetadataStore
from headrace.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from headrace.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from headrace.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from headrace.storage.os_files import OsFileSystem
from tests.fixtures.broker_harness import START_MS, BrokerHarness, fetch_request, values

LENGTH = 8
"""The position of the batch length in a batch header."""
BATCHES = 6


@pytest.fixture
def harness(tmp_path: Path) -> BrokerHarness:
    """A topic with two sealed segments of several batches and an active one, and a topic without damage."""
    made = BrokerHarness(files=OsFileSystem(tmp_path / "data"), metadata=MemoryMetadataStore())
    made.create_topic("t", segment_bytes="1000", index_interval_bytes="1")
    made.create_topic("well")
    for number in range(BATCHES):
        made.produce("t", b"%d" % number * 350)
    made.produce("well", b"a")
    return made


def sealed(harness: BrokerHarness) -> Path:
    assert isinstance(harness.files, OsFileSystem)
    segments = sorted((harness.files.root / "t-0").glob("*.log"))
    assert len(segments) == 3
    return segments[0]


def damage(harness: BrokerHarness, position: int) -> None:
    """Flip a byte of the first segment, and drop the broker's cached state of it."""
    path = sealed(harness)
    harness.broker.close(harness.now_ms)
    content = bytearray(path.read_bytes())
    content[position] ^= 0x55
    path.write_bytes(content)
    path.with_suffix(".index").unlink()
    harness.crash()


def list_offset(harness: BrokerHarness, timestamp: int):
    partition = ListOffsetsPartition(partition_index=0, timestamp=timestamp)
    topics = [ListOffsetsTopic(name="t", partitions=[partition])]
    response = harness.call(ListOffsetsRequest(replica_id=-1, topics=topics))
    return response.topics[0].partitions[0]


def second_batch(harness: BrokerHarness) -> int:
    return sealed(harness).stat().st_size // 2


@pytest.mark.parametrize("second", [False, True], ids=["first batch", "second batch"])
def test_a_fetch_of_a_damaged_segment_is_a_storage_error_of_that_partition(harness, second):
    damage(harness, LENGTH + (second_batch(harness) if second else 0))
    response = harness.call(fetch_request(("t", 0, 0), ("well", 0, 0), max_wait_ms=0))
    (damaged,), (well,) = (topic.partitions for topic in response.responses)
    assert (damaged.error_code, bytes(damaged.records)) == (ErrorCode.KAFKA_STORAGE_ERROR, b"")
    assert values(well.records) == [b"a"]
    (fields,) = [f for level, event, f in harness.journal.lines if event == "read_failed"]
    assert fields["partition"] == "t-0"
    assert "00000000000000000000.log" in str(fields["error"])


def test_the_rest_of_the_partition_and_of_the_broker_goes_on(harness):
    damage(harness, LENGTH)
    assert harness.fetch("t", 0).error_code == ErrorCode.KAFKA_STORAGE_ERROR
    assert values(harness.fetch("t", BATCHES - 1).records) == [b"5" * 350]
    assert harness.produce("t", b"new").base_offset == BATCHES
    assert harness.produce("well", b"b").base_offset == 1
    harness.advance(700_000)
    assert not harness.broker.failed
    assert harness.fetch("t", 0).error_code == ErrorCode.KAFKA_STORAGE_ERROR


def test_a_search_by_time_in_a_damaged_segment_is_a_storage_error(harness):
    damage(harness, LENGTH)
    assert list_offset(harness, START_MS).error_code == ErrorCode.KAFKA_STORAGE_ERROR
    assert list_offset(harness, -3).error_code == ErrorCode.KAFKA_STORAGE_ERROR
    assert "read_failed" in harness.journal.events("error")
    assert list_offset(harness, -1).offset == BATCHES
    assert not harness.broker.failed


def test_a_fetch_that_waits_is_answered_with_the_error(harness):
    damage(harness, LENGTH)
    waiting = harness.send(fetch_request(("well", 0, 1), ("t", 0, 0), min_bytes=1 << 20))
    assert waiting.done, "an error does not wait"
    codes = [part.error_code for t in waiting.response.responses for part in t.partitions]
    assert codes == [ErrorCode.NONE, ErrorCode.KAFKA_STORAGE_ERROR]


def test_a_segment_whose_file_is_gone_is_a_storage_error(harness):
    path = sealed(harness)
    harness.broker.close(harness.now_ms)
    harness.crash()
    path.unlink()
    assert harness.fetch("t", 0).error_code == ErrorCode.KAFKA_STORAGE_ERROR
    assert not harness.broker.failed
    assert harness.produce("t", b"new").error_code == ErrorCode.NONE


@pytest.mark.parametrize("position", range(61))
def test_a_flipped_byte_of_a_header_affects_only_its_partition(harness, position):
    """The reader checks the fields that the broker does not check (the CRC, producer ids)."""
    damage(harness, second_batch(harness) + position)
    for offset in range(BATCHES):
        part = harness.fetch("t", offset)
        assert part.error_code in {ErrorCode.NONE, ErrorCode.KAFKA_STORAGE_ERROR}
        assert list_offset(harness, START_MS + offset).error_code in {0, 56}
    assert harness.produce("t", b"new").base_offset == BATCHES
    assert not harness.broker.failed


# Internal topics


def commit(harness: BrokerHarness, group: str) -> int:
    harness.create_offsets_topic()
    row = OffsetCommitRequestPartition(partition_index=0, committed_offset=3)
    topics = [OffsetCommitRequestTopic(name="well", partitions=[row])]
    response = harness.call(OffsetCommitRequest(group_id=group, topics=topics))
    return int(response.topics[0].partitions[0].error_code)


def committed(harness: BrokerHarness, group: str) -> tuple[int, int]:
    """Return the error of a group, and its committed offset."""
    wanted = OffsetFetchRequestTopics(name="well", partition_indexes=[0])
    request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=group, topics=[wanted])])
    (found,) = harness.call(request).groups
    offset = found.topics[0].partitions[0].committed_offset if not found.error_code else -1
    return found.error_code, offset


def test_the_remedy_for_a_damaged_offsets_partition_works(
    harness: BrokerHarness,
) -> None:
    assert isinstance(harness.files, OsFileSystem)
    root = harness.files.root
    groups = [f"group {number}" for number in range(20)]
    assert {commit(harness, group) for group in groups} == {0}
    segments = root.glob("__consumer_offsets-*/*.log")
    hurt = next(path for path in segments if b"group 7" in path.read_bytes()).parent
    harness.broker.close(harness.now_ms)
    file = next(hurt.glob("*.log"))
    content = bytearray(file.read_bytes())
    content[content.index(b"group 7")] ^= 1
    file.write_bytes(content)
    harness.crash()
    assert committed(harness, "group 7")[0] == ErrorCode.NOT_COORDINATOR
    served = [group for group in groups if committed(harness, group) == (0, 3)]
    assert len(served) > 10  # those of other partitions
    (line,) = [
        fields for _, name, fields in harness.journal.lines if name == "group_partition_not_loaded"
    ]
    assert hurt.name in str(line["remedy"])
    heading = str(line["remedy"]).split("'")[1]
    page = (Path(__file__).parents[4] / "docs/reference/on-disk-format.md").read_text()
    assert f"## {heading}\n" in page
    # as the page describes
    harness.broker.close(harness.now_ms)
    hurt.rename(root.parent / "kept")
    (root / "recovery-point-offset-checkpoint").unlink()
    harness.crash()
    assert committed(harness, "group 7") == (0, -1)
    assert commit(harness, "group 7") == 0
    harness.restart()
    assert committed(harness, "group 7") == (0, 3)
    assert [group for group in groups if committed(harness, group) == (0, 3)] == sorted(
        {*served, "group 7"}, key=groups.index
    )
    assert values(harness.fetch("well", 0).records) == [b"a"]
