"""The log of `headrace run`: the start, failures with their tracebacks, JSON on request."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from headrace import Broker

pytestmark = pytest.mark.slow  # not in `make check`

PROGRAM = """
import headrace

app = headrace.App({address!r})

@app.worker("orders", group="billing", ordering="key", retry=1)
@app.publishes("invoices")
async def bill(order: dict):
    return order["totl"]
"""
LINE = PROGRAM.splitlines().index('    return order["totl"]') + 1


@pytest.fixture
def program(tmp_path: Path):
    with Broker(configs={"group.initial.rebalance.delay.ms": "0"}) as broker:
        (tmp_path / "billing.py").write_text(PROGRAM.format(address=broker.listen()))
        broker.publish("orders", b'{"id": 1}')
        yield tmp_path


def run(directory: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "headrace.cli", "run", "billing:app", "-C", str(directory)]
    return subprocess.run(
        [*command, *options], capture_output=True, text=True, timeout=60, check=False
    )


def test_the_log_starts_with_the_topics_and_ends_with_the_failing_line(
    program: Path,
) -> None:
    done = run(program)
    assert done.returncode == 1
    assert "bill starts: reads topics orders; group billing; delivery at_least_once" in done.stderr
    assert "ordering key; concurrency 16; attempts 1, then stop; results to invoices" in done.stderr
    assert "brokers 127.0.0.1:" in done.stderr
    place = f'billing.py", line {LINE}, in bill\n    return order["totl"]'
    assert done.stderr.count(place) == 2, "when it happened, and at the end"
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("Error: the worker 'bill' stopped: the record at offset 0 of orders-0")
    assert f"KeyError('totl') at {program / 'billing.py'}:{LINE}" in last


def test_a_log_can_be_json(program: Path) -> None:
    done = run(program, "--log-format", "json", "--log-level", "warning")
    lines = [json.loads(line) for line in done.stderr.splitlines() if line.startswith("{")]
    [told] = [line for line in lines if "failed in attempt 1" in line["event"]]
    assert told["level"] == "warning"
    assert told["traceback"].endswith("KeyError: 'totl'")
