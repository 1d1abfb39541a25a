"""Metadata and DescribeCluster: the broker, the topics, and the creation of topics."""

from __future__ import annotations

import pytest

from headrace.broker.topic_names import DELETED_NAMES_LIMIT, DeletedNames
from headrace.deferred import resolved
from headrace.errors import ConfigError, ErrorCode
from headrace.metadata_stores.memory import MemoryMetadataStore
from headrace.ports import Unavailable
from headrace.protocol.codec import ZERO_UUID
from headrace.protocol.messages.describe_cluster import DescribeClusterRequest
from headrace.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from tests.fixtures.broker_harness import BrokerHarness
from tests.fixtures.metadata_stores import stored


def ask(harness: BrokerHarness, *names: str, version: int = 12, create: bool = True):
    request = MetadataRequest(
        topics=[MetadataRequestTopic(name=name) for name in names],
        allow_auto_topic_creation=create,
    )
    return harness.call(request, version)


@pytest.mark.parametrize("version", range(14))
def test_the_cluster_is_one_broker_that_is_the_controller(version: int):
    harness = BrokerHarness(broker_id=7)
    harness.create_topic("flights", partitions=2)
    response = ask(harness, "flights", version=version)
    (broker,) = response.brokers
    assert (broker.node_id, broker.host, broker.port) == (7, "127.0.0.1", 9092)
    if version >= 1:
        assert response.controller_id == 7
    if version >= 2:
        assert len(response.cluster_id) == 22
    (topic,) = response.topics
    assert [p.partition_index for p in topic.partitions] == [0, 1]
    for partition in topic.partitions:
        assert (partition.error_code, partition.leader_id) == (0, 7)
        assert list(partition.replica_nodes) == list(partition.isr_nodes) == [7]
        assert partition.leader_epoch == (0 if version >= 7 else -1)


def test_null_topics_mean_all_and_an_empty_list_means_none():
    harness = BrokerHarness()
    for name in ("b", "a"):
        harness.create_topic(name)
    assert [t.name for t in harness.call(MetadataRequest(topics=None), 1).topics] == ["a", "b"]
    assert harness.call(MetadataRequest(topics=[]), 1).topics == []


def test_in_version_0_an_empty_list_means_all():
    harness = BrokerHarness()
    harness.create_topic("a")
    assert [t.name for t in harness.call(MetadataRequest(topics=[]), 0).topics] == ["a"]


@pytest.mark.parametrize("version", [0, 1, 3, 4, 12])
def test_a_missing_topic_is_created_at_once_and_is_in_the_answer(version: int):
    harness = BrokerHarness(num_partitions=3)
    (topic,) = ask(harness, "new", version=version).topics
    assert topic.error_code == ErrorCode.NONE
    assert len(topic.partitions) == 3
    assert stored(harness.metadata).get("topics/new") is not None


def test_a_deleted_topic_is_unknown_once_before_it_is_created_again():
    harness = BrokerHarness()
    for _ in range(2):
        (topic,) = ask(harness, "gone").topics
        assert topic.error_code == ErrorCode.NONE
        harness.delete_topic("gone")
        (refused,) = ask(harness, "gone", create=False).topics
        assert refused.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        (first,) = ask(harness, "gone").topics
        assert first.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert (first.topic_id, first.partitions) == (ZERO_UUID, [])
        (second,) = ask(harness, "gone").topics
        assert second.error_code == ErrorCode.NONE
        assert second.topic_id not in {ZERO_UUID, topic.topic_id}


def test_a_deleted_topic_can_be_created_again_at_once():
    harness = BrokerHarness()
    harness.create_topic("gone")
    harness.delete_topic("gone")
    harness.create_topic("gone")
    (topic,) = ask(harness, "gone").topics
    assert topic.error_code == ErrorCode.NONE


def test_so_many_names_of_deleted_topics_are_remembered():
    names = DeletedNames()
    for number in range(DELETED_NAMES_LIMIT + 1):
        names.add(f"t{number}")
        names.add("again")
    assert not names.forget("t0")
    assert not names.forget("t1")
    assert names.forget("t2")
    assert names.forget("again")
    assert not names.forget("again")


