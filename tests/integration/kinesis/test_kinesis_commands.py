"""The commands `headrace kinesis groups|describe|reset|import-kcl`, with the fakes, kinesis-local and dynalite."""

from __future__ import annotations

import asyncio
import json
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any
from uuid import uuid4

import pytest
from click.testing import CliRunner, Result

from headrace.cli import main
from headrace.core.lease.checkpoint import SHARD_END, TRIM_HORIZON, Checkpoint
from headrace.core.lease.lease import Lease, LeaseKey
from headrace.kinesis.client.opening import open_client
from headrace.kinesis.client.settings import AwsClient
from headrace.kinesis.leases.administration import Move, apply
from headrace.kinesis.leases.memory import MemoryLeaseStore
from headrace.kinesis.leases.opening import open_store
from headrace.kinesis.leases.store import LeaseStore
from headrace.kinesis.reading.reader import ShardReader
from headrace.kinesis.reading.shards import StreamShards
from headrace.testing.kinesis.aws import FakeAws
from tests.integration.kinesis.servers import REGION, dummy_aws

FIRST, SECOND = "shardId-000000000000", "shardId-000000000001"


@dataclass
class Cloud:
    kinesis: str
    dynamodb: str

    def run(self, *arguments: str, leases: str | None = None) -> Result:
        options = [
            "--region",
            REGION,
            "--endpoint-url",
            self.kinesis,
            "--leases",
            leases or self.leases,
        ]
        return CliRunner().invoke(main, ["kinesis", *arguments, *options])

    def json(self, *arguments: str, **given: Any) -> Any:
        result = self.run(*arguments, "--format", "json", **given)
        assert result.exit_code == 0, result.output
        return json.loads(result.stdout)

    @property
    def leases(self) -> str:
        return f"dynamodb://leases-of-commands?endpoint_url={self.dynamodb}"

    def do(self, work: Callable[[AwsClient, LeaseStore], Coroutine[Any, Any, Any]]) -> Any:
        """Run a coroutine in the test's process while a command runs."""

        async def main() -> Any:
            store = open_store(self.leases, dummy_aws(self.dynamodb))
            await store.open()
            try:
                async with open_client(dummy_aws(self.kinesis), "kinesis") as client:
                    return await work(client, store)
            finally:
                await store.close()

        return asyncio.run(main())

    def table(self, work: Callable[[AwsClient], Coroutine[Any, Any, Any]]) -> None:
        async def main() -> None:
            async with open_client(dummy_aws(self.dynamodb), "dynamodb") as client:
                await work(client)

        asyncio.run(main())


@pytest.fixture(scope="module")
def fake() -> Iterator[Cloud]:
    with FakeAws() as aws:
        yield Cloud(aws.endpoint_url, aws.endpoint_url)


@pytest.fixture(params=["fake", "servers"])
def cloud(request: pytest.FixtureRequest) -> Cloud:
    if request.param == "fake":
        found = request.getfixturevalue("fake")
        assert isinstance(found, Cloud)
        return found
    return Cloud(*(request.getfixturevalue(name) for name in ("kinesis_url", "dynamodb_url")))


@pytest.fixture(autouse=True)
def _credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "dummy")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "dummy")


async def new_stream(client: AwsClient, shards: int = 2) -> tuple[str, str]:
    """Create a stream and wait until it can be read; return its name, and its name in leases."""
    name = f"orders-{uuid4()}"
    await client.create_stream(StreamName=name, ShardCount=shards)
    description = await StreamShards(client, name).describe()  # when it is no longer CREATING
    return name, description.stream


async def put(client: AwsClient, stream: str, shard: str, data: bytes = b"x") -> str:
    listed = {each.shard: each for each in await StreamShards(client, stream).list_shards()}
    hash_range = listed[shard].hash_range
    assert hash_range is not None
    answer = await client.put_record(
        StreamName=stream, Data=data, PartitionKey="k", ExplicitHashKey=str(hash_range.first)
    )
    assert answer["ShardId"] == shard
    return str(answer["SequenceNumber"])


