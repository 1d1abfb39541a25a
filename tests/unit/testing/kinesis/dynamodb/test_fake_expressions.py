"""Conditional writes of the fake of DynamoDB, and the expressions in them."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.testing.kinesis import AwsError, FakeDynamoDB
from tests.unit.testing.kinesis.asking import ask
from tests.unit.testing.kinesis.dynamodb.test_fake_tables import fake_tables, item

KEY = item("g", "1")
ROW = {
    **KEY,
    "n": {"N": "5"},
    "word": {"S": "seven"},
    "tags": {"SS": ["x", "y"]},
    "yes": {"BOOL": True},
}
VALUES = {
    ":five": {"N": "5.0"},
    ":six": {"N": "6"},
    ":s": {"S": "seven"},
    ":e": {"S": "sev"},
    ":x": {"S": "x"},
    ":N": {"S": "N"},
}


@pytest.fixture
def dynamodb() -> FakeDynamoDB:
    made = fake_tables()
    ask(made, "PutItem", TableName="leases", Item=ROW)
    return made


def used(text: str, given: dict[str, Any] = VALUES) -> dict[str, Any]:
    """Return the values that an expression uses."""
    words = text.replace("(", " ").replace(")", " ").replace(",", " ").split()
    values = {name: value for name, value in given.items() if name in words}
    return {"ExpressionAttributeValues": values} if values else {}


def update(dynamodb: FakeDynamoDB, text: str, **more: Any) -> dict[str, Any]:
    """Return the item after an update."""
    reply = ask(
        dynamodb,
        "UpdateItem",
        TableName="leases",
        Key=KEY,
        UpdateExpression=text,
        ReturnValues="ALL_NEW",
        **used(text),
        **more,
    )
    return {name: value for name, value in reply["Attributes"].items() if name not in KEY}


@pytest.mark.parametrize(
    ("condition", "holds"),
    [
        ("attribute_exists(n)", True),
        ("attribute_not_exists(n)", False),
        ("attribute_not_exists(nothing)", True),
        ("n = :five", True),
        ("n <> :five", False),
        ("n < :six AND n >= :five", True),
        ("nothing = :five", False),
        ("nothing <> :five", True),
        ("n = :s", False),
        ("n < :s", False),
        ("NOT n = :five", False),
        ("not (n = :five or n = :six)", False),
        ("n = :six OR n = :five AND n = :six", False),
        ("(n = :five OR n = :six) AND NOT attribute_exists(nothing)", True),
        ("n BETWEEN :five AND :six", True),
        ("n IN (:six, :five)", True),
        ("begins_with(word, :e)", True),
        ("contains(word, :e)", True),
        ("contains(tags, :x)", True),
        ("attribute_type(n, :N)", True),
        ("size(word) = :five", True),
        ("size(tags) < :five", True),
        ("size(nothing) < :five", False),
    ],
)
def test_conditions_hold(dynamodb: FakeDynamoDB, condition: str, holds: bool) -> None:  # noqa: FBT001 - a parameter
    def write() -> None:
        ask(
            dynamodb,
            "DeleteItem",
            TableName="leases",
            Key=KEY,
            ConditionExpression=condition,
            **used(condition),
        )

    if holds:
        write()
        assert dynamodb.items("leases") == []
    else:
        with pytest.raises(AwsError, match="ConditionalCheckFailedException"):
            write()
        assert dynamodb.items("leases") == [ROW | {"n": {"N": "5"}}]


@pytest.mark.parametrize(
    ("text", "changed"),
    [
        ("SET n = :six", {"n": {"N": "6"}}),
        ("SET n = n + :six", {"n": {"N": "11"}}),
        ("SET n = n - :six, word = :x", {"n": {"N": "-1"}, "word": {"S": "x"}}),
        ("SET fresh = if_not_exists(fresh, :five) + :six", {"fresh": {"N": "11"}}),
        ("SET n = if_not_exists(n, :six)", {}),
        ("SET fresh = n, n = :six", {"fresh": {"N": "5"}, "n": {"N": "6"}}),
        ("REMOVE n, nothing SET word = :x", {"n": None, "word": {"S": "x"}}),
        ("ADD n :six, fresh :six", {"n": {"N": "11"}, "fresh": {"N": "6"}}),
    ],
)
def test_updates_are_applied(dynamodb: FakeDynamoDB, text: str, changed: dict[str, Any]) -> None:
    wanted = {name: value for name, value in (ROW | changed).items() if name not in KEY and value}
    assert update(dynamodb, text) == wanted


def test_sets_grow_and_shrink(dynamodb: FakeDynamoDB) -> None:
    def change(text: str, *names: str) -> Any:
        values = {":n": {"SS": list(names)}}
        reply = ask(
            dynamodb,
            "UpdateItem",
            TableName="leases",
            Key=KEY,
            UpdateExpression=text,
            ExpressionAttributeValues=values,
            ReturnValues="UPDATED_NEW",
        )
        return reply.get("Attributes")

    assert change("ADD tags :n", "y", "z") == {"tags": {"SS": ["x", "y", "z"]}}
    assert change("DELETE tags :n", "x", "z") == {"tags": {"SS": ["y"]}}
    assert change("DELETE tags :n", "y") is None
    with pytest.raises(AwsError, match="incorrect data type"):
        change("ADD n :n", "x")


def test_an_update_of_a_missing_item_creates_the_item(dynamodb: FakeDynamoDB) -> None:
    key = item("g", "2")
    ask(
        dynamodb,
        "UpdateItem",
        TableName="leases",
        Key=key,
        UpdateExpression="SET n = :n",
        ExpressionAttributeValues={":n": {"N": "1"}},
    )
    assert ask(dynamodb, "GetItem", TableName="leases", Key=key) == {
        "Item": {**key, "n": {"N": "1"}}
    }


@pytest.mark.parametrize(
    ("wanted", "reply"),
    [
        ("NONE", None),
        ("ALL_OLD", ROW),
        ("ALL_NEW", ROW | {"n": {"N": "6"}}),
        ("UPDATED_OLD", {"n": {"N": "5"}}),
        ("UPDATED_NEW", {"n": {"N": "6"}}),
    ],
)
def test_an_update_returns_the_requested_attributes(
    dynamodb: FakeDynamoDB, wanted: str, reply: Any
) -> None:
    request = {"TableName": "leases", "Key": KEY, "UpdateExpression": "SET n = :six"}
    answer = ask(dynamodb, "UpdateItem", ReturnValues=wanted, **request, **used("SET n = :six"))
    assert answer.get("Attributes") == reply


def test_a_failed_condition_may_return_the_item(dynamodb: FakeDynamoDB) -> None:
    for wanted, reply in (("ALL_OLD", ROW), ("NONE", None)):
        with pytest.raises(AwsError, match="The conditional request failed") as failed:
            ask(
                dynamodb,
                "PutItem",
                TableName="leases",
                Item=KEY,
                ConditionExpression="attribute_not_exists(pk)",
                ReturnValuesOnConditionCheckFailure=wanted,
            )
        assert failed.value.extra["Item"] == reply


@pytest.mark.parametrize(
    ("text", "more", "refusal"),
    [
        ("SET pk = :x", {}, "Cannot update attribute pk. This attribute is part of the key"),
        ("SET owner = :x", {}, "reserved keyword: owner"),
        ("SET n = :missing", {}, "not defined; attribute value: :missing"),
        ("SET #n = :x", {}, "not defined; attribute name: #n"),
        (
            "SET n = :x",
            {"ExpressionAttributeNames": {"#n": "n"}},
            r"unused in expressions: keys: \{#n\}",
        ),
        ("SET n = :x, n = :x", {}, "Two document paths overlap"),
        ("SET n = :x SET word = :x", {}, "can only be used once"),
        ("SET n :x", {}, "Syntax error"),
        ("SET n = :x,", {}, "Syntax error"),
        ("SET n = :x extra", {}, "Syntax error"),
        ("SET n = ?", {}, "Syntax error"),
        ("SET a.b = :x", {}, "does not support paths into lists and maps"),
        ("SET n = list_append(n, :x)", {}, "Invalid function name; function: list_append"),
        ("SET n = n + :x", {}, "incorrect data type"),
        ("SET n = nothing + :six", {}, "does not exist in the item"),
        ("", {}, "can not be empty"),
        ("SET n = :x", {"ConditionExpression": "n = "}, "Syntax error"),
        ("SET n = :x", {"ConditionExpression": "matches(n, :x)"}, "Invalid function name"),
        ("SET n = :x", {"ConditionExpression": "(n = :x"}, "Syntax error"),
        ("SET n = :x", {"ReturnItems": "ALL"}, "the fake does not know ReturnItems"),
    ],
)
def test_expressions_that_are_not_supported_are_refused(
    dynamodb: FakeDynamoDB, text: str, more: dict[str, Any], refusal: str
) -> None:
    before = dynamodb.items("leases")
    with pytest.raises(AwsError, match=refusal):
        update(dynamodb, text, **more)
    assert dynamodb.items("leases") == before
