"""docs/start/coming-from-*.md: the programs before and after do the same, where their libraries are installed."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from headrace.testing import Broker, FakeAws

pytest_plugins = "pytester"

START = Path(__file__).resolve().parents[2] / "docs" / "start"
TIMEOUT_S = 120
LIBRARIES = ("confluent_kafka", "kafka", "aiokafka", "headrace")
"""The modules that the programs of the Kafka page import, in the order of the page."""


def programs(page: str) -> list[str]:
    text = (START / f"coming-from-{page}.md").read_text()
    return re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)


def with_orders(broker: Broker) -> None:
    broker.create_topic("orders")
    broker.create_topic("invoices")
    for number, customer in enumerate(("alice", "bob", "alice"), 1):
        broker.publish("orders", json.dumps({"id": number, "total": 9.5}), key=customer)


INVOICES = [(b"alice", {"order": 1}), (b"bob", {"order": 2}), (b"alice", {"order": 3})]


def invoices(broker: Broker) -> list[tuple[Any, Any]]:
    return [(each.key, json.loads(each.value)) for each in broker.messages("invoices")]


@pytest.mark.parametrize("library", LIBRARIES)
def test_the_program_writes_an_invoice_for_each_order(library: str, tmp_path: Path) -> None:
    program = programs("kafka")[LIBRARIES.index(library)]
    assert re.search(rf"^(import|from) {library}\b", program, re.MULTILINE)
    with Broker() as broker:
        with_orders(broker)
        file = tmp_path / "billing.py"
        file.write_text(program.replace("localhost:9092", broker.bootstrap))
        done = subprocess.run(
            [sys.executable, str(file)],
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert invoices(broker) == INVOICES
        assert list(broker.committed("billing").values()) == [3]


def test_the_worker_writes_an_invoice_for_each_order() -> None:
    program = programs("kafka")[len(LIBRARIES)]
    names: dict[str, Any] = {"__name__": "billing"}
    exec(compile(program, "coming-from-kafka.md", "exec", dont_inherit=True), names)
    with Broker() as broker:
        with_orders(broker)
        with names["app"].test(broker) as trial:
            trial.wait_idle()
        assert sorted(invoices(broker), key=str) == sorted(INVOICES, key=str)


def test_the_tests_after_testcontainers_pass(pytester: pytest.Pytester) -> None:
    before, stand_in, fixtures = programs("testcontainers")
    assert (
        before.replace("testcontainers.kafka", "headrace.testing").split("\n\n\n")[1]
        == (stand_in.split("\n\n\n")[1])
    )
    (pytester.path / "test_stand_in.py").write_text(stand_in)
    (pytester.path / "test_fixtures.py").write_text(fixtures)
    result = pytester.runpytest_subprocess("-p", "no:cacheprovider", timeout=TIMEOUT_S)
    result.assert_outcomes(passed=2)


@pytest.mark.parametrize("page", ["faststream", "kcl", "testcontainers"])
def test_every_other_program_is_valid_python(page: str) -> None:
    for program in programs(page):
        compile(program, page, "exec", dont_inherit=True)


def test_the_worker_after_faststream_writes_invoices_and_dead_letters() -> None:
    *_, program = programs("faststream")
    names: dict[str, Any] = {"__name__": __name__}
    exec(compile(program, "coming-from-faststream.md", "exec", dont_inherit=True), names)
    with Broker() as broker:
        broker.create_topic("orders")
        with names["app"].test(broker) as trial:
            trial.produce("orders", {"id": 1, "total": 9.5}, key=b"alice")
            trial.produce("orders", {"id": 2, "total": -1}, key=b"bob")
            trial.wait_idle()
            assert invoices(broker) == [(b"alice", {"order": 1})]
            [letter] = trial.messages("dlq.orders")
            assert letter.header("dlq-error-type") == "ValueError"
            assert letter.header("dlq-error-attempts") == "3"


def test_the_worker_after_the_kcl_reads_the_stream(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    *_, program = programs("kcl")
    names: dict[str, Any] = {"__name__": __name__}
    exec(compile(program, "coming-from-kcl.md", "exec", dont_inherit=True), names)
    with FakeAws(region="eu-central-1") as aws:
        monkeypatch.setenv("AWS_ENDPOINT_URL", aws.endpoint_url)
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "fake")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "fake")
        aws.kinesis.create_stream("orders")
        aws.kinesis.put("orders", b'{"id": 1, "total": 9.5}', "alice")
        with names["app"].test() as trial:
            trial.wait_idle(30)
    assert capsys.readouterr().out == "order 1 costs 9.5\n"