@dataclass
class Reading:
    """A group that has read half of one of two shards."""

    group: str
    name: str
    stream: str
    numbers: list[str]


async def a_group(client: AwsClient, store: LeaseStore) -> Reading:
    name, stream = await new_stream(client)
    group = f"billing-{uuid4()}"
    numbers = [await put(client, name, FIRST) for _ in range(2)]
    key = LeaseKey(group, stream, FIRST)
    await store.create(Lease(key=key, checkpoint=Checkpoint(numbers[0])))
    await store.create(Lease(key=key._replace(shard=SECOND), checkpoint=TRIM_HORIZON))
    return Reading(group, name, stream, numbers)


def test_groups_are_listed_and_described(cloud: Cloud) -> None:
    reading = cloud.do(a_group)

    async def owned(client: AwsClient, store: LeaseStore) -> None:
        first, _ = await store.leases(reading.group, reading.stream)
        await store.take(first, "worker-1")

    cloud.do(owned)
    listed = [row for row in cloud.json("groups") if row["group"] == reading.group]
    assert listed == [
        {
            "group": reading.group,
            "stream": reading.stream,
            "owners": 1,
            "shards": 2,
            "owned": 1,
            "ended": 0,
        }
    ]
    (document,) = cloud.json("describe", reading.group)
    first, second = document["shards"]
    assert document["owners"] == ["worker-1"]
    assert (first["shard"], first["state"], first["owner"]) == (FIRST, "owned", "worker-1")
    assert (first["epoch"], first["position"]) == (1, reading.numbers[0])
    assert 0 < first["lag_ms"] < 60_000
    assert document["lag_ms"] == first["lag_ms"]
    assert (second["state"], second["position"], second["lag_ms"]) == ("free", "TRIM_HORIZON", 0)
    text = cloud.run("describe", reading.group, "--no-lag", "--watch", "0.1").output
    assert "lag ms:  -" in text
    assert f"{FIRST}  silent  worker-1      1  {reading.numbers[0]}" in text
    assert reading.group in cloud.run("groups").output


def test_reset_moves_a_group(cloud: Cloud) -> None:
    reading = cloud.do(a_group)
    group = reading.group

    def positions() -> list[str]:
        (document,) = cloud.json("describe", group, "--no-lag")
        return [row["position"] for row in document["shards"]]

    before = positions()
    rows = cloud.json("reset", group, "--to", "TRIM_HORIZON", "--dry-run")
    assert rows == [
        {"shard": FIRST, "position": reading.numbers[0], "new_position": "TRIM_HORIZON"},
        {"shard": SECOND, "position": "TRIM_HORIZON", "new_position": "TRIM_HORIZON"},
    ]
    assert positions() == before
    cloud.json("reset", group, "--to", "TRIM_HORIZON", "-y")
    assert positions() == ["TRIM_HORIZON", "TRIM_HORIZON"]
    cloud.json("reset", group, "--to", reading.numbers[1], "--shard", FIRST, "-y")
    assert positions() == [reading.numbers[1], "TRIM_HORIZON"]
    cloud.json("reset", group, "--to", "@2031-01-31T00:00:00Z", "--stream", reading.name, "-y")
    assert positions() == ["AT_TIMESTAMP:1927584000000"] * 2
    cloud.json("reset", group, "--to", "LATEST", "-y")
    now = positions()
    assert all("AT_TIMESTAMP:1700000000000" < position < "AT_TIMESTAMP:19" for position in now)


def test_reset_creates_missing_leases_and_reads_ended_shards_again(fake: Cloud) -> None:
    async def prepare(client: AwsClient, store: LeaseStore) -> tuple[str, str]:
        name, stream = await new_stream(client)
        key = LeaseKey(f"g-{uuid4()}", stream, FIRST)
        await store.create(Lease(key=key, checkpoint=SHARD_END))
        await store.create(
            Lease(key=key._replace(shard="shardId-000000000099"), checkpoint=SHARD_END)
        )
        return key.group, name

    group, _ = fake.do(prepare)
    rows = fake.json("reset", group, "--to", "LATEST", "-y")
    assert [row["shard"] for row in rows] == [SECOND]
    rows = fake.json("reset", group, "--to", "trim_horizon", "-y")
    assert [row["shard"] for row in rows] == [FIRST, SECOND]
    (document,) = fake.json("describe", group, "--no-lag")
    assert [row["state"] for row in document["shards"]] == ["free", "free", "ended"]


