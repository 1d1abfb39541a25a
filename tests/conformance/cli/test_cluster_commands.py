"""cluster, health and transaction, as a user types them, on Headrace and on Kafka."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from headrace import Producer
from headrace.clients.blocking import BlockingClient, NewTopic
from headrace.clients.flows.effects import Call, ask
from headrace.errors import HeadraceError, ProducerFencedError
from headrace.protocol.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from tests.conformance.cli.conftest import TIMEOUT_S, Commands
from tests.fixtures.targets import Target, make_target
from tools.fetch_java import JavaUnavailableError

MakeTopic = Callable[..., str]


def test_cluster_info_lists_brokers_features_and_log_directories(
    headrace: Commands, server: Target
) -> None:
    document = headrace.json("cluster", "info")
    host, port = server.bootstrap.rsplit(":", 1)
    [broker] = document["brokers"]
    assert (broker["host"], broker["port"], broker["rack"]) == (host, int(port), None)
    assert document["controller"] == broker["broker"]
    assert document["headrace"] == (server.name == "headrace")
    levels = {each["feature"]: each["level"] for each in document["features"]}
    assert levels["transaction.version"] == 2
    [directory] = document["log_dirs"]
    assert directory["state"] == "ok"
    assert directory["total_bytes"] > directory["usable_bytes"] > 0
    table = headrace.run("cluster", "info").stdout.decode()
    assert document["cluster_id"] in table
    assert directory["path"] in table


def test_sizes_and_versions(headrace: Commands, new_topic: MakeTopic) -> None:
    topic = new_topic("-p", "2")
    headrace.run("produce", topic, "-p", "1", data=b"x" * 1000)
    rows = headrace.json("cluster", "log-dirs", "-t", topic)
    assert [(row["topic"], row["partition"]) for row in rows] == [(topic, 1), (topic, 0)]
    assert rows[0]["bytes"] > 1000 > rows[1]["bytes"]
    spoken = {row["api"]: row for row in headrace.json("cluster", "apis")}
    assert spoken["METADATA"]["key"] == 3
    assert spoken["METADATA"]["max_version"] >= 12


def test_health_fails_for_a_missing_topic_and_an_unreachable_broker(
    headrace: Commands, new_topic: MakeTopic
) -> None:
    topic = new_topic("-p", "2")
    found = headrace.json("health", "-t", topic)
    assert found["healthy"] is True
    assert [each["state"] for each in found["checks"]] == ["ok"] * 3
    done = headrace.run("health", "-t", topic, "-t", "missing", "--wait", "500ms", code=1)
    assert done.stdout.decode().splitlines()[-1].split()[:3] == ["topic", "missing", "failed"]
    done = headrace.run("health", "-b", "127.0.0.1:1", "--format", "json", code=1)
    assert json.loads(done.stdout)["healthy"] is False
    headrace.run("health", "-X", "request.timeout.ms=soon", code=2)


def test_health_waits_for_a_server(tmp_path: Path) -> None:
    target = make_target("headrace", tmp_path / "headrace")
    target.start()
    target.stop()
    command = Commands(target)
    with subprocess.Popen(
        [*command.command("health", "--wait", "60s", "--format", "json")],
        env=command.environment,
        stdout=subprocess.PIPE,
    ) as waiting:
        target.start()
        try:
            out, _ = waiting.communicate(timeout=TIMEOUT_S)
        finally:
            target.stop()
    assert waiting.returncode == 0
    assert json.loads(out)["healthy"] is True


def test_transactions_are_listed_described_and_aborted(
    headrace: Commands, new_topic: MakeTopic, server: Target
) -> None:
    topic, name = new_topic("-p", "1"), f"billing-{os.getpid()}"
    with _open_transaction(server.bootstrap, topic, name) as producer:
        [listed] = headrace.json("transaction", "list", "--state", "Ongoing")
        assert listed["transactional_id"] == name
        assert headrace.json("transaction", "list", "--longer-than", "1h") == []
        assert headrace.json("transaction", "list", "--producer-id", "987654") == []
        [described] = headrace.json("transaction", "describe", name)
        assert described["state"] == "Ongoing"
        assert described["partitions"] == [{"topic": topic, "partition": 0}]
        assert described["timeout_ms"] == 60_000
        assert 0 <= described["open_ms"] < 60_000
        [remembered] = headrace.json("transaction", "producers", f"{topic}:0")
        assert remembered["start_offset"] == 0
        assert remembered["producer_id"] == listed["producer_id"] == described["producer_id"]
        # A transaction that its coordinator knows does not hang, however old it is.
        assert headrace.json("transaction", "find-hanging", "-t", topic, "--idle", "0s") == []

        headrace.run("transaction", "abort", name, code=2)
        [done] = json.loads(
            headrace.run("transaction", "abort", name, "--yes", "--format", "json").stdout
        )
        assert done["status"] == "aborted"
        with pytest.raises(ProducerFencedError):
            producer.commit_transaction()
    wanted = ("-X", "isolation.level=read_committed", "-e")
    assert headrace.run("consume", topic, *wanted).stdout == b""
    [again] = json.loads(
        headrace.run("transaction", "abort", name, "--yes", "--format", "json").stdout
    )
    assert again["status"] == "not open"
    for missing in (("describe", "missing"), ("abort", "missing", "--yes")):
        refused = headrace.run("transaction", *missing, code=1)
        assert b"no such transactional id" in refused.stderr
    refused = headrace.run("transaction", "list", "--state", "Open", code=1)
    assert b"no state of transactions is called Open" in refused.stderr


def _open_transaction(bootstrap: str, topic: str, name: str) -> Producer:
    producer = Producer(bootstrap, transactional_id=name, serde="bytes")
    producer.init_transactions()
    producer.begin_transaction()
    producer.send(topic, b"half").result(30)
    return producer


@pytest.fixture
def kafka(tmp_path: Path) -> Iterator[Target]:
    target = make_target("kafka", tmp_path / "kafka")
    try:
        target.start()
    except JavaUnavailableError as error:
        pytest.skip(str(error))
    try:
        yield target
    finally:
        target.stop()


@pytest.mark.java
def test_a_hanging_transaction_is_found_and_aborted(kafka: Target) -> None:
    with BlockingClient(kafka.bootstrap) as client:
        client.create_topics([NewTopic("t", 1)])
    producer = _open_transaction(kafka.bootstrap, "t", "lost")
    kafka.kill()
    with contextlib.suppress(HeadraceError):  # no coordinator aborts it
        producer.close(timeout_s=0)
    # Headrace aborts such transactions when it starts; Kafka's coordinators forget them.
    for lost in (kafka.directory / "data").glob("__transaction_state-*"):
        shutil.rmtree(lost)
    kafka.start()

    commands = Commands(kafka)
    done = commands.run(
        "transaction", "find-hanging", "-t", "t", "--idle", "0s", "--format", "json", code=1
    )
    [found] = json.loads(done.stdout)
    assert (found["topic"], found["partition"], found["producer_epoch"]) == ("t", 0, 0)
    assert (found["start_offset"], found["transactional_id"]) == (0, None)
    assert commands.json("transaction", "find-hanging") == []  # its last record is a moment old
    _abort_at(commands, 0)
    assert commands.json("transaction", "find-hanging", "--idle", "0s") == []


def _abort_at(commands: Commands, start_offset: int) -> None:
    at = ("transaction", "abort", "-t", "t:0", "--yes", "--start-offset")
    refused = commands.run(*at, "55", code=1)
    assert b"no open transaction begins at offset 55" in refused.stderr
    commands.run(*at, str(start_offset))
    [left] = commands.json("transaction", "producers", "t")
    assert left["start_offset"] is None


def test_abort_by_start_offset_ends_a_transaction_whose_marker_was_refused(tmp_path: Path) -> None:
    target = make_target("headrace", tmp_path / "headrace")
    target.start()
    commands = Commands(target)
    try:
        commands.run("topic", "create", "t", "-p", "1")
        producer = _open_transaction(target.bootstrap, "t", "stuck")
        with producer, BlockingClient(target.bootstrap) as client:
            [state] = commands.json("transaction", "producers", "t")
            marker = WritableTxnMarker(
                producer_id=state["producer_id"],
                producer_epoch=state["producer_epoch"],
                topics=[WritableTxnMarkerTopic(name="t", partition_indexes=[0])],
                coordinator_epoch=1_000,
            )
            request = Call(request=WriteTxnMarkersRequest(markers=[marker]))
            client.run(ask(request, WriteTxnMarkersResponse))
            producer.commit_transaction()
            producer.begin_transaction()
            producer.send("t", b"more").result(30)
            producer.commit_transaction()
        [described] = commands.json("transaction", "describe", "stuck")
        assert described["state"] == "PrepareCommit"
        refused = commands.run("transaction", "abort", "stuck", "--yes", code=1)
        assert b"the coordinator is ending the transaction (PrepareCommit)" in refused.stderr
        [state] = commands.json("transaction", "producers", "t")
        _abort_at(commands, state["start_offset"])
    finally:
        target.stop()
