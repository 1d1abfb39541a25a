"""If the broker's disk is full, `headrace produce` reports it within seconds and continues to retry."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from pathlib import Path

import headrace

MORE_THAN_ANY_DISK_HAS = 2**62
WITHIN_S = 15.0
"""The longest time in seconds until the error: three seconds after the first refusal, plus the start of the command."""


def test_produce_names_the_full_disk_within_seconds(tmp_path: Path) -> None:
    configs = {"headrace.log.dir.min.free.bytes": MORE_THAN_ANY_DISK_HAS}
    with headrace.Broker(tmp_path / "data", configs=configs) as broker:
        broker.create_topic("t", 1)
        command = [sys.executable, "-m", "headrace", "produce", "t", "-b", broker.listen()]
        with subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        ) as process:
            ends = threading.Timer(60, process.kill)
            ends.start()
            began_s = time.monotonic()
            try:
                assert process.stdin is not None
                assert process.stdout is not None
                process.stdin.write("x\n")
                process.stdin.close()
                said = next(process.stdout, "")
                took_s = time.monotonic() - began_s
            finally:
                ends.cancel()
                process.kill()
    assert "KAFKA_STORAGE_ERROR" in said
    assert "free space on the broker's disk" in said
    assert took_s < WITHIN_S