@contextmanager
def a_member(cloud: Cloud, reading: Reading) -> Iterator[None]:
    """Renew a lease all the time, in a thread."""
    started, stopping = threading.Event(), threading.Event()

    async def renew(client: AwsClient, store: LeaseStore) -> None:
        first, _ = await store.leases(reading.group, reading.stream)
        lease = await store.take(first, "worker-1")
        assert lease is not None
        while not stopping.is_set():
            lease = await store.renew(lease.key, "worker-1", lease.epoch, lease.beat + 1)
            assert lease is not None
            started.set()
            await asyncio.sleep(0.05)

    thread = threading.Thread(target=cloud.do, args=(renew,))
    thread.start()
    try:
        assert started.wait(20)
        yield
    finally:
        stopping.set()
        thread.join()


def test_reset_refuses_a_group_with_active_members(fake: Cloud) -> None:
    reading = fake.do(a_group)
    with a_member(fake, reading):
        result = fake.run("reset", reading.group, "--to", "TRIM_HORIZON", "-y", "--wait", "20")
        (document,) = fake.json("describe", reading.group, "--no-lag", "--watch", "5")
        assert document["shards"][0]["state"] == "owned"
    assert result.exit_code == 1
    assert "has active members (worker-1): stop them, then reset it" in result.output
    assert document["shards"][0]["position"] == reading.numbers[0]


def test_reset_moves_the_lease_of_a_dead_owner(fake: Cloud) -> None:
    reading = fake.do(a_group)

    async def die(client: AwsClient, store: LeaseStore) -> None:
        first, _ = await store.leases(reading.group, reading.stream)
        await store.take(first, "dead")

    fake.do(die)
    fake.json("reset", reading.group, "--to", "TRIM_HORIZON", "-y", "--wait", "0.2")
    (document,) = fake.json("describe", reading.group, "--no-lag")
    first = document["shards"][0]
    assert (first["owner"], first["epoch"], first["position"]) == (None, 2, "TRIM_HORIZON")


def test_reset_does_not_overwrite_what_members_wrote_meanwhile() -> None:
    async def scenario() -> None:
        store = MemoryLeaseStore()
        lease = Lease(key=LeaseKey("g", "s@1", FIRST), checkpoint=TRIM_HORIZON)
        to = replace(lease, checkpoint=Checkpoint("5"))
        await store.create(lease)
        taken = await store.take(lease, "worker")
        other = replace(to, key=lease.key._replace(shard=SECOND))
        moves = [Move(lease.key, lease, to), Move(other.key, None, other)]
        assert await apply(store, moves) == moves[:1]
        assert await store.leases("g", "s@1") == [taken, other]
        assert await apply(store, moves[1:]) == []  # written already

    asyncio.run(scenario())


def test_a_stream_that_was_created_again_has_its_own_leases(fake: Cloud) -> None:
    async def prepare(client: AwsClient, store: LeaseStore) -> str:
        _, stream = await new_stream(client)
        key = LeaseKey(f"g-{uuid4()}", f"{stream}1", FIRST)
        await store.create(Lease(key=key, checkpoint=TRIM_HORIZON))
        return key.group

    group = fake.do(prepare)
    result = fake.run("describe", group)
    assert result.exit_code == 0
    assert "was deleted and created again; the leases belong to the earlier stream" in result.stderr
    result = fake.run("reset", group, "--to", "LATEST", "-y")
    assert result.exit_code == 1
    assert "was deleted and created again after" in result.output


def kcl_row(key: str, checkpoint: str, sub: int = 0, **given: Any) -> dict[str, Any]:
    return {
        "leaseKey": {"S": key},
        "checkpoint": {"S": checkpoint},
        "checkpointSubSequenceNumber": {"N": str(sub)},
        "leaseCounter": {"N": "17"},
        "ownerSwitchesSinceCheckpoint": {"N": "0"},
        **given,
    }


