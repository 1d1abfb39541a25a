"""Commands, program and table of docs/guides/bridge.md and docs/guides/kinesis-producer.md are right."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from headrace.kinesis import AwsSettings, ProducerSettings
from headrace.testing import Broker
from headrace.testing.kinesis import FakeAws, Limits
from tests.docs.console import run_shell, steps, users_environment

DOCS = Path(__file__).resolve().parents[2] / "docs"
BRIDGE = (DOCS / "guides" / "bridge.md").read_text()
PRODUCER = (DOCS / "guides" / "kinesis-producer.md").read_text()


def test_the_commands_of_the_bridge_print_what_the_page_shows(tmp_path: Path) -> None:
    keys = {"AWS_ACCESS_KEY_ID": "any", "AWS_SECRET_ACCESS_KEY": "any"}
    serving, *rest = steps(BRIDGE)
    streams = re.findall(r"--stream (\w+):?(\d*)", serving.text)
    with FakeAws(limits=Limits().unthrottled()) as aws, Broker() as broker:
        for stream, shards in streams:
            aws.kinesis.create_stream(stream, int(shards or 1))
        environment = {**users_environment(), **keys, "HEADRACE_BOOTSTRAP": broker.bootstrap}
        for step in rest:
            text = step.text.replace("http://127.0.0.1:4567", aws.endpoint_url)
            command = f"python - <<'EOF'\n{text}\nEOF" if step.kind == "python" else text
            ran = run_shell(command, tmp_path, environment)
            assert (ran.stdout + ran.stderr).splitlines() == [line for line in step.shown if line]
            assert ran.returncode == 0


def test_the_programs_of_the_producer_run(capsys: pytest.CaptureFixture[str]) -> None:
    asyncio_program, script = [step for step in steps(PRODUCER) if step.kind == "python"]
    with FakeAws() as aws:
        aws.kinesis.create_stream("orders", 1)
        settings = AwsSettings(
            region=aws.region,
            endpoint_url=aws.endpoint_url,
            access_key_id="fake",
            secret_access_key="fake",
        )
        asyncio.run(main_of(asyncio_program.text)(settings))
        assert sorted(record.data for record in aws.kinesis.records("orders")) == [
            b"2 apples",
            b"3 pears",
        ]
        shard, number, sub_sequence = capsys.readouterr().out.split()
        assert (shard, number.isdecimal(), sub_sequence) == ("shardId-000000000000", True, "None")
        main_of(script.text)(settings)
        assert len(aws.kinesis.records("orders")) == 103
        assert capsys.readouterr().out.startswith("SentRecord(shard='shardId-000000000000'")


def main_of(program: str) -> Callable[[AwsSettings], Any]:
    names: dict[str, Any] = {"__name__": "page"}
    exec(compile(program, "kinesis-producer.md", "exec"), names)
    main: Callable[[AwsSettings], Any] = names["main"]
    return main


def test_the_settings_of_the_page_are_those_of_the_producer() -> None:
    table = dict(re.findall(r"^\| (`[^|]*`) \| ([^|]+) \|", PRODUCER, re.MULTILINE))
    shown = {
        name: value
        for names, values in table.items()
        for name, value in zip(
            re.findall(r"`(\w+)`", names), re.split(r", (?=\d,)", values), strict=True
        )
    }
    real = {
        field.name: getattr(ProducerSettings(), field.name) for field in fields(ProducerSettings)
    }
    assert shown.keys() == real.keys()
    for name, text in shown.items():
        number, _, unit = text.replace(",", "").partition(" ")
        expected = (
            number == "True" if number in {"True", "False"} else int(number) << (20 if unit else 0)
        )
        assert real[name] == expected, name
