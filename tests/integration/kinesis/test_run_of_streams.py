"""The command `headrace run` for an app that reads streams: its output if the app cannot start, and if it can."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path

from headrace.testing.kinesis.aws import FakeAws

PROGRAM = """
import headrace
from headrace.kinesis import kinesis

app = headrace.App(group="billing")


@app.worker(kinesis("orders", leases="memory://run"){arguments})
async def bill(order: bytes) -> None:
    app.stop()
"""


def run(folder: Path, arguments: str = "", **environment: str) -> tuple[int, list[str]]:
    """Return the exit code and the text on standard error."""
    (folder / "billing.py").write_text(PROGRAM.format(arguments=arguments))
    kept = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    keys = {"AWS_ACCESS_KEY_ID": "fake", "AWS_SECRET_ACCESS_KEY": "fake"}
    nowhere = {"AWS_CONFIG_FILE": "/none", "AWS_SHARED_CREDENTIALS_FILE": "/none"}
    done = subprocess.run(
        [sys.executable, "-m", "headrace.cli", "run", "billing:app"],
        env={**kept, **keys, **nowhere, **environment},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return done.returncode, done.stderr.splitlines()


def test_invalid_settings_are_reported_in_one_line(tmp_path: Path) -> None:
    code, lines = run(tmp_path)
    assert code == 2
    assert lines[0].startswith("running billing:app")
    assert lines[1:] == [
        "Error: opening a client of kinesis: no AWS region is set: set region, AWS_REGION, or a profile that has one"
    ]


def test_impossible_arguments_of_a_worker_are_reported_with_their_position(tmp_path: Path) -> None:
    code, [line] = run(tmp_path, ", batch=3")
    assert code == 2
    place = re.escape(str(tmp_path / "billing.py"))
    assert re.match(rf"Error: {place}, line 8: batch=3 needs a handler of batches", line)


def test_a_missing_server_is_named_within_seconds(tmp_path: Path) -> None:
    begun = time.monotonic()
    code, lines = run(tmp_path, AWS_REGION="eu-central-1", AWS_ENDPOINT_URL="http://127.0.0.1:1")
    assert time.monotonic() - begun < 20  # three seconds, and a margin for a busy machine
    assert code == 1
    assert len(lines) == 2
    assert lines[1].startswith(
        "Error: describing stream orders: no answer from http://127.0.0.1:1 in region eu-central-1: check region, "
        "endpoint_url and the network"
    )


def test_libraries_are_silent(tmp_path: Path) -> None:
    with FakeAws(region="eu-central-1") as aws:
        aws.kinesis.create_stream("orders", 1)
        aws.kinesis.put("orders", b"one", "alice")
        code, lines = run(tmp_path, AWS_REGION="eu-central-1", AWS_ENDPOINT_URL=aws.endpoint_url)
    assert code == 0, lines
    assert not [line for line in lines if "botocore" in line]
