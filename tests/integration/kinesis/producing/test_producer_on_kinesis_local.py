"""The producer with kinesis-local, an independent implementation: batches, refusals, aggregates, resharding."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from headrace.core.lease.checkpoint import TRIM_HORIZON
from headrace.errors import KinesisError
from headrace.kinesis import AwsSettings, Producer
from headrace.kinesis.client.settings import AwsClient
from headrace.kinesis.reading.reader import ShardReader
from headrace.kinesis.reading.records import KinesisRecord
from headrace.kinesis.reading.settings import ReadSettings
from headrace.kinesis.reading.shards import StreamShards
from tests.integration.kinesis.servers import run_on_stream

pytestmark = pytest.mark.slow
THROTTLED = "ProvisionedThroughputExceededException"


class Stream:
    """A stream with a unique name on the shared server, and the faults between the stream and a producer."""

    def __init__(self, client: AwsClient, name: str) -> None:
        self.client = client
        self.name = name
        self.requests: list[int] = []
        """Records of each request that the producer sent."""
        self.refused: Callable[[int], bool] = lambda position: False
        """The indexes of the records of a request that the server refuses with a throttling error."""
        self.lost = 0
        """The number of answers that are still to be lost."""

    @property
    def aws(self) -> AwsSettings:
        return AwsSettings(clients={"kinesis": self})

    def __getattr__(self, operation: str) -> Any:
        return getattr(self.client, operation)

    async def put_records(self, **arguments: Any) -> Any:
        """Write the records that are not refused: the server itself has no limits per second."""
        records = arguments.pop("Records")
        self.requests.append(len(records))
        refused = [self.refused(at) for at in range(len(records))]
        taken = [each for each, no in zip(records, refused, strict=True) if not no]
        written = (
            (await self.client.put_records(Records=taken, **arguments))["Records"] if taken else []
        )
        if self.lost:
            self.lost -= 1
            raise ConnectionResetError("the answer was lost")
        answers = iter(written)
        refusal = {"ErrorCode": THROTTLED, "ErrorMessage": f"Rate exceeded for stream {self.name}."}
        return {"Records": [refusal if no else next(answers) for no in refused]}

    async def active(self) -> None:
        while (await StreamShards(self.client, self.name).describe()).status != "ACTIVE":
            pass  # each poll is a request over the network

    async def split(self, shard: str) -> None:
        listed = {
            each.shard: each for each in await StreamShards(self.client, self.name).list_shards()
        }
        first, last = listed[shard].hash_range
        await self.client.split_shard(
            StreamName=self.name,
            ShardToSplit=shard,
            NewStartingHashKey=str((first + last) // 2 + 1),
        )
        await self.active()

    async def everything(self) -> list[KinesisRecord]:
        """Read the stream: parents before their children, with the user records of aggregates."""
        found: list[KinesisRecord] = []
        for shard in await StreamShards(self.client, self.name).list_shards():
            reader = ShardReader(
                self.client,
                self.name,
                shard.shard,
                TRIM_HORIZON,
                settings=ReadSettings(poll_ms=200),
                hash_range=shard.hash_range,
            )
            while True:
                fetched = await reader.fetch()
                found += fetched.records
                if fetched.ended or not fetched.behind_ms:
                    break
        return found


def run(url: str, shards: int, scenario: Callable[[Stream], Awaitable[None]]) -> None:
    run_on_stream(url, shards, Stream, scenario)


async def send(producer: Producer, it: Stream, numbers: range, keys: int) -> list[Any]:
    return [
        await producer.send(it.name, b"%d" % number, partition_key=f"key-{number % keys}")
        for number in numbers
    ]


def check_order(records: list[KinesisRecord], count: int, keys: int) -> None:
    by_key: defaultdict[str, list[int]] = defaultdict(list)
    for record in records:
        by_key[record.partition_key].append(int(record.data))
    for each in range(keys):
        values = [number for number in range(count) if number % keys == each]
        assert by_key[f"key-{each}"] == values


def test_batches_keep_their_order_when_records_are_refused(kinesis_url: str) -> None:
    async def scenario(it: Stream) -> None:
        it.refused = lambda position: position % 3 == 1 and len(it.requests) < 6
        async with Producer(it.aws, linger_ms=20, backoff_ms=10) as producer:
            sent = [await each for each in await send(producer, it, range(200), keys=40)]
        records = await it.everything()
        check_order(records, 200, keys=40)
        found = {(each.shard, each.sequence_number): each.data for each in records}
        assert [found[each.shard, each.sequence_number] for each in sent] == [
            b"%d" % number for number in range(200)
        ]
        assert max(it.requests) == 40, "one of each key"

    run(kinesis_url, 2, scenario)


def test_a_request_without_an_answer_is_repeated_to_kinesis_local(kinesis_url: str) -> None:
    async def scenario(it: Stream) -> None:
        it.lost = 1
        async with Producer(it.aws, linger_ms=0, backoff_ms=10) as producer:
            await (await producer.send(it.name, b"1", partition_key="k"))
        assert [each.data for each in await it.everything()] == [b"1", b"1"]

    run(kinesis_url, 1, scenario)


def test_aggregates_are_read_back_over_a_split_while_they_are_written(kinesis_url: str) -> None:
    async def scenario(it: Stream) -> None:
        async with Producer(it.aws, linger_ms=5, aggregate_bytes=600) as producer:
            sent = await send(producer, it, range(150), keys=9)
            splitting = asyncio.ensure_future(it.split("shardId-000000000000"))
            number = 150
            while not splitting.done():  # records that are written now reach the children
                sent += await send(producer, it, range(number, number + 30), keys=9)
                number += 30
                await sent[-1].settled()
            sent += await send(producer, it, range(number, number + 60), keys=9)
            places = [await each for each in sent]
        records = await it.everything()
        check_order(records, len(sent), keys=9)
        found = {
            (each.shard, each.sequence_number, each.sub_sequence): each.data for each in records
        }
        assert [found[place] for place in places] == [b"%d" % n for n in range(len(sent))]
        assert sum(it.requests) < len(sent) / 3, "many are in one"
        assert {"shardId-000000000002", "shardId-000000000003"} & {each.shard for each in records}

    run(kinesis_url, 2, scenario)


@pytest.mark.filterwarnings("ignore:Sending a large body directly")  # aiohttp's, of a megabyte
def test_a_record_that_kinesis_local_refuses_fails_alone(kinesis_url: str) -> None:
    async def scenario(it: Stream) -> None:
        async with Producer(it.aws, record_bytes=3 << 20, linger_ms=50) as producer:
            before = await producer.send(it.name, b"1", partition_key="a")
            refused = await producer.send(it.name, bytes((1 << 20) + 1), partition_key="b")
            after = await producer.send(it.name, b"2", partition_key="c")
            with pytest.raises(KinesisError, match="writing to orders-"):
                await refused
            assert {(await before).shard, (await after).shard} == {"shardId-000000000000"}
        assert sorted(each.data for each in await it.everything()) == [b"1", b"2"]

    run(kinesis_url, 1, scenario)
