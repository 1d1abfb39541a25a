"""Several log directories: the placement of partitions, and the effects of a failed or missing directory."""

from __future__ import annotations

import errno
import json

import pytest

from headrace.broker.log_dirs.log_dirs import UnusableDirectory
from headrace.core.meta_properties import META_FILE, read_meta
from headrace.errors import ErrorCode, StorageError
from headrace.ports import LogDirectory
from headrace.protocol.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsTopic,
)
from headrace.protocol.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from headrace.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from headrace.protocol.messages.describe_log_dirs import (
    DescribableLogDirTopic,
    DescribeLogDirsRequest,
)
from headrace.protocol.messages.describe_topic_partitions import (
    DescribeTopicPartitionsRequest,
    TopicRequest,
)
from headrace.protocol.messages.find_coordinator import FindCoordinatorRequest
from headrace.protocol.messages.metadata import MetadataRequest
from tests.fixtures.broker_harness import (
    BrokerHarness,
    batch,
    fetch_request,
    produce_request,
    values,
)
from tests.fixtures.compaction import keyed
from tests.fixtures.crash_files import CrashFileSystem
from tests.fixtures.metadata_stores import stored

CHANGES = {"append", "create", "write_file", "make_directory", "sync", "sync_directory", "remove"}


class Disk(CrashFileSystem):
    """A disk with a name, which can fail."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name
        self.usable_bytes = 1 << 30
        self.error: int | None = None
        self.broken: set[str] = CHANGES
        self.fault = lambda kind, _path: self.error if kind in self.broken else None

    def describe(self) -> LogDirectory:
        return LogDirectory(self.name, 1 << 31, self.usable_bytes)

    def break_down(self, *kinds: str) -> None:
        self.error, self.broken = errno.EIO, set(kinds) or CHANGES

    def partitions(self) -> list[str]:
        return [name for name in self.list("") if name.rpartition("-")[2].isdigit()]

    def read_file(self, path: str) -> bytes | None:
        if self.error is not None and "read" in self.broken:
            raise OSError(self.error, "Input/output error")
        return super().read_file(path)


@pytest.fixture
def disks() -> list[Disk]:
    return [Disk("/one"), Disk("/two")]


@pytest.fixture
def harness(disks: list[Disk]) -> BrokerHarness:
    """A topic with a partition on each of two disks."""
    made = BrokerHarness(
        files=disks[0],
        further=disks[1:],
        headrace_log_dir_min_free_bytes=10_000,
        offsets_topic_num_partitions=2,
    )
    made.create_topic("t", partitions=2)
    for partition in (0, 1):
        assert made.produce("t", b"%d" % partition, partition=partition).error_code == 0
    return made


def error(pending):
    return pending.response.responses[0].partition_responses[0].error_code


def placement(harness: BrokerHarness, topic: str):
    topic_id = record(harness, f"topics/{topic}")["topic_id"]
    return record(harness, f"brokers/placement/1/{topic_id}")["directories"]


def record(harness: BrokerHarness, key: str):
    entry = stored(harness.metadata).get(key)
    assert entry is not None
    return json.loads(entry.value)


def leaders(harness: BrokerHarness, topic: str = "t") -> list[tuple[int, int]]:
    (found,) = [
        each for each in harness.call(MetadataRequest(topics=None)).topics if each.name == topic
    ]
    return [(part.error_code, part.leader_id) for part in found.partitions]


def described(harness: BrokerHarness, topic: str = "t") -> list[tuple[int, int, list[int]]]:
    request = DescribeTopicPartitionsRequest(
        topics=[TopicRequest(name=topic)], response_partition_limit=100, cursor=None
    )
    (found,) = harness.call(request).topics
    return [(part.error_code, part.leader_id, part.offline_replicas) for part in found.partitions]


def log_dirs(harness: BrokerHarness, topics=None) -> dict[str, tuple[int, list[str]]]:
    return {
        result.log_dir: (
            result.error_code,
            [f"{t.name}-{p.partition_index}" for t in result.topics for p in t.partitions],
        )
        for result in harness.call(DescribeLogDirsRequest(topics=topics)).results
    }


SERVED = (ErrorCode.NONE, 1)
OFFLINE = (ErrorCode.LEADER_NOT_AVAILABLE, -1)


# The placement of partitions


def test_new_partitions_go_where_the_fewest_are(harness, disks):
    assert [disk.partitions() for disk in disks] == [["t-0"], ["t-1"]]
    harness.create_topic("u", partitions=3)
    harness.create_topic("v")
    assert log_dirs(harness) == {
        "/one": (0, ["t-0", "u-0", "u-2"]),
        "/two": (0, ["t-1", "u-1", "v-0"]),
    }
    harness.call(
        CreatePartitionsRequest(topics=[CreatePartitionsTopic(name="v", count=3, assignments=None)])
    )
    assert log_dirs(harness)["/two"] == (0, ["t-1", "u-1", "v-0", "v-2"])
    harness.restart()
    assert log_dirs(harness)["/one"] == (0, ["t-0", "u-0", "u-2", "v-1"])


def test_the_brokers_own_topics_are_in_the_first_directory(harness, disks):
    harness.call(FindCoordinatorRequest(key_type=0, coordinator_keys=["g"]))
    assert log_dirs(harness)["/two"] == (0, ["t-1"])
    assert len(log_dirs(harness)["/one"][1]) == 3


def test_a_directory_short_of_space_gets_partitions_only_if_all_are_short(harness, disks):
    disks[0].usable_bytes = 0
    harness.advance(5000)
    harness.create_topic("u", partitions=2)
    assert log_dirs(harness)["/two"] == (0, ["t-1", "u-0", "u-1"])
    disks[1].usable_bytes = 0
    harness.advance(5000)
    harness.create_topic("v")
    assert log_dirs(harness)["/one"] == (0, ["t-0", "v-0"])


def test_asking_for_a_partition_lists_only_the_topics_that_have_it(harness):
    topics = [
        DescribableLogDirTopic(topic="t", partitions=[1, 9]),
        DescribableLogDirTopic(topic="none", partitions=[0]),
    ]
    results = harness.call(DescribeLogDirsRequest(topics=topics)).results
    assert [[topic.name for topic in result.topics] for result in results] == [[], ["t"]]


# The stored directories


def test_a_broker_with_one_directory_stores_no_directories():
    harness = BrokerHarness(files=Disk("/one"))
    harness.create_topic("t", partitions=2)
    assert record(harness, "topics/t")["replicas"] == [[1], [1]]
    assert not stored(harness.metadata, "brokers/placement/")
    assert not stored(harness.metadata, "brokers/directories/")


def test_the_metadata_know_the_directory_of_each_partition(harness, disks):
    ids = [(read_meta(disk) or {})["directory.id"] for disk in disks]
    assert len(set(ids)) == 2
    assert placement(harness, "t") == {ids[0]: [0], ids[1]: [1]}
    names = dict(zip(ids, ["/one", "/two"], strict=True))
    assert record(harness, "brokers/directories/1")["names"] == names


def test_the_metadata_know_the_directories_of_added_partitions(harness, disks):
    topic = CreatePartitionsTopic(name="t", count=4, assignments=None)
    harness.call(CreatePartitionsRequest(topics=[topic]))
    ids = [(read_meta(disk) or {})["directory.id"] for disk in disks]
    assert placement(harness, "t") == {ids[0]: [0, 2], ids[1]: [1, 3]}


def test_the_directories_of_a_deleted_topic_are_forgotten(harness):
    assert stored(harness.metadata, "brokers/placement/")
    harness.send(DeleteTopicsRequest(topics=[DeleteTopicState(name="t", topic_id=bytes(16))]))
    assert not stored(harness.metadata, "brokers/placement/")


def test_a_directory_is_found_by_its_id_under_any_path(harness, disks):
    disks[1].name = "/moved"
    harness.restart()
    assert values(harness.fetch("t", 0, partition=1).records) == [b"1"]
    assert "/moved" in record(harness, "brokers/directories/1")["names"].values()


def test_a_broker_of_one_directory_gets_a_second_one():
    first, second = Disk("/one"), Disk("/two")
    harness = BrokerHarness(files=first)
    first.write_file(META_FILE, (first.read_file(META_FILE) or b"").split(b"directory.id")[0])
    harness.create_topic("old", partitions=2)
    harness.produce("old", b"a", partition=1)
    harness.further = [second]
    harness.restart()
    assert values(harness.fetch("old", 0, partition=1).records) == [b"a"]
    harness.create_topic("new")
    harness.call(
        CreatePartitionsRequest(
            topics=[CreatePartitionsTopic(name="old", count=3, assignments=None)]
        )
    )
    assert log_dirs(harness) == {"/one": (0, ["old-0", "old-1"]), "/two": (0, ["new-0", "old-2"])}
    harness.restart()
    assert log_dirs(harness)["/two"] == (0, ["new-0", "old-2"])


# A directory that fails


@pytest.mark.parametrize("kind", ["append", "sync"])
def test_a_failed_directory_affects_only_its_partitions(harness, disks, kind):
    fetch = harness.send(fetch_request(("t", 1, 1), max_wait_ms=60_000))
    disks[1].break_down(kind)
    pending = [harness.send(produce_request("t", index, batch(b"x"))) for index in (1, 0)]
    harness.sync()
    assert [error(each) for each in pending] == [ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.NONE]
    assert fetch.response.responses[0].partitions[0].error_code == ErrorCode.KAFKA_STORAGE_ERROR
    assert not harness.broker.failed
    assert leaders(harness) == [SERVED, OFFLINE]
    assert described(harness) == [(0, 1, []), (0, -1, [1])]
    assert log_dirs(harness) == {
        "/one": (0, ["t-0"]),
        "/two": (ErrorCode.KAFKA_STORAGE_ERROR, []),
    }
    disks[1].error = None  # a disk that has failed once is not trusted again
    assert harness.produce("t", b"y", partition=1).error_code == ErrorCode.KAFKA_STORAGE_ERROR
    assert harness.fetch("t", 0, partition=1).error_code == ErrorCode.KAFKA_STORAGE_ERROR
    assert harness.produce("t", b"y").base_offset == 2
    harness.create_topic("u", partitions=2)
    assert log_dirs(harness)["/one"] == (0, ["t-0", "u-0", "u-1"])
    harness.advance(400_000)
    assert not harness.sync()
    assert harness.journal.events("error").count("log_directory_failed") == 1


def test_the_records_of_a_failed_directory_are_served_after_a_restart(harness, disks):
    disks[1].break_down("append")
    harness.produce("t", b"lost", partition=1)
    disks[1].error = None
    harness.restart()
    assert leaders(harness) == [SERVED, SERVED]
    assert values(harness.fetch("t", 0, partition=1).records) == [b"1"]
    assert harness.produce("t", b"new", partition=1).base_offset == 1


def test_the_failure_of_the_first_directory_ends_the_broker(harness, disks):
    disks[0].break_down("sync")
    pending = [harness.send(produce_request("t", index, batch(b"x"))) for index in (0, 1)]
    harness.sync()
    assert error(pending[0]) == ErrorCode.KAFKA_STORAGE_ERROR
    assert harness.broker.failed
    failed = harness.broker.start_sync()
    assert failed is not None
    with pytest.raises(OSError, match="EIO"):
        failed.run()


def test_a_tick_takes_a_failed_disk_out_of_service(harness, disks):
    disks[1].break_down("write_file")
    harness.advance(120_000)
    assert not harness.broker.failed
    assert leaders(harness) == [SERVED, OFFLINE]
    assert harness.produce("t", b"x").error_code == ErrorCode.NONE


def test_records_are_deleted_where_they_can_be(harness, disks):
    disks[1].break_down("write_file")
    wanted = [DeleteRecordsPartition(partition_index=index, offset=1) for index in (0, 1)]
    request = DeleteRecordsRequest(topics=[DeleteRecordsTopic(name="t", partitions=wanted)])
    answers = harness.call(request).topics[0].partitions
    assert [(part.error_code, part.low_watermark) for part in answers] == [
        (ErrorCode.NONE, 1),
        (ErrorCode.KAFKA_STORAGE_ERROR, -1),
    ]
    assert leaders(harness) == [SERVED, OFFLINE]


def test_only_directories_that_have_not_failed_are_marked_as_clean(harness, disks):
    disks[1].break_down("append")
    harness.produce("t", b"x", partition=1)
    disks[1].error = None
    harness.broker.close(harness.now_ms)
    assert [disk.read_file("clean_shutdown") is not None for disk in disks] == [True, False]


def test_a_directory_that_cannot_be_closed_clean_does_not_hinder_the_others(harness, disks):
    disks[1].break_down("write_file")
    harness.broker.close(harness.now_ms)
    assert disks[0].read_file("clean_shutdown") is not None
    assert "log_directory_not_closed_clean" in harness.journal.events("error")


def test_a_full_disk_refuses_produces_to_its_own_partitions(harness, disks):
    disks[1].error, disks[1].broken, disks[1].usable_bytes = errno.ENOSPC, {"append"}, 0
    assert harness.produce("t", b"x", partition=1).error_code == ErrorCode.KAFKA_STORAGE_ERROR
    assert harness.produce("t", b"x").error_code == ErrorCode.NONE
    assert leaders(harness) == [SERVED, SERVED]
    disks[1].error, disks[1].usable_bytes = None, 1 << 30
    harness.advance(1000)
    assert harness.produce("t", b"x", partition=1).base_offset == 1


def test_directories_take_turns_in_compaction(harness, disks):
    harness.create_topic("c", partitions=2, cleanup_policy="compact", segment_bytes="500")
    for number in range(8):
        for partition in (0, 1):
            request = produce_request("c", partition, keyed((b"k", b"%d" % number * 200)))
            assert error(_done(harness, request)) == ErrorCode.NONE
    disks_of = {
        log: d.name for d in harness.broker.services.log_store.dirs for log in d.logs.logs.values()
    }
    harness.advance(60_000)
    turns: list[str] = []
    while (task := harness.broker.start_compaction()) is not None:
        assert harness.broker.start_compaction() is None, "one step at a time"
        turns.append(disks_of[task.log])
        task.run()
        harness.broker.finish_compaction(task, None, harness.now_ms)
    assert set(turns) == {"/one", "/two"}
    assert turns[:4] in (["/one", "/two"] * 2, ["/two", "/one"] * 2)


def _done(harness, request):
    pending = harness.send(request)
    harness.sync()
    return pending


# A directory that is missing at the start


def missing(name: str) -> UnusableDirectory:
    return UnusableDirectory(name, PermissionError(errno.EACCES, "Permission denied"))


@pytest.mark.parametrize("how", ["not usable", "not named", "empty", "broken"])
def test_the_partitions_of_a_missing_directory_are_offline_and_not_recreated(harness, disks, how):
    empty = Disk("/two")
    harness.further = {
        "not usable": [missing("/two")],
        "not named": [],
        "empty": [empty],
        "broken": disks[1:],
    }[how]
    before = disks[1].contents()
    if how == "broken":
        disks[1].break_down("read")
        harness.crash()
    else:
        harness.restart()
        before = disks[1].contents()
    assert leaders(harness) == [SERVED, OFFLINE]
    assert harness.produce("t", b"x", partition=1).error_code == ErrorCode.KAFKA_STORAGE_ERROR
    assert harness.fetch("t", 0, partition=1).error_code == ErrorCode.KAFKA_STORAGE_ERROR
    assert harness.produce("t", b"x").base_offset == 1
    harness.create_topic("u", partitions=2)
    if how != "not named":
        expected = {
            "/one": (0, ["t-0", "u-0", "u-1"]),
            "/two": (ErrorCode.KAFKA_STORAGE_ERROR, []),
        }
        assert log_dirs(harness) == expected
    assert empty.contents() == {}
    assert disks[1].contents() == before
    lines = [fields for _, event, fields in harness.journal.lines if event == "partitions_offline"]
    assert [(fields["directory"], fields["partitions"]) for fields in lines] == [("/two", 1)]
    disks[1].error, harness.further = None, disks[1:]
    harness.restart()
    assert leaders(harness) == [SERVED, SERVED]
    assert values(harness.fetch("t", 0, partition=1).records) == [b"1"]


@pytest.mark.parametrize("code", [errno.EIO, errno.EACCES, errno.EPERM])
def test_a_disk_that_fails_during_the_load_takes_its_partitions_offline(harness, disks, code):
    harness.broker.close(harness.now_ms)
    disks[1].break_down("create", "append", "truncate", "sync", "sync_directory")
    disks[1].error = code
    disks[1].remove("clean_shutdown")
    harness.crash()
    assert leaders(harness) == [SERVED, OFFLINE]
    assert harness.produce("t", b"x").base_offset == 1


def test_a_path_gets_a_new_directory_when_no_topic_needs_the_old_one(harness, disks):
    replacement = Disk("/two")
    harness.further = [replacement]
    harness.restart()
    harness.call(DeleteTopicsRequest(topics=[DeleteTopicState(name="t")]))
    harness.restart()
    harness.create_topic("u", partitions=2)
    assert log_dirs(harness) == {"/one": (0, ["u-0"]), "/two": (0, ["u-1"])}


def test_a_topic_of_a_missing_directory_is_deleted_when_the_directory_returns(harness, disks):
    harness.further = [missing("/two")]
    harness.restart()
    result = harness.call(DeleteTopicsRequest(topics=[DeleteTopicState(name="t")])).responses[0]
    assert result.error_code == ErrorCode.NONE
    harness.create_topic("t", partitions=2)
    harness.produce("t", b"new", partition=1)
    harness.restart()
    assert len(stored(harness.metadata, "deleted/")) == 1, "the directory is not there yet"
    assert disks[1].partitions() == ["t-1"]
    harness.further = disks[1:]
    harness.restart()
    assert disks[1].partitions() == []
    assert not stored(harness.metadata, "deleted/")
    assert values(harness.fetch("t", 0, partition=1).records) == [b"new"]


def test_a_deletion_skips_a_failed_directory(harness, disks):
    disks[1].break_down("append")
    harness.produce("t", b"x", partition=1)
    result = harness.call(DeleteTopicsRequest(topics=[DeleteTopicState(name="t")])).responses[0]
    assert result.error_code == ErrorCode.NONE
    assert disks[0].partitions() == []
    disks[1].error = None
    harness.restart()
    assert disks[1].partitions() == []
    assert not stored(harness.metadata, "deleted/")


def test_a_copy_and_a_directory_of_another_broker_are_refused(harness, disks):
    copy = Disk("/copy")
    copy.write_file(META_FILE, disks[1].read_file(META_FILE) or b"")
    harness.broker.close(harness.now_ms)
    harness.further = [disks[1], copy]
    with pytest.raises(StorageError, match="/two and /copy have the same id"):
        harness.crash()
    stranger = Disk("/stranger")
    BrokerHarness(files=stranger, broker_id=7).broker.close(harness.now_ms)
    harness.further = [disks[1], stranger]
    with pytest.raises(StorageError, match="belongs to another broker"):
        harness.crash()


def test_two_directories_are_synced_by_one_group_commit(harness, disks):
    pending = [harness.send(produce_request("t", index, batch(b"x"))) for index in (0, 1)]
    commit = harness.broker.start_sync()
    assert commit is not None
    assert (commit.disks, len(commit.tasks)) == (2, 2)
    assert harness.broker.start_sync() is None, "one at a time"
    assert not harness.broker.sync_due
    commit.run()
    harness.broker.finish_sync(commit, None, harness.now_ms)
    assert [error(each) for each in pending] == [0, 0]
