"""The archive under kill -9: for plain readers of Parquet, the files of its table have each input record once."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from headrace.spark.archive.addresses import open_location
from tests.fixtures.s3_server import ENVIRONMENT, new_bucket, s3_server
from tests.integration.spark.chaos import rounds
from tests.integration.spark.chaos.kills import INPUT, MASTER, Row, parse_row

COMMAND = [sys.executable, "-m", "headrace.cli", "archive"]


class Archive:
    """`headrace archive run`: the driver is the command."""

    repeats = False

    def __init__(self) -> None:
        self._read: dict[str, list[Row]] = {}

    def prepare(self, bootstrap: str, directory: Path) -> None:
        self._bootstrap, self._table = bootstrap, open_location(self.table(directory))

    def table(self, directory: Path) -> str:
        """The location of the archive's table."""
        return str(directory / "table")

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
        """Return the rows in the present files of the table."""
        if self._table.find("_delta_log") is None:
            return []
        listed = subprocess.run(
            [*COMMAND, "files", str(self._table)], capture_output=True, text=True, check=True
        )
        for path in listed.stdout.split():
            if path not in self._read:
                below = path.removeprefix(f"{self._table / ''}").lstrip("/")
                with self._table.open(below) as file:
                    values = pq.read_table(file, columns=["value"])["value"].to_pylist()
                self._read[path] = [parse_row(value) for value in values]
        return [row for path in listed.stdout.split() for row in self._read[path]]


class ArchiveInStore(Archive):
    """The archive with a table in an object store."""

    def table(self, directory: Path) -> str:
        return f"s3://{new_bucket(os.environ['AWS_ENDPOINT_URL'])}/table"


@pytest.mark.slow
@pytest.mark.timeout(rounds.TIMEOUT_S)
@rounds.MANY_ROUNDS
def test_every_record_is_archived_once(tmp_path: Path) -> None:
    rounds.run_all(tmp_path, Archive)


@pytest.mark.slow
@pytest.mark.timeout(rounds.TIMEOUT_S)
@rounds.MANY_ROUNDS
def test_every_record_is_archived_once_in_a_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with s3_server() as url:
        for name, value in {**ENVIRONMENT, "AWS_ENDPOINT_URL": url}.items():
            monkeypatch.setenv(name, value)
        rounds.run_all(tmp_path, ArchiveInStore)
