"""`consume --last`: the newest records of all partitions together."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headrace
from headrace.cli.commands.consume_last import last_records
from headrace.testing import Broker
from tests.effort import examples
from tests.fixtures.command_line import run_command

pytestmark = pytest.mark.slow  # not in `make check`


def lines(broker: Broker, *arguments: str) -> list[dict[str, object]]:
    done = run_command(
        "consume",
        "t",
        "-e",
        "--format",
        "json",
        *arguments,
        environment={"HEADRACE_BOOTSTRAP": broker.bootstrap},
    )
    assert done.code == 0, done
    return [json.loads(line) for line in done.out.splitlines()]


def test_partitions_are_merged_by_time() -> None:
    with Broker() as broker:
        broker.create_topic("t", partitions=3)
        for number in range(12):
            broker.publish("t", str(number), partition=number % 2, timestamp_ms=1000 + number)
        assert [each["value"] for each in lines(broker, "--last", "3")] == ["9", "10", "11"]
        assert [each["value"] for each in lines(broker, "--last", "2", "-p", "0")] == ["8", "10"]
        assert [each["value"] for each in lines(broker, "--last", "4", "-n", "2")] == ["8", "9"]
        assert len(lines(broker, "--last", "99")) == 12


def test_offsets_without_a_record_do_not_count() -> None:
    with Broker() as broker:
        broker.create_topic("t", partitions=1)
        broker.publish("t", "tagged", tags=["a"])
        for number in range(40):
            broker.publish("t", str(number))
        assert [each["value"] for each in lines(broker, "--last", "2", "--tag", "a")] == ["tagged"]
        with headrace.Producer(broker, transactional_id="x") as producer:
            producer.init_transactions()
            for _ in range(5):  # the record and the marker of each take two offsets
                with producer.transaction():
                    producer.send("t", "in a transaction")
        assert len(lines(broker, "--last", "4")) == 4


@settings(max_examples=examples(20))
@given(
    times=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 20)), max_size=30),
    count=st.integers(1, 12),
)
def test_order_within_a_partition_holds(times: list[tuple[int, int]], count: int) -> None:
    with Broker() as broker:
        broker.create_topic("t", partitions=3)
        for partition, time_ms in times:
            broker.publish("t", b"", partition=partition, timestamp_ms=time_ms)
        with headrace.Consumer(broker, serde="bytes", auto_offset_reset="earliest") as consumer:
            found, ends = last_records(consumer, consumer.partitions_for("t"), count)
    assert len(found) == min(count, len(times))
    assert sum(ends.values()) == len(times)
    for partition in range(3):
        offsets = [each.offset for each in found if each.partition == partition]
        held = sum(1 for each, _ in times if each == partition)
        assert offsets == list(range(held - len(offsets), held))
