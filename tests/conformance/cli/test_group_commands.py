"""group create, attach, detach, offsets, reset, lag, remove-member and stop-member, as a user types them."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from typing import Any

import pytest

from headrace.clients.admin.blocking import Admin
from headrace.clients.consumer.blocking import Consumer
from tests.conformance.cli.conftest import Commands

NewTopic = Callable[..., str]
HEARTBEAT: dict[str, Any] = {"heartbeat_interval_ms": 100}


@pytest.fixture
def on_headrace(headrace: Commands) -> Commands:
    if headrace.target.name != "headrace":
        pytest.skip("only Headrace keeps what groups are attached to")
    return headrace


def committed(headrace: Commands, group: str) -> list[int]:
    return [row["committed_offset"] for row in headrace.json("group", "offsets", group)]


def ten_records(headrace: Commands, topic: str) -> None:
    headrace.run("produce", topic, data=b"".join(b"%d\n" % number for number in range(10)))


# Attachments of groups


def test_a_group_is_created_attached_and_detached(
    on_headrace: Commands, new_topic: NewTopic
) -> None:
    topic, other = new_topic("-p", "1"), new_topic("-p", "1")
    group = f"group-of-{topic}"
    checked = on_headrace.json("group", "create", group, "-t", topic, "--dry-run")
    assert [(each["group"], each["status"]) for each in checked] == [(group, "ok")]
    assert group not in [each["group"] for each in on_headrace.json("group", "list")]
    done = on_headrace.run("group", "create", group, "-t", topic, "--assignor", "equal")
    assert done.stdout.decode().split() == ["GROUP", "STATUS", group, "created"]
    again = on_headrace.run("group", "create", group, code=1)
    assert b"attached to" in again.stderr

    assert on_headrace.json("group", "attach", group, other) == {
        "group": group,
        "topics": sorted([topic, other]),
        "pattern": None,
        "assignor": "equal",
    }
    on_headrace.run("group", "detach", group, topic, "--dry-run")
    table = on_headrace.run("group", "detach", group, topic).stdout.decode().split()
    assert table == ["GROUP", "TOPICS", "PATTERN", "ASSIGNOR", group, other, "-", "equal"]
    twice = on_headrace.run("group", "detach", group, topic, code=1)
    assert b"is not attached to" in twice.stderr
    on_headrace.run("group", "detach", group, "--all")
    found = on_headrace.json("group", "attach", group, "--pattern", f"{topic}.*")
    assert (found["topics"], found["pattern"]) == ([], f"{topic}.*")
    [described] = on_headrace.json("group", "describe", group)
    assert described["state"] == "Empty"
    assert described["attached"]["pattern"] == f"{topic}.*"
    text = on_headrace.run("group", "describe", group).stdout.decode()
    assert f"attached to: {topic}.*" in text
    missing = on_headrace.run("group", "attach", "no-such-group", topic, code=1)
    assert b"group 'no-such-group' does not exist" in missing.stderr
    on_headrace.run("group", "delete", group, "--yes")
    on_headrace.run("group", "describe", group, code=1)


def test_members_follow_what_is_typed(on_headrace: Commands, new_topic: NewTopic) -> None:
    topic = new_topic("-p", "1")
    group = f"group-of-{topic}"
    on_headrace.run("group", "create", group)
    with Consumer(on_headrace.target.bootstrap, group=group, **HEARTBEAT) as member:
        member.subscribe()
        member.poll(0.1)
        on_headrace.run("group", "attach", group, topic)
        while not member.assignment():
            member.poll(0.1)
        on_headrace.run("group", "detach", group, topic)
        while member.assignment():
            member.poll(0.1)


def test_commands_that_need_headrace_name_the_alternative_on_kafka(
    headrace: Commands, new_topic: NewTopic
) -> None:
    if headrace.target.name == "headrace":
        pytest.skip("Headrace keeps what groups are attached to")
    topic = new_topic("-p", "1")
    for arguments in (("create", "g"), ("attach", "g", topic), ("detach", "g", "--all")):
        refused = headrace.run("group", *arguments, code=2)
        assert b"does not store attachments, so group 'g' has none" in refused.stderr
        assert b"subscribe to topics or to a pattern" in refused.stderr


# Offsets of groups


def test_offsets_are_shown_and_moved(headrace: Commands, new_topic: NewTopic) -> None:
    topic = new_topic("-p", "1")
    group = f"group-of-{topic}"
    ten_records(headrace, topic)
    nothing = headrace.run("group", "offsets", group, code=1)
    assert b"has no committed offsets" in nothing.stderr
    shown = headrace.json("group", "reset", group, "-t", topic, "--to", "earliest", "--dry-run")
    assert shown == [{"topic": topic, "partition": 0, "committed_offset": None, "new_offset": 0}]
    headrace.run("group", "offsets", group, code=1)
    unasked = headrace.run("group", "reset", group, "-t", topic, "--to", "4", code=2)
    assert b"--yes or --dry-run" in unasked.stderr

    table = headrace.run("group", "reset", group, "-t", f"{topic}:0", "--to", "4", "--yes")
    assert table.stdout.decode().splitlines()[1].split() == [topic, "0", "-", "4"]
    for place, offset in (("+3", 7), ("-5", 2), ("latest", 10), ("-100", 0), ("@2013-01-31", 0)):
        [row] = headrace.json("group", "reset", group, "--to", place, "--yes")
        assert row["new_offset"] == offset
        assert committed(headrace, group) == [offset]
    saved = headrace.run("group", "offsets", group, "--format", "json").stdout
    headrace.run("group", "reset", group, "--to", "5", "--yes")
    headrace.run("group", "reset", group, "--from-file", "-", "--yes", data=saved)
    assert committed(headrace, group) == [0]
    text = headrace.run("group", "offsets", group, "-t", topic).stdout.decode()
    assert text.split()[:4] == ["TOPIC", "PARTITION", "COMMITTED", "EPOCH"]
    elsewhere = headrace.run("group", "offsets", group, "-t", "elsewhere", code=1)
    assert b"no committed offsets" in elsewhere.stderr


def test_a_group_with_members_is_not_moved(headrace: Commands, new_topic: NewTopic) -> None:
    topic = new_topic("-p", "1")
    group = f"group-of-{topic}"
    with Consumer(headrace.target.bootstrap, group=group, **HEARTBEAT) as member:
        member.subscribe([topic])
        assert member.assignment()
        refused = headrace.run(
            "group", "reset", group, "-t", topic, "--to", "latest", "--yes", code=1
        )
        assert b"has members" in refused.stderr


def test_lag_is_shown_once_or_watched(headrace: Commands, new_topic: NewTopic) -> None:
    topic = new_topic("-p", "2")
    group = f"group-of-{topic}"
    ten_records(headrace, topic)
    headrace.run("group", "reset", group, "-t", topic, "--to", "earliest", "--yes")
    [row] = headrace.json("group", "lag", group)
    assert (row["group"], row["topic"], row["partitions"], row["lag"]) == (group, topic, 2, 10)
    assert 0 <= row["lag_s"] < 60
    table = headrace.lines("group", "lag", group)
    assert table[0].split() == ["GROUP", "TOPIC", "PARTITIONS", "LAG", "LAG", "S"]
    watched = headrace.lines(
        "group", "lag", group, "--watch", "--interval", "0.1", "-n", "2", "--format", "json"
    )
    first, second = (json.loads(line)[0] for line in watched)
    assert first["finished_per_s"] is None
    assert (second["finished_per_s"], second["written_per_s"], second["lag"]) == (0.0, 0.0, 10)
    assert second["done_in_s"] is None, "never, at this rate"
    headrace.run("group", "reset", group, "--to", "latest", "--yes")
    [row] = headrace.json("group", "lag", group)
    assert (row["lag"], row["lag_s"]) == (0, None)
    nothing = headrace.run("group", "lag", "no-such-group", code=1)
    assert b"has no committed offsets" in nothing.stderr


def test_members_are_removed(headrace: Commands, new_topic: NewTopic) -> None:
    topic = new_topic("-p", "1")
    group = f"group-of-{topic}"
    bootstrap = headrace.target.bootstrap
    member = Consumer(bootstrap, group=group, group_instance_id="static", **HEARTBEAT)
    member.subscribe([topic])
    assert member.assignment()
    member.close()  # a static member keeps its partitions
    assert b"--yes" in headrace.run("group", "remove-member", group, "-i", "static", code=2).stderr
    done = headrace.json("group", "remove-member", group, "-i", "static", "--yes")
    assert [(each["member"], each["status"]) for each in done] == [("static", "removed")]
    with Admin(bootstrap) as admin:
        assert admin.members(group) == []
    again = headrace.run("group", "remove-member", group, "-i", "static", "nobody", "-y", code=1)
    rows = [line.split() for line in again.stdout.decode().splitlines()[1:]]
    assert rows == [["nobody", "UNKNOWN_MEMBER_ID"], ["static", "UNKNOWN_MEMBER_ID"]]


# The groups of a topic


def test_members_are_stopped(on_headrace: Commands, new_topic: NewTopic) -> None:
    topic = new_topic("-p", "2")
    group = f"group-of-{topic}"
    address = on_headrace.target.bootstrap
    with (
        Consumer(address, group=group, group_instance_id="static", **HEARTBEAT) as static,
        Consumer(address, group=group, **HEARTBEAT) as busy,
    ):
        for member in (static, busy):
            member.subscribe([topic])
        while not (static.joined and busy.joined):
            static.poll(0.1)
            busy.poll(0.1)
        shown = on_headrace.run("group", "describe", group).stdout.decode()
        who = busy.group_metadata().member_id
        assert who in shown
        assert "static" in shown
        reader = threading.Thread(target=read_until_stopped, args=(static,))
        reader.start()
        stopping = ("group", "stop-member", group)
        done = on_headrace.run(*stopping, "-i", "static")
        assert done.stdout.decode().split() == ["MEMBER", "STATUS", "static", "stopped"]
        assert b"was asked to stop" in done.stderr
        reader.join()
        # Its program does not poll: it is removed by force, and a script can see it.
        forced = on_headrace.run(*stopping, who, "--timeout", "1s", "--format", "json", code=1)
        [row] = json.loads(forced.stdout)
        assert (row["member"], row["status"], row["error"]) == (who, "removed by force", None)
        assert b"may join again" in forced.stderr
    missing = on_headrace.run(*stopping, "nobody", "--format", "json", code=1)
    [row] = json.loads(missing.stdout)
    assert (row["status"], row["error"]) == ("failed", "UNKNOWN_MEMBER_ID")


def read_until_stopped(consumer: Consumer) -> None:
    while not consumer.stopped:
        consumer.poll(0.1)


def test_kafka_cannot_stop_members(headrace: Commands, new_topic: NewTopic) -> None:
    if headrace.target.name == "headrace":
        pytest.skip("Headrace can")
    group = f"group-of-{new_topic('-p', '1')}"
    refused = headrace.run("group", "stop-member", group, "somebody", code=1)
    assert b"not a Headrace broker" in refused.stderr


def test_a_topic_lists_its_groups(headrace: Commands, new_topic: NewTopic) -> None:
    topic, other = new_topic("-p", "2"), new_topic("-p", "1")
    group = f"group-of-{topic}"
    ten_records(headrace, topic)
    assert headrace.json("topic", "describe", topic)[0]["groups"] == []
    headrace.run("group", "reset", group, "-t", topic, "--to", "earliest", "--yes")
    headrace.run("group", "reset", f"group-of-{other}", "-t", other, "--to", "earliest", "--yes")
    [found] = headrace.json("topic", "describe", topic)[0]["groups"]
    assert found == {
        "group": group,
        "state": "Empty",
        "members": 0,
        "attached": False,
        "committed_partitions": 2,
        "lag": 10,
    }
    table = headrace.run("topic", "describe", topic).stdout.decode()
    assert table.splitlines()[-1].split() == [group, "Empty", "0", "-", "2", "10"]
    assert "groups" not in headrace.json("topic", "describe", topic, "--no-groups")[0]


def test_a_topic_lists_groups_that_are_attached_to_it(
    on_headrace: Commands, new_topic: NewTopic
) -> None:
    topic = new_topic("-p", "1")
    on_headrace.run("group", "create", f"all-of-{topic}", "--pattern", f"{topic}.*")
    [found] = on_headrace.json("topic", "describe", topic)[0]["groups"]
    assert (found["group"], found["attached"], found["lag"]) == (f"all-of-{topic}", True, None)
