"""The high watermark of a broker that starts: the checkpoint, then the progress of the in-sync replicas."""

from __future__ import annotations

import pytest

from headrace.core.cluster.records import TOPICS, TopicRecord, decode, encode
from headrace.core.log.files.high_watermark_file import HIGH_WATERMARK_FILE
from headrace.core.replica.role import Role
from headrace.errors import ErrorCode
from headrace.ports import Put
from tests.fixtures.broker_harness import BrokerHarness
from tests.fixtures.metadata_stores import commit, stored
from tests.unit.broker.replication.test_roles import list_offsets, partition_of

OTHER = 2


@pytest.fixture
def harness() -> BrokerHarness:
    """A broker that was killed with the high watermark 8, of which its checkpoint has 5."""
    harness = BrokerHarness()
    harness.create_topic("t")
    # As in a directory that has a log with other replicas.
    harness.broker.services.log_store.dirs.first.logs.high_watermarks.begin()
    for _ in range(5):
        harness.produce("t", b"x")
    harness.advance(harness.config.replica_high_watermark_checkpoint_interval_ms)
    assert harness.files.read_file(HIGH_WATERMARK_FILE) == b"0\n1\nt 0 5\n"
    for _ in range(3):
        harness.produce("t", b"y")
    return harness


def start_again(harness: BrokerHarness, *replicas: int) -> None:
    """Kill the broker, and start it as one of several replicas."""
    harness.broker.services.metadata.close()
    (entry,) = stored(harness.metadata, TOPICS).values()
    record = decode(entry, TopicRecord)
    put = Put(entry.key, encode(TopicRecord(record.topic_id, [replicas])))
    commit(harness.metadata, [], [put])
    harness.crash()


def test_the_only_replica_begins_at_its_log_end_offset(harness: BrokerHarness) -> None:
    harness.crash()
    partition = partition_of(harness)
    assert (partition.role, partition.high_watermark) == (Role.LEADER, 8)
    assert list_offsets(harness, -1).offset == 8


def test_a_leader_begins_at_the_checkpoint_until_all_in_sync_replicas_have_fetched(
    harness: BrokerHarness,
) -> None:
    start_again(harness, 1, OTHER)
    partition = partition_of(harness)
    assert (partition.role, partition.high_watermark, partition.log.log_end_offset) == (
        Role.LEADER,
        5,
        8,
    )
    assert list_offsets(harness, -1).error_code == ErrorCode.OFFSET_NOT_AVAILABLE
    assert harness.fetch("t", 5).records == b""


def test_a_follower_begins_at_the_checkpoint(harness: BrokerHarness) -> None:
    start_again(harness, OTHER, 1)
    partition = partition_of(harness)
    assert (partition.role, partition.high_watermark) == (Role.FOLLOWER, 5)
    assert harness.fetch("t", 0).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_without_a_checkpoint_a_replica_begins_at_its_log_start_offset(
    harness: BrokerHarness,
) -> None:
    harness.files.remove(HIGH_WATERMARK_FILE)
    start_again(harness, 1, OTHER)
    assert partition_of(harness).high_watermark == 0


def test_a_clean_stop_writes_the_checkpoint(harness: BrokerHarness) -> None:
    harness.broker.close(harness.now_ms)
    assert harness.files.read_file(HIGH_WATERMARK_FILE) == b"0\n1\nt 0 8\n"
