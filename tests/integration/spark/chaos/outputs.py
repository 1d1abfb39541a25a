"""The output topic that several subjects use."""

from __future__ import annotations

from pathlib import Path

import headrace
from tests.integration.spark.chaos.kills import PARTITIONS, Row, parse_row

OUTPUT = "output"


class TopicOutput:
    """A subject whose output is the committed records of a topic."""

    repeats = False

    def __init__(self) -> None:
        self._rows: list[Row] = []
        self._next = dict.fromkeys(range(PARTITIONS), 0)

    def prepare(self, bootstrap: str, directory: Path) -> None:
        self.bootstrap, self.directory = bootstrap, directory
        with headrace.Admin(bootstrap) as admin:
            admin.create_topic(OUTPUT, PARTITIONS)

    def rows(self) -> list[Row]:
        """Return the rows that are committed so far."""
        places = [headrace.TopicPartition(OUTPUT, number) for number in range(PARTITIONS)]
        with headrace.Consumer(self.bootstrap, isolation_level="read_committed") as consumer:
            consumer.assign(places)
            for place in places:
                consumer.seek(place, self._next[place.partition])
            while found := consumer.poll(0.3):
                self._rows += [parse_row(record.value) for record in found]
                self._next |= {record.partition: record.offset + 1 for record in found}
        return list(self._rows)
