"""The archive under kill -9: the files that its table has list the input, once, as plain readers of Parquet see it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.spark.chaos import rounds
from tests.spark.chaos.kills import INPUT, MASTER, Row, parse_row

COMMAND = [sys.executable, "-m", "headrace.cli", "archive"]


class Archive:
    """`headrace archive run`: the driver is the command."""

    repeats = False

    def __init__(self) -> None:
        self._read: dict[str, list[Row]] = {}

    def prepare(self, bootstrap: str, directory: Path) -> None:
        self._bootstrap, self._table = bootstrap, directory / "table"

    def command(self) -> list[str]:
        words = [
            "run",
            INPUT,
            "--table",
            str(self._table),
            "--interval",
            "500ms",
            "--bootstrap",
            self._bootstrap,
        ]
        return [*COMMAND, *words, "--master", MASTER]

    def rows(self) -> list[Row]:
        """What is in the files that the table has now."""
        if not (self._table / "_delta_log").exists():
            return []
        listed = subprocess.run(
            [*COMMAND, "files", str(self._table)], capture_output=True, text=True, check=True
        )
        for path in listed.stdout.split():
            if path not in self._read:
                values = pq.read_table(path, columns=["value"])["value"].to_pylist()
                self._read[path] = [parse_row(value) for value in values]
        return [row for path in listed.stdout.split() for row in self._read[path]]


@pytest.mark.slow
@pytest.mark.timeout(rounds.TIMEOUT_S)
def test_every_record_is_archived_once(tmp_path: Path) -> None:
    rounds.tell(tmp_path, Archive)
