"""Requests to create, delete and describe topics: CreateTopics, DeleteTopics, DescribeConfigs."""

from __future__ import annotations

import pytest

from headrace.broker.partitions.partition_deletion import PartitionDeletion
from headrace.errors import ErrorCode
from headrace.protocol.codec import ZERO_UUID
from headrace.protocol.messages.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from headrace.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from headrace.protocol.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
)
from headrace.protocol.messages.metadata import MetadataRequest
from tests.fixtures.broker_harness import (
    BrokerHarness,
    batch,
    fetch_request,
    produce_request,
    values,
)
from tests.fixtures.metadata_stores import stored


@pytest.fixture
def harness() -> BrokerHarness:
    return BrokerHarness(num_partitions=4)


def wanted(name: str = "t", partitions: int = -1, factor: int = -1, **fields) -> CreatableTopic:
    return CreatableTopic(name=name, num_partitions=partitions, replication_factor=factor, **fields)


def create(harness, *topics, version=7, validate_only=False):
    request = CreateTopicsRequest(topics=list(topics), validate_only=validate_only)
    return harness.call(request, version).topics


def names(harness) -> list[str]:
    return [topic.name for topic in harness.call(MetadataRequest(topics=None)).topics]


@pytest.mark.parametrize("version", range(2, 8))
def test_defaults_are_accepted_in_every_version(harness, version):
    (result,) = create(harness, wanted(), version=version)
    assert (result.error_code, result.error_message) == (0, None)
    assert harness.broker.services.topics.require("t").partitions_count == 4
    if version >= 5:
        assert (result.num_partitions, result.replication_factor) == (4, 1)
        assert {c.name: c.value for c in result.configs}["cleanup.policy"] == "delete"
    if version >= 7:
        assert result.topic_id == harness.broker.services.topics.require("t").topic_id != ZERO_UUID


def test_configs_are_kept_and_returned_with_their_source(harness):
    configs = [
        CreatableTopicConfig(name="retention.ms", value="-1"),
        CreatableTopicConfig(name="cleanup.policy", value="compact"),
    ]
    (result,) = create(harness, wanted(configs=configs))
    told = {c.name: (c.value, c.config_source) for c in result.configs}
    assert told["retention.ms"] == ("-1", 1)
    assert told["cleanup.policy"] == ("compact", 1)
    assert told["segment.bytes"] == ("1073741824", 5)
    harness.restart()
    assert harness.broker.services.topics.require("t").config.retention_ms == -1


@pytest.mark.parametrize(
    ("topic", "error"),
    [
        (wanted("a b"), ErrorCode.INVALID_TOPIC_EXCEPTION),
        (wanted(""), ErrorCode.INVALID_TOPIC_EXCEPTION),
        (wanted("x" * 250), ErrorCode.INVALID_TOPIC_EXCEPTION),
        (wanted("../etc"), ErrorCode.INVALID_TOPIC_EXCEPTION),
        (wanted("ex.ists"), ErrorCode.INVALID_TOPIC_EXCEPTION),
        (wanted("__consumer_offsets"), ErrorCode.INVALID_TOPIC_EXCEPTION),
        (wanted("ex_ists"), ErrorCode.TOPIC_ALREADY_EXISTS),
        (wanted(partitions=0), ErrorCode.INVALID_PARTITIONS),
        (wanted(partitions=-2), ErrorCode.INVALID_PARTITIONS),
        (wanted(partitions=2**31 - 1), ErrorCode.INVALID_PARTITIONS),
        (wanted(factor=0), ErrorCode.INVALID_REPLICATION_FACTOR),
        (wanted(factor=3), ErrorCode.INVALID_REPLICATION_FACTOR),
        (
            wanted(configs=[CreatableTopicConfig(name="retention.msec", value="1")]),
            ErrorCode.INVALID_CONFIG,
        ),
        (
            wanted(configs=[CreatableTopicConfig(name="retention.ms", value="soon")]),
            ErrorCode.INVALID_CONFIG,
        ),
        (
            wanted(configs=[CreatableTopicConfig(name="retention.ms", value=None)]),
            ErrorCode.INVALID_CONFIG,
        ),
        (
            wanted(configs=[CreatableTopicConfig(name="retention.ms", value="1")] * 2),
            ErrorCode.INVALID_CONFIG,
        ),
    ],
)
@pytest.mark.parametrize("validate_only", [False, True])
def test_a_refused_topic_has_an_error_message(harness, topic, error, validate_only):
    harness.create_topic("ex_ists")
    (result,) = create(harness, topic, validate_only=validate_only)
    assert ErrorCode(result.error_code) == error
    assert result.error_message
    assert names(harness) == ["ex_ists"]


