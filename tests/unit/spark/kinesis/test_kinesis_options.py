"""The options of reads and writes of Kinesis streams, and the errors for wrong options."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from headrace.core.lease.checkpoint import SHARD_END, Checkpoint, at_timestamp
from headrace.errors import ConfigError
from headrace.spark.kinesis.options import Starting, read_options
from headrace.spark.kinesis.sink import check_columns, write_options

GIVEN = {"stream": "flights", "store": "dynamodb://rounds"}


def refused(options: dict[str, str | None], *, streaming: bool = True) -> str:
    given = {name: value for name, value in (GIVEN | options).items() if value is not None}
    with pytest.raises(ConfigError) as error:
        read_options(given, streaming=streaming)
    return str(error.value)


def test_a_stream_begins_at_its_newest_records_and_a_batch_at_the_oldest() -> None:
    assert read_options(GIVEN, streaming=True).streams == {"flights": Starting(latest=True)}
    assert read_options({"stream": "flights"}, streaming=False).streams == {"flights": Starting()}


@pytest.mark.parametrize(
    ("text", "starting"),
    [
        ("TRIM_HORIZON", Starting()),
        ("earliest", Starting()),
        ("LATEST", Starting(latest=True)),
        ("1700000000000", Starting(everywhere=at_timestamp(1_700_000_000_000))),
        ('{"flights": "earliest"}', Starting()),
        ("AT_TIMESTAMP:17", Starting(everywhere=at_timestamp(17))),
        ("2023-11-14T23:13:20+01:00", Starting(everywhere=at_timestamp(1_700_000_000_000))),
        (
            '{"b": "SHARD_END", "a": "AFTER:12"}',
            Starting(shards=(("a", Checkpoint("12")), ("b", SHARD_END))),
        ),
    ],
)
def test_starting_positions_are_parsed(text: str, starting: Starting) -> None:
    options = read_options({**GIVEN, "startingPosition": text}, streaming=True)
    assert options.streams == {"flights": starting}


def test_several_streams_may_start_at_different_positions() -> None:
    arn = "arn:aws:kinesis:eu-central-1:1:stream/weather"
    several = {**GIVEN, "stream": f"flights, {arn}"}
    options = read_options({**several, "startingPosition": "17"}, streaming=True)
    assert options.streams == dict.fromkeys(("flights", arn), Starting(everywhere=at_timestamp(17)))
    given = '{"weather": {"a": "AFTER:12"}, "flights": "latest"}'
    options = read_options({**several, "startingPosition": given}, streaming=True)
    assert options.streams == {
        arn: Starting(shards=(("a", Checkpoint("12")),)),
        "flights": Starting(latest=True),
    }


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"stream": None}, "option stream is missing: give the stream's name, or its ARN"),
        (
            {"stream": "a,arn:aws:kinesis:x:1:stream/a"},
            "has two streams of the same name: read one",
        ),
        ({"stream": "a,arn:aws:sqs:x:1:b"}, "is not the ARN of a stream"),
        (
            {"stream": "a,b", "startingPosition": '{"a": "latest"}'},
            'must name the start of each of a, b, as {"a": "earliest", ...}, but names a',
        ),
        ({"stream": "a,b", "startingPosition": '{"a": "12:00", "b": "latest"}'}, "not '12:00'"),
        ({"store": None}, "option store is missing: a stream stores there"),
        (
            {"store": "memory://x"},
            "option store=memory://x: Spark's tasks run in several processes",
        ),
        ({"store": "redis://x"}, "option store='redis://x' names no store: give dynamodb://TABLE"),
        (
            {"startingPosition": "yesterday"},
            "or earliest, latest or JSON of shards, not 'yesterday'",
        ),
        ({"startingPosition": "2026-01-01T00:00:00"}, "has no time zone: append Z"),
        ({"startingPosition": '{"a": 12}'}, "option startingPosition must be JSON as"),
        ({"endingTimestamp": "12"}, "option endingTimestamp is for batch reads"),
        ({"accessKeyId": "a"}, "options accessKeyId and secretAccessKey go together"),
        ({"sessionToken": "a"}, "option sessionToken belongs to accessKeyId"),
        ({"endpointUrl": "localhost:4567"}, "option endpointUrl must begin with http://"),
        ({"failOnDataLos": "true"}, "unknown option failOnDataLos: did you mean failOnDataLoss?"),
        ({"kafka.bootstrap.servers": "x"}, "unknown option kafka.bootstrap.servers: known are"),
        ({"columns": "value"}, "option columns must name some of partitionKey, data"),
        ({"pollInterval": "10s"}, "option pollInterval must be 200ms to 5s, not 10000 ms"),
        ({"groupsSharing": "21"}, "option groupsSharing must be 1 to 20, not 21"),
        ({"maxRecordsPerShard": "0"}, "option maxRecordsPerShard must be a positive whole number"),
        ({"format": "json", "schema": "a INT", "onError": "dlq:x"}, "must be fail or null here"),
        (
            {"format": "json", "schema": "a INT", "columns": "stream"},
            "decodes the column data, which option columns leaves out",
        ),
        ({"provider": "x"}, "CREATE TEMPORARY VIEW ... USING `headrace-kinesis`"),
    ],
)
def test_a_wrong_kinesis_option_is_reported(options: dict[str, str | None], text: str) -> None:
    assert text in refused(options)


def test_a_batch_does_not_begin_at_its_end() -> None:
    assert "is for streams" in refused({"startingPosition": "latest"}, streaming=False)


def test_a_file_has_the_same_path_in_every_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    options = read_options({**GIVEN, "store": "sqlite:///rounds.db"}, streaming=True)
    assert options.store == f"sqlite:///{tmp_path}/rounds.db"


def test_options_go_to_tasks_and_show_no_secrets() -> None:
    keys = {"accessKeyId": "id", "secretAccessKey": "hush", "sessionToken": "quiet"}
    options = read_options({**GIVEN, **keys}, streaming=True)
    assert pickle.loads(pickle.dumps(options)) == options
    assert options.aws.secret_access_key == "hush"
    assert "hush" not in repr(options)
    assert "quiet" not in repr(options)


@pytest.mark.parametrize(
    ("options", "columns", "text"),
    [
        ({"stream": ""}, {"data": "binary", "partitionKey": "string"}, "set the option stream"),
        ({"stream": "a,b"}, {}, "option stream=a,b: a write has one stream"),
        ({"agregate": "true"}, {}, "unknown option agregate: did you mean aggregate?"),
        ({"maxRecordBytes": "11m"}, {}, "option maxRecordBytes must be at most 10485760"),
        ({}, {"data": "binary"}, "a column partitionKey is needed, got data: it chooses the shard"),
        ({}, {"partitionKey": "string"}, "a column data is needed"),
        ({}, {"value": "binary"}, "unknown column value: drop it"),
        ({}, {"Data": "binary"}, "unknown column Data: did you mean data?"),
        ({}, {"data": "int"}, "column data must be binary or string, not int: select CAST"),
    ],
)
def test_a_wrong_kinesis_column_is_reported(
    options: dict[str, str], columns: dict[str, str], text: str
) -> None:
    with pytest.raises(ConfigError, match=text.replace("?", r"\?")):
        check_columns(columns, write_options({"stream": "flights", **options}))


def test_options_of_sparks_stream_writer_are_ignored_by_kinesis_writes() -> None:
    options = write_options({"stream": "flights", "checkpointLocation": "/x", "aggregate": "true"})
    assert options.producing.aggregate_bytes > 0
