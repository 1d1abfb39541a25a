"""Topics of thousands of partitions are created, grown and deleted in steps. For clients it happens at once."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from typing import Any

import pytest

from headrace.broker.partitions.topic import Topic
from headrace.broker.replication.partition import Partition
from headrace.broker.session import Session
from headrace.broker.waiting.steps import (
    FIRST_BATCH_COST,
    PARTITION_OPENING_COST,
    STEP_COST,
    finished,
)
from headrace.errors import ErrorCode
from headrace.protocol.codec import Message
from headrace.protocol.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsTopic,
)
from headrace.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from headrace.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from headrace.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from headrace.storage.memory_files import MemoryFileSystem
from tests.fixtures.broker_harness import BrokerHarness, Pending, batch, produce_request
from tests.fixtures.metadata_stores import stored

MANY = 700
OPENED_AT_ONCE = STEP_COST // PARTITION_OPENING_COST + 1
DELETED_AT_ONCE = STEP_COST // FIRST_BATCH_COST + 1


def creation(name: str = "t", partitions: int = MANY) -> CreateTopicsRequest:
    topic = CreatableTopic(name=name, num_partitions=partitions, replication_factor=1)
    return CreateTopicsRequest(topics=[topic])


def growth(count: int) -> CreatePartitionsRequest:
    topic = CreatePartitionsTopic(name="t", count=count, assignments=None)
    return CreatePartitionsRequest(topics=[topic], timeout_ms=1_000)


def deletion() -> DeleteTopicsRequest:
    return DeleteTopicsRequest(topics=[DeleteTopicState(name="t")])


def send(harness: BrokerHarness, request: Message) -> Pending:
    """Send a request on a connection of its own."""
    return harness.send(request, session=Session())


def finish(harness: BrokerHarness, *pending: Pending) -> list[Any]:
    """Run all pending work. Return the only result of each request."""
    while harness.step() or harness.sync():
        pass
    results = []
    for each in pending:
        response = each.response
        (result,) = (
            getattr(response, "topics", None)
            or getattr(response, "results", None)
            or response.responses
        )
        results.append(result)
    return results


def partitions(harness: BrokerHarness, name: str = "t") -> int | None:
    """Return the number of partitions in Metadata, None if the topic does not exist."""
    counts = {
        each.name: len(each.partitions)
        for each in harness.call(MetadataRequest(topics=None)).topics
    }
    return counts.get(name)


def shown(harness: BrokerHarness, topic: Topic) -> Sequence[Partition | None]:
    return harness.broker.services.partitions.of(topic)


def opened(harness: BrokerHarness) -> int:
    return harness.broker.services.replicas.partitions_count


def test_a_topic_appears_whole_and_its_logs_are_opened_in_steps():
    harness = BrokerHarness()
    pending = send(harness, creation())
    before, seen = 0, []
    while not pending.done:
        assert opened(harness) - before <= OPENED_AT_ONCE
        before = opened(harness)
        topic = harness.broker.services.topics.get("t")
        seen.append(None if topic is None else len(shown(harness, topic)))
        assert harness.step()
    assert seen[:3] == [None] * 3
    assert set(seen) <= {None, MANY}
    assert opened(harness) == partitions(harness) == MANY
    (result,) = finish(harness, pending)
    assert (result.error_code, result.num_partitions) == (0, MANY)


def test_a_creation_of_the_same_name_waits():
    harness = BrokerHarness()
    first = send(harness, creation())
    second, grown = send(harness, creation()), send(harness, growth(MANY + 1))
    deleted, third = send(harness, deletion()), send(harness, creation(partitions=3))
    assert not any(each.done for each in (first, second, grown, deleted, third))
    results = finish(harness, first, second, grown, deleted, third)
    assert [each.error_code for each in results] == [0, ErrorCode.TOPIC_ALREADY_EXISTS, 0, 0, 0]
    assert partitions(harness) == opened(harness) == 3
    assert results[0].topic_id != results[4].topic_id


def test_a_name_that_collides_is_refused_while_the_other_topic_is_created():
    harness = BrokerHarness()
    first, second = send(harness, creation("a.b")), send(harness, creation("a_b", 1))
    results = finish(harness, first, second)
    assert [each.error_code for each in results] == [0, ErrorCode.INVALID_TOPIC_EXCEPTION]


def test_partitions_that_are_being_created_count():
    harness = BrokerHarness(max_partitions=MANY + 10)
    first, second = send(harness, creation("a")), send(harness, creation("b", 11))
    third = send(harness, creation("c", 10))
    results = finish(harness, first, second, third)
    assert [each.error_code for each in results] == [0, ErrorCode.POLICY_VIOLATION, 0]
    assert opened(harness) == MANY + 10


def test_a_topic_is_created_although_the_connection_closed():
    harness = BrokerHarness()
    pending = send(harness, creation())
    pending.cancel()
    finish(harness)
    assert partitions(harness) == MANY


@pytest.mark.parametrize("steps", range(3))
def test_a_crash_during_a_creation_or_a_growth_leaves_all_partitions(steps: int):
    harness = BrokerHarness()
    send(harness, creation())
    for _ in range(steps):
        assert harness.step()
    harness.crash()
    assert partitions(harness) == MANY
    send(harness, growth(2 * MANY))
    for _ in range(steps):
        assert harness.step()
    assert partitions(harness) == MANY
    harness.crash()
    assert partitions(harness) == opened(harness) == 2 * MANY
    harness.produce("t", b"x", partition=2 * MANY - 1)


def test_a_topic_grows_by_all_partitions_at_once():
    harness = BrokerHarness()
    harness.create_topic("t")
    first = send(harness, growth(MANY))
    less, more = send(harness, growth(MANY - 1)), send(harness, growth(MANY + 5))
    before = opened(harness)
    topic = harness.broker.services.topics.require("t")
    for _ in range(3):
        assert len(shown(harness, topic)) == 1
        harness.send(produce_request("t", 0, batch(b"x"), acks=0))
        assert opened(harness) - before <= OPENED_AT_ONCE
        before = opened(harness)
        assert harness.step()
    results = finish(harness, first, less, more)
    assert [each.error_code for each in results] == [0, ErrorCode.INVALID_PARTITIONS, 0]
    assert partitions(harness) == MANY + 5


def written(partitions: int) -> BrokerHarness:
    harness = BrokerHarness()
    harness.create_topic("t", partitions=partitions)
    for index in range(partitions):
        harness.send(produce_request("t", index, batch(b"x"), acks=0))
    while harness.sync():
        pass
    return harness


def directories(harness: BrokerHarness) -> int:
    return sum(name.startswith("t-") for name in harness.files.list(""))


def test_a_topic_is_gone_at_once_and_its_files_are_removed_in_steps():
    harness = written(100)
    pending = send(harness, deletion())
    before, steps = 100, 0
    while not pending.done:
        assert partitions(harness) is None
        assert before - directories(harness) <= DELETED_AT_ONCE
        before = directories(harness)
        assert harness.step()
        steps += 1
    assert steps > 2
    assert (directories(harness), stored(harness.metadata, "deleted/")) == (0, {})


@pytest.mark.parametrize("steps", range(3))
def test_a_crash_during_a_deletion_is_finished_by_the_next_start(steps: int):
    harness = written(100)
    send(harness, deletion())
    for _ in range(steps):
        assert harness.step()
    assert directories(harness) > 0
    harness.crash()
    assert (directories(harness), stored(harness.metadata, "deleted/")) == (0, {})
    assert partitions(harness) is None


class FailingFiles(MemoryFileSystem):
    """A directory whose disk fails."""

    failed = False

    def rename(self, old: str, new: str) -> None:
        if self.failed:
            raise OSError(errno.EIO, "Input/output error", old)
        super().rename(old, new)


def test_a_disk_that_fails_between_two_steps_of_a_deletion_is_reported():
    files = FailingFiles()
    further = FailingFiles()
    harness = BrokerHarness(files=files, further=[further])
    harness.create_topic("t", partitions=200)
    for index in range(200):
        harness.send(produce_request("t", index, batch(b"x"), acks=0))
    while harness.sync():
        pass
    pending = send(harness, deletion())
    assert harness.step()
    files.failed = True
    while not pending.done:
        assert harness.step()
    (result,) = pending.response.responses
    assert result.error_code == ErrorCode.KAFKA_STORAGE_ERROR
    assert harness.broker.services.topics.get("t") is None
    assert harness.broker.failed


def test_a_disk_that_fails_between_two_steps_of_a_creation_leaves_its_partitions_offline():
    harness = BrokerHarness(further=[MemoryFileSystem()])
    pending = send(harness, creation())
    first, second = harness.broker.services.log_store.dirs
    harness.broker.services.log_store.fail(second, OSError(errno.EIO, "Input/output error"))
    (result,) = finish(harness, pending)
    assert result.error_code == 0
    topic = harness.broker.services.topics.require("t")
    served = [each for each in shown(harness, topic) if each is not None]
    assert (len(shown(harness, topic)), len(served)) == (MANY, MANY // 2)
    assert all(each.log_dir is first for each in served)


def test_settings_that_change_between_two_steps_count_for_all_partitions():
    harness = BrokerHarness()
    harness.create_topic("grows")
    pending = send(harness, creation())
    settings = {"log.segment.bytes": "12345"}
    finished(harness.broker.services.settings.change(lambda _: settings, all_brokers=True))
    finish(harness, pending)
    topic = harness.broker.services.topics.require("t")
    sizes = {each.log.config.segment_bytes for each in shown(harness, topic) if each is not None}
    assert sizes == {topic.config.segment_bytes} == {12345}


@pytest.mark.slow
def test_a_large_topic_that_metadata_creates_exists_at_the_next_request():
    harness = BrokerHarness(num_partitions=MANY)
    request = MetadataRequest(
        topics=[MetadataRequestTopic(name="t")], allow_auto_topic_creation=True
    )
    for _ in range(2):
        (topic,) = harness.call(request).topics
        if topic.error_code == 0:
            break
        assert topic.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        harness.step()
    finish(harness)
    (topic,) = harness.call(request).topics
    assert (topic.error_code, len(shown(harness, topic))) == (0, MANY)
