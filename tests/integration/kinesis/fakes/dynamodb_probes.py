"""Probes of a DynamoDB: the operations of lease stores, and refusals."""

from __future__ import annotations

import re
import uuid
from collections.abc import Awaitable, Callable
from typing import Any, Final

from botocore.exceptions import ClientError

from tests.integration.kinesis.fakes.peers import outcome

KEYS: Final[dict[str, Any]] = {
    "AttributeDefinitions": [
        {"AttributeName": name, "AttributeType": "S"} for name in ("pk", "sk")
    ],
    "KeySchema": [
        {"AttributeName": "pk", "KeyType": "HASH"},
        {"AttributeName": "sk", "KeyType": "RANGE"},
    ],
    "BillingMode": "PAY_PER_REQUEST",
}


class DynamoPeer:
    """A DynamoDB server, with the calls that several probes make."""

    def __init__(self, client: Any) -> None:
        self.client = client
        self.table = f"probe-{uuid.uuid4().hex[:12]}"

    async def create(self) -> None:
        """Create the probe's table, and wait until it can be used."""
        await self.client.create_table(TableName=self.table, **KEYS)
        waiter = self.client.get_waiter("table_exists")
        await waiter.wait(TableName=self.table, WaiterConfig={"Delay": 0.05, "MaxAttempts": 200})

    async def put(self, shard: str = "1", group: str = "g", **more: Any) -> None:
        """Write an item for a shard."""
        await self.client.put_item(TableName=self.table, Item=key(shard, group) | more)

    async def update(self, text: str, values: dict[str, Any], **more: Any) -> Any:
        """Return the attributes of item 1 after an update, or the error."""
        given = {"ExpressionAttributeValues": values} if values else {}
        try:
            reply = await self.client.update_item(
                TableName=self.table,
                Key=key(),
                UpdateExpression=text,
                ReturnValues="ALL_NEW",
                **given,
                **more,
            )
        except ClientError as error:
            return error.response["Error"]["Code"]
        return {name: value for name, value in reply["Attributes"].items() if name not in key()}


Probe = Callable[[DynamoPeer], Awaitable[Any]]


def key(shard: str = "1", group: str = "g") -> dict[str, Any]:
    return {"pk": {"S": group}, "sk": {"S": shard}}


def number(value: int) -> dict[str, str]:
    return {"N": str(value)}


async def a_new_table(peer: DynamoPeer) -> Any:
    await peer.create()
    table = (await peer.client.describe_table(TableName=peer.table))["Table"]
    again = await outcome(peer.client.create_table(TableName=peer.table, **KEYS))
    return table["KeySchema"], table["TableStatus"], again


async def a_table_that_is_not_there(peer: DynamoPeer) -> Any:
    client = peer.client
    return [
        await outcome(client.describe_table(TableName=peer.table)),
        await outcome(client.get_item(TableName=peer.table, Key=key())),
        await outcome(client.delete_table(TableName=peer.table)),
    ]


async def created_only_once(peer: DynamoPeer) -> Any:
    await peer.create()
    condition = {"ConditionExpression": "attribute_not_exists(pk)"}
    return [
        await outcome(peer.client.put_item(TableName=peer.table, Item=key(), **condition))
        for _ in range(2)
    ]


async def fenced_updates(peer: DynamoPeer) -> Any:
    await peer.create()
    await peer.put(epoch=number(3), beat=number(1))
    names = {"ExpressionAttributeNames": {"#owner": "owner"}}
    free = "(attribute_not_exists(#owner) OR #owner = :me) AND epoch = :e"
    take = "SET #owner = :me, epoch = epoch + :one, beat = beat + :one REMOVE asker"
    values = {":me": {"S": "me"}, ":e": number(3), ":one": number(1)}
    return [
        await peer.update(take, values, ConditionExpression=free, **names),
        await peer.update(take, values, ConditionExpression=free, **names),
        await peer.update(take, values | {":e": number(4)}, ConditionExpression=free, **names),
        await peer.update(
            take, values | {":e": number(5), ":me": {"S": "x"}}, ConditionExpression=free, **names
        ),
    ]


async def updates_of_all_kinds(peer: DynamoPeer) -> Any:
    await peer.create()
    await peer.put(tags={"SS": ["a", "b"]}, n={"N": "1.50"})
    return [
        await peer.update("ADD n :n, fresh :n", {":n": number(2)}),
        await peer.update("SET kept = if_not_exists(kept, :n), n = n - :n", {":n": number(2)}),
        await peer.update("DELETE tags :t", {":t": {"SS": ["a"]}}),
        await peer.update("DELETE tags :t", {":t": {"SS": ["b"]}}),
        await peer.update("REMOVE n, nothing, fresh", {}),
    ]


async def updates_that_are_refused(peer: DynamoPeer) -> Any:
    await peer.create()
    await peer.put(n={"S": "text"})
    one = {":one": number(1)}
    texts = (
        "SET owner = :one",
        "SET pk = :one",
        "SET n = n + :one",
        "SET m = nothing + :one",
        "SET m = :two",
        "SET #m = :one",
        "SET m = :one, m = :one",
        "SET m = :one SET o = :one",
        "SET m :one",
        "SET m = :one nonsense",
        "PUT m = :one",
    )
    return [await peer.update(text, one) for text in texts]