def test_validate_only_creates_nothing(harness):
    (result,) = create(harness, wanted(partitions=3), validate_only=True)
    assert (result.error_code, result.num_partitions, result.topic_id) == (0, 3, ZERO_UUID)
    assert names(harness) == []
    assert stored(harness.metadata, "topics/") == {}


def test_topics_are_created_or_refused_each_for_itself(harness):
    results = create(harness, wanted("a"), wanted("b/"), wanted("c"))
    assert [(r.name, bool(r.error_code)) for r in results] == [
        ("a", False),
        ("b/", True),
        ("c", False),
    ]
    assert names(harness) == ["a", "c"]


def test_a_topic_that_is_named_twice_is_refused_once(harness):
    results = create(harness, wanted("a"), wanted("b"), wanted("a"))
    assert [(r.name, r.error_code) for r in results] == [("a", ErrorCode.INVALID_REQUEST), ("b", 0)]
    assert names(harness) == ["b"]


def assigned(*replicas: tuple[int, list[int]]) -> list[CreatableReplicaAssignment]:
    return [CreatableReplicaAssignment(partition_index=p, broker_ids=ids) for p, ids in replicas]


def test_an_assignment_to_this_broker_is_accepted(harness):
    (result,) = create(harness, wanted(assignments=assigned((1, [1]), (0, [1]))))
    assert (result.error_code, result.num_partitions) == (0, 2)


@pytest.mark.parametrize(
    "replicas",
    [
        [(0, [2])],
        [(0, [1, 1])],
        [(0, [])],
        [(1, [1])],
        [(0, [1]), (0, [1])],
        [(-1, [1])],
    ],
)
def test_other_assignments_are_refused(harness, replicas):
    (result,) = create(harness, wanted(assignments=assigned(*replicas)))
    assert result.error_code == ErrorCode.INVALID_REPLICA_ASSIGNMENT


def test_an_assignment_excludes_counts(harness):
    (result,) = create(harness, wanted(partitions=1, assignments=assigned((0, [1]))))
    assert result.error_code == ErrorCode.INVALID_REQUEST


def test_the_number_of_partitions_is_bounded():
    harness = BrokerHarness(max_partitions=10, max_partitions_per_topic=8)
    (result,) = create(harness, wanted("a", partitions=9))
    assert result.error_code == ErrorCode.INVALID_PARTITIONS
    (result,) = create(harness, wanted("a", partitions=8))
    assert result.error_code == ErrorCode.NONE
    (result,) = create(harness, wanted("b", partitions=3))
    assert result.error_code == ErrorCode.POLICY_VIOLATION


def test_the_number_of_topics_in_a_request_is_bounded():
    harness = BrokerHarness(max_topics_per_request=2)
    results = create(harness, wanted("a"), wanted("b"), wanted("c"))
    assert {r.error_code for r in results} == {ErrorCode.POLICY_VIOLATION}
    assert names(harness) == []


@pytest.mark.slow
def test_creating_a_topic_creates_no_partition_directory(harness):
    create(harness, wanted("wide", partitions=1000))
    assert not [name for name in harness.files.list("") if name.startswith("wide-")]
    harness.produce("wide", b"a", partition=7)
    assert [name for name in harness.files.list("") if name.startswith("wide-")] == ["wide-7"]


# Deletion


def delete(harness, *states, version=6):
    request = DeleteTopicsRequest(
        topics=list(states), topic_names=[state.name for state in states if state.name is not None]
    )
    return harness.call(request, version).responses


@pytest.mark.parametrize("version", range(1, 7))
def test_a_deleted_topic_is_gone_with_its_data(harness, version):
    harness.create_topic("t", partitions=2)
    harness.produce("t", b"a", partition=1)
    (result,) = delete(harness, DeleteTopicState(name="t"), version=version)
    assert (result.error_code, result.name) == (0, "t")
    assert names(harness) == []
    assert not [name for name in harness.files.list("") if name.startswith("t-")]
    for prefix in ("topics/", "config/topic/", "deleted/"):
        assert stored(harness.metadata, prefix) == {}


