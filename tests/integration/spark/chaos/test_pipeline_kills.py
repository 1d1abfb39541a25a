"""A pipeline under kill -9, run by its command: topic to topic, with a state that must be right after each restart."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.integration.spark.chaos import rounds
from tests.integration.spark.chaos.kills import MASTER
from tests.integration.spark.chaos.outputs import OUTPUT, TopicOutput

PROGRAM = f'''
from headrace.pipelines import pipeline, topic


@pipeline(
    source=topic("input", format="text"),
    sink=topic("{OUTPUT}", format="text"),
    trigger="200 milliseconds",
)
def once(records):
    """Each value once: what was read twice would be dropped, what the state has too much would be lost."""
    return records.withWatermark("timestamp", "1 hour").dropDuplicatesWithinWatermark(["value"]).select("value")
'''


class Pipeline(TopicOutput):
    """`headrace pipeline run`: the driver is the command, which restarts failed queries by itself."""

    def prepare(self, bootstrap: str, directory: Path) -> None:
        super().prepare(bootstrap, directory)
        self._file = directory / "program.py"
        self._file.write_text(PROGRAM)
        self._state = directory / "state"

    def command(self) -> list[str]:
        words = ["pipeline", "run", str(self._file), "--bootstrap", self.bootstrap]
        words += [
            "--state",
            str(self._state),
            "--master",
            MASTER,
            "--conf",
            "spark.sql.shuffle.partitions=2",
        ]
        return [sys.executable, "-m", "headrace.cli", *words]


@pytest.mark.slow
@pytest.mark.timeout(rounds.TIMEOUT_S)
@rounds.MANY_ROUNDS
def test_every_record_passes_once(tmp_path: Path) -> None:
    rounds.run_all(tmp_path, Pipeline)