def kcl_table(cloud: Cloud, rows: list[dict[str, Any]]) -> str:
    name = f"application-{uuid4()}"

    async def create(client: Any) -> None:
        await client.create_table(
            TableName=name,
            AttributeDefinitions=[{"AttributeName": "leaseKey", "AttributeType": "S"}],
            KeySchema=[{"AttributeName": "leaseKey", "KeyType": "HASH"}],
            BillingMode="PAY_PER_REQUEST",
        )
        await client.get_waiter("table_exists").wait(TableName=name, WaiterConfig={"Delay": 0.05})
        for row in rows:
            await client.put_item(TableName=name, Item=row)

    cloud.table(create)
    return f"dynamodb://{name}?endpoint_url={cloud.dynamodb}"


def test_a_group_continues_at_the_checkpoints_of_the_kcl(cloud: Cloud) -> None:
    async def prepare(client: AwsClient, store: LeaseStore) -> tuple[str, str, list[str]]:
        name, stream = await new_stream(client)
        numbers = [await put(client, name, FIRST, data) for data in (b"one", b"two", b"three")]
        return name, stream, numbers

    name, stream, numbers = cloud.do(prepare)
    rows = [
        kcl_row(FIRST, numbers[1], leaseOwner={"S": "gone"}, entityType={"S": "LEASE"}),
        kcl_row(SECOND, "LATEST"),
        {"leaseKey": {"S": "host-1"}, "entityType": {"S": "WORKER_METRIC_STATS"}},
    ]
    table, group = kcl_table(cloud, rows), f"billing-{uuid4()}"
    arguments = ("import-kcl", table, group, "-s", name, "--wait", "0.1")
    shown = cloud.json(*arguments, "--dry-run")
    assert shown[0] == {"shard": FIRST, "kcl_checkpoint": numbers[1], "position": f"{numbers[1]}:0"}
    assert shown[1]["position"].startswith("AT_TIMESTAMP:")
    assert not [row for row in cloud.json("groups") if row["group"] == group]
    cloud.json(*arguments, "-y")

    async def read(client: AwsClient, store: LeaseStore) -> list[bytes]:
        first, second = await store.leases(group, stream)
        assert first.checkpoint == Checkpoint(numbers[1], 0)
        assert second.checkpoint.timestamp_ms is not None
        assert first.hash_range is not None
        reader = ShardReader(client, name, FIRST, first.checkpoint)
        found: list[bytes] = []
        while not found:
            found += [record.data for record in (await reader.fetch()).records]
        return found

    # The library writes sub-sequence number 0 for plain records. Records that it has finished are not read again.
    assert cloud.do(read) == [b"three"]
    again = cloud.run(*arguments, "-y")
    assert again.exit_code == 1
    assert "already: --overwrite replaces them" in again.output
    cloud.json(*arguments, "-y", "--overwrite")


def test_the_leases_of_one_of_several_streams_are_imported(fake: Cloud) -> None:
    async def prepare(client: AwsClient, store: LeaseStore) -> tuple[str, str]:
        name, stream = await new_stream(client)
        return name, stream.rpartition("@")[2]

    name, created = fake.do(prepare)
    rows = [
        kcl_row(f"123456789012:{name}:{created}:{FIRST}", "TRIM_HORIZON"),
        kcl_row(f"123456789012:{name}:{created}:{SECOND}", "SHARD_END"),
        kcl_row(f"123456789012:{name}:1:{SECOND}", "12"),
        kcl_row(f"123456789012:others:1:{FIRST}", "7"),
    ]
    table = kcl_table(fake, rows)
    shown = fake.json("import-kcl", table, "g", "-s", name, "--dry-run")
    assert [row["position"] for row in shown] == ["TRIM_HORIZON", "SHARD_END"]
    other = kcl_table(fake, rows[3:])
    result = fake.run("import-kcl", other, "g", "-s", name, "--dry-run")
    assert result.exit_code == 2
    assert f"the table has no leases of the stream {name}. It has leases of others" in result.output


