"""`kinesis(...)`, and an app that reads streams: refused arguments, loaded modules, and connections."""

from __future__ import annotations

import subprocess
import sys
from datetime import datetime
from typing import Any

import pytest

import headrace
from headrace.cli.commands.dlq_redrive import Targets
from headrace.dead_letters.letter_headers import (
    LETTER,
    dead_letter_headers,
    header_text,
    named_origin,
    origin_of,
)
from headrace.errors import ConfigError
from headrace.kinesis import AwsSettings, kinesis
from headrace.stream_record import StreamRecord, offset_of, partition_of

SEQUENCE = "49590338271490256608559692538361571095921575989136588898"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"start": "EARLIEST"}, "TRIM_HORIZON"),
        ({"start": "AFTER:x"}, "sequence number"),
        ({"start": datetime(2026, 1, 1)}, "no time zone"),  # noqa: DTZ001 - that is what is refused
        ({"lease_duration_ms": 10}, "lease_duration_ms=10"),
        ({"max_shards": 0}, "max_shards is 0"),
        ({"poll_ms": 1}, "poll_ms=1"),
        ({"max_pol_ms": 1}, "max_pol_ms"),
        ({"region": "r", "aws": AwsSettings()}, "in aws= already"),
    ],
)
def test_invalid_arguments_of_kinesis_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        kinesis("orders", **arguments)


def test_max_shards_is_unlimited_by_default() -> None:
    assert kinesis("orders", max_shards=3).lease.max_shards == 3
    assert kinesis("orders").lease.max_shards is None


def test_streams_need_distinct_names() -> None:
    with pytest.raises(ConfigError, match="name or the ARN"):
        kinesis()
    with pytest.raises(ConfigError, match="twice"):
        kinesis("a", "a")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"delivery": "exactly_once"}, "context.epoch"),
        ({"retry": headrace.Retry(topics=True)}, "streams"),
        ({"max_poll_records": 3}, "max_poll_records"),
        ({"pattern": "o.*"}, "use one of them"),
        ({"dead_letter": "s3://bucket"}, "kinesis://STREAM"),
    ],
)
def test_worker_options_that_streams_do_not_have_are_refused(
    arguments: dict[str, Any], message: str
) -> None:
    app = headrace.App(group="billing")
    with pytest.raises(ConfigError, match=message):

        @app.worker(kinesis("orders"), **arguments)
        async def bill(order: str) -> None: ...


def test_dead_letters_of_topics_go_to_topics() -> None:
    app = headrace.App(group="billing")
    with pytest.raises(ConfigError, match="is not a valid topic name"):

        @app.worker("orders", dead_letter="kinesis://letters")
        async def bill(order: str) -> None: ...


@pytest.mark.slow
def test_apps_on_topics_never_load_aiobotocore() -> None:
    program = (
        "import sys, headrace, headrace.workers, headrace.kinesis\n"
        "app = headrace.App(group='billing')\n"
        "@app.worker('orders')\n"
        "async def bill(order: str) -> None: ...\n"
        "with app.test() as t:\n"
        "    t.produce('orders', 'one')\n"
        "    t.wait_idle()\n"
        "print([name for name in sys.modules if 'boto' in name or name == 'aiohttp'])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"


def test_an_offset_orders_records_and_contains_the_sequence_number() -> None:
    places = [(SEQUENCE, None), (SEQUENCE, 0), (SEQUENCE, 1), (str(int(SEQUENCE) + 1), None)]
    offsets = [offset_of(*place) for place in places]
    assert offsets == sorted(set(offsets))
    for offset, (sequence_number, sub_sequence) in zip(offsets, places, strict=True):
        record = StreamRecord("orders", 3, offset, 0, b"k", b"v", (), 7)
        assert (record.sequence_number, record.sub_sequence) == (sequence_number, sub_sequence)
        assert record.shard == "shardId-000000000003"
    assert partition_of("shardId-000000000003") == 3


def test_a_dead_letter_of_a_stream_is_replayed_only_to_a_named_topic() -> None:
    record = StreamRecord("orders", 3, offset_of(SEQUENCE, None), 5, b"k", b"v", (), 7)
    headers = dead_letter_headers(record, origin_of(record), "billing", 2, ValueError("no"))
    for topic in ("dlq.kinesis.orders", "dlq.orders"):  # also if a topic has the name of the stream
        letter = record._replace(topic=topic, offset=0, headers=headers)
        assert Targets(topic).of(letter) is None
        assert Targets(topic, existing=["orders"]).of(letter) is None
        assert Targets(topic, to="orders-again").of(letter) == "orders-again"


def test_a_dead_letter_contains_the_records_position_in_its_shard() -> None:
    offset = offset_of(SEQUENCE, 4)
    record = StreamRecord("orders", 3, offset, 5, b"k", b"v", (), 7)
    headers = dead_letter_headers(record, origin_of(record), "billing", 2, ValueError("no"))
    fields = {name: header_text(name, value) for name, value in headers}
    assert fields["dlq-shard"] == "shardId-000000000003"
    assert fields["dlq-sequence-number"] == f"{SEQUENCE}:4"
    letter = record._replace(topic="dlq.orders", offset=0, headers=headers)
    assert named_origin(letter, LETTER) == ("orders", 3, offset, 5)
