"""The modules that a worker loads."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import sys
import headrace

app = headrace.App(group="billing")

@app.worker("orders", dead_letter=True, retry=2)
async def bill(value: bytes, context: headrace.Context) -> None:
    assert context.record.topic == "orders"

with app.test() as running:
    running.produce("orders", b"1")
    running.wait_idle()

print(*(name for name in sys.modules if name.startswith(("headrace.kinesis", "headrace.core.lease"))))
"""


@pytest.mark.slow
def test_a_worker_on_topics_loads_no_module_of_kinesis() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == []
