"""Kafka's tools for clusters, and other clients, at a single broker: reassignments, elections, quorum, features."""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import pytest
from confluent_kafka import ElectionType, TopicPartition
from confluent_kafka.admin import AdminClient

from tests.conformance.clients.java import JavaClient
from tests.conformance.differential.peer import advertised
from tests.fixtures.targets import Target
from tools.fetch_java import JavaUnavailableError

with warnings.catch_warnings():
    warnings.simplefilter(
        "ignore", DeprecationWarning
    )  # kafka-python reads its schemas the old way
    from kafka.protocol.broker_version_data import infer_broker_version_from_api_versions

pytestmark = pytest.mark.java
BROKER_ID = 1


@pytest.fixture(scope="module")
def client(target: Target, scratch: Path) -> JavaClient:
    try:
        return JavaClient(target.bootstrap, scratch, target.admin_properties)
    except JavaUnavailableError as error:
        pytest.skip(str(error))


def plan(scratch: Path, topic: str, replicas: list[int], directory: str = "any") -> str:
    """Write a reassignment for `kafka-reassign-partitions.sh`, and return its path."""
    partition = {"topic": topic, "partition": 0, "replicas": replicas, "log_dirs": [directory]}
    path = scratch / f"{topic}.json"
    path.write_text(json.dumps({"version": 1, "partitions": [partition]}))
    return str(path)


def directory_of(client: JavaClient, topic: str) -> str:
    described = json.loads(client.run("log-dirs", "--describe").splitlines()[-1])
    found: str = next(
        directory["logDir"]
        for directory in described["brokers"][0]["logDirs"]
        if f"{topic}-0" in {each["partition"] for each in directory["partitions"]}
    )
    return found


def test_reassign_partitions_tool(client: JavaClient, target: Target, scratch: Path) -> None:
    if len(target.broker_ids) > 1:
        pytest.skip("the replicas of a partition stay the same")
    client.create_topic("reassigned", 1)
    directory = directory_of(client, "reassigned")
    same = plan(scratch, "reassigned", [BROKER_ID], directory)
    done = client.run("reassign-partitions", "--execute", "--reassignment-json-file", same)
    assert "Successfully started partition reassignment for reassigned-0" in done
    assert f"Successfully started moving log directory to {directory}" in done
    done = client.run("reassign-partitions", "--verify", "--reassignment-json-file", same)
    assert "Reassignment of partition reassigned-0 is completed" in done
    assert "No partition reassignments found" in client.run("reassign-partitions", "--list")

    nowhere = plan(scratch, "reassigned", [BROKER_ID], "/no/such/directory")
    refused = client.run(
        "reassign-partitions", "--execute", "--reassignment-json-file", nowhere, check=False
    )
    assert "LogDirNotFoundException" in refused
    away = plan(scratch, "reassigned", [7])
    refused = client.run(
        "reassign-partitions", "--execute", "--reassignment-json-file", away, check=False
    )
    assert "Unknown broker id 7" in refused


def test_leader_election_tool(client: JavaClient) -> None:
    client.create_topic("elected", 2)
    client.run("leader-election", "--election-type", "preferred", "--all-topic-partitions")
    for kind in ("preferred", "unclean"):
        one = ("--topic", "elected", "--partition", "0")
        done = client.run("leader-election", "--election-type", kind, *one)
        assert "Valid replica already elected for partitions elected-0" in done


def test_metadata_quorum_tool(client: JavaClient, target: Target) -> None:
    status = client.run("metadata-quorum", "describe", "--status")
    lines = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)
    leader = int(lines["LeaderId"])
    assert leader in target.broker_ids
    voters = [voter["id"] for voter in json.loads(lines["CurrentVoters"])]
    assert voters == list(target.broker_ids)
    replication = client.run("metadata-quorum", "describe", "--replication")
    roles = sorted(line.split()[-1] for line in replication.splitlines()[1:])
    assert roles == [*["Follower"] * (len(voters) - 1), "Leader"]


def test_the_features_tool_changes_the_transaction_version(client: JavaClient) -> None:
    def level() -> str:
        described = client.run("features", "describe")
        (line,) = [each for each in described.splitlines() if "transaction.version" in each]
        return line.partition("FinalizedVersionLevel:")[2].split()[0]

    assert level() == "2"
    client.run("features", "downgrade", "--feature", "transaction.version=1")
    assert level() == "1"
    client.run("features", "upgrade", "--feature", "transaction.version=2")
    assert level() == "2"
    refused = client.run("features", "upgrade", "--feature", "no.such=1", check=False)
    assert "Could not upgrade no.such to 1" in refused


def test_configs_tool_changes_levels_of_loggers(client: JavaClient, target: Target) -> None:
    if target.name == "cluster":
        pytest.skip("the program of brokers in this process decides what is logged")
    one = ("--entity-type", "broker-loggers", "--entity-name", str(BROKER_ID))

    def level() -> str:
        described = client.run("configs", "--describe", *one)
        (line,) = [each for each in described.splitlines() if each.strip().startswith("root=")]
        return line.strip().removeprefix("root=").split()[0]

    before = level()
    client.run("configs", "--alter", *one, "--add-config", "root=WARN")
    assert level() == "WARN"
    client.run("configs", "--alter", *one, "--add-config", f"root={before}")
    assert level() == before
    refused = client.run("configs", "--alter", *one, "--add-config", "no.such=INFO", check=False)
    assert "no.such" in refused


def test_transactions_tool_lists_by_pattern(client: JavaClient) -> None:
    for pattern in ("nobody.*", "(?i)NOBODY"):
        listed = client.run("transactions", "list", "--transactional-id-pattern", pattern)
        assert [line.split()[0] for line in listed.splitlines()] == ["TransactionalId"]
    refused = client.run("transactions", "list", "--transactional-id-pattern", "(", check=False)
    assert "Failed to list transactions" in refused


@pytest.mark.parametrize("kind", [ElectionType.PREFERRED, ElectionType.UNCLEAN])
def test_librdkafka_elects_leaders(target: Target, client: JavaClient, kind: ElectionType) -> None:
    topic = f"elected-{kind.name.lower()}"
    client.create_topic(topic, 1)
    admin = AdminClient({"bootstrap.servers": target.bootstrap, **target.admin_properties})
    result = admin.elect_leaders(kind, [TopicPartition(topic, 0), TopicPartition("no.such", 0)])
    errors = {place.topic: error.name() for place, error in result.result(20).items()}
    assert errors == {topic: "ELECTION_NOT_NEEDED", "no.such": "UNKNOWN_TOPIC_OR_PART"}


def test_kafka_python_takes_the_broker_for_kafka_4_3(target: Target) -> None:
    if target.client_properties:
        pytest.skip("which APIs there are does not depend on the listener")
    host, port = target.bootstrap.split(",")[0].rsplit(":", 1)
    versions = advertised((host, int(port)))
    assert infer_broker_version_from_api_versions(versions) == (4, 3)
