"""Every row of the table of wrong uses in docs/guides/clients.md raises what it says; the client works afterwards."""

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

PAGE = Path(__file__).resolve().parents[2] / "docs" / "guides" / "clients.md"
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
    """Write when another producer has taken over the name."""
    producer.init_transactions()
    servers = producer.config.bootstrap_servers
    target = producer._driver.target if hasattr(producer._driver, "target") else servers
    with headrace.Producer(target, transactional_id="transactional") as another:
        another.init_transactions()
    with producer.transaction():
        producer.send("t", b"x")


def test_the_table_is_read() -> None:
    table = PAGE.read_text().partition("## What is not told")[0]
    rows = [line for line in table.splitlines() if line.startswith("| ")]
    assert len(LINES) == len(rows) - 1 >= 52


PROGRAMS = (poll_twice, start_nowhere, read_as_json, offsets_of_a_group, shut_out)


@pytest.mark.parametrize("what", LINES)
def test_wrong_use_is_told(target, what: str) -> None:
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
        with pytest.raises(getattr(errors, kind), match=re.escape(text)) as told:
            exec(code, names)
        assert type(told.value) is getattr(errors, kind) or kind == "ApiError"
        if "close" not in code:
            assert producer.send("t", b"2", partition=0).result(10).partition == 0
            assigned.seek(zero, 0)
            assert assigned.poll(10, max_records=1)[0].value == b"1"


def test_a_callback_that_takes_the_senders_lock_waits_for_itself_unless_it_is_an_rlock() -> None:
    assert "`with lock: producer.send(...)`" in PAGE.read_text()
    with headrace.Broker() as broker, headrace.Producer(broker, linger_ms=0) as producer:
        broker.create_topic("t", 1)
        for make, got_it in ((threading.Lock, False), (threading.RLock, True)):
            lock: Any = make()
            outcomes: list[bool] = []

            def told(_: Any, lock: Any = lock, outcomes: list[bool] = outcomes) -> None:
                outcomes.append(lock.acquire(timeout=0.01))

            with lock:
                while not outcomes:
                    producer.send("t", b"x", on_delivery=told)
            assert outcomes[0] is got_it
            producer.flush()


def test_the_program_with_records_prints_what_it_says(capsys: pytest.CaptureFixture[str]) -> None:
    section = PAGE.read_text().partition("## Records and their types")[2].partition("\n## ")[0]
    (program,) = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    exec(
        compile(program, "docs/guides/clients.md", "exec", dont_inherit=True),
        {"__name__": "orders"},
    )
    assert capsys.readouterr().out.strip() == program.partition("it printed: ")[2].strip()


def test_the_page_names_every_field_of_a_record() -> None:
    section = PAGE.read_text().partition("## Records and their types")[2].partition("\n## ")[0]
    named = set(
        re.findall(r"`(\w+)`", "".join(re.findall(r"^\| (`.*?) \|", section, re.MULTILINE)))
    )
    has = {name for name in vars(headrace.ConsumerRecord) if not name.startswith("_")}
    assert named == has - {"decoded_bytes"}


def test_the_program_with_transactions_of_others_finds_an_open_one(
    capsys: pytest.CaptureFixture[str],
) -> None:
    section = PAGE.read_text().partition("### Transactions of others")[2].partition("\n## ")[0]
    (program,) = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    with headrace.Broker() as broker:
        broker.create_topic("t", 1)
        with headrace.Producer(broker, transactional_id="x") as producer:
            producer.init_transactions()
            producer.begin_transaction()
            producer.send("t", b"half").result(30)
            program = program.replace('"localhost:9092"', repr(broker.listen()))
            program = program.replace("longer_than_ms=900_000", "longer_than_ms=None")
            exec(compile(program, "docs/guides/clients.md", "exec", dont_inherit=True), {})
    told = capsys.readouterr().out
    assert "TransactionDescription(transactional_id='x', state='Ongoing'" in told
    assert "LogDirDescription(" in told
    assert "FeatureLevel(" in told


class EnoughError(Exception):
    """Ends the program of the section on transactions."""


def test_the_program_with_transactions_handles_records_of_an_aborted_one_again() -> None:
    section = PAGE.read_text().partition("## Transactions")[2].partition("\n## ")[0]
    program = re.findall(r"```python\n(.*?)```", section, re.DOTALL)[0]
    calls: list[bytes] = []

    def make_invoice(value: bytes) -> bytes:
        calls.append(value)
        if calls == [b"1", b"2"]:
            raise errors.AbortableTransactionError("it is aborted")
        if value == b"3":
            raise EnoughError
        if calls == [b"1", b"2", b"1", b"2"]:
            broker.publish("orders", b"3", partition=0)
        return b"invoice " + value

    with headrace.Broker(configs={"group.initial.rebalance.delay.ms": "0"}) as broker:
        for topic in ("orders", "invoices"):
            broker.create_topic(topic, 1)
        with headrace.Consumer(broker, group="billing", enable_auto_commit=False) as first:
            first.assign({TopicPartition("orders", 0): 0})
            first.commit({TopicPartition("orders", 0): 0})
        for number in (b"1", b"2"):
            broker.publish("orders", number, partition=0)
        names: dict[str, Any] = {"make_invoice": make_invoice, "__name__": "billing"}
        program = program.replace('"localhost:9092"', repr(broker.listen()))
        try:
            with pytest.raises(EnoughError):
                exec(compile(program, "docs/guides/clients.md", "exec", dont_inherit=True), names)
            found = [record.value for record in broker.read("invoices", 0, 0)]
            assert found == [b"invoice 1", b"invoice 2"]
            committed = names["consumer"].committed()
            assert committed[TopicPartition("orders", 0)].offset == 2
        finally:
            names["consumer"].close()
            names["producer"].close()
    assert calls == [b"1", b"2", b"1", b"2", b"3"]
