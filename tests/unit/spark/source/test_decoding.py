"""Batches with values that do not decode: the read fails, has nulls, or sends dead letters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pytest

from headrace.clients.consumer.records import ConsumerRecord
from headrace.errors import ConfigError
from headrace.spark.options.source import SourceOptions, source_options
from headrace.spark.source.dead_letters import DeadLetters, _record
from headrace.spark.source.decoding import DecodeError, decode_batch, decoded, raw_columns
from headrace.spark.source.schema import arrow_schema, columns, raw_schema, spark_schema

VALUES = [b'{"id": 1}', b"?", None, b'{"id": "x"}', b'{"id": 5}']


def options(**given: str) -> SourceOptions:
    common = {
        "kafka.bootstrap.servers": "h:1",
        "subscribe": "t",
        "format": "json",
        "schema": "id int",
    }
    return source_options(common | given, streaming=False)


def batch(wanted: SourceOptions, values: list[bytes | None] = VALUES) -> Any:
    count = len(values)
    every = {
        "key": [b"k"] * count,
        "value": values,
        "topic": ["t"] * count,
        "partition": [3] * count,
        "offset": list(range(40, 40 + count)),
        "timestamp": [1_700_000_000_123_000] * count,
        "timestampType": [0] * count,
        "headers": [[{"key": "h", "value": None}]] * count,
    }
    schema = raw_schema(wanted)
    return pa.record_batch(
        [pa.array(every[field.name], field.type) for field in schema], schema=schema
    )


def decode(wanted: SourceOptions, send: Any = None) -> Any:
    assert wanted.decode is not None
    return decode_batch(batch(wanted), wanted.decode, arrow_schema(wanted), send)


def test_an_undecodable_value_fails_the_read_with_partition_and_offset() -> None:
    with pytest.raises(
        DecodeError, match=r"offset 41 of t-3 .* json: .*onError=null .*onError=dlq:TOPIC"
    ):
        decode(options())


def test_a_value_that_does_not_decode_may_be_null_with_the_reason() -> None:
    wanted = options(onError="null", columns="offset,value")
    found = decode(wanted)
    assert found.schema.equals(arrow_schema(wanted))
    rows = found.to_pylist()
    assert [row["offset"] for row in rows] == [40, 41, 42, 43, 44]
    assert [row["value"] for row in rows] == [{"id": 1}, None, None, None, {"id": 5}]
    assert [row["_error"] is None for row in rows] == [True, False, True, False, True]
    assert "`$.id`" in rows[3]["_error"]


def test_a_value_that_does_not_decode_may_become_a_dead_letter() -> None:
    wanted = options(onError="dlq:bad", columns="value")
    sent: list[tuple[ConsumerRecord, str]] = []

    def send(raw: Any, errors: Mapping[int, str]) -> None:
        sent.extend((_record(raw, row), why) for row, why in errors.items())

    assert decode(wanted, send).to_pylist() == [
        {"value": {"id": 1}},
        {"value": None},
        {"value": {"id": 5}},
    ]
    (first, why), (second, _) = sent
    assert first == ConsumerRecord("t", 3, 41, 1_700_000_000_123, b"k", b"?", (("h", None),), -1)
    assert second.offset == 43
    assert why


def test_batches_without_bad_values_need_no_producer() -> None:
    wanted = options(onError="dlq:bad")
    batches = [batch(wanted, [b"{}"]), batch(wanted, [])]
    (found,) = decoded(batches, wanted, arrow_schema(wanted))
    assert found.num_rows == 1


def test_the_read_requests_only_the_columns_that_errors_need() -> None:
    assert raw_columns(options(columns="value,key")) == (
        "value",
        "key",
        "topic",
        "partition",
        "offset",
    )
    assert "headers" in raw_columns(options(onError="dlq:bad", columns="value"))
    plain = source_options({"kafka.bootstrap.servers": "h:1", "subscribe": "t"}, streaming=False)
    assert raw_columns(plain) == plain.column_names
    assert list(decoded([batch(plain)], plain, arrow_schema(plain))) == [batch(plain)]


def test_a_timestamp_is_of_the_same_type_in_every_session() -> None:
    """A session with `spark.sql.timestampType=TIMESTAMP_NTZ` reads the word `timestamp` as the other type."""
    wanted = options(schema="a timestamp, b timestamp_ntz", columns="value,timestamp")
    assert spark_schema(wanted) == (
        "value struct<`a`:timestamp_ltz,`b`:timestamp_ntz>, timestamp timestamp_ltz"
    )
    assert columns(wanted)[1] == ("timestamp", "timestamp")


def test_the_schema_is_passed_to_spark_in_its_own_syntax() -> None:
    wanted = options(schema="`a b` int, c struct<d:date>", columns="value,offset", onError="null")
    assert (
        spark_schema(wanted)
        == "value struct<`a b`:int,`c`:struct<`d`:date>>, offset bigint, _error string"
    )
    assert columns(wanted)[0] == ("value", "struct<a b:int,c:struct<d:date>>")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"schema": "id integr"}, "the type 'integr'"),
        ({"columns": "key"}, "option columns leaves out"),
        ({"onError": "dlq:t"}, "t, which the query reads: name another topic"),
        ({"framing": "avro"}, "option framing must be plain"),
        ({"framing": "confluent"}, "not for json"),
        ({"format": "avro"}, "no Avro schema"),
        ({"format": "protobuf"}, "FILE:MESSAGE"),
    ],
)
def test_wrong_options_are_refused_before_anything_runs(given: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        options(**given)


@pytest.mark.parametrize(
    ("selection", "said"),
    [
        ({"subscribe": "t, t-dlq"}, "t-dlq, which the query reads: name another topic"),
        ({"subscribePattern": "t|t-d.*"}, "the query reads .subscribePattern 't|t-d.*' matches"),
        ({"assign": '{"t": [1], "t-dlq": [0]}'}, "t-dlq, which the query reads"),
    ],
)
def test_a_read_refuses_its_own_dead_letter_topic(selection: dict[str, str], said: str) -> None:
    """Otherwise each dead letter would be read, would not decode, and would become another dead letter, without end."""
    given = {"kafka.bootstrap.servers": "h:1", "format": "json", "schema": "a int", **selection}
    for streaming in (True, False, None):
        source_options({**given, "onError": "dlq:others"}, streaming=streaming)
        with pytest.raises(ConfigError, match=said.replace("|", "[|]")):
            source_options({**given, "onError": "dlq:t-dlq"}, streaming=streaming)


def test_framing_needs_a_format() -> None:
    with pytest.raises(ConfigError, match="option framing needs option format"):
        source_options(
            {"kafka.bootstrap.servers": "h:1", "subscribe": "t", "framing": "confluent"},
            streaming=False,
        )


def test_dead_letters_use_the_connection_options_of_the_read() -> None:
    """Settings for readers only are left out; settings of the network and of credentials are kept."""
    given = {
        "kafka.security.protocol": "SASL_PLAINTEXT",
        "kafka.sasl.mechanism": "PLAIN",
        "kafka.sasl.username": "alice",
        "kafka.sasl.password": "secret",
        "kafka.request.timeout.ms": "200000",
        "kafka.isolation.level": "read_committed",
        "kafka.fetch.max.wait.ms": "10",
    }
    with DeadLetters(options(onError="dlq:bad", **given)) as dead_letters:
        config = dead_letters._producer.config
    assert config.sasl_username == "alice"
    assert config.security_protocol.upper() == "SASL_PLAINTEXT"
    assert config.request_timeout_ms == 200_000
    assert config.client_id == "headrace-spark"
