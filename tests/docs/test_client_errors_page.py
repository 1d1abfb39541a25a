"""Every row of docs/reference/client-errors.md raises what it says, and the client works afterwards."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import headrace
from headrace import TopicPartition, errors
from tests.fixtures.processes import running_server

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "client-errors.md"
LINE = re.compile(r"^\| ([^|]+) \| `([^|]+)` \| (\w+Error) \| ([^|]+) \|$", re.MULTILINE)
LINES = {what: (code, kind, text) for what, code, kind, text in LINE.findall(PAGE.read_text())}
OPTIONS: dict[str, Any] = {"group": "g", "auto_offset_reset": "earliest"}


def fill(target: Any) -> None:
    with headrace.Admin(target) as admin:
        admin.create_topic("t", 2)
    with headrace.Producer(target) as producer:
        for partition, value in enumerate([b"1", b"{"]):
            producer.send("t", value, partition=partition)


@pytest.fixture(scope="module", params=["in process", "tcp"])
def target(request, tmp_path_factory) -> Iterator[Any]:
    if request.param == "in process":
        with headrace.Broker() as broker:
            fill(broker)
            yield broker
        return
    with running_server(tmp_path_factory.mktemp("served")) as running:
        fill(running.bootstrap)
        yield running.bootstrap


def poll_twice(consumer: headrace.Consumer) -> None:
    """Poll while another thread is inside a poll."""
    consumer.seek_to_end()
    begun = threading.Event()
    errors_there: list[Exception] = []

    def poll() -> None:
        begun.set()
        try:
            consumer.poll(0.5)
        except errors.ConcurrentPollError as error:
            errors_there.append(error)

    other = threading.Thread(target=poll)
    other.start()
    begun.wait()
    try:
        while other.is_alive():
            consumer.poll(0.001)
    finally:
        other.join()
    raise errors_there[0]


def start_nowhere(target: Any) -> None:
    with headrace.Consumer(target, group="nowhere", auto_offset_reset="none") as consumer:
        consumer.assign([TopicPartition("t", 0)])
        consumer.poll(5)


def read_as_json(target: Any) -> None:
    with headrace.Consumer(target, serde="json", auto_offset_reset="earliest") as consumer:
        consumer.assign([TopicPartition("t", 1)])
        consumer.poll(5)


def offsets_of_a_group(producer: headrace.Producer, consumer: headrace.Consumer) -> None:
    with producer.transaction() as transaction:
        transaction.send_offsets({TopicPartition("t", 0): 1}, consumer)


def shut_out(producer: headrace.Producer) -> None:
    """Write after another producer has fenced this one."""
    producer.init_transactions()
    servers = producer.config.bootstrap_servers
    target = producer._driver.target if hasattr(producer._driver, "target") else servers
    with headrace.Producer(target, transactional_id="transactional") as another:
        another.init_transactions()
    with producer.transaction():
        producer.send("t", b"x")


def test_every_row_of_the_table_is_parsed() -> None:
    table = PAGE.read_text()
    rows = [line for line in table.splitlines() if line.startswith("| ")]
    assert len(LINES) == len(rows) - 1 >= 52


PROGRAMS = (poll_twice, start_nowhere, read_as_json, offsets_of_a_group, shut_out)


@pytest.mark.parametrize("what", LINES)
def test_wrong_use_raises_the_exception_of_the_table(target, what: str) -> None:
    code, kind, text = LINES[what]
    with (
        headrace.Consumer(target, **OPTIONS) as consumer,
        headrace.Consumer(target, **OPTIONS) as assigned,
        headrace.Consumer(target) as groupless,
        headrace.Producer(target, max_block_ms=5_000) as producer,
        headrace.Producer(target, serde="json") as json_producer,
        headrace.Admin(target) as admin,
        headrace.Producer(target, transactional_id="transactional") as transactional,
    ):
        zero, one = (TopicPartition("t", number) for number in range(2))
        assigned.assign([zero])
        names = {
            **{each.__name__: each for each in PROGRAMS},
            "transactional": transactional,
            "admin": admin,
            "headrace": headrace,
            "target": target,
            "consumer": consumer,
            "groupless": groupless,
            "json_producer": json_producer,
            "producer": producer,
            "assigned": assigned,
            "zero": zero,
            "one": one,
        }
        with pytest.raises(getattr(errors, kind), match=re.escape(text)) as raised:
            exec(code, names)
        assert type(raised.value) is getattr(errors, kind) or kind == "ApiError"
        if "close" not in code:
            assert producer.send("t", b"2", partition=0).result(10).partition == 0
            assigned.seek(zero, 0)
            assert assigned.poll(10, max_records=1)[0].value == b"1"
