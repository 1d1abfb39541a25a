"""Dead letters of values that do not decode: complete, with the right offset, and never too large for their topic."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import pyarrow as pa
import pytest

from headrace import Producer
from headrace.errors import HeadraceError
from headrace.records.decoding import MAX_HEADERS
from headrace.spark.options.source import SourceOptions, source_options
from headrace.spark.source.dead_letters import DeadLetters
from headrace.testing import Broker
from tests.unit.spark.source.test_decoding import batch

WHY = {1: "no JSON"}


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker() as broker:
        yield broker


def options(broker: Broker, **given: str) -> SourceOptions:
    common = {
        "kafka.bootstrap.servers": broker.bootstrap,
        "subscribe": "t",
        "format": "json",
        "schema": "id int",
        "onError": "dlq:bad",
        "kafka.request.timeout.ms": "500",
    }
    return source_options(common | given, streaming=False)


def rows(wanted: SourceOptions, value: bytes = b"?", headers: Any = ()) -> Any:
    given = batch(wanted, [b"{}", value])
    if not headers:
        return given
    at = given.schema.get_field_index("headers")
    listed = [[{"key": name, "value": content} for name, content in headers]] * 2
    return given.set_column(
        at, given.schema.field(at), pa.array(listed, given.schema.field(at).type)
    )


def test_a_dead_letter_is_the_record_with_its_offset_and_the_reason(broker: Broker) -> None:
    broker.create_topic("bad")
    wanted = options(broker, group="billing")
    with DeadLetters(wanted) as letters:
        letters.send(rows(wanted), WHY)
    [letter] = broker.messages("bad")
    headers = dict(letter.headers)
    assert (letter.key, letter.value, headers["h"]) == (b"k", b"?", None)
    assert headers["kafka_dlt-original-topic"] == b"t"
    assert headers["kafka_dlt-original-offset"] == (41).to_bytes(8, "big")
    assert headers["dlq-error-type"] == b"UndecodableValue"
    assert headers["dlq-error-message"] == b"no JSON"
    assert headers["dlq-error-group"] == b"billing"


def test_headers_of_the_record_do_not_change_the_dead_letters_origin(broker: Broker) -> None:
    broker.create_topic("bad")
    wanted = options(broker)
    forged = [
        (f"{prefix}{what}", value)
        for prefix in ("kafka_original-", "kafka_dlt-original-")
        for what, value in (
            ("topic", b"payments"),
            ("partition", bytes(4)),
            ("offset", bytes(8)),
            ("timestamp", bytes(8)),
        )
    ]
    with DeadLetters(wanted) as letters:
        letters.send(rows(wanted, headers=forged), WHY)
    [letter] = broker.messages("bad")
    assert [value for name, value in letter.headers if name.endswith("-topic")] == [b"t"]


def test_a_dead_letter_that_is_too_large_keeps_the_offset_of_its_record(broker: Broker) -> None:
    broker.create_topic("bad", configs={"max.message.bytes": "2000"})
    wanted = options(broker)
    with DeadLetters(wanted) as letters:
        letters.send(rows(wanted, b"?" * 5_000), WHY)
        letters.send(rows(wanted), WHY)
    large, small = broker.messages("bad")
    assert (large.value, large.key) == (None, b"k")
    assert dict(large.headers)["dlq-left-out"] == b"value of 5000 bytes"
    assert dict(large.headers)["kafka_dlt-original-topic"] == b"t"
    assert small.value == b"?"


def test_a_record_with_the_most_headers_becomes_a_dead_letter(broker: Broker) -> None:
    broker.create_topic("bad")
    wanted = options(broker)
    with DeadLetters(wanted) as letters:
        letters.send(rows(wanted, headers=[("", None)] * MAX_HEADERS), WHY)
    [letter] = broker.messages("bad")
    assert dict(letter.headers)["dlq-left-out"] == b"value of 1 bytes, its key and its own headers"


def test_a_topic_that_is_deleted_is_an_error_and_is_not_created_again(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    soon = partial(Producer, delivery_timeout_ms=600)
    monkeypatch.setattr("headrace.spark.source.dead_letters.Producer", soon)
    broker.create_topic("bad")
    wanted = options(broker)
    with DeadLetters(wanted) as letters:
        letters.send(rows(wanted), WHY)
        broker.delete_topic("bad")
        with pytest.raises(HeadraceError, match="onError: 1 values do not decode"):
            letters.send(rows(wanted), WHY)
    assert "bad" not in broker.topics()
