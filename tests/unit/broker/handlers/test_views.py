"""DescribeLogDirs, DescribeTopicPartitions, ListConfigResources: requests of operators."""

from __future__ import annotations

import pytest

from headrace.errors import ErrorCode
from headrace.protocol.codec import ZERO_UUID
from headrace.protocol.messages.describe_log_dirs import (
    DescribableLogDirTopic,
    DescribeLogDirsRequest,
)
from headrace.protocol.messages.describe_topic_partitions import (
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsRequestCursor,
    TopicRequest,
)
from headrace.protocol.messages.list_config_resources import ListConfigResourcesRequest
from headrace.storage.os_files import OsFileSystem
from tests.fixtures.broker_harness import BrokerHarness, batch, produce_request


@pytest.fixture
def harness() -> BrokerHarness:
    made = BrokerHarness()
    for name, count in (("a", 3), ("b", 2), ("c", 4)):
        made.create_topic(name, partitions=count)
    return made


# DescribeLogDirs


def log_dirs(harness, topics=None, version=4):
    (result,) = harness.call(DescribeLogDirsRequest(topics=topics), version).results
    sizes = {
        (topic.name, part.partition_index): part.partition_size
        for topic in result.topics
        for part in topic.partitions
    }
    return result, sizes


@pytest.mark.parametrize("version", range(1, 5))
def test_every_partition_has_its_size(harness, version):
    harness.produce("a", b"x" * 1000, partition=1)
    result, sizes = log_dirs(harness, version=version)
    assert result.error_code == 0
    assert len(sizes) == 9
    assert sizes.pop(("a", 1)) == len(batch(b"x" * 1000))
    assert set(sizes.values()) == {0}


def test_describe_log_dirs_returns_only_the_requested_partitions(harness):
    topics = [
        DescribableLogDirTopic(topic="a", partitions=[1, 7, -1, 1]),
        DescribableLogDirTopic(topic="none", partitions=[0]),
        DescribableLogDirTopic(topic="b", partitions=[]),
    ]
    assert list(log_dirs(harness, topics)[1]) == [("a", 1)]
    assert log_dirs(harness, [])[1] == {}


def test_space_is_described_for_disks_and_unknown_in_memory(harness, tmp_path):
    assert (log_dirs(harness)[0].total_bytes, log_dirs(harness)[0].usable_bytes) == (-1, -1)
    on_disk = BrokerHarness(files=OsFileSystem(tmp_path))
    result, _ = log_dirs(on_disk)
    assert result.log_dir == str(tmp_path)
    assert 0 < result.usable_bytes <= result.total_bytes


def test_a_failed_directory_is_an_error(harness):
    harness.send(produce_request("a", 0, batch(b"x")))
    harness.sync(OSError(5, "Input/output error"))
    result, sizes = log_dirs(harness)
    assert (result.error_code, sizes) == (ErrorCode.KAFKA_STORAGE_ERROR, {})


# DescribeTopicPartitions


def page(harness, *names: str, limit: int = 2000, cursor: tuple[str, int] | None = None):
    request = DescribeTopicPartitionsRequest(
        topics=[TopicRequest(name=name) for name in names],
        response_partition_limit=limit,
        cursor=None
        if cursor is None
        else DescribeTopicPartitionsRequestCursor(topic_name=cursor[0], partition_index=cursor[1]),
    )
    return harness.call(request)


def shown(response) -> list[tuple[str, list[int]]]:
    return [
        (topic.name, [part.partition_index for part in topic.partitions])
        for topic in response.topics
    ]


def next_cursor(response) -> tuple[str, int] | None:
    cursor = response.next_cursor
    return None if cursor is None else (cursor.topic_name, cursor.partition_index)


def test_topics_are_described_in_the_order_of_their_names(harness):
    response = page(harness, "c", "a")
    assert shown(response) == [("a", [0, 1, 2]), ("c", [0, 1, 2, 3])]
    assert next_cursor(response) is None
    topic = response.topics[0]
    assert topic.topic_id == harness.broker.services.topics.require("a").topic_id
    assert not topic.is_internal
    part = topic.partitions[0]
    assert (part.leader_id, part.leader_epoch, part.error_code) == (1, 0, 0)
    assert (part.replica_nodes, part.isr_nodes, part.offline_replicas) == ([1], [1], [])
    assert (part.eligible_leader_replicas, part.last_known_elr) == ([], [])


