"""Kafka's own Java client and tools, through the life of `tests.conformance.clients.scenario` and their own uses."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conformance.clients.java import JavaClient
from tests.conformance.clients.observer import Observer
from tests.conformance.clients.scenario import (
    CODECS,
    STORED,
    GroupLife,
    check_codec,
    check_stored_codec,
)
from tests.fixtures.targets import Target
from tools.fetch_java import JavaUnavailableError

pytestmark = pytest.mark.java


@pytest.fixture(scope="module")
def client(target: Target, scratch: Path) -> JavaClient:
    try:
        return JavaClient(target.bootstrap, scratch, target.client_properties)
    except JavaUnavailableError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def tools(client: JavaClient, target: Target, scratch: Path) -> JavaClient:
    """Return Kafka's tools with the login of an administrator."""
    return JavaClient(target.bootstrap, scratch, target.admin_properties)


@pytest.mark.parametrize("mode", ["plain", "idempotent"])
@pytest.mark.parametrize("codec", CODECS)
def test_records_of_every_codec_are_stored_and_read_back(
    client: JavaClient, target: Target, observer: Observer, codec: str, mode: str
) -> None:
    check_codec(client, target, observer, codec, idempotent=mode == "idempotent")


@pytest.mark.parametrize("stored", STORED)
def test_codec_of_a_topic(
    client: JavaClient, target: Target, observer: Observer, stored: str
) -> None:
    check_stored_codec(client, target, observer, stored)


def test_the_topics_tool_creates_describes_and_deletes_a_topic(
    tools: JavaClient, target: Target
) -> None:
    tools.run(
        "topics",
        *("--create", "--topic", "tool", "--partitions", "3", "--config", "retention.ms=86400000"),
    )
    again = tools.run("topics", "--create", "--topic", "tool", check=False)
    assert "already exists" in again
    assert "tool" in tools.run("topics", "--list").split()
    described = tools.run("topics", "--describe", "--topic", "tool")
    assert "PartitionCount: 3" in described
    assert f"ReplicationFactor: {len(target.broker_ids)}" in described
    assert "retention.ms=86400000" in described

    tools.run("topics", "--delete", "--topic", "tool")
    assert "tool" not in tools.run("topics", "--list").split()


def test_console_producer_and_consumer_and_groups_tool(
    client: JavaClient, tools: JavaClient
) -> None:
    topic, group = "console", "console-group"
    client.create_topic(topic, 1)
    records = [f"h:{n}\tk{n}\tvalue {n}" for n in range(10)]
    properties = ("parse.key=true", "parse.headers=true")
    reading = [word for each in properties for word in ("--reader-property", each)]
    client.run("console-producer", "--topic", topic, *reading, text="\n".join(records) + "\n")

    shown = ("headers", "key", "offset")
    formats = [w for each in shown for w in ("--formatter-property", f"print.{each}=true")]
    consumed = ("--topic", topic, "--group", group, "--from-beginning", *formats)
    first = client.run("console-consumer", *consumed, "--max-messages", "6")
    second = client.run("console-consumer", *consumed, "--max-messages", "4")
    lines = [line for line in (first + second).splitlines() if line.startswith("Offset:")]
    assert lines == [f"Offset:{n}\th:{n}\tk{n}\tvalue {n}" for n in range(10)]

    described = client.run("groups", "--describe", "--group", group)
    fields = next(line.split() for line in described.splitlines() if line.startswith(group))
    assert fields[:6] == [group, topic, "0", "10", "10", "0"]
    assert group in tools.run("groups", "--list").split()
    reset = ("--reset-offsets", "--group", group, "--topic", topic, "--to-offset", "7", "--execute")
    tools.run("groups", *reset)
    third = client.run("console-consumer", *consumed, "--max-messages", "3")
    assert [line for line in third.splitlines() if line.startswith("Offset:")] == lines[7:]


def test_the_offsets_tool_prints_end_offsets_and_the_newest_records_offset(
    client: JavaClient,
) -> None:
    client.create_topic("offsets", 2)
    client.run("console-producer", "--topic", "offsets", text="one\n")
    ends = client.run("get-offsets", "--topic", "offsets", "--time", "latest").split()
    assert sorted(int(line.rsplit(":", 1)[1]) for line in ends) == [0, 1]
    latest = client.run("get-offsets", "--topic", "offsets", "--time", "max-timestamp").split()
    assert any(line.endswith(":0") for line in latest)


def test_api_versions_tool(client: JavaClient) -> None:
    shown = client.run("broker-api-versions")
    assert "Produce(0)" in shown
    assert "usable" in shown


@pytest.mark.slow
def test_group_lives_through_members_and_brokers_coming_and_going(
    client: JavaClient, target: Target, observer: Observer
) -> None:
    GroupLife(client, target, observer).run()
