"""Checkpoints and the store: their content is read back as written, and refused where another program wrote it."""

from __future__ import annotations

import json

import pytest

from headrace.core.lease.checkpoint import SHARD_END, TRIM_HORIZON, Checkpoint, at_timestamp
from headrace.errors import ConfigError
from headrace.spark.kinesis.offsets import (
    End,
    ShardPosition,
    Shards,
    StreamOffset,
    StreamPart,
    parse_end,
)

FLIGHTS = StreamPart(
    "flights@17",
    reads=("a",),
    shards=Shards(
        active={"a": ShardPosition(Checkpoint("4" * 56), 12), "b": ShardPosition(TRIM_HORIZON)},
        waiting={"c": at_timestamp(5)},
        done=frozenset({"z"}),
    ),
)
PLANNED = StreamOffset(
    query="q",
    round=3,
    token="t",
    tasks=2,
    until_ms=99,
    parts={"flights": FLIGHTS, "weather": StreamPart("weather@18")},
)
FIRST_FORM = {
    "version": 1,
    "query": "q",
    "round": 3,
    "planned": {
        "stream": "flights@17",
        "token": "t",
        "tasks": 2,
        "untilMs": 99,
        "reads": ["a"],
        "shards": {"a": ["4" * 56, 12], "b": ["TRIM_HORIZON", None]},
        "waiting": {"c": "AT_TIMESTAMP:5"},
        "done": ["z"],
    },
}


def test_offsets_are_read_back_as_they_were_written() -> None:
    for offset in (PLANNED, StreamOffset("q")):
        assert StreamOffset.from_json(json.loads(json.dumps(offset.to_json()))) == offset


def test_the_form_of_a_checkpoint_is_kept() -> None:
    assert PLANNED.to_json() == {
        "version": 2,
        "query": "q",
        "round": 3,
        "planned": {
            "token": "t",
            "tasks": 2,
            "untilMs": 99,
            "streams": {
                "flights@17": {
                    "reads": ["a"],
                    "shards": {"a": ["4" * 56, 12], "b": ["TRIM_HORIZON", None]},
                    "waiting": {"c": "AT_TIMESTAMP:5"},
                    "done": ["z"],
                },
                "weather@18": {"reads": [], "shards": {}, "waiting": {}, "done": []},
            },
        },
    }
    assert PLANNED.end_name(FLIGHTS, "a") == "2/flights/a"


def test_a_checkpoint_of_the_first_form_finds_its_ends_in_the_store() -> None:
    offset = StreamOffset.from_json(FIRST_FORM)
    assert offset.parts == {"flights": FLIGHTS}
    assert offset.end_name(FLIGHTS, "a") == "2/a"
    assert StreamOffset.from_json(FIRST_FORM | {"round": 0}) == StreamOffset("q")


def test_checkpoints_of_others_are_refused() -> None:
    with pytest.raises(ConfigError, match="update it"):
        StreamOffset.from_json({"version": 3, "query": "q", "round": 0})
    with pytest.raises(ConfigError, match="another checkpointLocation"):
        StreamOffset.from_json({"flights": {"0": 12}})


def test_ends_are_read_back_and_those_of_others_refused() -> None:
    end = End(position="SHARD_END", rows=3, first="1", last="9", read_ms=5, behind_ms=0)
    assert parse_end(end.to_text()) == end
    assert end.continuation == ShardPosition(SHARD_END, 5)
    with pytest.raises(ConfigError, match="another program writes to it"):
        parse_end("?")
    with pytest.raises(ConfigError, match="form 2"):
        parse_end('{"v": 2, "position": "1"}')


def test_an_unread_shard_ends_where_it_began() -> None:
    after = FLIGHTS.after({"a": FLIGHTS.nothing_read("a")})
    assert after.active == FLIGHTS.shards.active