def test_no_topics_means_all(harness):
    assert [name for name, _ in shown(page(harness))] == ["a", "b", "c"]


@pytest.mark.parametrize("names", [(), ("a", "b", "c"), ("c", "c", "b", "a")])
@pytest.mark.parametrize("limit", [1, 2, 3, 4, 5, 9, 100, 0, -7])
def test_the_pages_together_are_everything_once(harness, names, limit):
    seen: dict[str, list[int]] = {}
    cursor = None
    for _ in range(20):
        response = page(harness, *names, limit=limit, cursor=cursor)
        assert sum(len(parts) for _, parts in shown(response)) <= max(1, limit)
        for name, parts in shown(response):
            seen.setdefault(name, []).extend(parts)
        cursor = next_cursor(response)
        if cursor is None:
            break
    assert seen == {"a": [0, 1, 2], "b": [0, 1], "c": [0, 1, 2, 3]}


def test_the_cursor_points_to_the_next_topic_when_one_is_complete(harness):
    assert next_cursor(page(harness, limit=3)) == ("b", 0)
    assert next_cursor(page(harness, limit=4)) == ("b", 1)
    assert next_cursor(page(harness, limit=9)) is None


def test_the_brokers_own_limit_holds(harness):
    harness.create_topic("large", partitions=2500)
    response = page(harness, "large", limit=10_000)
    assert next_cursor(response) == ("large", 2000)


def test_unknown_and_impossible_names_are_errors_of_their_own(harness):
    response = page(harness, "none", "a b", "b")
    assert [(t.name, ErrorCode(t.error_code)) for t in response.topics] == [
        ("a b", ErrorCode.INVALID_TOPIC_EXCEPTION),
        ("b", ErrorCode.NONE),
        ("none", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ]
    assert response.topics[0].topic_id == ZERO_UUID
    assert len(harness.broker.services.topics) == 3, "asking creates nothing"


@pytest.mark.parametrize("cursor", [("b", 0), ("a", -1), ("", 0)])
def test_a_cursor_that_does_not_fit_the_topics_is_refused(harness, cursor):
    response = page(harness, "a", "c", cursor=cursor)
    assert [(t.name, ErrorCode(t.error_code)) for t in response.topics] == [
        ("a", ErrorCode.INVALID_REQUEST),
        ("c", ErrorCode.INVALID_REQUEST),
    ]


def test_a_cursor_continues_after_the_deletion_of_its_topic(harness):
    harness.delete_topic("b")
    assert shown(page(harness, cursor=("b", 1))) == [("c", [0, 1, 2, 3])]
    assert shown(page(harness, "a", cursor=("a", 99))) == [("a", [])]


# ListConfigResources


def test_topics_and_the_broker_have_configurations(harness):
    def listed(*types):
        response = harness.call(ListConfigResourcesRequest(resource_types=list(types)))
        assert response.error_code == 0
        return [(r.resource_type, r.resource_name) for r in response.config_resources]

    assert listed() == [(2, "a"), (2, "b"), (2, "c"), (4, "1"), (8, "1")]
    assert listed(4) == [(4, "1")]
    assert listed(2, 32) == [(2, "a"), (2, "b"), (2, "c")]
    assert listed(8) == [(8, "1")]
    assert listed(16) == listed(32) == []


def test_version_0_of_list_config_resources_returns_nothing(harness):
    response = harness.call(ListConfigResourcesRequest(), 0)
    assert (response.error_code, response.config_resources) == (0, [])


def test_an_unknown_type_is_refused(harness):
    response = harness.call(ListConfigResourcesRequest(resource_types=[2, 77]))
    assert response.error_code == ErrorCode.UNSUPPORTED_VERSION
    assert response.config_resources == []
