"""Tables, items and pages of the fake of DynamoDB."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.embedded.clock import ManualClock
from headrace.testing.kinesis import AwsError, FakeDynamoDB
from tests.unit.testing.kinesis.asking import ask

KEYS = {
    "AttributeDefinitions": [
        {"AttributeName": "pk", "AttributeType": "S"},
        {"AttributeName": "sk", "AttributeType": "S"},
    ],
    "KeySchema": [
        {"AttributeName": "pk", "KeyType": "HASH"},
        {"AttributeName": "sk", "KeyType": "RANGE"},
    ],
    "BillingMode": "PAY_PER_REQUEST",
}


def fake_tables(**options: Any) -> FakeDynamoDB:
    dynamodb = FakeDynamoDB(clock=ManualClock(), **options)
    ask(dynamodb, "CreateTable", TableName="leases", **KEYS)
    return dynamodb


def item(group: str, shard: str, **more: Any) -> dict[str, Any]:
    return {"pk": {"S": group}, "sk": {"S": shard}, **more}


def filled() -> FakeDynamoDB:
    dynamodb = fake_tables()
    for group in ("a", "b"):
        for shard in "31524":
            ask(dynamodb, "PutItem", TableName="leases", Item=item(group, shard))
    return dynamodb


def all_pages(dynamodb: FakeDynamoDB, operation: str, **members: Any) -> list[str]:
    """Return the keys of all pages."""
    found: list[str] = []
    while True:
        reply = ask(dynamodb, operation, TableName="leases", **members)
        found += [each["pk"]["S"] + each["sk"]["S"] for each in reply["Items"]]
        if "LastEvaluatedKey" not in reply:
            return found
        members["ExclusiveStartKey"] = reply["LastEvaluatedKey"]


A_GROUP: dict[str, Any] = {
    "KeyConditionExpression": "pk = :g",
    "ExpressionAttributeValues": {":g": {"S": "a"}},
}


def test_a_table_is_created_described_and_deleted_in_time() -> None:
    dynamodb = fake_tables(transition_ms=100)
    assert ask(dynamodb, "DescribeTable", TableName="leases")["Table"]["TableStatus"] == "CREATING"
    with pytest.raises(AwsError, match="Requested resource not found"):
        ask(dynamodb, "GetItem", TableName="leases", Key=item("a", "1"))
    with pytest.raises(AwsError, match="ResourceInUseException: Table already exists"):
        ask(dynamodb, "CreateTable", TableName="leases", **KEYS)
    dynamodb.advance(100)
    described = ask(dynamodb, "DescribeTable", TableName="leases")["Table"]
    assert (described["TableStatus"], described["KeySchema"]) == ("ACTIVE", KEYS["KeySchema"])
    ask(dynamodb, "DeleteTable", TableName="leases")
    dynamodb.advance(100)
    with pytest.raises(AwsError, match="ResourceNotFoundException"):
        ask(dynamodb, "DescribeTable", TableName="leases")
    assert dynamodb.tables() == []
    ask(dynamodb, "CreateTable", TableName="leases", **KEYS)


@pytest.mark.parametrize("limit", [1, 2, 3, 5, None])
def test_a_query_returns_one_group_in_order_by_the_page(limit: int | None) -> None:
    page = {} if limit is None else {"Limit": limit}
    dynamodb = filled()
    assert all_pages(dynamodb, "Query", **A_GROUP, **page) == ["a1", "a2", "a3", "a4", "a5"]
    backwards = all_pages(dynamodb, "Query", ScanIndexForward=False, **A_GROUP, **page)
    assert backwards == ["a5", "a4", "a3", "a2", "a1"]
    assert sorted(all_pages(dynamodb, "Scan", **page)) == [
        f"{group}{n}" for group in "ab" for n in range(1, 6)
    ]


def test_a_page_continues_behind_a_deleted_item() -> None:
    dynamodb = filled()
    ask(dynamodb, "DeleteItem", TableName="leases", Key=item("a", "3"))
    assert all_pages(dynamodb, "Query", ExclusiveStartKey=item("a", "3"), **A_GROUP) == ["a4", "a5"]


@pytest.mark.parametrize(
    ("condition", "wanted"),
    [
        ("sk > :s", "45"),
        ("sk <= :s", "123"),
        ("sk = :s", "3"),
        ("begins_with(sk, :s)", "3"),
        ("sk BETWEEN :s AND :s", "3"),
    ],
)
def test_a_query_filters_range_keys(condition: str, wanted: str) -> None:
    values = {":g": {"S": "a"}, ":s": {"S": "3"}}
    found = all_pages(
        filled(),
        "Query",
        KeyConditionExpression=f"pk = :g AND {condition}",
        ExpressionAttributeValues=values,
    )
    assert "".join(key[1] for key in found) == wanted


def test_a_page_ends_at_one_mib() -> None:
    dynamodb = fake_tables()
    for shard in "12345":
        large = item("a", shard, blob={"S": "x" * 300_000})
        ask(dynamodb, "PutItem", TableName="leases", Item=large)
    reply = ask(dynamodb, "Query", TableName="leases", **A_GROUP)
    assert (reply["Count"], reply["LastEvaluatedKey"]) == (4, item("a", "4"))
    assert len(all_pages(dynamodb, "Scan")) == 5
    with pytest.raises(AwsError, match="Item size has exceeded the maximum allowed size"):
        ask(dynamodb, "PutItem", TableName="leases", Item=item("a", "6", blob={"S": "x" * 410_000}))


def test_a_read_may_return_some_attributes_of_some_items() -> None:
    dynamodb = fake_tables()
    for shard, number in (("1", "7"), ("2", "8")):
        ask(dynamodb, "PutItem", TableName="leases", Item=item("a", shard, n={"N": number}))
    reply = ask(
        dynamodb,
        "Scan",
        TableName="leases",
        FilterExpression="n > :n",
        ProjectionExpression="sk, #n",
        ExpressionAttributeNames={"#n": "n"},
        ExpressionAttributeValues={":n": {"N": "7"}},
    )
    assert (reply["Items"], reply["Count"], reply["ScannedCount"]) == (
        [{"sk": {"S": "2"}, "n": {"N": "8"}}],
        1,
        2,
    )


@pytest.mark.parametrize(
    ("operation", "members", "refusal"),
    [
        ("GetItem", {"Key": {"pk": {"S": "a"}}}, "key element does not match the schema"),
        (
            "GetItem",
            {"Key": {"pk": {"S": "a"}, "sk": {"N": "1"}}},
            "key element does not match the schema",
        ),
        ("PutItem", {"Item": {"pk": {"S": "a"}}}, "Missing the key sk in the item"),
        ("PutItem", {"Item": {"pk": {"S": "a"}, "sk": {"N": "1"}}}, "Type mismatch for key sk"),
        ("PutItem", {"Item": item("", "1")}, "empty string value. Key: pk"),
        ("PutItem", {"Item": item("a", "1", n={"N": "1" * 56})}, "more than 38 significant digits"),
        ("PutItem", {"Item": item("a", "1", n={"N": "1e126"})}, "overflow"),
        (
            "PutItem",
            {"Item": item("a", "1", n={"N": "many"})},
            "cannot be converted to a numeric value",
        ),
        ("PutItem", {"Item": item("a", "1", n={"SS": []})}, "may not be empty"),
        ("PutItem", {"Item": item("a", "1", n={"SS": ["x", "x"]})}, "contains duplicates"),
        ("PutItem", {"Item": item("a", "1", n={"S": "x", "N": "1"})}, "more than one datatypes"),
        ("Query", {}, "KeyConditionExpression parameter must be specified"),
        (
            "Query",
            {"KeyConditionExpression": "sk = :g", "ExpressionAttributeValues": {":g": {"S": "a"}}},
            "missed key schema element",
        ),
        (
            "Query",
            {"KeyConditionExpression": "n = :g", "ExpressionAttributeValues": {":g": {"S": "a"}}},
            "missed key schema element",
        ),
        ("Query", {"IndexName": "byOwner", **A_GROUP}, "the fake does not know IndexName of Query"),
        ("Scan", {"Limit": 0}, "greater than or equal to 1"),
        ("TransactWriteItems", {}, "has no operation 'TransactWriteItems'"),
    ],
)
def test_wrong_requests_are_refused(operation: str, members: dict[str, Any], refusal: str) -> None:
    with pytest.raises(AwsError, match=refusal):
        ask(fake_tables(), operation, TableName="leases", **members)


def test_numbers_are_stored_in_normal_form() -> None:
    dynamodb = fake_tables()
    numbers = {"1.0": "1", "-0": "0", "007": "7", "1e3": "1000", "0.50": "0.5", "9" * 38: "9" * 38}
    for number, kept in numbers.items():
        ask(dynamodb, "PutItem", TableName="leases", Item=item("a", "1", n={"N": number}))
        assert dynamodb.items("leases") == [item("a", "1", n={"N": kept})]
