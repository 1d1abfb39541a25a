"""Other projects' clients with the broker of the pytest plugin: they work with it, and survive its faults."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from headrace.testing import ApiKey, Broker, delay, drop_connection, error

PROGRAM = Path(__file__).with_name("drivers_of_clients.py")
WAIT_S = 45.0

pytestmark = pytest.mark.parametrize("client", ["confluent", "kafka-python", "aiokafka"])


def produce(client: str, broker: Broker, topic: str, *values: str) -> None:
    command = [sys.executable, str(PROGRAM), client, "produce", broker.bootstrap, topic, *values]
    done = subprocess.run(command, capture_output=True, text=True, timeout=90, check=False)
    assert done.returncode == 0, done.stderr


@contextmanager
def consuming(
    client: str, broker: Broker, topic: str, group: str = "g"
) -> Iterator[subprocess.Popen[str]]:
    """A consumer that runs in a separate process during a block."""
    command = [sys.executable, str(PROGRAM), client, "consume", broker.bootstrap, topic, group]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        yield process
        _, problems = process.communicate(timeout=60)
        assert process.returncode == 0, problems
    finally:
        process.kill()
        process.communicate()


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def values(broker: Broker, topic: str) -> list[bytes]:
    return [record.value for record in broker.messages(topic)]


def test_a_client_writes_and_reads(client, headrace_broker, headrace_topic) -> None:
    produce(client, headrace_broker, headrace_topic, "a", "b")
    assert values(headrace_broker, headrace_topic) == [b"a", b"b"]
    with consuming(client, headrace_broker, headrace_topic) as consumer:
        headrace_broker.wait_for(group="g", state="Stable", members=1, timeout_s=WAIT_S)
        assert [line(consumer), line(consumer)] == ["a", "b"]
        headrace_broker.wait_caught_up("g", timeout_s=WAIT_S)
    headrace_broker.wait_for(group="g", state="Empty", timeout_s=WAIT_S)


def test_a_refused_write_is_tried_again(client, headrace_broker, headrace_topic) -> None:
    fault = headrace_broker.faults.on(ApiKey.PRODUCE, once=error("NOT_LEADER_OR_FOLLOWER"))
    produce(client, headrace_broker, headrace_topic, "a")
    assert fault.hits == 1
    assert values(headrace_broker, headrace_topic) == [b"a"]


def test_a_write_whose_answer_is_lost_is_written_once(
    client, headrace_broker, headrace_topic
) -> None:
    fault = headrace_broker.faults.on(ApiKey.PRODUCE, once=drop_connection(handled=True))
    produce(client, headrace_broker, headrace_topic, "a")
    assert fault.hits == 1
    assert values(headrace_broker, headrace_topic) == [b"a"]


def test_a_moved_leader_is_found_again(client, headrace_broker, headrace_topic) -> None:
    produce(client, headrace_broker, headrace_topic, "a")
    with consuming(client, headrace_broker, headrace_topic) as consumer:
        assert line(consumer) == "a"
        headrace_broker.faults.move_leader(headrace_topic)
        asked = headrace_broker.faults.on(ApiKey.METADATA, lambda exchange: exchange.proceed())
        headrace_broker.wait_until(
            lambda: asked.hits, timeout_s=WAIT_S, what="a request for metadata"
        )
        produce(client, headrace_broker, headrace_topic, "b")
        assert line(consumer) == "b"
        headrace_broker.wait_caught_up("g", timeout_s=WAIT_S)
    assert [record.leader_epoch for record in headrace_broker.messages(headrace_topic)] == [0, 1]


def test_a_refused_read_is_tried_again(client, headrace_broker, headrace_topic) -> None:
    fault = headrace_broker.faults.on(ApiKey.FETCH, once=error("NOT_LEADER_OR_FOLLOWER"))
    produce(client, headrace_broker, headrace_topic, "a")
    with consuming(client, headrace_broker, headrace_topic) as consumer:
        assert line(consumer) == "a"
        assert fault.hits == 1
        headrace_broker.wait_caught_up("g", timeout_s=WAIT_S)


def test_an_expired_member_joins_again(client, headrace_broker, headrace_topic) -> None:
    produce(client, headrace_broker, headrace_topic, "a")
    with consuming(client, headrace_broker, headrace_topic) as consumer:
        assert line(consumer) == "a"
        headrace_broker.wait_for(group="g", state="Stable", members=1, timeout_s=WAIT_S)
        joined = headrace_broker.faults.on(ApiKey.JOIN_GROUP, lambda exchange: exchange.proceed())
        headrace_broker.faults.expire_member("g")
        headrace_broker.wait_until(lambda: joined.hits, timeout_s=WAIT_S, what="a join")
        headrace_broker.wait_for(group="g", state="Stable", members=1, timeout_s=WAIT_S)
        headrace_broker.wait_caught_up("g", timeout_s=WAIT_S)


def test_time_that_leaps_ends_a_session(client, headrace_broker, headrace_topic) -> None:
    produce(client, headrace_broker, headrace_topic, "a")
    with consuming(client, headrace_broker, headrace_topic) as consumer:
        assert line(consumer) == "a"
        headrace_broker.wait_caught_up("g", timeout_s=WAIT_S)
        joined = headrace_broker.faults.on(ApiKey.JOIN_GROUP, lambda exchange: exchange.proceed())
        headrace_broker.advance(60_000)
        headrace_broker.wait_until(lambda: joined.hits, timeout_s=WAIT_S, what="a join")
        headrace_broker.wait_for(group="g", state="Stable", members=1, timeout_s=WAIT_S)


def test_a_broker_of_an_older_release_is_spoken_to(client, headrace_broker, headrace_topic) -> None:
    headrace_broker.faults.max_versions("2.8")
    slow = headrace_broker.faults.on(ApiKey.FETCH, once=delay(0.2))
    produce(client, headrace_broker, headrace_topic, "a")
    with consuming(client, headrace_broker, headrace_topic) as consumer:
        assert line(consumer) == "a"
        assert slow.hits == 1
        headrace_broker.wait_caught_up("g", timeout_s=WAIT_S)
