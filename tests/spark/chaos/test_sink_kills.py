"""The streaming sink under kill -9: what a reader of committed records finds in the output topic is the input, once."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import headrace
from tests.spark.chaos import rounds
from tests.spark.chaos.kills import PARTITIONS, Row, parse_row

OUTPUT = "output"


class Sink:
    """Topic to topic, exactly once as it is the default."""

    repeats = False

    def __init__(self) -> None:
        self._rows: list[Row] = []

    def prepare(self, bootstrap: str, directory: Path) -> None:
        self._bootstrap, self._directory = bootstrap, directory
        with headrace.Admin(bootstrap) as admin:
            admin.create_topic(OUTPUT, PARTITIONS)
        self._next = dict.fromkeys(range(PARTITIONS), 0)

    def command(self) -> list[str]:
        return [
            sys.executable,
            "-m",
            "tests.spark.chaos.driver",
            "sink",
            self._bootstrap,
            str(self._directory),
        ]

    def rows(self) -> list[Row]:
        """What was committed since the last look, and before; not all, while records of a later batch come."""
        places = [headrace.TopicPartition(OUTPUT, number) for number in range(PARTITIONS)]
        with headrace.Consumer(
            self._bootstrap,
            isolation_level="read_committed",
        ) as consumer:
            consumer.assign(places)
            for place in places:
                consumer.seek(place, self._next[place.partition])
            while found := consumer.poll(0.3):
                self._rows += [parse_row(record.value) for record in found]
                self._next |= {record.partition: record.offset + 1 for record in found}
        return list(self._rows)


@pytest.mark.slow
@pytest.mark.timeout(rounds.TIMEOUT_S)
def test_every_record_is_written_once(tmp_path: Path) -> None:
    rounds.tell(tmp_path, Sink)
