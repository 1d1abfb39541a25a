"""Requests of administrators to a cluster of one broker: reassignments, elections, directories, quorum, features."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from headrace.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from headrace.protocol.messages.alter_replica_log_dirs import (
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirTopic,
)
from headrace.protocol.messages.describe_log_dirs import DescribeLogDirsRequest
from headrace.protocol.messages.describe_quorum import (
    DescribeQuorumRequest,
    DescribeQuorumRequestPartitionData,
    DescribeQuorumRequestTopicData,
)
from headrace.protocol.messages.elect_leaders import ElectLeadersRequest, TopicPartitions
from headrace.protocol.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsTopics,
)
from headrace.protocol.messages.unregister_broker import UnregisterBrokerRequest
from headrace.protocol.messages.update_features import FeatureUpdateKey, UpdateFeaturesRequest
from tests.conformance.differential.pair import Pair, Scenario, Scenarios
from tests.conformance.differential.peer import Peer

pytestmark = pytest.mark.java
scenarios = Scenarios()
METADATA = "__cluster_metadata"
Named = tuple[str, Sequence[int]]


@scenarios.mark()
def test_headrace_answers_administrators_as_a_single_kafka_broker_does(
    pair: Pair, scenario: Scenario
) -> None:
    pair.compare(scenario)


def reassignment(
    *topics: tuple[str, Sequence[tuple[int, list[int] | None]]], may_change_factor: bool = True
) -> AlterPartitionReassignmentsRequest:
    return AlterPartitionReassignmentsRequest(
        timeout_ms=10_000,
        allow_replication_factor_change=may_change_factor,
        topics=[
            ReassignableTopic(
                name=name,
                partitions=[
                    ReassignablePartition(partition_index=index, replicas=replicas)
                    for index, replicas in partitions
                ],
            )
            for name, partitions in topics
        ],
    )


@scenarios
def reassignments(peer: Peer) -> None:
    name = "reassigned"
    peer.create(name, 2)
    cases = {
        "as it is": reassignment((name, [(0, [1]), (1, [1])])),
        "to cancel": reassignment((name, [(0, None)])),
        "no replicas": reassignment((name, [(0, [])])),
        "another broker": reassignment((name, [(0, [7])])),
        "two brokers": reassignment((name, [(0, [1, 7])])),
        "one broker twice": reassignment((name, [(0, [1, 1])])),
        "broker -1": reassignment((name, [(0, [-1])])),
        "one good, one bad": reassignment((name, [(0, [1]), (1, [7]), (9, [1])])),
        "unknown topic": reassignment(("reassigned-nowhere", [(0, [1])])),
        "unknown partition": reassignment((name, [(9, [1]), (-1, [1])])),
        "to cancel, unknown": reassignment(
            (name, [(9, None)]), ("reassigned-nowhere", [(0, None)])
        ),
        "bad name": reassignment(("a/b", [(0, [1])])),
        "nothing": reassignment(),
        "no partitions": reassignment((name, [])),
        "partition twice": reassignment((name, [(0, [1]), (0, [1])])),
        "topic twice": reassignment((name, [(0, [1])]), (name, [(1, [7])])),
        "same factor": reassignment((name, [(0, [1])]), may_change_factor=False),
        "other factor": reassignment((name, [(0, [1, 7])]), may_change_factor=False),
    }
    for version in peer.range_of(AlterPartitionReassignmentsRequest):
        for label, request in cases.items():
            peer.ask(label, request, version)
    named: dict[str, Sequence[Named] | None] = {
        "all": None,
        "none": [],
        "some": [(name, [0, 1])],
        "unknown": [(name, [9]), ("reassigned-nowhere", [0]), ("a/b", [0])],
    }
    for label, topics in named.items():
        wanted = None
        if topics is not None:
            wanted = [
                ListPartitionReassignmentsTopics(name=each, partition_indexes=list(indexes))
                for each, indexes in topics
            ]
        peer.ask(f"listed: {label}", ListPartitionReassignmentsRequest(topics=wanted))


def election(kind: int, topics: Sequence[Named] | None) -> ElectLeadersRequest:
    return ElectLeadersRequest(
        election_type=kind,
        timeout_ms=10_000,
        topic_partitions=None
        if topics is None
        else [TopicPartitions(topic=name, partitions=list(indexes)) for name, indexes in topics],
    )


@scenarios
def elections(peer: Peer) -> None:
    name = "elected"
    peer.create(name, 2)
    cases: dict[str, Sequence[Named]] = {
        "some": [(name, [0, 1])],
        "unknown partitions": [(name, [9, -1])],
        "unknown topics": [("elected-nowhere", [0]), ("a/b", [0]), ("", [0])],
        "partition twice": [(name, [0, 0])],
        "topic twice": [(name, [0]), (name, [1])],
        "no partitions": [(name, [])],
        "nothing": [],
    }
    for version in peer.range_of(ElectLeadersRequest):
        for kind in (0, 1, 2, -1) if version else (0,):
            for label, topics in cases.items():
                peer.ask(f"{label}, type {kind}", election(kind, topics), version)
            answer = peer.quiet(election(kind, None), version)
            answer.replica_election_results = [  # other scenarios have topics, too
                result for result in answer.replica_election_results if result.topic == name
            ]
            peer.note_answer(f"all, type {kind} v{version}", answer)


@scenarios
def replica_directories(peer: Peer) -> None:
    name = "placed"
    peer.create(name, 2)
    (directory,) = peer.quiet(DescribeLogDirsRequest(topics=None), 4).results
    path = directory.log_dir

    def ask(label: str, version: int, *moves: tuple[str, str, list[int]]) -> None:
        request = AlterReplicaLogDirsRequest(
            dirs=[
                AlterReplicaLogDir(
                    path=each, topics=[AlterReplicaLogDirTopic(name=topic, partitions=indexes)]
                )
                for each, topic, indexes in moves
            ]
        )
        peer.ask(label, request, version)

    for version in peer.range_of(AlterReplicaLogDirsRequest):
        ask("where it is", version, (path, name, [0, 1]))
        ask("no such directory", version, ("/no/such/directory", name, [0]))
        ask("relative", version, (path.rpartition("/")[2], name, [0]))
        ask("empty path", version, ("", name, [0]))
        ask("with a slash", version, (f"{path}/", name, [0]))
        ask("unknown topic", version, (path, "placed-nowhere", [0, 1]))
        ask("bad name", version, (path, "a/b", [0]))
        ask("unknown partition", version, (path, name, [7, -1]))
        ask("unknown topic and directory", version, ("/no/such", "placed-nowhere", [0]))
        ask("two directories", version, (path, name, [0]), ("/no/such", name, [0]))
        ask("two directories, good one last", version, ("/no/such", name, [0]), (path, name, [0]))
        ask("partition twice", version, (path, name, [0, 0]))
        ask("nothing", version)
        ask("no partitions", version, (path, name, []))


def quorum(*topics: Named) -> DescribeQuorumRequest:
    return DescribeQuorumRequest(
        topics=[
            DescribeQuorumRequestTopicData(
                topic_name=name,
                partitions=[
                    DescribeQuorumRequestPartitionData(partition_index=index) for index in indexes
                ],
            )
            for name, indexes in topics
        ]
    )


@scenarios
def metadata_quorum(peer: Peer) -> None:
    cases = {
        "metadata": quorum((METADATA, [0])),
        "another topic": quorum(("quorum-nowhere", [0])),
        "another partition": quorum((METADATA, [1])),
        "two partitions": quorum((METADATA, [0, 1])),
        "two topics": quorum((METADATA, [0]), ("quorum-nowhere", [0])),
        "nothing": quorum(),
        "no partitions": quorum((METADATA, [])),
    }
    for version in peer.range_of(DescribeQuorumRequest):
        for label, request in cases.items():
            peer.ask(label, request, version)


def features(*updates: tuple[str, int, int], validate_only: bool = False) -> UpdateFeaturesRequest:
    return UpdateFeaturesRequest(
        timeout_ms=10_000,
        feature_updates=[
            FeatureUpdateKey(
                feature=name, max_version_level=level, upgrade_type=kind, allow_downgrade=kind > 1
            )
            for name, level, kind in updates
        ],
        validate_only=validate_only,
    )


@scenarios
def updated_features(peer: Peer) -> None:
    for version in peer.range_of(UpdateFeaturesRequest):
        cases = {
            "as it is": [("group.version", 1, 1), ("transaction.version", 2, 1)],
            "unknown": [("no.such", 1, 1)],
            "unknown, at 0": [("no.such", 0, 2)],
            "no name": [("", 1, 1)],
            "one good, one bad": [("transaction.version", 2, 1), ("no.such", 1, 1)],
            "too high": [("transaction.version", 9, 1)],
            "negative": [("transaction.version", -1, 1)],
            "lower": [("transaction.version", 1, 1)],
            "none": [],
        }
        for label, updates in cases.items():
            peer.ask(label, features(*updates), version)
    for version in peer.range_of(UpdateFeaturesRequest, since=1):
        cases = {
            "lower, safe": [("transaction.version", 1, 2)],
            "lower, unsafe": [("transaction.version", 0, 3)],
            "as it is, safe": [("transaction.version", 2, 2)],
            "type 0": [("transaction.version", 2, 0)],
            "type 9": [("transaction.version", 2, 9)],
            "groups, safe": [("group.version", 0, 2)],
            "metadata": [("metadata.version", 30, 1)],
        }
        for label, updates in cases.items():
            peer.ask(label, features(*updates, validate_only=True), version)


@scenarios
def unregistered_brokers(peer: Peer) -> None:
    for broker_id in (7, -1, 2**31 - 1):
        peer.ask(f"broker {broker_id}", UnregisterBrokerRequest(broker_id=broker_id))
