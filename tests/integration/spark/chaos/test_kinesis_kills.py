"""The Kinesis source and sink under kill -9 and resharding.

Spark's file sink has each record of the stream once. A second query copies the stream to another stream, which has
each record at least once.
"""

from __future__ import annotations

import random
import sys
import threading
import time
from pathlib import Path

import pytest

from headrace.testing.kinesis import FakeAws, Limits
from tests.integration.spark.chaos import rounds
from tests.integration.spark.chaos.kills import COPIES, INPUT, PARTITIONS, KillRun, Row, parse_row
from tests.integration.spark.chaos.test_source_kills import Source

KEYS = 1 << 128
VICTIMS = ("worker", "driver", "worker") if rounds.ROUNDS > 1 else ("driver",)


class StreamOfKinesis(Source):
    """A driver that copies a stream to files and to another stream."""

    def command(self) -> list[str]:
        words = [
            "-m",
            "tests.integration.spark.chaos.driver",
            "kinesis",
            self._bootstrap,
            str(self._directory),
        ]
        return [sys.executable, *words]


class StreamFeeder:
    """A thread that puts `number:count` all the time, over all shards."""

    def __init__(self, fake: FakeAws, chance: random.Random) -> None:
        self.sent = [0] * PARTITIONS
        self._fake, self._chance = fake, chance
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="feeder")
        self._thread.start()

    def stop(self) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._over.wait(0.02):
            for _ in range(self._chance.randrange(8)):
                number = self._chance.randrange(PARTITIONS)
                value = f"{number}:{self.sent[number]}".encode()
                spread = self._chance.randrange(KEYS)
                self._fake.kinesis.put(INPUT, value, str(number), explicit_hash_key=spread)
                self.sent[number] += 1


class KinesisKillRun(KillRun):
    """A run that kills its victims while shards are split and merged."""

    def run_on(self, fake: FakeAws, victims: list[str]) -> None:
        """Kill each victim, and check the files and the copies."""
        self._fake = fake
        self._subject.prepare(fake.endpoint_url, self._directory)
        feeder = StreamFeeder(fake, random.Random(self._random.randrange(1 << 32)))
        kill = {"driver": self._kill_driver, "worker": self._kill_worker}
        try:
            self._start_driver()
            for victim in victims:
                self._wait_for_rows()
                time.sleep(self._random.uniform(0, 2))  # any moment of a batch
                self._reshard()
                kill[victim]()
                self.counts[victim] += 1
                self._reshard()
            self._wait_for_rows()
            feeder.stop()
            self._settle(feeder.sent)
            self._stop_driver()
            self._check(feeder.sent)
        finally:
            self._end_all()
            feeder.stop()

    def _copies(self) -> list[Row]:
        return [parse_row(each.data) for each in self._fake.kinesis.records(COPIES)]

    def _settle(self, sent: list[int]) -> None:
        super()._settle(sent)
        self._until(lambda: len(set(self._copies())) >= sum(sent), "some copies are never written")

    def _check(self, sent: list[int]) -> None:
        super()._check(sent)
        copies = self._copies()
        self.counts["copied twice"] = len(copies) - len(set(copies))
        assert set(copies) == set(self._subject.rows()), "the copies are not what was read"

    def _reshard(self) -> None:
        kinesis = self._fake.kinesis
        shards = [each.name for each in kinesis.shards(INPUT, only_open=True)]
        if len(shards) > 2 and self._random.random() < 0.5:
            place = self._random.randrange(len(shards) - 1)
            kinesis.merge(INPUT, shards[place], shards[place + 1])
            self.counts["merges"] += 1
        else:
            kinesis.split(INPUT, self._random.choice(shards))
            self.counts["splits"] += 1


@pytest.mark.slow
@pytest.mark.timeout(rounds.TIMEOUT_S)
def test_every_record_of_a_stream_is_read_once_and_copied(tmp_path: Path) -> None:
    for number in range(rounds.ROUNDS):
        seed = int(rounds.SEED) if rounds.SEED else random.randrange(1 << 32)
        victims = list(VICTIMS)
        random.Random(seed).shuffle(victims)
        place = tmp_path / str(number)
        place.mkdir()
        with FakeAws(limits=Limits().unthrottled()) as fake:
            fake.kinesis.create_stream(INPUT, 3)
            fake.kinesis.create_stream(COPIES, 2)
            run = KinesisKillRun(place, StreamOfKinesis(), seed)
            try:
                run.run_on(fake, victims)
            except BaseException as error:
                error.add_note(f"HEADRACE_SPARK_SEED={seed}: {victims}; logs are in {place}")
                raise
        print({"subject": "kinesis", "seed": seed, "victims": victims, **run.counts})
