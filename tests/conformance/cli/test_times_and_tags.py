"""Commands for features that Kafka does not have (times to live, delays, tags), and for configs of groups, which it
has."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.conformance.cli.conftest import Commands
from tests.fixtures.targets import HeadraceServer

NewTopic = Callable[..., str]
HOUR_MS = 3_600_000


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Commands]:
    """A server for one test, which kills it."""
    server = HeadraceServer(tmp_path / "server")
    server.start()
    try:
        yield Commands(server)
    finally:
        server.stop()


def test_consume_prints_what_has_one_of_the_tags(headrace: Commands, new_topic: NewTopic) -> None:
    topic = new_topic("-p", "2")
    for tags, value in ((["red"], b"1"), (["red", "round"], b"2"), (["blue"], b"3"), ([], b"4")):
        options = [word for tag in tags for word in ("--tag", tag)]
        headrace.run("produce", topic, "-p", "1", *options, data=value + b"\n")
    everything = headrace.lines("consume", topic, "-e", "-f", "%v\\n")
    assert everything == ["1", "2", "3", "4"]
    chosen = ["consume", topic, "-e", "-f", "%v %h{%k=%v }\\n", "--tag", "round", "--tag", "blue"]
    assert headrace.lines(*chosen) == [
        "2 headrace.tag=red headrace.tag=round ",
        "3 headrace.tag=blue ",
    ]
    assert headrace.lines("consume", topic, "-e", "--tag", "green") == []


def test_scheduled_records_are_listed_and_survive_a_kill(own: Commands) -> None:
    own.run("topic", "create", "plain", "later", "-p", "1")
    own.run("topic", "alter", "later", "-c", "headrace.delay.enable=true")
    [described] = own.json("topic", "describe", "later", "--no-groups")
    assert described["partitions"][0]["delayed"] == {"pending": 0, "earliest_due_ms": None}
    began_ms = time.time_ns() // 1_000_000
    own.run("produce", "later", "--delay", "1h", data=b"first\nsecond\n")
    ended_ms = time.time_ns() // 1_000_000
    own.run("produce", "later", "--deliver-at", f"{ended_ms + 2 * HOUR_MS}", data=b"third\n")
    own.run("produce", "later", "--delay", "1ms", data=b"soon\n")
    assert own.lines("consume", "later", "-n", "1", "-f", "%v\n") == ["soon"]
    for end in (own.target.kill, own.target.stop):
        end()
        own.target.start()
        [later, plain] = own.json("topic", "describe", "later", "plain", "--no-groups")
        waiting = later["partitions"][0]["delayed"]
        assert waiting["pending"] == 3
        assert began_ms <= waiting["earliest_due_ms"] - HOUR_MS <= ended_ms + 1000
        assert plain["partitions"][0]["delayed"] is None
    table = own.lines("topic", "describe", "later", "plain", "--no-groups")
    headings = [line for line in table if line.startswith("PARTITION")]
    assert ["DELAYED" in line for line in headings] == [True, False]
    row = table[table.index(headings[0]) + 1]
    assert re.search(r" 3  \d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$", row)


def test_a_time_to_live_is_given_in_words(own: Commands) -> None:
    own.run("topic", "create", "dies", "-p", "1", "-c", "headrace.ttl.enable=true")
    own.run("produce", "dies", "--ttl", "0s", data=b"gone\n")
    own.run("produce", "dies", "--ttl", "1h30m", data=b"here\n")
    [line] = own.run("consume", "dies", "-e", "--format", "json").stdout.splitlines()
    record = json.loads(line)
    assert record["value"] == "here"
    assert record["headers"] == [{"key": "headrace.ttl-ms", "value": str(HOUR_MS * 3 // 2)}]


def test_configs_of_a_group_are_shown_set_and_deleted(headrace: Commands) -> None:
    name, group = "consumer.heartbeat.interval.ms", "configured"

    def shown() -> tuple[str, str]:
        document = headrace.json("group", "config", group)
        assert document["group"] == group
        [found] = [each for each in document["configs"] if each["name"] == name]
        return found["value"], found["source"]

    default = shown()
    assert default[1] != "group"
    checked = headrace.json("group", "config", group, "--set", f"{name}=6000", "--dry-run")
    assert checked == [{"group": group, "status": "ok", "error": None, "message": None}]
    assert shown() == default
    table = headrace.lines("group", "config", group, "--set", f"{name}=6000")
    assert [line.split() for line in table] == [["GROUP", "STATUS"], [group, "altered"]]
    assert shown() == ("6000", "group")
    [row] = [line for line in headrace.lines("group", "config", group) if line.startswith(name)]
    assert row.split()[1:3] == ["6000", "group"]
    refused = headrace.run("group", "config", group, "--set", f"{name}=soon", code=1)
    assert b"INVALID_CONFIG" in refused.stdout
    assert name.encode() in refused.stderr
    headrace.run("group", "config", group, "--delete", name)
    assert shown() == default
