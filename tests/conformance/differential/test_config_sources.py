"""Configurations that are set: the effective value, its source, and its synonyms in each layer."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from headrace.config.topic import TOPIC_OPTIONS
from headrace.protocol.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
)
from headrace.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from tests.conformance.differential.pair import Broker, Pair, Scenario, Scenarios
from tests.conformance.differential.peer import Peer
from tests.fixtures.kafka import TEST_SETTINGS, KafkaServer

pytestmark = pytest.mark.java
scenarios = Scenarios()
TOPIC, BROKER = 2, 4
OWN, ALL = "1", ""
SET, DELETE = 0, 1
Resource = tuple[int, str]

VALUES = {
    "cleanup.policy": ["compact", "delete,compact", "delete"],
    "compression.gzip.level": ["1", "9", "-1"],
    "compression.lz4.level": ["1", "17", "9"],
    "compression.type": ["uncompressed", "gzip", "snappy", "lz4", "zstd", "producer"],
    "compression.zstd.level": ["-131072", "22", "3"],
    "delete.retention.ms": ["7", "86400000"],
    "file.delete.delay.ms": ["7", "60000"],
    "flush.messages": ["7"],
    "flush.ms": ["7"],
    "index.interval.bytes": ["77", "4096"],
    "max.compaction.lag.ms": ["7"],
    "max.message.bytes": ["1234", "1048588"],
    "message.timestamp.after.max.ms": ["7", "3600000"],
    "message.timestamp.before.max.ms": ["7"],
    "message.timestamp.type": ["LogAppendTime", "CreateTime"],
    "min.cleanable.dirty.ratio": ["0.25", "0.5", "0", "1"],
    "min.compaction.lag.ms": ["7", "0"],
    "min.insync.replicas": ["2", "1"],
    "preallocate": ["true", "false"],
    "retention.bytes": ["7", "-1"],
    "retention.ms": ["7", "-1"],
    "segment.bytes": ["1048577", "1073741824"],
    "segment.index.bytes": ["1024", "10485760"],
    "segment.jitter.ms": ["7", "0"],
    "segment.ms": ["7", "604800000"],
    "unclean.leader.election.enable": ["true", "false"],
}
"""The values to set for each option of topics: some that differ from the default, and the default."""
RENDERED = [{"0", "0.0"}, {"1", "1.0"}]
"""Values that a broker returns in another form than they were set."""
LAYERED = {
    "delete.retention.ms": ("log.cleaner.delete.retention.ms", "11", "12", "13"),
    "index.interval.bytes": ("log.index.interval.bytes", "5000", "6000", "7000"),
    "max.message.bytes": ("message.max.bytes", "1000001", "1000002", "1000003"),
    "message.timestamp.type": ("log.message.timestamp.type", *["LogAppendTime", "CreateTime"], ""),
    "preallocate": ("log.preallocate", "true", "false", "true"),
    "retention.bytes": ("log.retention.bytes", "1000001", "1000002", "1000003"),
    "retention.ms": ("log.retention.ms", "3600001", "3600002", "3600003"),
    "segment.bytes": ("log.segment.bytes", "2000001", "2000002", "2000003"),
    "segment.ms": ("log.roll.ms", "3600001", "3600002", "3600003"),
}
"""Options of topics, the option of brokers, and values of all brokers, of one, and of the topic ("" for none)."""


@scenarios.mark()
def test_headrace_describes_config_sources_as_kafka_does(pair: Pair, scenario: Scenario) -> None:
    pair.compare(scenario)


def test_every_option_of_topics_is_set() -> None:
    assert set(VALUES) == {name for name in TOPIC_OPTIONS if not name.startswith("headrace.")}


def description(resource: Resource, key: str) -> DescribeConfigsRequest:
    kind, name = resource
    described = DescribeConfigsResource(
        resource_type=kind, resource_name=name, configuration_keys=[key]
    )
    return DescribeConfigsRequest(resources=[described], include_synonyms=True)


def shown(peer: Peer, resource: Resource, key: str) -> DescribeConfigsResourceResult | None:
    """Return the present description of an option; None if it is not listed."""
    configs = peer.quiet(description(resource, key), 4).results[0].configs
    return configs[0] if configs else None


def change(peer: Peer, resource: Resource, key: str, value: str | None) -> None:
    """Set or delete an option, and wait until the broker shows the change; Kafka's shows it a moment later."""
    kind, name = resource
    source = {TOPIC: 1, BROKER: 2 if name else 3}[kind]
    config = AlterableConfig(
        name=key, config_operation=DELETE if value is None else SET, value=value
    )
    altered = AlterConfigsResource(resource_type=kind, resource_name=name, configs=[config])
    answer = peer.quiet(IncrementalAlterConfigsRequest(resources=[altered]))
    assert answer.responses[0].error_code == 0, (peer.name, key, value, answer)

    def is_shown() -> bool:
        entry = shown(peer, resource, key)
        values = {each.source: each.value for each in entry.synonyms} if entry else {}
        found = values.get(source)
        return found == value or {found, value} in RENDERED

    peer.wait_for(f"{key}={value} of {resource}", is_shown)


