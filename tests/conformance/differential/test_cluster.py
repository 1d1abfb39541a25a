"""Metadata, DescribeCluster, ApiVersions and FindCoordinator."""

from __future__ import annotations

import pytest

from headrace.protocol.messages.api_versions import ApiVersionsRequest
from headrace.protocol.messages.delete_topics import DeleteTopicsRequest
from headrace.protocol.messages.describe_cluster import DescribeClusterRequest
from headrace.protocol.messages.describe_topic_partitions import (
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsRequestCursor,
    TopicRequest,
)
from headrace.protocol.messages.find_coordinator import FindCoordinatorRequest
from headrace.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from tests.conformance.differential.pair import Pair, Scenario, Scenarios
from tests.conformance.differential.peer import Peer, advertised

pytestmark = pytest.mark.java
scenarios = Scenarios()


@scenarios.mark()
def test_headrace_answers_cluster_requests_as_kafka_does(pair: Pair, scenario: Scenario) -> None:
    pair.compare(scenario)


def metadata(
    *names: str | None, create: bool = False, ids: tuple[bytes, ...] = ()
) -> MetadataRequest:
    topics = [MetadataRequestTopic(name=name) for name in names]
    topics += [MetadataRequestTopic(name=None, topic_id=topic_id) for topic_id in ids]
    return MetadataRequest(topics=topics, allow_auto_topic_creation=create)


@scenarios
def metadata_by_name(peer: Peer) -> None:
    peer.create("metadata", 2)
    for version in peer.range_of(MetadataRequest):
        peer.ask("known", metadata("metadata", create=version < 4), version)
        peer.ask("internal", metadata("__consumer_offsets", create=version < 4), version)
        peer.ask("twice", metadata("metadata", "metadata", create=version < 4), version)
        for name in ("a/b", "", ".", "..", "x" * 250, "a b", "é"):
            peer.ask(f"bad name {name[:9]!r}", metadata(name, create=True), version)
        if version > 0:
            peer.ask("none", metadata(create=version < 4), version)
        if version >= 4:
            peer.ask("unknown", metadata("metadata-nowhere"), version)
            peer.ask("bad, not created", metadata("a/b", "", "metadata"), version)


@scenarios
def metadata_of_all(peer: Peer) -> None:
    # Other scenarios leave their topics. Only the topics of this one are compared.
    peer.create("metadata-all")
    for version in peer.range_of(MetadataRequest):
        request = MetadataRequest(topics=[] if version == 0 else None)
        found = [
            topic for topic in peer.quiet(request, version).topics if topic.name == "metadata-all"
        ]
        peer.note(
            f"all v{version}",
            [(topic.name, topic.error_code, len(topic.partitions)) for topic in found],
        )


def ask_by_id(peer: Peer, version: int) -> None:
    name = f"metadata-id-{version}"
    peer.create(name)
    (topic,) = peer.quiet(metadata(name), 12).topics
    named = MetadataRequest(topics=[MetadataRequestTopic(name=name, topic_id=topic.topic_id)])
    wrong = MetadataRequest(topics=[MetadataRequestTopic(name=name, topic_id=b"\x07" * 16)])
    peer.ask("known id", metadata(ids=(topic.topic_id,)), version)
    peer.ask("unknown id", metadata(ids=(b"\x07" * 16,)), version)
    peer.ask("id and name of one", metadata(name, ids=(topic.topic_id,)), version)
    peer.ask("id and name", named, version)
    peer.ask("another id and name", wrong, version)
    peer.ask("no id, no name", metadata(None), version)


@scenarios
def metadata_by_id_before_version_12(peer: Peer) -> None:
    ask_by_id(peer, 10)
    ask_by_id(peer, 11)


@scenarios
def metadata_by_id(peer: Peer) -> None:
    ask_by_id(peer, 12)


@scenarios
def metadata_creates(peer: Peer) -> None:
    for version in peer.range_of(MetadataRequest):
        name = f"metadata_created_{version}"
        peer.ask("unknown, create", metadata(name, create=True), version)
        peer.await_leaders(name)
        peer.ask("created", metadata(name, create=True), version)
    peer.ask("collision", metadata("metadata.created_1", create=True), 9)
    peer.ask("internal", metadata("__transaction_state", create=False), 9)


def await_gone(peer: Peer, name: str) -> None:
    """Wait until the broker knows that a topic was deleted, which Kafka's broker learns a moment later."""
    gone = metadata(name, create=False)
    peer.wait_for("gone", lambda: peer.quiet(gone, 9).topics[0].error_code == 3)


@scenarios
def metadata_after_deletion(peer: Peer) -> None:
    """A client whose Metadata requests create topics first receives the error that its topic was deleted."""
    for version in peer.range_of(MetadataRequest):
        name = f"metadata-deleted-{version}"
        peer.create(name)
        deletion = DeleteTopicsRequest(timeout_ms=10_000, topic_names=[name])
        assert peer.quiet(deletion, 1).responses[0].error_code == 0
        await_gone(peer, name)
        peer.ask("deleted, create", metadata(name, create=True), version)
        peer.await_leaders(name)
        peer.ask("created again", metadata(name, create=True), version)