@pytest.mark.parametrize(
    ("options", "create"), [({}, False), ({"auto_create_topics_enable": False}, True)]
)
def test_a_missing_topic_is_not_created_unless_client_and_broker_allow_it(options, create):
    harness = BrokerHarness(**options)
    (topic,) = ask(harness, "new", create=create).topics
    assert topic.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert (topic.name, topic.topic_id, topic.partitions) == ("new", ZERO_UUID, [])
    assert stored(harness.metadata).get("topics/new") is None


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "../up", "a b", "é", "x" * 250, "a\x00"])
def test_a_name_that_no_topic_may_have_is_refused(name: str):
    harness = BrokerHarness()
    (topic,) = ask(harness, name).topics
    assert topic.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
    assert stored(harness.metadata, "topics/") == {}


def test_an_invalid_topic_does_not_affect_the_others():
    harness = BrokerHarness()
    response = ask(harness, "good", "b/ad", "good")
    assert [(t.name, t.error_code) for t in response.topics] == [
        ("good", ErrorCode.NONE),
        ("b/ad", ErrorCode.INVALID_TOPIC_EXCEPTION),
    ]


def test_a_topic_that_collides_in_metric_names_is_not_created():
    harness = BrokerHarness()
    harness.create_topic("a.b")
    (topic,) = ask(harness, "a_b").topics
    assert topic.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION


class FullStore(MemoryMetadataStore):
    """A metadata store that can run out of space."""

    full = False

    def commit(self, checks, operations):
        if self.full:
            return resolved(Unavailable("disk full"))
        return super().commit(checks, operations)


def test_a_metadata_store_that_fails_means_an_error_and_no_topic():
    store = FullStore()
    harness = BrokerHarness(metadata=store)
    store.full = True
    (topic,) = ask(harness, "new").topics
    assert topic.error_code == ErrorCode.KAFKA_STORAGE_ERROR
    assert harness.broker.services.topics.get("new") is None
    store.full = False
    assert ask(harness, "new").topics[0].error_code == ErrorCode.NONE


def test_topic_ids_are_stable_and_not_zero():
    harness = BrokerHarness()
    first = ask(harness, "t").topics[0].topic_id
    assert first != ZERO_UUID
    harness.restart()
    assert ask(harness, "t").topics[0].topic_id == first


def test_a_topic_id_never_looks_like_an_option():
    harness = BrokerHarness()
    dashed = bytes.fromhex("f8000000000040008000000000000001")
    draws = iter([dashed, bytes(16), bytes([7] * 16)])
    harness.entropy.uuid = draws.__next__  # type: ignore[method-assign]  # fixed draws
    assert ask(harness, "t").topics[0].topic_id == bytes([7] * 16)


def test_topics_are_found_by_id_from_version_12_on():
    harness = BrokerHarness()
    topic_id = ask(harness, "t").topics[0].topic_id
    wanted = [
        MetadataRequestTopic(topic_id=topic_id, name=None),
        MetadataRequestTopic(topic_id=b"\x01" * 16, name=None),
    ]
    found, missing = harness.call(MetadataRequest(topics=wanted), 12).topics
    assert (found.name, found.error_code) == ("t", ErrorCode.NONE)
    assert (missing.name, missing.error_code) == (None, ErrorCode.UNKNOWN_TOPIC_ID)
    assert missing.topic_id == b"\x01" * 16

    (refused,) = harness.call(MetadataRequest(topics=wanted[:1]), 10).topics
    assert refused.error_code == ErrorCode.INVALID_REQUEST


def test_topics_and_cluster_have_all_authorized_operations_if_requested():
    request = MetadataRequest(
        topics=None,
        include_cluster_authorized_operations=True,
        include_topic_authorized_operations=True,
    )
    harness = BrokerHarness()
    harness.create_topic("t")
    response = harness.call(request, 8)
    assert (
        response.cluster_authorized_operations == 8096
    )  # the response of Kafka without an authorizer
    assert response.topics[0].topic_authorized_operations == 3576
    response = harness.call(MetadataRequest(topics=None), 8)
    assert response.cluster_authorized_operations == -2147483648
    assert response.topics[0].topic_authorized_operations == -2147483648


def test_an_internal_topic_is_one_before_it_exists():
    wanted = [MetadataRequestTopic(name="__transaction_state")]
    (topic,) = BrokerHarness().call(MetadataRequest(topics=wanted), 9).topics
    assert topic.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert topic.is_internal


