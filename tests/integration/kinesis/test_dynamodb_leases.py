"""Leases in DynamoDB: the suite of all stores, lost answers, throttling, tables and rows of others.

On the fake of `headrace.testing`, and on dynalite.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any
from uuid import uuid4

import pytest
from aiobotocore.awsrequest import AioAWSResponse
from botocore.exceptions import ConnectionClosedError

from headrace.core.lease.checkpoint import TRIM_HORIZON, Checkpoint
from headrace.core.lease.lease import LeaseKey
from headrace.errors import ConfigError, LeaseStoreError
from headrace.kinesis.client.opening import open_client
from headrace.kinesis.client.settings import AwsClient, AwsSettings
from headrace.kinesis.leases.dynamodb import DynamoLeaseStore
from headrace.kinesis.leases.dynamodb_rows import item_of
from headrace.kinesis.leases.dynamodb_table import TableSettings
from headrace.kinesis.leases.opening import open_store
from headrace.testing.kinesis.aws import FakeAws
from tests.integration.kinesis.lease_store_conformance import (
    CHECKS,
    LONG,
    Check,
    created,
    new_lease,
    opened,
    read,
    taken,
)
from tests.integration.kinesis.servers import dummy_aws

Scenario = Callable[["Faulty"], Awaitable[None]]
TABLE = "leases-of-many-groups"
PATIENT_MS = 30_000  # so that a busy machine causes no retries


@pytest.fixture(scope="module", params=["fake", "dynalite"])
def aws(request: pytest.FixtureRequest) -> Iterator[AwsSettings]:
    if request.param == "dynalite":
        yield dummy_aws(request.getfixturevalue("dynamodb_url"))
        return
    with FakeAws() as fake:
        yield dummy_aws(fake.endpoint_url)


@pytest.fixture(scope="module")
def shared(aws: AwsSettings) -> Iterator[tuple[asyncio.Runner, AwsSettings]]:
    """Return a client for many tests, and its event loop: opening a client takes longer than most tests."""
    with asyncio.Runner() as runner:
        opening = open_client(aws, "dynamodb")
        client = runner.run(opening.__aenter__())
        yield runner, replace(aws, clients={"dynamodb": client})
        runner.run(opening.__aexit__(None, None, None))


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_dynamodb_passes_every_check(
    check: Check, shared: tuple[asyncio.Runner, AwsSettings]
) -> None:
    runner, aws = shared
    runner.run(check(lambda: DynamoLeaseStore(TABLE, aws, timeout_ms=PATIENT_MS)))


class Faulty:
    """A store whose client loses chosen requests or answers, through botocore's events."""

    def __init__(self, store: DynamoLeaseStore, client: Any) -> None:
        self.store = store
        self.client = client
        self.attempts = 0

    def lose_answers(self, count: int) -> None:
        """Lose the answers to the next writes, which are executed."""
        left = iter(range(count))

        def lose(**_: Any) -> None:
            self.attempts += 1
            if next(left, None) is not None:
                raise ConnectionClosedError(endpoint_url="http://nowhere")

        self._on("after-call", lose)

    def refuse(self, count: int, code: str, status: int = 400) -> None:
        """Answer the next writes with an error."""
        left = iter(range(count))

        def answer(request: Any, **_: Any) -> Any:
            self.attempts += 1
            return None if next(left, None) is None else _Answer(request.url, code, status)

        self._on("before-send", answer)

    def hang(self, count: int) -> None:
        """Do not answer the next writes at all."""
        left = iter(range(count))

        async def wait(**_: Any) -> None:
            self.attempts += 1
            if next(left, None) is not None:
                await asyncio.Event().wait()

        self._on("before-send", wait)

    def _on(self, event: str, handler: Callable[..., Any]) -> None:
        for operation in ("UpdateItem", "PutItem", "DeleteItem", "Query", "DescribeTable"):
            self.client.meta.events.register(f"{event}.dynamodb.{operation}", handler)


class _Answer(AioAWSResponse):  # type: ignore[misc] # aiobotocore has no types
    def __init__(self, url: str, code: str, status: int) -> None:
        super().__init__(url, status, {"content-type": "application/x-amz-json-1.0"}, None)
        self._said = (
            f'{{"__type": "com.amazonaws.dynamodb#{code}", "message": "so it is"}}'.encode()
        )

    @property
    async def content(self) -> bytes:
        return self._said


@asynccontextmanager
async def faulty(aws: AwsSettings, timeout_ms: int = PATIENT_MS) -> AsyncIterator[Faulty]:
    async with open_client(aws, "dynamodb") as client:
        given = replace(aws, clients={"dynamodb": client})
        async with opened(lambda: DynamoLeaseStore(TABLE, given, timeout_ms=timeout_ms)) as store:
            assert isinstance(store, DynamoLeaseStore)
            yield Faulty(store, client)


