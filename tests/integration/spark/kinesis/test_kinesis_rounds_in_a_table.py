"""Rounds whose ends are in a DynamoDB table, as on a cluster."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from headrace.errors import ConfigError, LeaseStoreError
from headrace.spark.kinesis import connections
from headrace.testing.kinesis import FakeAws, Limits, drop_connection, error
from tests.integration.spark.kinesis.queries import Query, put_numbers


@pytest.fixture
def aws() -> Iterator[FakeAws]:
    with FakeAws(limits=Limits().unthrottled(), region="eu-central-1") as fake:
        fake.kinesis.create_stream("flights", 3)
        yield fake


def query(aws: FakeAws, **options: str) -> Query:
    given = {
        "stream": "flights",
        "region": aws.region,
        "endpointUrl": aws.endpoint_url,
        "accessKeyId": "fake",
        "secretAccessKey": "fake",
        "store": "dynamodb://rounds",
        "startingPosition": "earliest",
        "maxRecordsPerShard": "20",
    }
    return Query({**given, **options})


def test_lost_responses_of_the_table_change_no_result(aws: FakeAws) -> None:
    values = put_numbers(aws, "flights", range(150))
    flights, other = query(aws), query(aws)
    flights.batch()
    aws.dynamodb.faults.on("PutItem", drop_connection(handled=True), times=3)
    flights.plan()
    rows = flights.rows()
    values += put_numbers(aws, "flights", range(150, 200))
    aws.kinesis.split("flights", "shardId-000000000001")
    flights.restart()
    assert flights.rows() == rows
    assert flights.run() == values
    other.restart()
    assert other.run() == values


def test_a_table_that_does_not_answer_is_reported(
    aws: FakeAws, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "STORE_ATTEMPTS", 1)
    put_numbers(aws, "flights", range(10))
    flights = query(aws)
    flights.plan()
    tasks = flights.tasks()
    aws.dynamodb.faults.on("PutItem", error("AccessDeniedException", "not you"))
    with pytest.raises((ConfigError, LeaseStoreError), match="not you"):
        flights.read(tasks[0])


def test_a_dynamodb_table_of_another_program_is_refused(aws: FakeAws) -> None:
    aws.dynamodb.call(
        "CreateTable",
        TableName="rounds",
        KeySchema=[{"AttributeName": "id", "KeyType": "HASH"}],
        AttributeDefinitions=[{"AttributeName": "id", "AttributeType": "S"}],
        BillingMode="PAY_PER_REQUEST",
    )
    with pytest.raises(ConfigError, match="option store=dynamodb://rounds: "):
        query(aws).plan()
