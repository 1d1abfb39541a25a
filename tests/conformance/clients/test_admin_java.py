"""Kafka's administrative tools: topics, configs, delete-records, log-dirs, consumer-groups."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from tests.conformance.clients.java import JavaClient
from tests.conformance.clients.observer import Observer, wait_until
from tests.fixtures.targets import Target
from tools.fetch_java import JavaUnavailableError

pytestmark = pytest.mark.java
BROKER_ID = "1"


@pytest.fixture(scope="module")
def client(target: Target, scratch: Path) -> JavaClient:
    try:
        return JavaClient(target.bootstrap, scratch, target.admin_properties)
    except JavaUnavailableError as error:
        pytest.skip(str(error))


def produce(target: Target, topic: str, count: int) -> None:
    producer = Producer({"bootstrap.servers": target.bootstrap, **target.admin_properties})
    for number in range(count):
        producer.produce(topic, value=str(number), partition=0)
    assert producer.flush(20) == 0


def commit(target: Target, group: str, topic: str) -> None:
    consumer = Consumer(
        {"bootstrap.servers": target.bootstrap, **target.admin_properties, "group.id": group}
    )
    consumer.commit(offsets=[TopicPartition(topic, 0, 1)], asynchronous=False)
    consumer.close()


def test_topics_tool_alters_and_pages(client: JavaClient) -> None:
    client.create_topic("grow", 2)
    client.run("topics", "--alter", "--topic", "grow", "--partitions", "5")
    described = client.run(
        "topics", "--describe", "--topic", "grow", "--partition-size-limit-per-response", "2"
    )
    assert "PartitionCount: 5" in described
    assert [line.split()[3] for line in described.splitlines() if "Leader:" in line] == [
        str(partition) for partition in range(5)
    ]
    refused = client.run("topics", "--alter", "--topic", "grow", "--partitions", "3", check=False)
    assert "InvalidPartitionsException" in refused


def test_configs_tool_alters_topics(client: JavaClient) -> None:
    client.create_topic("configured", 1)
    topic = ("--entity-type", "topics", "--entity-name", "configured")
    changes = "retention.ms=1234567,cleanup.policy=[delete,compact]"
    client.run("configs", "--alter", *topic, "--add-config", changes)
    described = client.run("configs", "--describe", *topic)
    assert "retention.ms=1234567" in described
    assert "cleanup.policy=delete,compact" in described
    assert "DYNAMIC_TOPIC_CONFIG:retention.ms=1234567" in described
    client.run("configs", "--alter", *topic, "--delete-config", "retention.ms")
    assert "retention.ms" not in client.run("configs", "--describe", *topic)

    refused = client.run("configs", "--alter", *topic, "--add-config", "no.such=1", check=False)
    assert "InvalidConfigurationException" in refused
    refused = client.run(
        "configs", "--alter", *topic, "--add-config", "retention.ms=soon", check=False
    )
    assert "InvalidConfigurationException" in refused


def test_configs_tool_alters_brokers(client: JavaClient) -> None:
    one = ("--entity-type", "brokers", "--entity-name", BROKER_ID)
    every = ("--entity-type", "brokers", "--entity-default")
    config = "log.retention.bytes"
    client.run("configs", "--alter", *every, "--add-config", f"{config}=5000000")
    client.run("configs", "--alter", *one, "--add-config", f"{config}=4000000")
    described = client.run("configs", "--describe", *one)
    own = f"DYNAMIC_BROKER_CONFIG:{config}=4000000"
    for_all = f"DYNAMIC_DEFAULT_BROKER_CONFIG:{config}=5000000"
    assert f"{own}, {for_all}, " in described
    assert f"{config}=5000000" in client.run("configs", "--describe", *every)
    for scope in (one, every):
        client.run("configs", "--alter", *scope, "--delete-config", config)
        assert config not in client.run("configs", "--describe", *scope)
    refused = client.run("configs", "--alter", *one, "--add-config", "broker.rack=r1", check=False)
    assert "Exception" in refused


def test_delete_records_tool(client: JavaClient, target: Target, tmp_path: Path) -> None:
    client.create_topic("trimmed", 1)
    produce(target, "trimmed", 10)

    def delete(offset: int) -> str:
        partitions = [{"topic": "trimmed", "partition": 0, "offset": offset}]
        wanted = tmp_path / "wanted.json"
        wanted.write_text(json.dumps({"partitions": partitions, "version": 1}))
        return client.run("delete-records", "--offset-json-file", str(wanted), check=False)

    assert "low_watermark: 4" in delete(4)
    assert "OffsetOutOfRangeException" in delete(11)
    assert "low_watermark: 10" in delete(-1)
    earliest = client.run("get-offsets", "--topic", "trimmed", "--time", "earliest").strip()
    assert earliest == "trimmed:0:10"


def test_log_dirs_tool(client: JavaClient, target: Target) -> None:
    client.create_topic("sized", 2)
    produce(target, "sized", 10)

    def are_replicated() -> bool:
        output = client.run("log-dirs", "--describe", "--topic-list", "sized")
        (line,) = [line for line in output.splitlines() if line.startswith("{")]
        brokers = json.loads(line)["brokers"]
        assert [broker["broker"] for broker in brokers] == list(target.broker_ids)
        sizes: list[dict[str, int]] = []
        for broker in brokers:
            (directory,) = broker["logDirs"]
            assert directory["error"] is None
            sizes.append({each["partition"]: each["size"] for each in directory["partitions"]})
            assert sizes[-1].keys() == {"sized-0", "sized-1"}
        return all(each["sized-0"] > 0 == each["sized-1"] for each in sizes)

    wait_until("the records at all brokers", are_replicated)


def test_groups_tool_deletes_groups_and_offsets(
    client: JavaClient, target: Target, observer: Observer
) -> None:
    client.create_topic("grouped", 1)
    for group in ("gone", "kept"):
        commit(target, group, "grouped")
    offsets = ("--delete-offsets", "--group", "kept", "--topic", "grouped")
    client.run("groups", *offsets)
    assert observer.committed("kept", "grouped") == {}
    commit(target, "kept", "grouped")
    member = Consumer(
        {"bootstrap.servers": target.bootstrap, **target.admin_properties, "group.id": "kept"}
    )
    member.subscribe(["grouped"])
    try:
        wait_until("a partition", lambda: member.poll(0.1) or member.assignment())
        assert "subscribed" in client.run("groups", *offsets, check=False)
        refused = client.run("groups", "--delete", "--group", "kept", check=False)
        assert "GroupNotEmptyException" in refused
    finally:
        member.close()
    client.run("groups", "--delete", "--group", "gone")
    assert "gone" not in client.run("groups", "--list").split()
    unknown = client.run("groups", "--delete", "--group", "no-such-group", check=False)
    assert "GroupIdNotFoundException" in unknown


def test_configs_tool_attaches_groups(client: JavaClient, target: Target) -> None:
    if target.name.startswith("kafka"):
        pytest.skip("only Headrace keeps what groups are attached to")
    group = ("--entity-type", "groups", "--entity-name", "attached")
    changes = "headrace.topics=[grow,configured],headrace.assignor=equal"
    client.run("configs", "--alter", *group, "--add-config", changes)
    described = client.run("configs", "--describe", *group)
    assert "headrace.topics=grow,configured" in described
    assert "DYNAMIC_GROUP_CONFIG:headrace.assignor=equal" in described
    assert "attached" in client.run("groups", "--list").split()
    state = client.run("groups", "--describe", "--group", "attached", "--state")
    assert "Empty" in state
    refused = client.run(
        "configs", "--alter", *group, "--add-config", "consumer.session.timeout.ms=1", check=False
    )
    assert "InvalidConfigurationException" in refused
    client.run("groups", "--delete", "--group", "attached")
    assert "attached" not in client.run("groups", "--list").split()
