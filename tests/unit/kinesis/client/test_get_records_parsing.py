"""Answers of GetRecords, parsed by Headrace and by botocore: the results are equal for any answer."""

from __future__ import annotations

import asyncio
import json
from base64 import b64encode
from functools import cache
from typing import Any

from botocore.parsers import create_parser
from botocore.session import get_session
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.kinesis.client.get_records import (
    ChildShard,
    GetRecordsReply,
    HashKeyRange,
    get_records,
    prepare,
    reply_of,
)
from tests.effort import examples

HASH_KEY = st.integers(0, 2**128 - 1).map(str)
SHARD = st.integers(0, 2**31).map(lambda number: f"shardId-{number:012d}")
RECORD = st.fixed_dictionaries(
    {
        "SequenceNumber": st.integers(0, 10**56).map(str),
        "Data": st.binary(max_size=200).map(lambda data: b64encode(data).decode()),
        "PartitionKey": st.text(st.characters(codec="utf-8"), max_size=20),
        "ApproximateArrivalTimestamp": st.integers(0, 2**42).map(lambda time_ms: time_ms / 1000)
        | st.integers(0, 2**32)
        | st.just("2026-11-22T01:02:03.004Z"),  # only botocore parses this form
    },
    optional={"EncryptionType": st.sampled_from([None, "NONE", "KMS"])},
)
CHILD = st.fixed_dictionaries(
    {
        "ShardId": SHARD,
        "ParentShards": st.lists(SHARD, min_size=1, max_size=2),
        "HashKeyRange": st.fixed_dictionaries(
            {"StartingHashKey": HASH_KEY, "EndingHashKey": HASH_KEY}
        ),
    }
)
ANSWER = st.fixed_dictionaries(
    {"Records": st.lists(RECORD, max_size=5)},
    optional={
        "NextShardIterator": st.none() | st.text(max_size=9),
        "MillisBehindLatest": st.integers(0, 2**53),
        "ChildShards": st.lists(CHILD, max_size=2),
        "SomethingNew": st.dictionaries(st.text(max_size=3), st.integers(), max_size=2),
    },
)


@cache
def output_shape() -> Any:
    return get_session().get_service_model("kinesis").operation_model("GetRecords").output_shape


class Events:
    """The events of a botocore client; only one is used."""

    def __init__(self) -> None:
        self.handlers: list[Any] = []

    def register(self, name: str, handler: Any, unique_id: str) -> None:
        assert (name, unique_id) == ("before-parse.kinesis.GetRecords", "headrace-get-records")
        self.handlers.append(handler)


class BotocoreClient:
    """Parse as botocore does, after the event `before-parse`."""

    def __init__(self, body: bytes, status: int = 200) -> None:
        self.body = body
        self.status = status
        self.meta = self
        self.events = Events()
        self.parsed: list[bytes] = []

    async def get_records(self, **_arguments: object) -> dict[str, Any]:
        response = {"body": self.body, "status_code": self.status, "headers": {}, "context": {}}
        custom: dict[str, Any] = {}
        for handler in self.events.handlers:
            handler(response_dict=response, customized_response_dict=custom, operation_model=None)
        parsed: dict[str, Any] = create_parser("json").parse(response, output_shape())
        self.parsed.append(self.body)
        return parsed | custom


def asked(client: Any) -> GetRecordsReply:
    return asyncio.run(get_records(client, {"ShardIterator": "x"}))


@settings(max_examples=examples(60))
@given(ANSWER)
def test_both_parsers_read_the_same_reply(answer: dict[str, Any]) -> None:
    body = json.dumps(answer).encode()
    slow, fast = BotocoreClient(body), BotocoreClient(body)
    prepare(fast)  # type: ignore[arg-type] # it has what is asked of it
    assert asked(fast) == asked(slow)
    for stored, reply in zip(asked(fast).records, answer["Records"], strict=True):
        assert b64encode(stored.data).decode() == reply["Data"]
        assert stored.partition_key == reply["PartitionKey"]


def test_calls_of_the_program_get_the_replies_of_botocore() -> None:
    client = BotocoreClient(
        b'{"Records":[{"SequenceNumber":"1","Data":"YQ==","PartitionKey":"k"}]}'
    )
    prepare(client)  # type: ignore[arg-type] # it has what is asked of it
    assert asked(client).records[0].data == b"a"
    plain = asyncio.run(client.get_records())
    assert plain["Records"] == [{"SequenceNumber": "1", "Data": b"a", "PartitionKey": "k"}]


def test_refusals_are_left_to_botocore() -> None:
    client = BotocoreClient(b'{"__type":"ExpiredIteratorException","message":"too old"}', 400)
    prepare(client)  # type: ignore[arg-type] # it has what is asked of it
    answer = asyncio.run(client.get_records())
    assert answer["Error"] == {"Code": "ExpiredIteratorException", "Message": "too old"}


def test_a_client_without_events_is_used_unchanged() -> None:
    class Fake:
        async def get_records(self, **arguments: object) -> dict[str, Any]:
            assert arguments == {"ShardIterator": "x"}
            keys = {"StartingHashKey": "0", "EndingHashKey": "9"}
            child = {"ShardId": "c", "ParentShards": ["p"], "HashKeyRange": keys}
            return {"Records": [], "MillisBehindLatest": 5, "ChildShards": [child]}

    fake: Any = Fake()
    prepare(fake)
    children = [ChildShard("c", ["p"], HashKeyRange("0", "9"))]
    assert asked(fake) == GetRecordsReply([], None, 5, children)
    assert reply_of({}) == GetRecordsReply()
