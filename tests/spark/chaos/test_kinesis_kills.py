"""The source of Kinesis under kill -9 and resharding: what Spark's file sink has is the stream, once.

Only in `make chaos-spark`.
"""

from __future__ import annotations

import os
import random
import sys
import threading
import time
from pathlib import Path

import pytest

from headrace.testing.kinesis import FakeAws, Limits
from tests.spark.chaos import rounds
from tests.spark.chaos.kills import PARTITIONS, Story
from tests.spark.chaos.test_source_kills import Source

KEYS = 1 << 128
STREAM = "flights"


class StreamOfKinesis(Source):
    """Stream to files."""

    def command(self) -> list[str]:
        arguments = [self._bootstrap, STREAM, str(self._directory)]
        return [sys.executable, "-m", "tests.spark.chaos.kinesis_driver", *arguments]


class StreamFeeder:
    """Puts `number:count` all the time, over all shards."""

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
        while not self._over.wait(0.01):
            for _ in range(self._chance.randrange(8)):
                number = self._chance.randrange(PARTITIONS)
                value = f"{number}:{self.sent[number]}".encode()
                spread = self._chance.randrange(KEYS)
                self._fake.kinesis.put(STREAM, value, str(number), explicit_hash_key=spread)
                self.sent[number] += 1


class KinesisStory(Story):
    """Victims are killed while shards are split and merged."""

    def tell(self, fake: FakeAws, victims: list[str]) -> None:
        self._subject.prepare(fake.endpoint_url, self._directory)
        feeder = StreamFeeder(fake, random.Random(self._random.randrange(1 << 32)))
        kill = {"driver": self._kill_driver, "worker": self._kill_worker}
        try:
            self._start_driver()
            for victim in victims:
                self._wait_for_rows()
                time.sleep(self._random.uniform(0, 2))  # any moment of a batch
                self._reshard(fake)
                kill[victim]()
                self.counts[victim] += 1
                self._reshard(fake)
            self._wait_for_rows()
            feeder.stop()
            self._settle(feeder.sent)
            self._stop_driver()
            self._judge(feeder.sent)
        finally:
            self._end_all()
            feeder.stop()

    def _reshard(self, fake: FakeAws) -> None:
        shards = [each.name for each in fake.kinesis.shards(STREAM, only_open=True)]
        if len(shards) > 2 and self._random.random() < 0.5:
            place = self._random.randrange(len(shards) - 1)
            fake.kinesis.merge(STREAM, shards[place], shards[place + 1])
            self.counts["merges"] += 1
        else:
            fake.kinesis.split(STREAM, self._random.choice(shards))
            self.counts["splits"] += 1


@pytest.mark.slow
@pytest.mark.timeout(rounds.TIMEOUT_S)
@pytest.mark.skipif("HEADRACE_SPARK_ROUNDS" not in os.environ, reason="for make chaos-spark")
def test_every_record_of_a_stream_is_read_once(tmp_path: Path) -> None:
    for number in range(rounds.ROUNDS):
        seed = int(rounds.SEED) if rounds.SEED else random.randrange(1 << 32)
        victims = ["worker", "driver", "worker"]
        random.Random(seed).shuffle(victims)
        place = tmp_path / str(number)
        place.mkdir()
        with FakeAws(limits=Limits().unthrottled()) as fake:
            fake.kinesis.create_stream(STREAM, 3)
            story = KinesisStory(place, StreamOfKinesis(), seed)
            try:
                story.tell(fake, victims)
            except BaseException as error:
                error.add_note(f"HEADRACE_SPARK_SEED={seed}: {victims}; logs are in {place}")
                raise
        print({"subject": "kinesis", "seed": seed, "victims": victims, **story.counts})
