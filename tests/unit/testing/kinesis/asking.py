"""Sends requests to the fakes as a client does, without a socket."""

from __future__ import annotations

import base64
from typing import Any

import msgspec

from headrace.embedded.clock import ManualClock
from headrace.testing.kinesis import AwsError, FakeKinesis
from headrace.testing.kinesis.service import AwsService

FIRST = "shardId-000000000000"


def fake(**options: Any) -> FakeKinesis:
    """Return a fake with the stream `orders` of one shard, whose clock stands still."""
    kinesis = FakeKinesis(clock=ManualClock(), **options)
    kinesis.create_stream("orders")
    return kinesis


def ask(service: AwsService, operation: str, **members: Any) -> dict[str, Any]:
    """Return the answer of a service, or raise its refusal."""
    reply = service.handle(operation, msgspec.json.encode(members))
    reported: dict[str, Any] = msgspec.json.decode(reply.body) if reply.body else {}
    if reply.status != 200:
        kind = reported["__type"].removeprefix(service.NAMESPACE)
        raise AwsError(kind, reported["message"], {"Item": reported.get("Item")})
    return reported


def iterator(
    kinesis: FakeKinesis, shard: str = FIRST, kind: str = "TRIM_HORIZON", **more: Any
) -> str:
    reported = ask(
        kinesis,
        "GetShardIterator",
        StreamName="orders",
        ShardId=shard,
        ShardIteratorType=kind,
        **more,
    )
    return str(reported["ShardIterator"])


def get(kinesis: FakeKinesis, token: str, **more: Any) -> dict[str, Any]:
    return ask(kinesis, "GetRecords", ShardIterator=token, **more)


def datas(reported: dict[str, Any]) -> list[bytes]:
    return [base64.b64decode(record["Data"]) for record in reported["Records"]]


def entry(data: bytes, key: str = "key", **more: Any) -> dict[str, Any]:
    return {"Data": data, "PartitionKey": key, **more}