@pytest.fixture
def with_faults(aws: AwsSettings) -> Callable[..., None]:
    def run(scenario: Scenario, timeout_ms: int = PATIENT_MS) -> None:
        async def main() -> None:
            async with faulty(aws, timeout_ms) as faults:
                await scenario(faults)

        asyncio.run(main())

    return run


def test_writes_without_an_answer_are_repeated(with_faults: Callable[..., None]) -> None:
    async def scenario(faults: Faulty) -> None:
        store = faults.store
        faults.lose_answers(1)
        lease = new_lease()
        # It was written, but not by the attempt that returned the answer.
        assert not await store.create(lease)
        assert await read(store, lease) == lease
        faults.lose_answers(1)
        row = await store.take(lease, "a")
        assert row is not None
        assert (row.owner, row.epoch, row.switches) == ("a", 1, 1)
        faults.lose_answers(2)
        assert await store.renew(lease.key, "a", 1, 9) == replace(row, beat=9)
        faults.lose_answers(1)
        row = await store.renew(lease.key, "a", 1, 10, checkpoint=Checkpoint(LONG))
        assert row is not None
        assert (row.checkpoint, row.beat) == (Checkpoint(LONG), 10)
        faults.lose_answers(1)
        assert await store.ask(row, "b")
        faults.lose_answers(1)
        assert await store.give(lease.key, "a", 1, to="b", checkpoint=Checkpoint(LONG))
        row = await read(store, lease)
        assert (row.owner, row.next_owner, row.epoch) == (None, "b", 2)
        faults.lose_answers(1)
        row = await store.reset(row, TRIM_HORIZON)
        assert row is not None
        assert row.epoch == 3
        faults.lose_answers(1)
        assert await store.delete(row)
        faults.lose_answers(1)
        assert await store.record_once(str(lease.key), "name", "mine") == "mine"
        assert await store.record_once(str(lease.key), "name", "another's") == "mine"

    with_faults(scenario)


def test_a_write_that_never_gets_an_answer_is_an_unknown_outcome(
    with_faults: Callable[..., None],
) -> None:
    async def scenario(faults: Faulty) -> None:
        lease = await created(faults.store)
        faults.lose_answers(1000)
        with pytest.raises(LeaseStoreError, match=r"update_item on the lease table .* no answer"):
            await faults.store.take(lease, "a")
        assert 1 < faults.attempts < 100

    with_faults(scenario, timeout_ms=1_500)

    async def afterwards(faults: Faulty) -> None:
        lease = await created(faults.store)
        first = await faults.store.take(lease, "a")
        again = await faults.store.take(lease, "a")  # as a member repeats it without an answer
        assert first is not None
        assert again == replace(first, beat=first.beat + 1)

    with_faults(afterwards)


def test_a_call_to_a_hanging_server_is_repeated(with_faults: Callable[..., None]) -> None:
    async def scenario(faults: Faulty) -> None:
        row = await taken(faults.store)
        faults.hang(1)
        assert await faults.store.renew(row.key, "a", 1, 2) == replace(row, beat=2)
        faults.hang(1000)
        with pytest.raises(
            LeaseStoreError, match=r"update_item .*: no answer within 1.5 s from .*Check region"
        ):
            await faults.store.renew(row.key, "a", 1, 2)
        assert faults.attempts >= 4

    with_faults(scenario, timeout_ms=1_500)


@pytest.mark.parametrize(
    ("code", "status"),
    [
        ("ProvisionedThroughputExceededException", 400),
        ("ThrottlingException", 400),
        ("RequestLimitExceeded", 400),
        ("InternalServerError", 500),
        ("Whatever", 503),
    ],
)
def test_transient_errors_are_repeated(
    code: str, status: int, with_faults: Callable[..., None]
) -> None:
    async def scenario(faults: Faulty) -> None:
        row = await taken(faults.store)
        faults.refuse(3, code, status)
        assert await faults.store.renew(row.key, "a", 1, 2) == replace(row, beat=2)
        assert faults.attempts == 4

    with_faults(scenario)


def test_throttling_ends_in_an_unknown_outcome(with_faults: Callable[..., None]) -> None:
    async def scenario(faults: Faulty) -> None:
        row = await taken(faults.store)
        faults.refuse(10_000, "ProvisionedThroughputExceededException")
        with pytest.raises(
            LeaseStoreError, match="ProvisionedThroughputExceededException: so it is"
        ):
            await faults.store.renew(row.key, "a", 1, 2)

    with_faults(scenario, timeout_ms=1_500)


