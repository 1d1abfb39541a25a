"""Typed values on real Spark: docs/guides/decoding.md's programs run, every type arrives, bad values are reported."""

from __future__ import annotations

import datetime as dt
import io
import json
import re
from decimal import Decimal
from pathlib import Path
from typing import Any

import fastavro
import pytest
from google.protobuf import descriptor_pb2
from pyspark import TaskContext

import headrace
from headrace.clients.blocking import BlockingClient
from headrace.records.builder import build_batch
from headrace.types import TopicPartition
from tests.integration.spark.conftest import Reader, Topics

PAGE = Path(__file__).resolve().parents[3] / "docs" / "guides" / "decoding.md"
LETTER = "kafka_dlt-original-"


def put(client: BlockingClient, topic: str, *values: bytes | None) -> None:
    records = [(b"k", value, (("h", b"x"),), 1_700_000_000_000) for value in values]
    client.produce(TopicPartition(topic, 0), build_batch(records))


def letters(bootstrap: str, topic: str, count: int) -> list[Any]:
    with headrace.Consumer(bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        found: list[Any] = []
        while len(found) < count:
            found += consumer.poll(0.1)
        return found


def avro_order(schema: str) -> bytes:
    output = io.BytesIO()
    order = {"id": 1, "price": Decimal("9.90"), "placed": dt.datetime(2026, 11, 21, tzinfo=dt.UTC)}
    fastavro.schemaless_writer(output, fastavro.parse_schema(json.loads(schema)), order)
    return output.getvalue()


def write_descriptor(path: Path) -> None:
    file = descriptor_pb2.FileDescriptorProto(name="shop.proto", package="shop", syntax="proto3")
    kind = descriptor_pb2.FieldDescriptorProto
    payment = file.message_type.add(name="Payment")
    payment.field.add(name="amount", number=1, type=kind.TYPE_INT64, label=kind.LABEL_OPTIONAL)
    path.write_bytes(descriptor_pb2.FileDescriptorSet(file=[file]).SerializeToString())


def test_the_programs_of_the_page_run(
    read: Reader, client: BlockingClient, topics: Topics, tmp_path: Path
) -> None:
    text = PAGE.read_text()
    names = {name: topics.create() for name in ("flights", "dlq.flights", "orders", "payments")}
    legs = [{"origin": "JFK", "dest": "LAX"}]
    flight = {"carrier": "UA", "delay": 7, "at": "2026-11-21T12:00:00Z", "legs": legs, "more": 1}
    put(client, names["flights"], json.dumps(flight).encode(), None)
    (schema,) = re.findall(r'"""(.*?)"""', text, re.DOTALL)
    put(client, names["orders"], avro_order(schema))
    put(client, names["payments"], b"\x08\x96\x01")
    write_descriptor(tmp_path / "payments.desc")
    for name, own in names.items():
        text = re.sub(rf'([":]){re.escape(name)}"', rf'\g<1>{own}"', text)
    programs = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    place: dict[str, Any] = {
        "spark": read.spark,
        "bootstrap": read.bootstrap,
        "directory": str(tmp_path),
    }

    def run(program: str) -> None:
        exec(compile(program, str(PAGE), "exec"), place)

    run(programs[0])
    rows = [row.asDict(recursive=True) for row in place["delays"].collect()]
    assert rows == [
        {"offset": 0, "carrier": "UA", "delay": 7, "legs": legs},
        {"offset": 1, "carrier": None, "delay": None, "legs": None},
    ]

    put(client, names["flights"], b'{"delay": "late"}', b'{"carrier": "EV"}')
    run(programs[1])
    (bad,) = place["bad"].collect()
    assert bad["offset"] == 2
    assert "`$.delay`" in bad["_error"]

    run(programs[2])
    good = read.spark.read.parquet(str(tmp_path / "good"))
    assert sorted(row["offset"] for row in good.collect()) == [0, 1, 3]
    (letter,) = letters(read.bootstrap, names["dlq.flights"], 1)
    assert (letter.key, letter.value, letter.timestamp_ms) == (
        b"k",
        b'{"delay": "late"}',
        1_700_000_000_000,
    )
    headers = dict(letter.headers)
    assert headers["h"] == b"x"
    assert headers[f"{LETTER}topic"].decode() == names["flights"]
    assert headers[f"{LETTER}offset"] == (2).to_bytes(8, "big")
    assert headers["dlq-error-type"] == b"UndecodableValue"

    for program in programs[3:]:
        run(program)
    (order,) = place["orders"].select("value.*").collect()
    assert (order["id"], order["price"]) == (1, Decimal("9.90"))
    assert place["orders"].selectExpr("unix_millis(value.placed)").first()[0] == 1_795_219_200_000
    assert place["payments"].select("value.amount").first()[0] == 150


def test_every_type_arrives_in_spark(read: Reader, client: BlockingClient, topics: Topics) -> None:
    topic = topics.create()
    schema = (
        "a tinyint, b smallint, c int, d bigint, e float, f double, g decimal(38,18), h string, i binary, j boolean, "
        "k date, l timestamp, m timestamp_ntz, n array<map<string,struct<x:int>>>, `o p` struct<q:array<bigint>>"
    )
    value = {
        "a": -1, "b": 2, "c": 3, "d": 2**60, "e": 0.5, "f": 0.1, "g": 1.5, "h": "é", "i": "AAE=", "j": True,
        "k": "2026-11-21", "l": 1.5, "m": "2026-11-21T00:00:00", "n": [{"k": {"x": 1}}, None], "o p": {"q": [1, None]},
    }  # fmt: skip
    put(client, topic, json.dumps(value).encode(), b"{}", None)

    frame = read.batch(topic, format="json", schema=schema, onError="null", columns="value")

    assert frame.columns == ["value", "_error"]
    shown = frame.selectExpr("to_json(value) AS text", "_error").collect()
    assert [row["_error"] for row in shown] == [None] * 3
    assert json.loads(shown[0]["text"]) == value | {
        "l": "1970-01-01T00:00:01.500Z",
        "m": "2026-11-21T00:00:00.000",
    }
    assert [row["text"] for row in shown[1:]] == ["{}", None]


def test_a_value_that_does_not_decode_is_named(
    read: Reader, client: BlockingClient, topics: Topics
) -> None:
    topic = topics.create()
    put(client, topic, b"{}", b"?")
    with pytest.raises(Exception, match=rf"offset 1 of {topic}-0 does not decode as json"):
        read.batch(topic, format="json", schema="a int", columns="value").collect()


def test_a_schema_is_refused_before_a_job(read: Reader, topics: Topics) -> None:
    with pytest.raises(Exception, match="option schema has the type 'integr'"):
        read.batch(topics.create(), format="json", schema="a integr")


def test_a_repeated_task_sends_its_dead_letters_again(
    read: Reader, client: BlockingClient, topics: Topics
) -> None:
    topic, bad = (topics.create(max_message_bytes=str(4 << 20)) for _ in range(2))
    large = b"?" * (3 << 20)
    put(client, topic, large, b'{"a": 1}')
    frame = read.batch(topic, format="json", schema="a int", onError=f"dlq:{bad}")

    def once(rows: Any) -> Any:
        found = list(rows)
        if TaskContext.get().attemptNumber() == 0:
            raise ValueError("the first attempt fails")
        return found

    assert frame.select("value.a").rdd.mapPartitions(once).collect() == [(1,)]
    sent = letters(read.bootstrap, bad, 2)
    assert [letter.value for letter in sent] == [large, large]
    assert sent[0].headers == sent[1].headers, "the same name, so that one can be left out"


def test_dead_letters_that_cannot_be_written_fail_the_read(
    read: Reader, client: BlockingClient, topics: Topics
) -> None:
    topic = topics.create()
    put(client, topic, b"?")
    frame = read.batch(topic, format="json", schema="a int", onError="dlq:no/such")
    with pytest.raises(
        Exception, match="option onError: 1 values do not decode, and cannot be written to no/such"
    ):
        frame.collect()