@scenarios
def configs_set(peer: Peer) -> None:
    """Every option of topics, set to several values and deleted again."""
    peer.create("set-configs")
    topic = (TOPIC, "set-configs")
    for key, values in VALUES.items():
        for value in values:
            change(peer, topic, key, value)
            for version in peer.range_of(DescribeConfigsRequest):
                peer.ask(f"set {value}: {key}", description(topic, key), version)
        change(peer, topic, key, None)
        peer.ask(f"deleted: {key}", description(topic, key))


@contextmanager
def changed(peer: Peer, resource: Resource, key: str, value: str) -> Iterator[None]:
    change(peer, resource, key, value)
    try:
        yield
    finally:
        change(peer, resource, key, None)


@scenarios
def configs_layered(peer: Peer) -> None:
    """Set options for all brokers, for this one and for a topic."""
    peer.create("layered-configs")
    topic = (TOPIC, "layered-configs")

    def note(label: str, key: str, name: str) -> None:
        peer.ask(f"{label}: {key}", description(topic, key))
        peer.ask(f"{label}, the broker: {name}", description((BROKER, OWN), name))
        peer.ask(f"{label}, all brokers: {name}", description((BROKER, ALL), name))

    for key, (name, of_all, of_broker, of_topic) in LAYERED.items():
        with changed(peer, (BROKER, ALL), name, of_all):
            note("all", key, name)
            with changed(peer, (BROKER, OWN), name, of_broker):
                note("all and one", key, name)
                if of_topic:
                    change(peer, topic, key, of_topic)
                    note("all, one and topic", key, name)
                    change(peer, topic, key, None)
            note("all again", key, name)
        with changed(peer, (BROKER, OWN), name, of_broker):
            note("one", key, name)
        note("none", key, name)


def insync_of_a_cluster_without_eligible_leader_replicas(peer: Peer) -> None:
    peer.create("insync")
    topic = (TOPIC, "insync")

    def note(label: str) -> None:
        for resource in (topic, (BROKER, OWN), (BROKER, ALL)):
            peer.ask(f"{label}, of {resource}", description(resource, "min.insync.replicas"))

    note("not set")
    for value in ("1", "2"):
        change(peer, topic, "min.insync.replicas", value)
        note(f"topic {value}")
        change(peer, topic, "min.insync.replicas", None)
        with changed(peer, (BROKER, ALL), "min.insync.replicas", value):
            note(f"all {value}")
    note("not set again")


def test_insync_replicas_are_those_of_kafka_without_eligible_leader_replicas(
    pair: Pair, tmp_path: Path
) -> None:
    """The source of `min.insync.replicas` in other scenarios is that feature's (KIP-966)."""
    without = ("--feature", "eligible.leader.replicas.version=0")
    kafka = KafkaServer(tmp_path / "kafka", settings=TEST_SETTINGS, format_arguments=without)
    kafka.start()
    try:
        host, port = kafka.bootstrap.rsplit(":", 1)
        other = Pair(Broker("kafka", (host, int(port))), pair.headrace, pair.versions)
        other.compare(insync_of_a_cluster_without_eligible_leader_replicas)
    finally:
        kafka.stop()