def test_permanent_errors_fail_at_once(with_faults: Callable[..., None]) -> None:
    async def scenario(faults: Faulty) -> None:
        row = await taken(faults.store)
        faults.refuse(10_000, "AccessDeniedException")
        with pytest.raises(LeaseStoreError, match=r"access is denied: .*so it is"):
            await faults.store.renew(row.key, "a", 1, 2)
        assert faults.attempts == 1

    with_faults(scenario)


def test_a_refused_connection_is_reported(aws: AwsSettings) -> None:
    nowhere = replace(aws, endpoint_url="http://127.0.0.1:9")
    with pytest.raises(
        LeaseStoreError,
        match=r"no answer .*from http://127.0.0.1:9 in region \S+[:.] [cC]heck region,",
    ):
        asyncio.run(DynamoLeaseStore("leases", nowhere, timeout_ms=1_500).open())


def test_bad_credentials_are_a_configuration_error(aws: AwsSettings) -> None:
    async def scenario() -> None:
        async with open_client(aws, "dynamodb") as client:
            faults = Faulty(DynamoLeaseStore("leases"), client)
            faults.refuse(1, "UnrecognizedClientException")
            given = replace(aws, clients={"dynamodb": client})
            with pytest.raises(ConfigError, match="AWS does not know these credentials"):
                await DynamoLeaseStore("leases", given).open()

    asyncio.run(scenario())


@pytest.fixture
def with_client(shared: tuple[asyncio.Runner, AwsSettings]) -> Callable[..., Any]:
    runner, aws = shared

    def run(scenario: Callable[[AwsClient, AwsSettings], Coroutine[Any, Any, None]]) -> None:
        runner.run(scenario(aws.clients["dynamodb"], aws))

    return run


def test_several_stores_create_a_missing_table_once(with_client: Callable[..., Any]) -> None:
    async def scenario(client: AwsClient, aws: AwsSettings) -> None:
        name = f"new-{uuid4()}"
        stores = [DynamoLeaseStore(name, aws) for _ in range(5)]
        await asyncio.gather(*(store.open() for store in stores))
        lease = await created(stores[0])
        assert await read(stores[1], lease) == lease
        for store in stores:
            await store.close()
        table = (await client.describe_table(TableName=name))["Table"]
        assert table["BillingModeSummary"]["BillingMode"] == "PAY_PER_REQUEST"

    with_client(scenario)


def test_a_table_is_created_with_the_given_settings(with_client: Callable[..., Any]) -> None:
    async def scenario(client: AwsClient, aws: AwsSettings) -> None:
        name = f"table-{uuid4()}"
        text = f"dynamodb://{name}?endpoint_url={aws.endpoint_url}&read_capacity=3&write_capacity=7"
        async with opened(lambda: open_store(text, replace(aws, endpoint_url=None, clients={}))):
            pass
        table = (await client.describe_table(TableName=name))["Table"]
        assert table["ProvisionedThroughput"]["ReadCapacityUnits"] == 3
        assert table["ProvisionedThroughput"]["WriteCapacityUnits"] == 7

    with_client(scenario)


def test_a_table_is_created_with_tags(with_client: Callable[..., Any]) -> None:
    async def scenario(client: Any, aws: AwsSettings) -> None:
        sent: list[dict[str, Any]] = []  # dynalite forgets them
        client.meta.events.register(
            "before-call.dynamodb.CreateTable",
            lambda params, **_: sent.append(json.loads(params["body"])),
        )
        given = replace(aws, clients={"dynamodb": client})
        async with opened(lambda: open_store(f"dynamodb://tags-{uuid4()}?tag.team=billing", given)):
            pass
        assert [request["Tags"] for request in sent] == [[{"Key": "team", "Value": "billing"}]]

    with_client(scenario)


def test_a_missing_table_is_an_error_if_it_is_not_to_be_created(
    with_client: Callable[..., Any],
) -> None:
    async def scenario(client: AwsClient, aws: AwsSettings) -> None:
        name = f"missing-{uuid4()}"
        store = DynamoLeaseStore(name, aws, settings=TableSettings(create=False))
        with pytest.raises(ConfigError, match=f"there is no lease table {name}. Create it"):
            await store.open()
        assert name not in (await client.list_tables())["TableNames"]

    with_client(scenario)


