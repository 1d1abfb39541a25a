"""CreateTopics, DeleteTopics and DescribeConfigs."""

from __future__ import annotations

import pytest

from headrace.config.foreign import kafka_options
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
from headrace.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from tests.conformance.differential.pair import Pair, Scenario, Scenarios
from tests.conformance.differential.peer import Peer

pytestmark = pytest.mark.java
scenarios = Scenarios()
TOPIC, BROKER = 2, 4


@scenarios.mark()
def test_headrace_creates_deletes_and_describes_topics_as_kafka_does(
    pair: Pair, scenario: Scenario
) -> None:
    pair.compare(scenario)


def topic(
    name: str,
    partitions: int = 1,
    replication: int = 1,
    *,
    assignments: dict[int, list[int]] | None = None,
    configs: dict[str, str | None] | None = None,
) -> CreatableTopic:
    return CreatableTopic(
        name=name,
        num_partitions=partitions,
        replication_factor=replication,
        assignments=[
            CreatableReplicaAssignment(partition_index=index, broker_ids=ids)
            for index, ids in (assignments or {}).items()
        ],
        configs=[
            CreatableTopicConfig(name=key, value=value) for key, value in (configs or {}).items()
        ],
    )


def creation(*topics: CreatableTopic, validate_only: bool = False) -> CreateTopicsRequest:
    return CreateTopicsRequest(topics=list(topics), timeout_ms=10_000, validate_only=validate_only)


def config_names_alike(peer: Peer, label: str, request: CreateTopicsRequest, version: int) -> None:
    """Note the answer without the configurations, which `describe_*` compares."""
    answer = peer.quiet(request, version)
    for result in answer.topics:
        result.configs = None
    peer.note_answer(f"{label} v{version}", answer)


@scenarios
def create_topics(peer: Peer) -> None:
    for version in peer.range_of(CreateTopicsRequest):
        ask = config_names_alike
        ask(peer, "plain", creation(topic(f"create-{version}", 3)), version)
        ask(peer, "again", creation(topic(f"create-{version}", 3)), version)
        ask(peer, "defaults", creation(topic(f"create-defaults-{version}", -1, -1)), version)
        ask(
            peer,
            "default partitions",
            creation(topic(f"create-partitions-{version}", -1, 1)),
            version,
        )
        ask(
            peer,
            "default replication",
            creation(topic(f"create-replication-{version}", 2, -1)),
            version,
        )
        only = creation(topic(f"create-only-{version}"), validate_only=True)
        ask(peer, "validate only", only, version)
        ask(peer, "validate only again", only, version)
        known = creation(topic(f"create-{version}"), validate_only=True)
        ask(peer, "validate only what exists", known, version)
        ask(peer, "no topics", creation(), version)


@scenarios
def create_topics_with_configs(peer: Peer) -> None:
    settings: dict[str, str | None] = {"retention.ms": "77", "cleanup.policy": "compact,delete"}
    for version in peer.range_of(CreateTopicsRequest, since=5):
        plain = creation(topic(f"create-configs-{version}"))
        peer.ask("plain", plain, version)
        own = creation(topic(f"create-own-configs-{version}", configs=settings))
        peer.ask("its own", own, version)