def test_the_topic_of_offsets_is_internal_and_compacted():
    harness = BrokerHarness(offsets_topic_num_partitions=5)
    (topic,) = ask(harness, "__consumer_offsets").topics
    assert (topic.is_internal, len(topic.partitions)) == (True, 5)
    made = harness.broker.services.topics.require("__consumer_offsets")
    assert made.config.cleanup_policy == "compact"
    (refused,) = ask(harness, "__transaction_state").topics
    assert refused.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_the_address_is_the_one_by_which_the_client_came():
    harness = BrokerHarness()
    request = MetadataRequest(topics=[])
    for listener, expected in {
        ("10.0.0.5", 19092): ("10.0.0.5", 19092),
        ("::1", 9092): ("::1", 9092),
        ("::ffff:192.168.1.4", 9092): ("192.168.1.4", 9092),
    }.items():
        (broker,) = harness.call(request, listener=listener).brokers
        assert (broker.host, broker.port) == expected
        (broker,) = harness.call(DescribeClusterRequest(), listener=listener).brokers
        assert (broker.host, broker.port) == expected


def test_the_configured_address_always_wins():
    harness = BrokerHarness(advertised_listeners="PLAINTEXT://kafka.example.org:9093")
    (broker,) = harness.call(MetadataRequest(topics=[])).brokers
    assert (broker.host, broker.port) == ("kafka.example.org", 9093)


@pytest.mark.parametrize(
    "text",
    [
        "kafka:9092",
        "PLAINTEXT://kafka",
        "PLAINTEXT://kafka:0",
        "PLAINTEXT://kafka:99999",
        "PLAINTEXT://0.0.0.0:9092",
        "PLAINTEXT://:9092",
        "PLAINTEXT://a:1,PLAINTEXT://b:2",
    ],
)
def test_an_address_that_clients_could_not_use_is_refused(text: str):
    with pytest.raises(ConfigError, match=r"advertised\.listeners"):
        BrokerHarness(advertised_listeners=text)


def test_an_ipv6_address_is_answered_without_brackets():
    harness = BrokerHarness(advertised_listeners="plaintext://[fd00::1]:9092")
    (broker,) = harness.call(MetadataRequest(topics=[])).brokers
    assert broker.host == "fd00::1"


@pytest.mark.parametrize("version", [0, 1])
def test_describe_cluster_returns_the_broker_and_its_operations(version: int):
    response = BrokerHarness().call(DescribeClusterRequest(), version)
    assert response.error_code == ErrorCode.NONE
    assert response.controller_id == response.brokers[0].broker_id == 1
    assert response.cluster_authorized_operations == -2147483648
    asked = DescribeClusterRequest(include_cluster_authorized_operations=True)
    response = BrokerHarness().call(asked, version)
    assert response.cluster_authorized_operations == 8096


@pytest.mark.parametrize(
    ("endpoint_type", "error"),
    [(2, ErrorCode.MISMATCHED_ENDPOINT_TYPE), (9, ErrorCode.UNSUPPORTED_ENDPOINT_TYPE)],
)
def test_describe_cluster_refuses_endpoint_types_other_than_brokers(
    endpoint_type: int, error: ErrorCode
):
    response = BrokerHarness().call(DescribeClusterRequest(endpoint_type=endpoint_type), 1)
    assert response.error_code == error
    assert response.brokers == []


def test_the_leader_epoch_is_the_one_that_requests_are_checked_with():
    """The log of a partition may have a later epoch than the stored state, from an earlier version of the broker."""
    harness = BrokerHarness()
    harness.create_topic("flights", partitions=2)
    topic = harness.broker.services.topics.require("flights")
    (first, _) = harness.broker.services.partitions.of(topic)
    assert first is not None
    first.leader_epoch = 7
    (shown,) = ask(harness, "flights").topics
    assert [each.leader_epoch for each in shown.partitions] == [7, 0]


def test_a_topic_that_cannot_be_created_is_not_counted_as_a_creation():
    harness = BrokerHarness()
    harness.create_topic("a.b")
    admin = harness.broker.services.topic_admin
    before = admin.creations
    wanted = [MetadataRequestTopic(name="a_b")]
    (topic,) = harness.call(MetadataRequest(topics=wanted, allow_auto_topic_creation=True)).topics
    assert topic.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
    assert admin.creations == before