def test_a_table_with_another_key_is_not_changed(with_client: Callable[..., Any]) -> None:
    async def scenario(client: AwsClient, aws: AwsSettings) -> None:
        name = f"kcl-{uuid4()}"
        await client.create_table(
            TableName=name,
            AttributeDefinitions=[{"AttributeName": "leaseKey", "AttributeType": "S"}],
            KeySchema=[{"AttributeName": "leaseKey", "KeyType": "HASH"}],
            BillingMode="PAY_PER_REQUEST",
        )
        with pytest.raises(
            ConfigError, match=r"its key is leaseKey \(HASH, S\), not pk .* import-kcl"
        ):
            await DynamoLeaseStore(name, aws).open()
        assert (await client.describe_table(TableName=name))["Table"]["ItemCount"] == 0

    with_client(scenario)


def test_foreign_rows_are_ignored_and_not_changed(
    with_client: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(client: AwsClient, aws: AwsSettings) -> None:
        async with opened(lambda: DynamoLeaseStore(TABLE, aws, timeout_ms=PATIENT_MS)) as store:
            lease = await created(store, bytes_per_s=1.5)
            pk = f"{lease.key.group}#{lease.key.stream}"
            good = item_of(lease)
            foreign: list[dict[str, Any]] = [
                {"pk": {"S": pk}, "sk": {"S": "customer-1"}, "name": {"S": "x"}},
                {**good, "sk": {"S": "bad-checkpoint"}, "cp": {"S": "yesterday"}},
                {**good, "sk": {"S": "number"}, "cp": {"N": "17"}},
                {key: value for key, value in good.items() if key != "epoch"}
                | {"sk": {"S": "no-epoch"}},
            ]
            for item in foreign:
                await client.put_item(TableName=TABLE, Item=item)
            with caplog.at_level(logging.WARNING):
                for _ in range(2):
                    assert await store.leases(*lease.key[:2]) == [lease]
            assert [
                record.message.partition(" is not a lease of Headrace")[0]
                for record in caplog.records
            ] == [
                f"table {TABLE}: the row {pk}, {item['sk']['S']}"
                for item in sorted(foreign, key=lambda item: str(item["sk"]["S"]))
            ]
            for item in foreign:
                key = LeaseKey(*lease.key[:2], item["sk"]["S"])
                assert not await store.create(replace(lease, key=key))
                kept = await client.get_item(
                    TableName=TABLE, Key={name: item[name] for name in ("pk", "sk")}
                )
                assert kept["Item"] == item

    with_client(scenario)


def test_unknown_attributes_are_kept(with_client: Callable[..., Any]) -> None:
    async def scenario(client: AwsClient, aws: AwsSettings) -> None:
        async with opened(lambda: DynamoLeaseStore(TABLE, aws, timeout_ms=PATIENT_MS)) as store:
            lease = new_lease()
            extra = {"color": {"S": "blue"}, "sizes": {"L": [{"N": "1"}]}}
            await client.put_item(TableName=TABLE, Item={**item_of(lease), **extra})
            row = await store.take(lease, "a")
            assert row is not None
            await store.renew(row.key, "a", 1, 2, checkpoint=Checkpoint("5", 1))
            await store.give(row.key, "a", 1, to=None, checkpoint=Checkpoint("6"))
            key = {name: item_of(lease)[name] for name in ("pk", "sk")}
            item = (await client.get_item(TableName=TABLE, Key=key))["Item"]
            assert {name: item[name] for name in extra} == extra
            assert {"owner", "next", "sub"}.isdisjoint(item)  # removed, not null

    with_client(scenario)


def test_a_row_without_optional_attributes_is_read(with_client: Callable[..., Any]) -> None:
    async def scenario(client: AwsClient, aws: AwsSettings) -> None:
        async with opened(lambda: DynamoLeaseStore(TABLE, aws, timeout_ms=PATIENT_MS)) as store:
            lease = new_lease()
            names = ("pk", "sk", "v", "cp", "epoch", "beat")
            item = {name: value for name, value in item_of(lease).items() if name in names}
            await client.put_item(TableName=TABLE, Item=item)
            assert await read(store, lease) == lease
            row = await store.take(lease, "a")
            assert row == replace(lease, owner="a", epoch=1, beat=1, switches=1)

    with_client(scenario)


def test_a_row_of_a_later_version_is_not_changed(with_client: Callable[..., Any]) -> None:
    async def scenario(client: AwsClient, aws: AwsSettings) -> None:
        async with opened(lambda: DynamoLeaseStore(TABLE, aws, timeout_ms=PATIENT_MS)) as store:
            lease = new_lease()
            await client.put_item(TableName=TABLE, Item={**item_of(lease), "v": {"N": "2"}})
            with pytest.raises(ConfigError, match=r"later version of Headrace \(v=2\). Upgrade"):
                await store.leases(*lease.key[:2])

    with_client(scenario)