@scenarios
def create_topics_refused(peer: Peer) -> None:
    cases = {
        "no partitions": topic("refused", 0),
        "-2 partitions": topic("refused", -2),
        "replication 0": topic("refused", 1, 0),
        "replication 2": topic("refused", 1, 2),
        "replication 32767": topic("refused", 1, 32_767),
        "default partitions, replication 2": topic("refused", -1, 2),
        "replication -2": topic("refused", 1, -2),
        "both wrong": topic("refused", 0, 2),
        "empty name": topic(""),
        "dot": topic("."),
        "dots": topic(".."),
        "slash": topic("a/b"),
        "space": topic("a b"),
        "umlaut": topic("ä"),
        "250 characters": topic("x" * 250),
        "internal": topic("__consumer_offsets"),
        "cluster metadata": topic("__cluster_metadata"),
        "unknown config": topic("refused", configs={"no.such": "1"}),
        "bad number": topic("refused", configs={"retention.ms": "soon"}),
        "empty number": topic("refused", configs={"retention.ms": ""}),
        "number with spaces": topic("refused", configs={"retention.ms": " 12 "}),
        "underscore": topic("refused", configs={"retention.ms": "1_000"}),
        "number too small": topic("refused", configs={"retention.ms": "-2"}),
        "int too large": topic("refused", configs={"max.message.bytes": "9999999999"}),
        "bad choice": topic("refused", configs={"cleanup.policy": "burn"}),
        "bad boolean": topic("refused", configs={"preallocate": "yes"}),
        "small segment": topic("refused", configs={"segment.bytes": "14"}),
        "null value": topic("refused", configs={"retention.ms": None}),
        "bad ratio": topic("refused", configs={"min.cleanable.dirty.ratio": "1.5"}),
        "broker config": topic("refused", configs={"log.retention.ms": "5"}),
        "throttled": topic("refused", configs={"leader.replication.throttled.replicas": "x"}),
        "compression": topic("refused", configs={"compression.type": "brotli"}),
        "empty policy": topic("refused", configs={"cleanup.policy": ""}),
        "two policies": topic("refused", configs={"cleanup.policy": "compact,delete"}),
        "policies with a space": topic("refused", configs={"cleanup.policy": "compact, delete"}),
        "policy in capitals": topic("refused", configs={"cleanup.policy": "DELETE"}),
        "insync 0": topic("refused", configs={"min.insync.replicas": "0"}),
        "compaction lags": topic(
            "refused", configs={"min.compaction.lag.ms": "9", "max.compaction.lag.ms": "5"}
        ),
        "local retention": topic("refused", configs={"local.retention.ms": "5"}),
        "remote storage": topic("refused", configs={"remote.storage.enable": "true"}),
        "message format": topic("refused", configs={"message.format.version": "3.0"}),
        "assignment": topic("refused", -1, -1, assignments={0: [1], 1: [1]}),
        "assignment and partitions": topic("refused", 2, -1, assignments={0: [1], 1: [1]}),
        "assignment and replication": topic("refused", -1, 1, assignments={0: [1]}),
        "assignment to no broker": topic("refused", -1, -1, assignments={0: []}),
        "assignment to an unknown broker": topic("refused", -1, -1, assignments={0: [7]}),
        "assignment twice to one broker": topic("refused", -1, -1, assignments={0: [1, 1]}),
        "assignment to two brokers": topic("refused", -1, -1, assignments={0: [1, 7]}),
        "assignment to an unknown broker twice": topic("refused", -1, -1, assignments={0: [7, 7]}),
        "assignment to broker -1": topic("refused", -1, -1, assignments={0: [-1]}),
        "assignments of two sizes": topic("refused", -1, -1, assignments={0: [1], 1: [1, 1]}),
        "assignments, one to no broker": topic("refused", -1, -1, assignments={0: [1], 1: []}),
        "assignment with a gap": topic("refused", -1, -1, assignments={0: [1], 2: [1]}),
        "assignment from 1": topic("refused", -1, -1, assignments={1: [1]}),
        "assignment negative": topic("refused", -1, -1, assignments={-1: [1]}),
    }
    for label, wanted in cases.items():
        config_names_alike(peer, label, creation(wanted, validate_only=True), 7)


@scenarios
def create_topics_together(peer: Peer) -> None:
    ask = config_names_alike
    ask(peer, "one bad", creation(topic("together-a"), topic("a/b"), topic("together-b", 0)), 7)
    ask(peer, "twice", creation(topic("together-c"), topic("together-c"), topic("together-d")), 7)
    ask(peer, "colliding", creation(topic("to.get.her"), topic("to_get_her")), 7)
    ask(peer, "collides", creation(topic("to_get.her")), 7)
    ask(
        peer,
        "config twice",
        creation(
            CreatableTopic(
                name="together-e",
                num_partitions=1,
                replication_factor=1,
                configs=[
                    CreatableTopicConfig(name="retention.ms", value="1"),
                    CreatableTopicConfig(name="retention.ms", value="2"),
                ],
            )
        ),
        7,
    )
    peer.create("together-z")  # when Kafka shows this one it shows the others
    request = MetadataRequest(
        topics=[MetadataRequestTopic(name=f"together-{letter}") for letter in "abcde"],
        allow_auto_topic_creation=False,
    )
    peer.ask("what is there", request, 9)


@scenarios
def delete_topics(peer: Peer) -> None:
    for version in peer.range_of(DeleteTopicsRequest):
        name = f"delete-{version}"
        peer.create(name)

        def deletion(*names: str, version: int = version) -> DeleteTopicsRequest:
            return DeleteTopicsRequest(
                timeout_ms=10_000,
                topic_names=list(names),
                topics=[DeleteTopicState(name=name) for name in names],
            )

        peer.ask("known", deletion(name), version)
        peer.ask("gone", deletion(name), version)
        peer.ask("unknown", deletion("delete-nowhere"), version)
        peer.ask("bad name", deletion("a/b", ""), version)
        peer.ask("none", deletion(), version)
        peer.create(name)
        peer.ask("twice", deletion(name, name), version)
        peer.ask("after twice", deletion(name), version)
        peer.ask("internal", deletion("__cluster_metadata"), version)


