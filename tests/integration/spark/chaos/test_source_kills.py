"""The streaming source under kill -9: Spark's file sink has each input record once."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from urllib.parse import unquote, urlparse

import pyarrow.parquet as pq
import pytest

from tests.integration.spark.chaos import rounds
from tests.integration.spark.chaos.kills import Row, parse_row


class Source:
    """A driver that copies a topic to files. Spark's file sink commits a batch with a list of its files."""

    repeats = False

    def __init__(self) -> None:
        self._read: dict[str, list[Row]] = {}

    def prepare(self, bootstrap: str, directory: Path) -> None:
        self._bootstrap, self._directory = bootstrap, directory

    def command(self) -> list[str]:
        return [
            sys.executable,
            "-m",
            "tests.integration.spark.chaos.driver",
            "source",
            self._bootstrap,
            str(self._directory),
        ]

    def rows(self) -> list[Row]:
        for log in (self._directory / "out" / "_spark_metadata").glob("[0-9]*"):
            for line in log.read_text().splitlines()[1:]:
                uri = json.loads(line)["path"]
                if uri not in self._read:
                    values = pq.read_table(unquote(urlparse(uri).path), columns=["value"])["value"]
                    self._read[uri] = [parse_row(value) for value in values.to_pylist()]
        return [row for rows in self._read.values() for row in rows]


@pytest.mark.slow
@pytest.mark.timeout(rounds.TIMEOUT_S)
def test_every_record_is_read_once(tmp_path: Path) -> None:
    rounds.run_all(tmp_path, Source)
