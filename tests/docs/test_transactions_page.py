"""The programs of docs/guides/transactions.md run."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import headrace
from headrace import TopicPartition, errors
from tests.conformance.clients.observer import wait_until

PAGE = Path(__file__).resolve().parents[2] / "docs" / "guides" / "transactions.md"
PROGRAMS = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)


class EnoughError(Exception):
    """Ends the first program of the page, which runs for ever."""


def test_the_program_processes_records_of_an_aborted_transaction_again() -> None:
    program = PROGRAMS[0]
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
                exec(
                    compile(program, "docs/guides/transactions.md", "exec", dont_inherit=True),
                    names,
                )
            # The broker answers the commit before it writes the markers. The records are visible a moment later.
            found = wait_until(
                "the invoices",
                lambda: [record.value for record in broker.read("invoices", 0, 0)] or None,
            )
            assert found == [b"invoice 1", b"invoice 2"]
            committed = names["consumer"].committed()
            assert committed[TopicPartition("orders", 0)].offset == 2
        finally:
            names["consumer"].close()
            names["producer"].close()
    assert calls == [b"1", b"2", b"1", b"2", b"3"]


def test_the_administrator_program_finds_an_open_transaction(
    capsys: pytest.CaptureFixture[str],
) -> None:
    program = PROGRAMS[1]
    with headrace.Broker() as broker:
        broker.create_topic("t", 1)
        with headrace.Producer(broker, transactional_id="x") as producer:
            producer.init_transactions()
            producer.begin_transaction()
            producer.send("t", b"half").result(30)
            program = program.replace('"localhost:9092"', repr(broker.listen()))
            program = program.replace("longer_than_ms=900_000", "longer_than_ms=None")
            exec(compile(program, "docs/guides/transactions.md", "exec", dont_inherit=True), {})
    printed = capsys.readouterr().out
    assert "TransactionDescription(transactional_id='x', state='Ongoing'" in printed
    assert "LogDirDescription(" in printed
    assert "FeatureLevel(" in printed
