"""The streaming sink under kill -9: what a reader of committed records finds in the output topic is the input, once."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.integration.spark.chaos import rounds
from tests.integration.spark.chaos.outputs import TopicOutput


class Sink(TopicOutput):
    """Topic to topic, exactly once as it is the default."""

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