@scenarios
def delete_topics_by_id(peer: Peer) -> None:
    def id_of(name: str) -> bytes:
        peer.create(name)
        request = MetadataRequest(topics=[MetadataRequestTopic(name=name)])
        topic_id: bytes = peer.quiet(request, 12).topics[0].topic_id
        return topic_id

    def ask(label: str, *states: DeleteTopicState) -> None:
        peer.ask(label, DeleteTopicsRequest(timeout_ms=10_000, topics=list(states)), 6)

    known = id_of("delete-by-id")
    ask("unknown id", DeleteTopicState(name=None, topic_id=b"\x05" * 16))
    ask("no id, no name", DeleteTopicState(name=None))
    ask("both", DeleteTopicState(name="delete-by-id", topic_id=known))
    ask(
        "id twice",
        DeleteTopicState(name=None, topic_id=known),
        DeleteTopicState(name=None, topic_id=known),
    )
    ask(
        "id and name of one",
        DeleteTopicState(name=None, topic_id=known),
        DeleteTopicState(name="delete-by-id"),
    )
    ask("known", DeleteTopicState(name=None, topic_id=id_of("delete-by-id-2")))
    ask("gone", DeleteTopicState(name="delete-by-id-2"))


def description(
    *resources: tuple[int, str, list[str] | None],
    synonyms: bool = False,
    documentation: bool = False,
) -> DescribeConfigsRequest:
    return DescribeConfigsRequest(
        resources=[
            DescribeConfigsResource(resource_type=kind, resource_name=name, configuration_keys=keys)
            for kind, name, keys in resources
        ],
        include_synonyms=synonyms,
        include_documentation=documentation,
    )


@scenarios
def describe_topic_configs(peer: Peer) -> None:
    peer.create("configs-plain")
    peer.create("configs-set", retention_ms="77", cleanup_policy="compact")
    for version in peer.range_of(DescribeConfigsRequest):
        for name in ("configs-plain", "configs-set"):
            peer.ask(f"all of {name}", description((TOPIC, name, None), synonyms=True), version)
        keys = ["retention.ms", "no.such", "cleanup.policy"]
        peer.ask("some", description((TOPIC, "configs-set", keys)), version)
        peer.ask("no keys", description((TOPIC, "configs-set", [])), version)
        peer.ask("unknown topic", description((TOPIC, "configs-nowhere", None)), version)
        peer.ask("bad name", description((TOPIC, "a/b", None)), version)
        peer.ask("empty name", description((TOPIC, "", None)), version)
        peer.ask("none", description(), version)


@scenarios
def describe_broker_configs(peer: Peer) -> None:
    keys = [
        "num.partitions",
        "log.retention.ms",
        "message.max.bytes",
        "auto.create.topics.enable",
        "default.replication.factor",
        "log.cleanup.policy",
        "min.insync.replicas",
        "group.max.size",
        "delete.topic.enable",
    ]
    for version in peer.range_of(DescribeConfigsRequest):
        peer.ask("some", description((BROKER, "1", keys), synonyms=True), version)
        peer.ask("cluster", description((BROKER, "", None)), version)
        peer.ask("another broker", description((BROKER, "7", None)), version)
        peer.ask("not a number", description((BROKER, "x", None)), version)


@scenarios
def describe_other_configs(peer: Peer) -> None:
    for kind in (0, 1, 3, 5, 8, 16, 32, 64, 127, -1):
        peer.ask(f"type {kind}", description((kind, "1", None)), 4, on=f"type {kind}")
    twice = description((TOPIC, "configs-nowhere", None), (TOPIC, "configs-nowhere", None))
    peer.ask("twice", twice, 4)


@scenarios
def describe_all_broker_configs(peer: Peer) -> None:
    """Every option that Headrace has and Kafka too: type, default value and whether it can be changed."""
    answer = peer.quiet(description((BROKER, "1", None), synonyms=True), 4)
    (result,) = answer.results
    for entry in sorted(result.configs, key=lambda found: found.name):
        default = [s.value for s in entry.synonyms if s.source == 5]
        peer.note_shared(
            entry.name,
            {"type": entry.config_type, "read_only": entry.read_only, "default": default[:1]},
        )


def test_every_broker_option_of_kafka_is_known(pair: Pair) -> None:
    peer = Peer(pair.kafka.name, pair.kafka.address, pair.versions)
    try:
        answer = peer.quiet(description((BROKER, "1", None)), 4)
    finally:
        peer.close()
    names = {entry.name for entry in answer.results[0].configs}
    assert len(names) > 300
    assert names - kafka_options() == set()
