"""Spark's source with kinesis-local, and its rounds in a table of dynalite: a check of the fakes."""

from __future__ import annotations

import uuid
from typing import Any

from headrace.kinesis.client.settings import AwsClient
from headrace.kinesis.reading.shards import StreamShards
from headrace.spark.kinesis.connections import shared_connections
from tests.integration.kinesis.servers import dummy_aws
from tests.integration.spark.kinesis.queries import KEYS, Query


class Local:
    """A stream of kinesis-local."""

    def __init__(self, url: str) -> None:
        self.name = f"flights-{uuid.uuid4().hex[:8]}"
        self.aws = dummy_aws(url)
        self.values: list[str] = []
        self.do("create_stream", StreamName=self.name, ShardCount=2)
        self.settle()

    def do(self, operation: str, **arguments: Any) -> Any:
        async def call() -> Any:
            client: AwsClient = await shared_connections().client(self.aws)
            return await getattr(client, operation)(**arguments)

        return shared_connections().run(call())

    def settle(self) -> None:
        """Wait until the change of the stream is complete."""

        async def status() -> str:
            client = await shared_connections().client(self.aws)
            return (await StreamShards(client, self.name).describe()).status

        while shared_connections().run(status()) != "ACTIVE":
            pass

    def put(self, count: int) -> None:
        first = len(self.values)
        new = [f"{each:06d}" for each in range(first, first + count)]
        entries = [
            {
                "Data": each.encode(),
                "PartitionKey": f"key-{each}",
                "ExplicitHashKey": str(int(each) * 37 % 100 * (KEYS // 100)),
            }
            for each in new
        ]
        answer = self.do("put_records", StreamName=self.name, Records=entries)
        assert not answer["FailedRecordCount"]
        self.values += new

    def shards(self) -> list[Any]:
        async def found() -> list[Any]:
            client = await shared_connections().client(self.aws)
            listed = await StreamShards(client, self.name).list_shards()
            return sorted(
                (each for each in listed if not each.closed), key=lambda each: each.hash_range
            )

        return shared_connections().run(found())


def test_a_query_reads_every_record_over_splits_merges_and_restarts(
    kinesis_url: str, dynamodb_url: str
) -> None:
    local = Local(kinesis_url)
    query = Query(
        {
            "stream": local.name,
            "region": str(local.aws.region),
            "endpointUrl": kinesis_url,
            "accessKeyId": "dummy",
            "secretAccessKey": "dummy",
            "store": f"dynamodb://rounds-{uuid.uuid4().hex[:8]}?endpoint_url={dynamodb_url}",
            "startingPosition": "earliest",
            "maxRecordsPerShard": "30",
        }
    )
    local.put(100)
    query.batch()
    first = local.shards()[0]
    middle = (first.hash_range.first + first.hash_range.last) // 2
    local.do(
        "split_shard",
        StreamName=local.name,
        ShardToSplit=first.shard,
        NewStartingHashKey=str(middle),
    )
    local.settle()
    local.put(50)
    query.restart()
    assert query.plan()
    rows = query.rows()
    local.put(20)
    assert query.rows() == rows
    query.restart()
    _, one, other = local.shards()
    local.do(
        "merge_shards",
        StreamName=local.name,
        ShardToMerge=one.shard,
        AdjacentShardToMerge=other.shard,
    )
    local.settle()
    local.put(50)
    query.restart()
    assert query.run() == local.values
