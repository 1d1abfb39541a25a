"""topic alter, add-partitions and truncate, group delete and delete-offsets, as a user types them."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.conformance.cli.conftest import Commands
from tests.conformance.clients.observer import wait_until

NewTopic = Callable[..., str]


def described(headrace: Commands, topic: str) -> dict[str, Any]:
    [found] = headrace.json("topic", "describe", topic)
    return dict(found)


def test_configs_are_set_appended_to_and_unset(headrace: Commands, new_topic: NewTopic) -> None:
    topic = new_topic("-c", "segment.bytes=2000000")
    done = headrace.run(
        "topic", "alter", topic, "-c", "retention.ms=5000", "--append", "cleanup.policy=compact"
    )
    assert done.stdout.decode().splitlines()[1].split() == [topic, "altered"]
    wanted = {
        "segment.bytes": "2000000",
        "retention.ms": "5000",
        "cleanup.policy": "delete,compact",
    }
    wait_until("the configs", lambda: described(headrace, topic)["configs"] == wanted)
    arguments = ("--unset", "segment.bytes", "--subtract", "cleanup.policy=compact")
    headrace.run("topic", "alter", topic, *arguments)
    wanted = {"retention.ms": "5000", "cleanup.policy": "delete"}
    wait_until("the configs", lambda: described(headrace, topic)["configs"] == wanted)

    headrace.run("topic", "alter", topic, "-c", "retention.ms=1", "--dry-run")
    refused = headrace.run("topic", "alter", topic, "-c", "retention.mz=5", code=1)
    assert b"INVALID_CONFIG" in refused.stdout
    assert b"retention.mz" in refused.stderr
    assert described(headrace, topic)["configs"] == wanted


def test_partitions_are_added(headrace: Commands, new_topic: NewTopic) -> None:
    topic = new_topic("-p", "2")

    def count() -> int:
        return len(described(headrace, topic)["partitions"])

    headrace.run("topic", "alter", topic, "-p", "3", "-c", "retention.ms=5000")
    wait_until("3 partitions", lambda: count() == 3)
    headrace.run("topic", "add-partitions", topic, "-n", "2")
    wait_until("5 partitions", lambda: count() == 5)
    again = headrace.run("topic", "alter", topic, "-p", "5", "--format", "json", code=1)
    [outcome] = json.loads(again.stdout)
    assert (outcome["status"], outcome["error"]) == ("failed", "INVALID_PARTITIONS")
    missing = headrace.run("topic", "add-partitions", "no-such-topic", "-n", "1", code=1)
    assert missing.stderr == b"Error: no topic 'no-such-topic'\n"


def test_records_are_deleted_below_an_offset_a_time_and_the_end(
    headrace: Commands, new_topic: NewTopic
) -> None:
    topic = new_topic("-p", "1")
    lines = b"".join(b"%d\n" % number for number in range(10))
    headrace.run("produce", topic, data=lines)
    refused = headrace.run("topic", "truncate", topic, "-o", "4", code=2)
    assert b"--yes" in refused.stderr
    for offset, start in (("4", 4), ("end", 10)):
        shown = headrace.json("topic", "truncate", topic, "-o", offset, "--dry-run")
        assert shown == [{"partition": 0, "start_offset": start}]
    beyond = headrace.run("topic", "truncate", topic, "-o", "11", "--dry-run", code=1)
    assert b"ends at 10" in beyond.stderr
    assert headrace.json("topic", "truncate", topic, "-o", "4", "--yes") == [
        {"partition": 0, "start_offset": 4}
    ]
    assert headrace.lines("consume", topic, "-e", "-f", "%v\\n") == list("456789")
    beyond = headrace.run("topic", "truncate", topic, "-o", "11", "--yes", code=1)
    assert f"{topic}-0".encode() in beyond.stderr
    headrace.run("topic", "truncate", topic, "-o", "@2013-01-31", "--yes")
    assert headrace.lines("consume", topic, "-e", "-f", "%v\\n") == list("456789")
    done = headrace.run("topic", "truncate", topic, "-o", "end", "-p", "0", "--yes")
    assert done.stdout.decode().split() == ["PARTITION", "START", "0", "10"]


def test_groups_and_their_offsets_are_deleted(headrace: Commands, new_topic: NewTopic) -> None:
    topic = new_topic("-p", "1")
    group = f"group-of-{topic}"
    headrace.run("produce", topic, data=b"one\ntwo\n")
    headrace.run("consume", topic, "-g", group, "-o", "start", "-n", "2")
    [found] = headrace.json("group", "describe", group)
    assert found["partitions"][0]["committed_offset"] == 2

    deleted = headrace.json("group", "delete-offsets", group, "-t", topic, "--yes")
    assert [(each["partition"], each["status"]) for each in deleted] == [(f"{topic}:0", "deleted")]
    nothing = headrace.run("group", "delete-offsets", group, "-t", topic, "--yes", code=1)
    assert b"has no committed offsets" in nothing.stderr
    assert b"--yes" in headrace.run("group", "delete", group, code=2).stderr
    done = headrace.run("group", "delete", group, "no-such-group", "--yes", code=1)
    rows = [line.split() for line in done.stdout.decode().splitlines()[1:]]
    assert rows == [[group, "deleted"], ["no-such-group", "GROUP_ID_NOT_FOUND"]]
    assert group not in [each["group"] for each in headrace.json("group", "list")]


@pytest.mark.parametrize("partitions", ["", "x", "1,"])
def test_partitions_that_are_no_numbers(headrace: Commands, partitions: str) -> None:
    refused = headrace.run("group", "delete-offsets", "g", "-t", f"t:{partitions}", code=2)
    assert b"TOPIC:N,N" in refused.stderr