@scenarios
def metadata_options(peer: Peer) -> None:
    peer.create("metadata-options")
    for version in (8, 9, 10):
        request = metadata("metadata-options")
        request.include_cluster_authorized_operations = True
        request.include_topic_authorized_operations = True
        peer.ask("authorized operations", request, version)


@scenarios
def describe_cluster(peer: Peer) -> None:
    for version in peer.range_of(DescribeClusterRequest):
        peer.ask("plain", DescribeClusterRequest(), version)
        operations = DescribeClusterRequest(include_cluster_authorized_operations=True)
        peer.ask("authorized operations", operations, version)
        fenced = DescribeClusterRequest(include_fenced_brokers=True)
        peer.ask("fenced brokers", fenced, version)
        for kind in (0, 1, 2, 3, -1):
            peer.ask(f"endpoint type {kind}", DescribeClusterRequest(endpoint_type=kind), version)


@scenarios
def describe_topic_partitions(peer: Peer) -> None:
    peer.create("pages-a", 3)
    peer.create("pages-b", 2)

    def ask(
        label: str, *names: str, limit: int = 2000, cursor: tuple[str, int] | None = None
    ) -> None:
        request = DescribeTopicPartitionsRequest(
            topics=[TopicRequest(name=name) for name in names],
            response_partition_limit=limit,
            cursor=None
            if cursor is None
            else DescribeTopicPartitionsRequestCursor(
                topic_name=cursor[0], partition_index=cursor[1]
            ),
        )
        peer.ask(label, request, 0)

    ask("one", "pages-a")
    ask("two in the wrong order", "pages-b", "pages-a")
    ask("twice", "pages-a", "pages-a")
    ask("unknown", "pages-nowhere", "pages-a")
    ask("bad name", "a/b")
    for limit in (-1, 0, 1, 2, 3, 4, 5):
        ask(f"limit {limit}", "pages-a", "pages-b", limit=limit)
    for cursor in (
        ("pages-a", 0),
        ("pages-a", 2),
        ("pages-a", 3),
        ("pages-b", 1),
        ("pages-aa", 0),
        ("pages-z", 0),
        ("pages-a", -1),
    ):
        ask(f"cursor {cursor}", "pages-a", "pages-b", cursor=cursor)


@scenarios
def api_versions(peer: Peer) -> None:
    for version in peer.range_of(ApiVersionsRequest):
        for name, software in (
            ("plain", "1.0"),
            ("", ""),
            ("a b", "1"),
            ("x-1.2", "-1"),
            ("ok", "!"),
        ):
            if version < 3 and name != "plain":
                continue
            request = ApiVersionsRequest(
                client_software_name=name, client_software_version=software
            )
            answer = peer.quiet(request, version)
            peer.note(
                f"{name!r} {software!r} v{version}", (answer.error_code, bool(answer.api_keys))
            )


def test_the_versions_that_both_serve_are_nearly_all(pair: Pair) -> None:
    kafka, headrace = advertised(pair.kafka.address), advertised(pair.headrace.address)
    for key, (low, high) in headrace.items():
        assert key in kafka
        # A client that knows only Kafka's oldest version has to find that version here.
        assert low == kafka[key][0], key
        assert high <= kafka[key][1], key


@scenarios
def find_coordinator(peer: Peer) -> None:
    peer.await_transactions()
    for version in range(4):
        for key_type in (0, 2, 3, 9, -1):
            if version or not key_type:
                peer.ask(
                    f"type {key_type}",
                    FindCoordinatorRequest(key="g", key_type=key_type),
                    version,
                    on=f"v{version}",
                )
        for key in ("", "a b", "é", "x" * 300):
            peer.ask(f"key {key[:5]!r}", FindCoordinatorRequest(key=key), version, on=f"v{version}")
    peer.ask("several", FindCoordinatorRequest(coordinator_keys=["g", "h", "i"]), 4)
    peer.ask("twice", FindCoordinatorRequest(coordinator_keys=["g", "g"]), 4)
    peer.ask("none", FindCoordinatorRequest(coordinator_keys=[]), 4)
    peer.ask("empty key", FindCoordinatorRequest(coordinator_keys=["", "g"]), 4)
    peer.ask("type 1", FindCoordinatorRequest(coordinator_keys=["t", "u"], key_type=1), 4)
    peer.ask("type 1", FindCoordinatorRequest(key="t", key_type=1), 1)
    peer.ask("type 2", FindCoordinatorRequest(coordinator_keys=["t"], key_type=2), 4)
    peer.ask("type 9", FindCoordinatorRequest(coordinator_keys=["t"], key_type=9), 4, on="bad")