def test_a_running_application_is_not_imported(fake: Cloud) -> None:
    name, _ = fake.do(lambda client, _: new_stream(client))
    table = kcl_table(fake, [kcl_row(FIRST, "TRIM_HORIZON", leaseOwner={"S": "host-7"})])
    stopping = threading.Event()

    async def renew(client: AwsClient) -> None:
        while not stopping.is_set():
            await client.update_item(
                TableName=table.removeprefix("dynamodb://").partition("?")[0],
                Key={"leaseKey": {"S": FIRST}},
                UpdateExpression="ADD leaseCounter :one",
                ExpressionAttributeValues={":one": {"N": "1"}},
            )
            await asyncio.sleep(0.05)

    thread = threading.Thread(target=fake.table, args=(renew,))
    thread.start()
    try:
        result = fake.run("import-kcl", table, "g", "-s", name, "-y", "--wait", "20")
    finally:
        stopping.set()
        thread.join()
    assert result.exit_code == 1
    assert "still runs (host-7): stop it first" in result.output


def test_a_table_of_another_program_is_not_imported(fake: Cloud) -> None:
    reading = fake.do(a_group)
    ours = fake.leases
    result = fake.run("import-kcl", ours, "g", "-s", reading.name, "--dry-run")
    assert result.exit_code == 2
    assert "is not a lease table of the Kinesis Client Library" in result.output
    result = fake.run("import-kcl", "none-such", "g", "-s", reading.name, "--dry-run")
    assert result.exit_code == 2
    assert "there is no table none-such. The table has the name" in result.output


def test_errors_of_commands_name_the_missing_resource(fake: Cloud, tmp_path: Any) -> None:
    missing = f"dynamodb://missing-{uuid4()}?endpoint_url={fake.dynamodb}"
    result = fake.run("groups", leases=missing)
    assert (result.exit_code, "there is no lease table missing-" in result.output) == (2, True)
    result = fake.run("groups", leases=f"sqlite:///{tmp_path}/none.db")
    assert (result.exit_code, "none.db does not exist" in result.output) == (2, True)
    assert not list(tmp_path.iterdir())
    fake.do(a_group)
    result = fake.run("describe", "absent")
    assert (result.exit_code, "no group 'absent'" in result.output) == (1, True)
    result = fake.run("import-kcl", "table", "g", "-s", "none-such", "--dry-run")
    assert (result.exit_code, "there is no stream 'none-such'" in result.output) == (1, True)
    reading = fake.do(a_group)
    result = fake.run("describe", reading.group, "-s", "none-such")
    assert (result.exit_code, "does not read the stream" in result.output) == (1, True)
    result = fake.run("reset", reading.group, "--to", "LATEST", "--shard", "shardId-9", "-y")
    assert (result.exit_code, "has no shard shardId-9" in result.output) == (1, True)


def test_the_error_without_aiobotocore_names_the_extra_to_install(
    fake: Cloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "headrace.kinesis.client.session", None)
    result = fake.run("groups")
    assert result.exit_code == 2
    assert "pip install 'headrace[kinesis]'" in result.output


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("groups", "--leases", "memory://g"), "other processes cannot see leases in memory"),
        (("reset", "g", "--to", "LATEST"), "needs --yes or --dry-run"),
        (("reset", "g", "--to", "yesterday", "-y"), "--to expects TRIM_HORIZON"),
        (("reset", "g", "--to", "@yesterday", "-y"), "is not a time"),
        (("reset", "g", "--to", "17", "-y"), "name it with --shard"),
        (("import-kcl", "t", "g", "-s", "s"), "needs --yes or --dry-run"),
        (("import-kcl", "t", "g", "-s", "s", "-y", "--at-timestamp", "soon"), "is not a time"),
    ],
)
def test_wrong_usage_of_the_commands_is_refused(arguments: tuple[str, ...], text: str) -> None:
    result = CliRunner().invoke(main, ["kinesis", *arguments])
    assert result.exit_code == 2
    assert text in result.output
