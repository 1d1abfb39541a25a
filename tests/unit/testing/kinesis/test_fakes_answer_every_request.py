"""The fakes answer every request. A refusal is an error of AWS, never an exception of the fake."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from headrace.testing.kinesis import FakeKinesis
from headrace.testing.kinesis.dynamodb import machine as dynamodb_machine
from headrace.testing.kinesis.machine import OPERATIONS
from headrace.testing.kinesis.service import AwsService
from tests.unit.testing.kinesis.asking import FIRST, fake, iterator
from tests.unit.testing.kinesis.dynamodb.test_fake_tables import KEYS, fake_tables, item

ODD: list[Any] = [
    None,
    True,
    0,
    -1,
    1e300,
    "",
    "nonsense",
    "9" * 60,
    [],
    [1],
    {},
    {"S": 1},
    {"Type": "LATEST"},
]


def members_of_kinesis(kinesis: FakeKinesis) -> dict[str, Any]:
    return {
        "StreamName": "orders",
        "StreamARN": kinesis.account.arn("orders"),
        "ConsumerARN": kinesis.register_consumer("orders", "billing"),
        "ConsumerName": "audit",
        "ShardId": FIRST,
        "ShardToSplit": FIRST,
        "ShardToMerge": FIRST,
        "AdjacentShardToMerge": "shardId-000000000001",
        "NewStartingHashKey": "5",
        "ShardIterator": iterator(kinesis),
        "ShardIteratorType": "AT_SEQUENCE_NUMBER",
        "StartingSequenceNumber": "0",
        "StartingPosition": {"Type": "AT_TIMESTAMP", "Timestamp": 1},
        "Timestamp": 1,
        "ShardFilter": {"Type": "FROM_TIMESTAMP", "Timestamp": 1},
        "Records": [{"Data": "MQ==", "PartitionKey": "k"}, {"Data": 1}, 1],
        "Data": "MQ==",
        "PartitionKey": "k",
        "Limit": 1,
        "MaxResults": 1,
        "NextToken": "AAAAAAAAAAM",
        "RetentionPeriodHours": 48,
        "StreamModeDetails": {"StreamMode": "PROVISIONED"},
        "TargetShardCount": 2,
        "ScalingType": "UNIFORM_SCALING",
        "EncryptionType": "KMS",
        "KeyId": "alias",
        "MaxRecordSizeInKiB": 2048,
    }


MEMBERS_OF_DYNAMODB: dict[str, Any] = {
    **KEYS,
    "TableName": "leases",
    "Item": item("a", "1", n={"N": "1"}),
    "Key": item("a", "1"),
    "UpdateExpression": "SET n = :n",
    "ConditionExpression": "attribute_exists(n)",
    "KeyConditionExpression": "pk = :n",
    "ExpressionAttributeNames": {"#n": "n"},
    "ExpressionAttributeValues": {":n": {"S": "a"}},
    "ExclusiveStartKey": item("a", "1"),
    "ProvisionedThroughput": {"ReadCapacityUnits": 1, "WriteCapacityUnits": 1},
    "Limit": 1,
    "ReturnValues": "ALL_OLD",
    "ProjectionExpression": "n",
    "FilterExpression": "n = :n",
    "ScanIndexForward": False,
}


def answers_all(
    service: AwsService, operations: Sequence[str], members: dict[str, Any], seed: int
) -> set[int]:
    entropy = random.Random(seed)
    statuses = set()
    for _ in range(1500):
        operation = entropy.choice(operations)
        chosen = entropy.sample(sorted(members), entropy.randint(1, 8))
        request = {name: members[name] for name in chosen}
        for name in entropy.sample(chosen, entropy.randint(0, 1)):
            request[name] = entropy.choice(ODD)
        statuses.add(service.handle(operation, msgspec.json.encode(request)).status)
    return statuses


@pytest.mark.parametrize("seed", range(3))
def test_the_fake_of_kinesis_answers_every_request(seed: int) -> None:
    kinesis = fake()
    members = members_of_kinesis(kinesis)
    assert answers_all(kinesis, [*OPERATIONS, "SubscribeToShard"], members, seed) == {200, 400}


@pytest.mark.parametrize("seed", range(3))
def test_the_fake_of_dynamodb_answers_every_request(seed: int) -> None:
    operations = list(dynamodb_machine.OPERATIONS)
    assert answers_all(fake_tables(), operations, MEMBERS_OF_DYNAMODB, seed) == {200, 400}