@pytest.mark.parametrize("version", [1, 5, 6])
def test_a_topic_named_twice_in_a_deletion_is_not_deleted(harness, version):
    topic = harness.create_topic("kept")
    request = DeleteTopicsRequest(
        topic_names=["kept", "kept"],
        topics=[DeleteTopicState(name="kept"), DeleteTopicState(topic_id=topic.topic_id)],
    )
    (result,) = harness.call(request, version).responses
    assert (result.name, result.error_code) == ("kept", ErrorCode.INVALID_REQUEST)
    assert harness.broker.services.topics.get("kept") is not None


def test_deletion_by_id(harness):
    topic_id = harness.create_topic("t").topic_id
    found, unknown = delete(
        harness,
        DeleteTopicState(name=None, topic_id=topic_id),
        DeleteTopicState(name=None, topic_id=b"\x01" * 16),
    )
    assert (found.error_code, found.name, found.topic_id) == (0, "t", topic_id)
    assert unknown.error_code == ErrorCode.UNKNOWN_TOPIC_ID


@pytest.mark.parametrize(
    "state",
    [
        DeleteTopicState(name=None, topic_id=ZERO_UUID),
        DeleteTopicState(name="t", topic_id=b"\x01" * 16),
    ],
)
def test_a_request_with_both_name_and_id_is_refused(harness, state):
    harness.create_topic("t")
    (result,) = delete(harness, state)
    assert result.error_code == ErrorCode.INVALID_REQUEST


def test_missing_and_internal_topics_cannot_be_deleted(harness):
    harness.create_offsets_topic()
    missing, internal = delete(
        harness, DeleteTopicState(name="none"), DeleteTopicState(name="__consumer_offsets")
    )
    assert missing.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert internal.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION


@pytest.mark.parametrize(
    ("version", "error"), [(2, ErrorCode.INVALID_REQUEST), (3, ErrorCode.TOPIC_DELETION_DISABLED)]
)
def test_deletion_can_be_switched_off(version, error):
    harness = BrokerHarness(delete_topic_enable=False)
    harness.create_topic("t")
    (result,) = delete(harness, DeleteTopicState(name="t"), version=version)
    assert result.error_code == error
    assert names(harness) == ["t"]


def test_a_recreated_topic_has_a_new_id_and_no_data(harness):
    first = harness.create_topic("t", retention_ms="5").topic_id
    harness.produce("t", b"old")
    delete(harness, DeleteTopicState(name="t"))
    second = harness.create_topic("t").topic_id
    assert second != first
    part = harness.fetch("t", 0)
    assert (part.high_watermark, bytes(part.records)) == (0, b"")
    assert harness.broker.services.topics.require("t").config.retention_ms == 1_209_600_000
    harness.produce("t", b"new")
    harness.crash()
    assert values(harness.fetch("t", 0).records) == [b"new"]


def test_a_deletion_during_a_sync_does_not_affect_other_topics(harness):
    harness.create_topic("t")
    harness.create_topic("u")
    doomed = harness.send(produce_request("t", 0, batch(b"a")))
    other = harness.send(produce_request("u", 0, batch(b"a")))
    running = harness.broker.start_sync()
    assert running is not None
    delete(harness, DeleteTopicState(name="t"))
    assert doomed.response.responses[0].partition_responses[0].error_code == (
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    )
    harness.create_topic("t")
    running.run()
    harness.broker.finish_sync(running, None, harness.now_ms)
    assert other.done
    assert harness.fetch("t", 0).high_watermark == 0
    assert not harness.broker.failed


def test_a_deletion_that_a_crash_cut_short_is_finished_at_the_next_start(harness, monkeypatch):
    topic_id = harness.create_topic("t", partitions=2).topic_id
    harness.produce("t", b"old")
    # (1) The commit that deletes the topic is durable. (2) The process dies before the directories are removed.
    monkeypatch.setattr(PartitionDeletion, "delete", _die)
    with pytest.raises(SystemExit):
        delete(harness, DeleteTopicState(name="t"))
    assert stored(harness.metadata).get(f"deleted/{topic_id.hex()}") is not None
    assert "t-0" in harness.files.list("")

    harness.crash()
    assert names(harness) == []
    assert "t-0" not in harness.files.list("")
    assert stored(harness.metadata, "deleted/") == {}
    assert "topic_deletion_finished" in harness.journal.events("info")


def _die(*_args) -> None:
    raise SystemExit("the process was killed")


def test_a_directory_that_no_topic_claims_is_left_alone(harness):
    harness.create_topic("t")
    harness.produce("t", b"a")
    harness.files.make_directory("foreign-0")
    harness.files.write_file("foreign-0/00000000000000000000.log", b"")
    harness.restart()
    assert "foreign-0" in harness.files.list("")
    assert "unknown_directory_left_alone" in harness.journal.events("warning")


