"""A fake of Kinesis behind HTTP in this process, for Spark's Python workers; each test has a stream of its own."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from headrace.testing.kinesis import FakeAws, Limits

KEYS = 1 << 128


@pytest.fixture(scope="session")
def fake() -> Iterator[FakeAws]:
    with FakeAws(limits=Limits().unthrottled(), region="eu-central-1") as aws:
        yield aws


@dataclass
class Stream:
    """A stream of the fake, and the options with which Spark reaches it."""

    spark: Any
    fake: FakeAws
    name: str
    home: Path
    put_count: int = 0
    values: list[str] = field(default_factory=list)

    @property
    def aws(self) -> dict[str, str]:
        return {
            "stream": self.name,
            "region": self.fake.region,
            "endpointUrl": self.fake.endpoint_url,
            "accessKeyId": "fake",
            "secretAccessKey": "fake-secret",
        }

    @property
    def store(self) -> str:
        return f"sqlite:///{self.home / 'store.db'}"

    def put(self, count: int) -> list[str]:
        """Put records with numbers, distributed over all open shards."""
        new = [f"{self.put_count + each:06d}" for each in range(count)]
        self.put_count += count
        for each in new:
            spread = int(each) * 2654435761 % 1000 * (KEYS // 1000)
            self.fake.kinesis.put(self.name, each.encode(), f"key-{each}", explicit_hash_key=spread)
        self.values += new
        return new

    def open_shards(self) -> list[str]:
        return [each.name for each in self.fake.kinesis.shards(self.name, only_open=True)]

    def batch(self, **options: Any) -> Any:
        return self._with(self.spark.read, options)

    def stream(self, **options: Any) -> Any:
        given = {"store": self.store, "startingPosition": "earliest", "pollInterval": "200ms"}
        return self._with(self.spark.readStream, {**given, **options})

    def _with(self, builder: Any, options: dict[str, Any]) -> Any:
        given = {name: value for name, value in (self.aws | options).items() if value is not None}
        return builder.format("headrace-kinesis").options(**given).load()

    def run(self, take: Callable[[Any, int], None], **options: Any) -> Any:
        """Run a query over the present records, and call `take` with each batch."""
        checkpoint = options.pop("checkpoint", self.home / "checkpoint")
        query = (
            self.stream(**options)
            .writeStream.foreachBatch(take)
            .option("checkpointLocation", str(checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        finish(query)
        return query

    def sink(self, **options: Any) -> Any:
        """Run a query over the present records, and write them to files."""
        query = (
            self.stream(**options)
            .selectExpr("shardId", "sequenceNumber", "CAST(data AS STRING) AS value")
            .writeStream.format("parquet")
            .option("checkpointLocation", str(self.home / "checkpoint"))
            .option("path", str(self.home / "sink"))
            .trigger(availableNow=True)
            .start()
        )
        finish(query)
        return query

    def sunk(self) -> list[str]:
        rows = self.spark.read.parquet(str(self.home / "sink")).collect()
        return sorted(row["value"] for row in rows)


def finish(query: Any) -> None:
    """Wait until a query has ended by itself."""
    query.awaitTermination(120)
    assert not query.isActive, "the stream did not end"
    if query.exception() is not None:
        raise query.exception()


@pytest.fixture
def stream(spark: Any, fake: FakeAws, tmp_path: Path) -> Callable[..., Stream]:
    def make(shards: int = 2) -> Stream:
        name = f"stream-{uuid.uuid4().hex[:12]}"
        fake.kinesis.create_stream(name, shards)
        return Stream(spark, fake, name, tmp_path)

    return make