async def values_that_are_refused(peer: DynamoPeer) -> Any:
    await peer.create()
    values: list[Any] = [
        {"N": "1" * 39},
        {"N": "1" * 38},
        {"N": "1e126"},
        {"N": "many"},
        {"SS": []},
        {"SS": ["x", "x"]},
        {"S": ""},
    ]
    return [await outcome(peer.put(n=value)) for value in values]


async def numbers_as_they_are_kept(peer: DynamoPeer) -> Any:
    await peer.create()
    kept = []
    for text in ("1.0", "007", "1e3", "-0", "0.50", "123456789012345678901234567890"):
        await peer.put(n={"N": text})
        kept.append((await peer.client.get_item(TableName=peer.table, Key=key()))["Item"]["n"])
    return kept


async def keys_that_are_refused(peer: DynamoPeer) -> Any:
    await peer.create()
    get, put = peer.client.get_item, peer.client.put_item
    return [
        await outcome(get(TableName=peer.table, Key={"pk": {"S": "g"}})),
        await outcome(get(TableName=peer.table, Key=key() | {"more": {"S": "x"}})),
        await outcome(put(TableName=peer.table, Item={"pk": {"S": "g"}})),
        await outcome(put(TableName=peer.table, Item=key() | {"sk": {"N": "1"}})),
        await outcome(put(TableName=peer.table, Item=key(""))),
    ]


async def conditions(peer: DynamoPeer) -> Any:
    await peer.create()
    await peer.put(n=number(5), word={"S": "seven"}, tags={"SS": ["x"]})
    texts = (
        "n = :five AND NOT n <> :five",
        "absent = :five",
        "absent <> :five",
        "n < :seven",
        "n BETWEEN :five AND :five",
        "n IN (:seven, :five)",
        "begins_with(word, :se) OR n = :seven",
        "contains(tags, :x)",
        "size(word) = :five",
        "attribute_type(n, :N)",
        "attribute_exists(absent)",
        "n = ",
        "like(n, :five)",
    )
    values = {
        ":five": number(5),
        ":seven": {"S": "seven"},
        ":se": {"S": "se"},
        ":x": {"S": "x"},
        ":N": {"S": "N"},
    }
    seen = []
    for text in texts:
        used = {name: values[name] for name in re.findall(r":\w+", text)}
        given = {"ExpressionAttributeValues": used} if used else {}
        request = peer.client.put_item(
            TableName=peer.table,
            Item=key() | {"n": number(5), "word": {"S": "seven"}, "tags": {"SS": ["x"]}},
            ConditionExpression=text,
            **given,
        )
        seen.append(await outcome(request))
    return seen


async def pages_of_a_query(peer: DynamoPeer) -> Any:
    await peer.create()
    for shard in "25413":
        await peer.put(shard)
        await peer.put(shard, "other")
    pages: list[Any] = []
    request: dict[str, Any] = {
        "TableName": peer.table,
        "KeyConditionExpression": "pk = :g AND sk > :s",
        "ExpressionAttributeValues": {":g": {"S": "g"}, ":s": {"S": "1"}},
        "ConsistentRead": True,
        "Limit": 2,
    }
    while True:
        reply = await peer.client.query(**request)
        pages.append([item["sk"]["S"] for item in reply["Items"]])
        if "LastEvaluatedKey" not in reply:
            return pages
        request["ExclusiveStartKey"] = reply["LastEvaluatedKey"]


async def pages_of_a_scan(peer: DynamoPeer) -> Any:
    await peer.create()
    for shard in "12345":
        await peer.put(shard, n=number(int(shard)))
    request: dict[str, Any] = {
        "TableName": peer.table,
        "FilterExpression": "n > :n",
        "ProjectionExpression": "sk",
        "ExpressionAttributeValues": {":n": number(2)},
        "Limit": 2,
    }
    found: list[Any] = []
    scanned = 0
    while True:
        reply = await peer.client.scan(**request)
        found += reply["Items"]
        scanned += reply["ScannedCount"]
        if "LastEvaluatedKey" not in reply:
            return sorted(item["sk"]["S"] for item in found), {len(item) for item in found}, scanned
        request["ExclusiveStartKey"] = reply["LastEvaluatedKey"]


async def the_item_of_a_failed_condition(peer: DynamoPeer) -> Any:
    await peer.create()
    await peer.put()
    try:
        await peer.client.put_item(
            TableName=peer.table,
            Item=key(),
            ConditionExpression="attribute_not_exists(pk)",
            ReturnValuesOnConditionCheckFailure="ALL_OLD",
        )
    except ClientError as error:
        return error.response["Error"]["Code"], error.response.get("Item")


async def a_write_that_is_repeated(peer: DynamoPeer) -> Any:
    await peer.create()
    client = peer.client
    reply = [
        await client.delete_item(TableName=peer.table, Key=key(), ReturnValues="ALL_OLD"),
        await client.put_item(TableName=peer.table, Item=key(), ReturnValues="ALL_OLD"),
        await client.put_item(TableName=peer.table, Item=key(), ReturnValues="ALL_OLD"),
        await client.delete_item(TableName=peer.table, Key=key(), ReturnValues="ALL_OLD"),
    ]
    return [each.get("Attributes") for each in reply]


PROBES: Final[list[Probe]] = [
    probe
    for name, probe in list(globals().items())
    if callable(probe)
    and getattr(probe, "__module__", "") == __name__
    and name.islower()
    and name not in {"key", "number"}
]
