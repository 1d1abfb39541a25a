"""Metadata of earlier formats: how the first start of this version carries them over, and what a crash leaves."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from headrace.broker.metadata.metadata_writer import BROKER_COMMITS, MetadataWriter
from headrace.broker.metadata.migration import carry_over
from headrace.broker.metadata.store_client import BROKER_PROCESSES
from headrace.errors import StorageError
from headrace.metadata_stores.memory import MemoryMetadataStore
from headrace.metadata_stores.sqlite import APPLICATION_ID, SqliteMetadataStore
from headrace.ports import Put
from headrace.protocol.messages.metadata import MetadataRequest
from headrace.storage.os_files import OsFileSystem
from tests.fixtures.broker_harness import BrokerHarness, RecordingJournal, values
from tests.fixtures.crash_files import CrashFileSystem
from tests.fixtures.metadata_stores import stored

ENTRIES = Path(__file__).with_name("entries_before_format_3.json")
"""The entries of a data directory with five starts, the last two of them without the second log directory."""


class Killed(BaseException):
    """The process ends here."""


OF_THE_WRITER = (BROKER_COMMITS, BROKER_PROCESSES)


class KilledStore(MemoryMetadataStore):
    """A store whose process is killed after a number of commits. The commits by which a process begins do not count."""

    commits = 0
    killed_after: int | None = None

    def commit(self, checks: Any, operations: Any) -> Any:
        """Commit, and be killed when it is time."""
        done = super().commit(checks, operations)
        if any(not each.key.startswith(OF_THE_WRITER) for each in operations):
            self.commits += 1
            if self.commits == self.killed_after:
                raise Killed
        return done


def migrate(store: MemoryMetadataStore) -> None:
    """Do what a start does until the metadata are carried over."""
    journal = RecordingJournal()
    metadata = MetadataWriter(store, 1, bytes(16), journal)
    metadata.begin()
    try:
        carry_over(metadata, journal)
    finally:
        metadata.close()


def store_with(entries: dict[str, str]) -> KilledStore:
    store = KilledStore()
    for key, value in entries.items():
        store.commit([], [Put(key, value.encode())])
    store.commits = 0
    return store


def registration(broker_epoch: int) -> dict[str, Any]:
    """Return the entry of a broker that is not in a cluster."""
    nowhere: dict[str, Any] = {"incarnation": "", "endpoints": {}, "rack": None}
    return {"broker_epoch": broker_epoch, **nowhere, "format": 3}


def old_topic(number: int, partitions: int, directories: list[str] | None = None) -> str:
    record: dict[str, Any] = {
        "topic_id": f"{number + 256:032x}",
        "partitions": [[1]] * partitions,
        "format": 1,
    }
    if directories is not None:
        record |= {"format": 2, "directories": directories}
    return json.dumps(record)


EPOCH = {"brokers/epoch/1": '{"leader_epoch":4,"format":1}'}


def contents(store: MemoryMetadataStore) -> dict[str, Any]:
    return {
        entry.key: json.loads(entry.value)
        for entry in stored(store).values()
        if not entry.key.startswith(OF_THE_WRITER)
    }


def topic_format_3(topic_id: str, partitions: int) -> dict[str, Any]:
    return {
        "topic_id": topic_id,
        "replicas": [[1]] * partitions,
        "adding": {},
        "removing": {},
        "format": 3,
    }


def test_topics_directories_and_the_leader_epoch_are_carried_over() -> None:
    before = json.loads(ENTRIES.read_text(encoding="utf-8"))
    store = store_with(before)
    migrate(store)
    after = contents(store)
    unchanged = {
        key: json.loads(value)
        for key, value in before.items()
        if not key.startswith(("topics/", "brokers/epoch/", *OF_THE_WRITER))
    }
    offsets, late, one, two = (
        json.loads(before[f"topics/{name}"])["topic_id"]
        for name in ("__consumer_offsets", "late", "one-directory", "two-directories")
    )
    first, second = json.loads(before["brokers/directories/1"])["names"]
    assert after == unchanged | {
        "topics/__consumer_offsets": topic_format_3(offsets, 2),
        "topics/late": topic_format_3(late, 1),
        "topics/one-directory": topic_format_3(one, 3),
        "topics/two-directories": topic_format_3(two, 5),
        f"brokers/placement/1/{late}": {"directories": {first: [0]}, "format": 1},
        f"brokers/placement/1/{two}": {"directories": {second: [0, 1, 2, 3, 4]}, "format": 1},
        "brokers/registration/1": registration(4),
    }


def test_a_broker_serves_the_topics_that_were_carried_over_in_the_next_leader_epoch() -> None:
    store = store_with(json.loads(ENTRIES.read_text(encoding="utf-8")))
    harness = BrokerHarness(metadata=store, offsets_topic_num_partitions=2)
    topics = harness.call(MetadataRequest(topics=None)).topics
    assert {topic.name: len(topic.partitions) for topic in topics} == {
        "__consumer_offsets": 2,
        "late": 1,
        "one-directory": 3,
        "two-directories": 5,
    }
    epochs = {
        partition.leader_epoch
        for topic in topics
        for partition in topic.partitions
        if partition.leader_id == 1
    }
    assert epochs == {5}
    offline = next(topic for topic in topics if topic.name == "two-directories").partitions
    assert [partition.leader_id for partition in offline] == [-1] * 5


def test_a_second_start_changes_nothing() -> None:
    store = store_with(EPOCH | {"topics/t": old_topic(1, 3, ["", "a", "b"])})
    migrate(store)
    after, commits = contents(store), store.commits
    migrate(store)
    assert (contents(store), store.commits) == (after, commits)


def many_topics() -> dict[str, str]:
    """Return 10,000 partitions in topics with one directory, with three, and one topic with many partitions."""
    topics = {f"topics/a{number}": old_topic(number, 20) for number in range(100)}
    for number in range(100, 200):
        topics[f"topics/b{number}"] = old_topic(number, 30, ["", "x", "y"] * 10)
    topics["topics/c"] = old_topic(300, 5_000, ["x", "y"] * 2_500)
    return EPOCH | topics


def test_a_start_after_a_crash_continues_the_migration() -> None:
    complete = store_with(many_topics())
    migrate(complete)
    assert complete.commits > 4
    for killed_after in range(1, complete.commits + 1):
        store = store_with(many_topics())
        store.killed_after = killed_after
        with pytest.raises(Killed):
            migrate(store)
        half = contents(store)
        assert ("brokers/epoch/1" in half) == (killed_after < complete.commits)
        migrate(store)
        assert contents(store) == contents(complete)
        assert store.commits == complete.commits, "no commit is repeated"


def test_a_start_that_dies_after_each_of_its_commits_carries_everything_over() -> None:
    complete, store = store_with(many_topics()), store_with(many_topics())
    migrate(complete)
    for killed_after in range(1, complete.commits + 1):
        store.killed_after = killed_after
        with pytest.raises(Killed):
            migrate(store)
    migrate(store)
    assert contents(store) == contents(complete)


def test_a_replica_is_placed_only_on_its_own_broker() -> None:
    topic = '{"topic_id":"%s","partitions":[[1],[2],[2,1]],"format":2,"directories":["a","b","c"]}'
    store = store_with(EPOCH | {"topics/t": topic % ("11" * 16)})
    migrate(store)
    after = contents(store)
    placement = f"brokers/placement/%d/{'11' * 16}"
    assert after[placement % 1]["directories"] == {"a": [0], "c": [2]}
    assert after[placement % 2]["directories"] == {"b": [1], "c": [2]}


@pytest.mark.parametrize(
    "value",
    [
        "{",
        '{"topic_id":"11","partitions":[[1]],"format":2,"directories":[]}',
        '{"topic_id":"11","partitions":[["a"]],"format":1}',
        '{"topic_id":"11","partitions":[[1]],"racks":[],"format":1}',
    ],
)
def test_an_unreadable_topic_is_refused_and_stays_as_it_is(value: str) -> None:
    entries = EPOCH | {"topics/a": old_topic(1, 1), "topics/t": value}
    store = store_with(entries)
    with pytest.raises(StorageError, match="topics/t"):
        migrate(store)
    topics = stored(store, "topics/t").values()
    assert [entry.value.decode() for entry in topics] == [value]
    assert stored(store, "brokers/epoch/")


def test_a_broker_epoch_that_exists_already_does_not_fall() -> None:
    store = store_with(EPOCH | {"brokers/registration/1": '{"broker_epoch":9,"format":1}'})
    migrate(store)
    assert contents(store) == {"brokers/registration/1": registration(9)}


def in_old_formats(entries: dict[str, Any]) -> dict[str, str]:
    """Return entries of this version in the formats before format 3."""
    old: dict[str, Any] = {}
    for key, value in entries.items():
        if key.startswith("topics/"):
            placement = entries.get(f"brokers/placement/1/{value['topic_id']}")
            count = len(value["replicas"])
            topic = {"topic_id": value["topic_id"], "partitions": value["replicas"], "format": 1}
            if placement is not None:
                of = {
                    p: d for d, partitions in placement["directories"].items() for p in partitions
                }
                topic |= {"format": 2, "directories": [of.get(p, "") for p in range(count)]}
            old[key] = topic
        elif key == "brokers/registration/1":
            old["brokers/epoch/1"] = {"leader_epoch": value["broker_epoch"], "format": 1}
        elif not key.startswith("brokers/placement/"):
            old[key] = value
    return {key: json.dumps(value) for key, value in old.items()}


def write_some(harness: BrokerHarness) -> None:
    """Create a topic, and write to it in three leader epochs."""
    harness.create_topic("t", partitions=4)
    for number in range(3):
        for partition in range(4):
            assert harness.produce("t", b"%d" % partition, partition=partition).error_code == 0
        if number < 2:
            harness.restart()


def assert_carried_over(harness: BrokerHarness) -> None:
    (topic,) = harness.call(MetadataRequest(topics=None)).topics
    assert [partition.leader_epoch for partition in topic.partitions] == [3] * 4
    for partition in range(4):
        found: list[bytes | None] = []
        while len(found) < 3:
            found += values(harness.fetch("t", len(found), partition=partition).records)
        assert found == [b"%d" % partition] * 3
        assert harness.produce("t", b"more", partition=partition).base_offset == 3
    assert "metadata_carried_over" in harness.journal.events("info")


@pytest.mark.parametrize("directories", [1, 2])
def test_records_are_served_after_the_migration_and_leader_epochs_rise(directories: int) -> None:
    disks = [CrashFileSystem() for _ in range(directories)]
    store = MemoryMetadataStore()
    harness = BrokerHarness(files=disks[0], further=disks[1:], metadata=store)
    write_some(harness)
    harness.broker.close(harness.now_ms)
    old = in_old_formats(contents(store))
    assert json.loads(old["topics/t"])["format"] == directories
    assert_carried_over(BrokerHarness(files=disks[0], further=disks[1:], metadata=store_with(old)))


def write_version_1(path: Path, entries: dict[str, str]) -> None:
    """Write a metadata file as the versions before the change log did."""
    connection = sqlite3.connect(path, isolation_level=None)
    connection.executescript(
        "CREATE TABLE entries (key TEXT PRIMARY KEY, value BLOB NOT NULL, version INTEGER NOT NULL) WITHOUT ROWID;"
        "CREATE TABLE counter (version INTEGER NOT NULL);"
        "INSERT INTO counter VALUES (9);"
        f"PRAGMA application_id = {APPLICATION_ID};"
        "PRAGMA user_version = 1;"
    )
    rows = [(key, value.encode(), 9) for key, value in entries.items()]
    connection.executemany("INSERT INTO entries VALUES (?, ?, ?)", rows)
    connection.close()


def test_a_data_directory_of_an_earlier_version_is_carried_over(tmp_path: Path) -> None:
    store = MemoryMetadataStore()
    harness = BrokerHarness(files=OsFileSystem(tmp_path), metadata=store)
    write_some(harness)
    harness.broker.close(harness.now_ms)
    path = tmp_path / "metadata.sqlite"
    write_version_1(path, in_old_formats(contents(store)))
    for number in range(2):
        file = SqliteMetadataStore(path)
        harness = BrokerHarness(files=OsFileSystem(tmp_path), metadata=file)
        if number == 0:
            assert_carried_over(harness)
        else:
            assert "metadata_carried_over" not in harness.journal.events("info")
            assert values(harness.fetch("t", 3).records) == [b"more"]
        harness.broker.close(harness.now_ms)
        file.close()