# Configurations


def describe(harness, *resources, version=4, keys=None, **fields):
    request = DescribeConfigsRequest(
        resources=[
            DescribeConfigsResource(resource_type=kind, resource_name=name, configuration_keys=keys)
            for kind, name in resources
        ],
        **fields,
    )
    return harness.call(request, version).results


@pytest.mark.parametrize("version", range(1, 5))
def test_topic_configs_contain_the_names_that_connect_and_streams_read(harness, version):
    harness.create_topic("t", retention_ms="60000")
    (result,) = describe(harness, (2, "t"), version=version)
    assert (result.error_code, result.error_message) == (0, None)
    configs = {c.name: c for c in result.configs}
    for name in [
        "cleanup.policy",
        "compression.type",
        "max.message.bytes",
        "message.timestamp.type",
        "min.insync.replicas",
        "segment.bytes",
        "segment.ms",
        "delete.retention.ms",
        "retention.ms",
        "retention.bytes",
        "min.compaction.lag.ms",
    ]:
        assert configs[name].value
        assert not configs[name].is_sensitive
    for name in ("retention.ms", "retention.bytes", "min.compaction.lag.ms"):
        int(configs[name].value)
    assert (configs["retention.ms"].value, configs["retention.ms"].config_source) == ("60000", 1)
    assert (configs["cleanup.policy"].value, configs["cleanup.policy"].config_source) == (
        "delete",
        5,
    )
    assert not configs["retention.ms"].read_only


def test_synonyms_show_the_values_that_would_apply_otherwise():
    harness = BrokerHarness(log_retention_ms=7000)
    harness.create_topic("t", retention_ms="60000")
    (result,) = describe(harness, (2, "t"), keys=["retention.ms"], include_synonyms=True)
    (config,) = result.configs
    assert [(s.name, s.value, s.source) for s in config.synonyms] == [
        ("retention.ms", "60000", 1),
        ("log.retention.ms", "7000", 4),
        ("log.retention.ms", "1209600000", 5),
    ]
    (result,) = describe(harness, (2, "t"), keys=["retention.ms"])
    assert result.configs[0].synonyms == []


def test_type_and_documentation_from_version_3_on(harness):
    harness.create_topic("t")
    (result,) = describe(harness, (2, "t"), keys=["retention.ms"], include_documentation=True)
    assert (result.configs[0].config_type, bool(result.configs[0].documentation)) == (5, True)
    (result,) = describe(harness, (2, "t"), keys=["retention.ms"])
    assert result.configs[0].documentation is None


def test_a_brokers_configs_are_found_by_its_id(harness):
    (result,) = describe(harness, (4, "1"))
    configs = {c.name: c for c in result.configs}
    for name in [
        "num.partitions",
        "default.replication.factor",
        "auto.create.topics.enable",
        "log.retention.ms",
        "message.max.bytes",
        "log.cleanup.policy",
    ]:
        assert configs[name].value
    assert configs["broker.id"].read_only
    assert (configs["num.partitions"].value, configs["num.partitions"].config_source) == ("4", 4)
    assert configs["durability"].value == "fsync"


def test_the_clusters_dynamic_defaults_are_empty(harness):
    (result,) = describe(harness, (4, ""))
    assert (result.error_code, result.configs) == (0, [])


def test_resources_without_configs_are_errors_of_their_own(harness):
    harness.create_topic("t")
    results = describe(
        harness, (2, "none"), (2, "a b"), (4, "9"), (4, "x"), (8, "9"), (16, "1"), (2, "t")
    )
    assert [ErrorCode(result.error_code) for result in results] == [
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.INVALID_TOPIC_EXCEPTION,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.NONE,
    ]


def test_describe_configs_returns_only_the_requested_keys(harness):
    harness.create_topic("t")
    (result,) = describe(harness, (2, "t"), keys=["retention.ms", "no.such.key"])
    assert [c.name for c in result.configs] == ["retention.ms"]
    (everything,) = describe(harness, (2, "t"))
    (result,) = describe(harness, (2, "t"), keys=[])
    assert result.configs == everything.configs


def test_a_waiting_fetch_and_a_long_topic_name(harness):
    name = "n" * 249
    harness.create_topic(name)
    pending = harness.send(fetch_request((name, 0, 0)))
    harness.produce(name, b"a")
    assert pending.done
    delete(harness, DeleteTopicState(name=name))
    assert names(harness) == []
