"""The streaming sink under kill -9: a reader of committed records finds each input record once in the output topic."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.integration.spark.chaos import rounds
from tests.integration.spark.chaos.outputs import TopicOutput


class Sink(TopicOutput):
    """A driver that copies a topic to a topic, exactly once by default."""

    def command(self) -> list[str]:
        words = [
            "-m",
            "tests.integration.spark.chaos.driver",
            "sink",
            self.bootstrap,
            str(self.directory),
        ]
        return [sys.executable, *words]


@pytest.mark.slow
@pytest.mark.timeout(rounds.TIMEOUT_S)
def test_every_record_is_written_once(tmp_path: Path) -> None:
    rounds.run_all(tmp_path, Sink)
