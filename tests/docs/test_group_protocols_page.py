"""The program of docs/guides/group-protocols.md reads a topic as a member of a KIP-848 group."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import headrace
from headrace.testing import Broker

PAGE = Path(__file__).resolve().parents[2] / "docs" / "guides" / "group-protocols.md"


def test_the_program_prints_the_record_and_joins_with_the_consumer_protocol(
    capsys: pytest.CaptureFixture[str],
) -> None:
    (program,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    with Broker() as broker:
        broker.create_topic("orders")
        broker.publish("orders", b"one")
        text = program.replace("localhost:9092", broker.bootstrap)
        assert text != program
        exec(compile(text, PAGE.name, "exec", dont_inherit=True), {"__name__": "billing"})
        assert capsys.readouterr().out == "b'one'\n"
        assert list(broker.committed("billing").values()) == [1]
        with headrace.Admin(broker.bootstrap) as admin:
            assert admin.describe_group("billing").protocol == "uniform"
