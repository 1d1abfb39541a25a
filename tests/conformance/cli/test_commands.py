"""topic, produce, consume and group, as a user types them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable

import pytest

from tests.conformance.cli.conftest import TIMEOUT_S, Commands

NewTopic = Callable[..., str]


def test_topics_are_created_listed_described_and_deleted(headrace: Commands) -> None:
    created = headrace.run(
        "topic",
        "create",
        "made",
        "-p",
        "3",
        "-c",
        "retention.ms=86400000",
        "-c",
        "cleanup.policy=compact",
    )
    assert created.stdout.decode().splitlines()[1].split() == ["made", "created"]
    again = headrace.run("topic", "create", "made", "--format", "json", code=1)
    [outcome] = json.loads(again.stdout)
    assert (outcome["status"], outcome["error"]) == ("failed", "TOPIC_ALREADY_EXISTS")
    there = headrace.run(
        "topic", "create", "made", "new", "--if-not-exists", "-p", "99", "--format", "json"
    )
    outcomes = json.loads(there.stdout)
    assert [each["status"] for each in outcomes] == ["exists", "created"]
    assert [each["partitions"] for each in outcomes] == [3, 99]
    assert there.stderr == b"Warning: the topic made exists with 3 partitions, not 99\n"

    listed = {entry["topic"]: entry for entry in headrace.json("topic", "list")}
    assert listed["made"] == {"topic": "made", "partitions": 3, "replicas": 1, "internal": False}
    assert "__consumer_offsets" not in listed

    [described] = headrace.json("topic", "describe", "made")
    assert described["configs"] == {"retention.ms": "86400000", "cleanup.policy": "compact"}
    assert [entry["partition"] for entry in described["partitions"]] == [0, 1, 2]
    assert {(e["start_offset"], e["end_offset"]) for e in described["partitions"]} == {(0, 0)}
    assert "retention.ms=86400000" in headrace.run("topic", "describe", "made").stdout.decode()

    assert "all_configs" not in described
    [described] = headrace.json("topic", "describe", "made", "--configs")
    configs = {config["name"]: config for config in described["all_configs"]}
    assert configs["retention.ms"]["source"] == "dynamic_topic"
    first, *_, last = configs["retention.ms"]["synonyms"]
    assert first == {"name": "retention.ms", "value": "86400000", "source": "dynamic_topic"}
    assert last["source"] == "default"
    assert configs["segment.bytes"]["source"] == "default"
    table = headrace.run("topic", "describe", "made", "--configs").stdout.decode()
    [row] = [line.split() for line in table.splitlines() if line.startswith("retention.ms ")]
    assert row[:3] == ["retention.ms", "86400000", "dynamic_topic"]

    refused = headrace.run("topic", "delete", "made", code=2)
    assert b"--yes" in refused.stderr
    headrace.run("topic", "delete", "made", "--yes")
    missing = headrace.run("topic", "describe", "made", code=1)
    assert missing.stderr == b"Error: no topic 'made'\n"
    assert missing.stdout == b""


def test_topic_create_refuses_an_invalid_name_and_an_unknown_config(headrace: Commands) -> None:
    done = headrace.run("topic", "create", "no/slash", code=1)
    assert b"no/slash" in done.stderr
    assert b"INVALID_TOPIC_EXCEPTION" in done.stdout
    done = headrace.run("topic", "create", "unknown-config", "-c", "retention.mz=5", code=1)
    assert b"retention.mz" in done.stderr


def test_the_first_five_minutes(headrace: Commands, new_topic: NewTopic) -> None:
    topic = new_topic("-p", "3")
    produced = headrace.lines("produce", topic, "-k", "alice", data=b'{"id":1,"total":9.5}\n')
    consumed = headrace.lines(
        "consume", topic, "--from", "start", "-n", "1", "-f", "%t[%p]@%o %k %v\\n"
    )
    assert consumed == [f'{produced[0]} alice {{"id":1,"total":9.5}}']
    readable = headrace.lines("consume", topic, "-o", ":end")
    assert readable == [f'{produced[0]} alice: {{"id":1,"total":9.5}}']


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_consume_returns_the_produced_records(
    headrace: Commands, new_topic: NewTopic, codec: str
) -> None:
    topic = new_topic("-p", "1")
    lines = b"".join(b'{"number": %d, "text": "abc abc abc"}\n' % number for number in range(5000))
    reports = headrace.lines("produce", topic, "-z", codec, data=lines)
    assert reports == [f"{topic}[0]@{number}" for number in range(5000)]
    assert headrace.run("consume", topic, "-e", "-f", "%v\\n").stdout == lines


def test_templates_carry_everything_through_a_topic_and_back(
    headrace: Commands, new_topic: NewTopic
) -> None:
    first, second = new_topic("-p", "2"), new_topic("-p", "2")
    template = "%p %d %K %k%V{big32}%v%H %h{%K %k%V{byte}%v}"
    data = b"1 1700000000123 3 k\x00\n" + b"\0\0\0\x05\xff\n\n%b" + b"2 2 h1\x0121 h\x012"
    headrace.run("produce", first, "-f", template, "--format", "json", data=data)
    out = headrace.run("consume", first, "-e", "-f", template).stdout
    assert out == data
    headrace.run("produce", second, "-f", template, data=out)
    assert headrace.run("consume", second, "-e", "-f", template).stdout == data


def test_records_exported_as_json_can_be_imported(headrace: Commands, new_topic: NewTopic) -> None:
    first, second, single = new_topic("-p", "2"), new_topic("-p", "2"), new_topic("-p", "1")
    template = "%p %d %K %k%V{big32}%v%H %h{%K %k%V{byte}%v}"
    data = (
        b"1 1700000000123 3 k\x00\n" + b"\0\0\0\x05\xff\n\n%b" + b"2 2 h1\x0121 h\x012"
        b"0 1700000000124 0 \0\0\0\0" + b"2 1 a\x02\xff\xfe1 a\x011"
    )
    headrace.run("produce", first, "-f", template, data=data)
    headrace.run("produce", first, "-p", "1", "-Z", data=b"\n")
    exported = headrace.run("consume", first, "-e", "--format", "json").stdout
    headrace.run("produce", second, "--from-json", data=exported)
    again = headrace.run("consume", second, "-e", "--format", "json").stdout
    # Which partition comes first is up to the broker.
    lines = again.replace(second.encode(), first.encode()).splitlines()
    assert sorted(lines) == sorted(exported.splitlines())
    assert b'"value": null' in exported
    assert len(exported.splitlines()) == 3

    refused = headrace.run("produce", single, "--from-json", data=exported, code=1)
    assert b"no partition 1" in refused.stderr
    headrace.run("produce", single, "--from-json", "--repartition", data=exported)
    values = headrace.run("consume", single, "-e", "--format", "json").stdout.splitlines()
    assert {json.loads(line)["partition"] for line in values} == {0}
    # Without a topic each record goes where it came from.
    headrace.run("produce", "--from-json", data=exported)
    assert len(headrace.lines("consume", first, "-e")) == 6


@pytest.mark.parametrize("output", [(), ("-f", "%v\n"), ("--format", "json")])
def test_a_reader_that_goes_away_ends_the_command(
    headrace: Commands, new_topic: NewTopic, output: tuple[str, ...]
) -> None:
    topic = new_topic("-p", "1")
    headrace.run("produce", topic, data=b"a\nb\n")
    with headrace.start("consume", topic, *output) as following:
        assert following.stdout is not None
        assert following.stderr is not None
        assert b"a" in following.stdout.readline()
        following.stdout.close()
        assert following.wait(TIMEOUT_S) == 0
        assert following.stderr.read() == b""


def test_times_and_ranges_mean_what_they_say(headrace: Commands, new_topic: NewTopic) -> None:
    topic = new_topic("-p", "1")
    lines = b"1763771399999 before\n1763771400000 at\n1763771460000 after\n"  # 2025-11-22 00:30
    headrace.run("produce", topic, "-f", "%d %v\\n", data=lines)
    for text in ("2025-11-22 00:30", "2025-11-22T00:30", "2025-11-22 01:30+01:00"):
        read = headrace.lines("consume", topic, "-o", f"@{text}", "-e", "-f", "%v\\n")
        assert read == ["at", "after"]
        assert headrace.lines("consume", topic, "--since", text, "-e", "-f", "%v\\n") == read
    read = headrace.lines(
        "consume", topic, "-o", "@2025-11-22 00:30:2025-11-22 00:31", "-f", "%v\\n"
    )
    assert read == ["at"]
    assert b"ends before it begins" in headrace.run("consume", topic, "-o", "5:2", code=2).stderr
    late = headrace.run("produce", topic, "--deliver-at", "1h", data=b"x\n", code=2)
    assert b"use --delay 1h" in late.stderr


def test_bytes_of_arguments_need_not_be_text(headrace: Commands, new_topic: NewTopic) -> None:
    topic = new_topic("-p", "1")
    done = subprocess.run(
        [os.fsencode(each) for each in headrace.command("produce", topic, "-f")] + [b"\xff%v\n"],
        input=b"\xffa\n\xffb\n",
        env=headrace.environment,
        capture_output=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert headrace.lines("consume", topic, "-e", "-f", "%v\\n") == ["a", "b"]


def test_the_package_itself_is_the_command(headrace: Commands) -> None:
    command = [sys.executable, "-m", "headrace", "topc"]
    done = subprocess.run(command, capture_output=True, timeout=TIMEOUT_S, check=False)
    assert done.returncode == 2
    assert b"No such command 'topc'. Did you mean 'topic'?" in done.stderr


def test_json_lines_have_stable_keys(headrace: Commands, new_topic: NewTopic) -> None:
    topic = new_topic("-p", "1")
    headrace.run("produce", topic, "-f", "%d %k %v\\n", "-H", "a=b", data=b"1700000000001 k v\n")
    headrace.run("produce", topic, "-f", "%v{hex}\\n", "-Z", data=b"ff00\n\n")
    first, second, third = map(
        json.loads, headrace.lines("consume", topic, "-e", "--format", "json")
    )
    assert first.pop("leader_epoch") >= 0
    assert first == {
        "topic": topic,
        "partition": 0,
        "offset": 0,
        "timestamp_ms": 1700000000001,
        "key": "k",
        "value": "v",
        "headers": [{"key": "a", "value": "b"}],
    }
    assert (second["value"], second["value_encoding"], second["key"]) == ("/wA=", "base64", None)
    assert third["value"] is None


@pytest.mark.parametrize(
    ("offset", "expected"),
    [
        ("start", list(range(10))),
        ("end", []),
        ("7", [7, 8, 9]),
        ("+8", [8, 9]),
        ("-2", [8, 9]),
        ("2:5", [2, 3, 4]),
        ("2-5", [2, 3, 4]),
        (":3", [0, 1, 2]),
        (":end", list(range(10))),
        ("8:99", [8, 9]),
        ("@1700000000004", [4, 5, 6, 7, 8, 9]),
        ("@1700000000004:1700000000006", [4, 5]),
        ("@2030-01-01", []),
        ("99", []),
    ],
)
def test_consume_starts_and_stops_at_the_given_offsets(
    headrace: Commands, server, offset_topics: dict[str, str], offset: str, expected
) -> None:
    if server.name not in offset_topics:
        topic = offset_topics[server.name] = "offsets"
        headrace.run("topic", "create", topic, "-p", "1", "-c", "retention.ms=-1")
        data = b"".join(b"%d %d\n" % (1700000000000 + n, n) for n in range(10))
        # Several batches, so that positions inside and between them are met.
        for start in (0, 4):
            part = b"".join(
                data.splitlines(keepends=True)[start : start + 4 if start == 0 else None]
            )
            headrace.run("produce", topic, "-f", "%d %v\\n", data=part)
    lines = headrace.lines("consume", offset_topics[server.name], "-o", offset, "-e", "-f", "%v\\n")
    assert list(map(int, lines)) == expected


@pytest.fixture(scope="module")
def offset_topics() -> dict[str, str]:
    """Server to the topic that holds ten records."""
    return {}


def test_partitions_are_chosen(headrace: Commands, new_topic: NewTopic) -> None:
    topic = new_topic("-p", "3")
    for partition in "012":
        headrace.run("produce", topic, "-p", partition, data=partition.encode() * 2 + b"\n")
    lines = headrace.lines("consume", topic, "-e", "-p", "0,2", "-f", "%v\\n")
    assert sorted(lines) == ["00", "22"], "order holds inside a partition only"
    assert b"no partition 7" in headrace.run("consume", topic, "-p", "7", code=2).stderr
    assert (
        b"no partition 9" in headrace.run("produce", topic, "-p", "9", data=b"x\n", code=1).stderr
    )


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def finish(
    process: subprocess.Popen[bytes], number: signal.Signals | None = None
) -> tuple[int, bytes, bytes]:
    if number is not None:
        process.send_signal(number)
    try:
        out, err = process.communicate(timeout=TIMEOUT_S)
    finally:
        process.kill()
    return process.returncode, out, err


def test_a_group_remembers_what_was_printed(headrace: Commands, new_topic: NewTopic) -> None:
    topic = new_topic("-p", "2")
    group = f"group-of-{topic}"
    headrace.run("produce", topic, "-f", "%p %v\\n", data=b"0 a\n0 b\n1 c\n")
    assert sorted(headrace.lines("consume", topic, "-g", group, "-e", "-f", "%v\\n")) == [
        "a",
        "b",
        "c",
    ]
    headrace.run("produce", topic, "-f", "%p %v\\n", data=b"1 d\n0 e\n")
    [before] = headrace.json("group", "describe", group)
    assert (before["state"], before["total_lag"]) == ("Empty", 2)
    assert [(e["partition"], e["committed_offset"], e["lag"]) for e in before["partitions"]] == [
        (0, 2, 1),
        (1, 1, 1),
    ]
    follower = headrace.start("consume", topic, "-g", group, "-f", "%v\\n")
    wait_for(lambda: headrace.json("group", "describe", group)[0]["total_lag"] == 0)
    [during] = headrace.json("group", "describe", group)
    assert (during["state"], during["assignor"], len(during["members"])) == ("Stable", "uniform", 1)
    assert {entry["member_id"] for entry in during["partitions"]} == {
        during["members"][0]["member_id"]
    }
    code, out, err = finish(follower, signal.SIGINT)
    assert (code, sorted(out.split()), err) == (130, [b"d", b"e"], b"")
    wait_for(lambda: headrace.json("group", "describe", group)[0]["state"] == "Empty")
    assert group in {entry["group"] for entry in headrace.json("group", "list")}
    assert group in headrace.run("group", "list").stdout.decode()
    assert "total lag:   0" in headrace.run("group", "describe", group).stdout.decode()


def test_two_members_share_and_the_second_takes_over(
    headrace: Commands, new_topic: NewTopic
) -> None:
    topic = new_topic("-p", "4")
    group = f"group-of-{topic}"
    options = ("-g", group, "-f", "%v\\n", "-X", "heartbeat.interval.ms=100")
    first = headrace.start("consume", topic, *options)
    second = headrace.start("consume", topic, *options)

    def members() -> list[int]:
        [described] = headrace.json("group", "describe", group)
        if described["state"] != "Stable":
            return []
        return sorted(len(member["partitions"]) for member in described["members"])

    wait_for(lambda: headrace.run("group", "list").stdout.decode().count(group) == 1)
    wait_for(lambda: members() == [2, 2])
    headrace.run("produce", topic, "-f", "%p %v\\n", data=b"0 a\n1 b\n2 c\n3 d\n")
    wait_for(lambda: headrace.json("group", "describe", group)[0]["total_lag"] == 0)
    code, first_out, _ = finish(first, signal.SIGTERM)
    assert code == 143
    wait_for(lambda: members() == [4])
    headrace.run("produce", topic, "-f", "%p %v\\n", data=b"0 e\n1 f\n2 g\n3 h\n")
    wait_for(lambda: headrace.json("group", "describe", group)[0]["total_lag"] == 0)
    _, second_out, _ = finish(second, signal.SIGINT)
    assert sorted(first_out.split() + second_out.split()) == [bytes([n]) for n in b"abcdefgh"]
    assert len(first_out.split()) == 2


def test_a_line_is_delivered_while_the_input_stays_open(
    headrace: Commands, new_topic: NewTopic
) -> None:
    topic = new_topic("-p", "1")
    process = headrace.start("produce", topic)
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(b"one\n")
    process.stdin.flush()
    assert process.stdout.readline() == f"{topic}[0]@0\n".encode()
    process.stdin.write(b"two")
    code, out, _ = finish(process)
    assert (code, out) == (0, f"{topic}[0]@1\n".encode())


def test_a_reader_that_leaves_is_no_failure(headrace: Commands, new_topic: NewTopic) -> None:
    topic = new_topic("-p", "1")
    headrace.run("produce", topic, "-q", data=b"x" * 200 + b"\n" + b"y\n" * 50_000)
    process = headrace.start("consume", topic)
    assert process.stdout is not None
    assert process.stdout.readline().endswith(b"x\n")
    process.stdout.close()
    assert process.wait(TIMEOUT_S) == 0
    assert process.stderr is not None
    assert process.stderr.read() == b""
    assert process.stdin is not None
    process.stdin.close()
    process.stderr.close()


def test_failures_are_one_line_and_an_exit_code(headrace: Commands, new_topic: NewTopic) -> None:
    topic = new_topic("-p", "1")
    nothing = headrace.run("topic", "list", "--bootstrap", "127.0.0.1:1", code=1)
    assert nothing.stderr.count(b"\n") == 1
    assert b"headrace dev" in nothing.stderr
    for command in (("produce", topic), ("consume", topic)):
        done = headrace.run(*command, "-b", "127.0.0.1:1", data=b"x\n", code=1)
        assert b"cannot connect to 127.0.0.1:1" in done.stderr
    assert b"no topic" in headrace.run("consume", "missing", code=1).stderr
    assert b"no group" in headrace.run("group", "describe", "missing", code=1).stderr
    assert b"did you mean" in headrace.run("topic", "list", "-X", "client.idd=x", code=2).stderr
    assert b"unknown token" in headrace.run("consume", topic, "-f", "%q", code=2).stderr
    assert b"is not an offset" in headrace.run("consume", topic, "-o", "soon", code=2).stderr
    wrong = headrace.run("produce", topic, "-f", "%k:%v\\n", data=b"a:1\nb\n", code=1)
    assert wrong.stderr.startswith(b"Error: record 2")
    assert headrace.lines("consume", topic, "-e", "-f", "%k=%v\\n") == ["a=1"], (
        "what came before counts"
    )


def test_properties_reach_the_client(headrace: Commands, new_topic: NewTopic) -> None:
    topic = new_topic("-p", "1")
    headrace.run(
        "produce",
        topic,
        "-X",
        "acks=1",
        "-X",
        "linger.ms=0",
        "-X",
        "compression.type=lz4",
        data=b"a\n",
    )
    headrace.run("produce", topic, "-X", "max.request.size=10", data=b"too large\n", code=1)
    lines = headrace.lines(
        "consume", topic, "-e", "-f", "%v\\n", "-X", "isolation.level=read_committed"
    )
    assert lines == ["a"]
