"""Wrong options are refused before anything runs, with a message that names the option and the remedy."""

from __future__ import annotations

import pytest

from headrace.errors import ConfigError
from headrace.spark.client.settings import consumer_config
from headrace.spark.decode.options import DecodeOptions
from headrace.spark.options.history import HistoryOptions
from headrace.spark.options.sink import sink_options
from headrace.spark.options.source import source_options
from headrace.spark.source.cluster_client import ClusterClient
from headrace.types import TopicPartition

GOOD = {"kafka.bootstrap.servers": "h:1", "subscribe": "a"}


def without(name: str) -> dict[str, str]:
    return {key: value for key, value in GOOD.items() if key != name}


def test_names_are_sparks_in_any_case_and_defaults_differ_between_batch_and_stream() -> None:
    given = {
        **GOOD,
        "MAXOFFSETSPERTRIGGER": "50",
        "failondataloss": "False",
        "INCLUDEHEADERS": "true",
    }

    stream = source_options(given, streaming=True)
    batch = source_options(given, streaming=False)

    assert (stream.max_offsets_per_trigger, stream.fail_on_data_loss, stream.include_headers) == (
        50,
        False,
        True,
    )
    assert (stream.starting, batch.starting, batch.ending) == ("latest", "earliest", "latest")


def test_selections_and_starting_offsets_are_parsed() -> None:
    assert source_options({**GOOD, "subscribe": " b , a,b"}, streaming=True).selection.topics == (
        "b",
        "a",
    )
    assigned = {**without("subscribe"), "assign": '{"a": [1, 0]}'}
    assert source_options(assigned, streaming=True).selection.partitions == (
        TopicPartition("a", 0),
        TopicPartition("a", 1),
    )
    starting = {**GOOD, "startingOffsets": '{"a": {"0": 23, "1": -2}}'}
    assert source_options(starting, streaming=False).starting == {
        TopicPartition("a", 0): 23,
        TopicPartition("a", 1): -2,
    }


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (without("kafka.bootstrap.servers"), r"kafka\.bootstrap\.servers is missing"),
        (
            without("subscribe"),
            "exactly one of subscribe, assign, subscribePattern is needed, got none",
        ),
        ({**GOOD, "assign": "{}"}, "got subscribe and assign"),
        ({**GOOD, "startingOffset": "latest"}, "did you mean startingOffsets"),
        ({**GOOD, "bootstrap.servers": "h:1"}, r"did you mean kafka\.bootstrap\.servers"),
        ({**GOOD, "zzz": "4"}, "unknown option zzz: known are"),
        ({**GOOD, "subscribe": " ,"}, "names no topic"),
        ({**GOOD, "failOnDataLoss": "maybe"}, "failOnDataLoss must be true or false, not 'maybe'"),
        ({**GOOD, "maxOffsetsPerTrigger": "0"}, "positive whole number, not '0'"),
        ({**GOOD, "startingOffsets": "first"}, "must be earliest, latest or like"),
        ({**GOOD, "startingOffsets": '{"a": {"0": -5}}'}, "a has '0': -5"),
        ({**GOOD, "startingOffsets": '["a"]'}, "must be earliest, latest or like"),
        ({**GOOD, "startingOffsets": '{"a": {"²": 5}}'}, "a has '²': 5"),
        ({**GOOD, "startingOffsets": '{"a": {"0": 9223372036854775808}}'}, "a has '0': 92233"),
        ({**GOOD, "startingOffsets": '{"a": {"0": 1, "00": 2}}'}, "a names partition 0 twice"),
        ({**GOOD, "startingTimestamp": "9223372036854775808"}, "must be at most 9223372036854775"),
        ({**GOOD, "kafka.auto.offset.reset": "latest"}, "use startingOffsets"),
        ({**GOOD, "kafka.value.deserializer": "x"}, "values are always binary"),
        ({**without("subscribe"), "subscribePattern": "("}, "not a regular expression"),
        ({**without("subscribe"), "assign": '{"a": ["x"]}'}, "assign must be like"),
        ({**without("subscribe"), "subscribePattern": " "}, "subscribePattern is empty"),
        ({**GOOD, "startingTimestamp": "now"}, "startingTimestamp must be milliseconds since 1970"),
        ({**GOOD, "startingOffsetsByTimestamp": "5"}, "startingOffsetsByTimestamp must be"),
        (
            {**GOOD, "startingOffsetsByTimestamp": '{"a": {"0": -3}}'},
            "ByTimestamp must be .* a has '0': -3",
        ),
        (
            {**GOOD, "startingOffsetsByTimestampStrategy": "earliest"},
            "Strategy must be error or latest, not 'earliest'",
        ),
        ({**GOOD, "minPartitions": "0"}, "minPartitions must be a positive whole number"),
        ({**GOOD, "maxRecordsPerPartition": "-1"}, "maxRecordsPerPartition must be a positive"),
        (
            {**GOOD, "minPartitions": "5", "maxTasks": "4"},
            "minPartitions 5 is more than maxTasks 4",
        ),
        (
            {**GOOD, "minOffsetsPerTrigger": "9", "maxOffsetsPerTrigger": "8"},
            "minOffsetsPerTrigger 9 is more than maxOffsetsPerTrigger 8",
        ),
        ({**GOOD, "maxTriggerDelay": "5 weeks"}, "maxTriggerDelay must be a time like"),
        ({**GOOD, "maxBytesPerTrigger": "0"}, "maxBytesPerTrigger must be a number of bytes"),
        ({**GOOD, "maxBytesPerTrigger": "12 cows"}, "or like 512k, 64m or 2g"),
        ({**GOOD, "columns": "value,size"}, "columns must name some of key, value, .* not size"),
        ({**GOOD, "columns": ","}, "columns must name some of"),
        ({**GOOD, "format": "xml"}, "format must be json or avro or protobuf, not 'xml'"),
        ({**GOOD, "onError": "null"}, "onError needs option format"),
        ({**GOOD, "format": "json"}, "format json needs option schema"),
        (
            {**GOOD, "format": "json", "schema": "a int", "onError": "dlq:"},
            "onError must be fail, null or dlq:TOPIC, not 'dlq:'",
        ),
        ({**GOOD, "archiveFormat": "iceberg"}, "archiveFormat needs option archive"),
    ],
)
def test_wrong_source_options_are_refused(options: dict[str, str], message: str) -> None:
    for streaming in (True, False):
        with pytest.raises(ConfigError, match=message):
            source_options(options, streaming=streaming)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"startingOffsets": "latest"}, "cannot be latest in a batch read"),
        ({"startingOffsets": '{"a": {"0": -1}}'}, r"-1 \(latest\) in a batch read"),
        ({"endingOffsets": "earliest"}, "endingOffsets cannot be earliest"),
        ({"endingOffsets": '{"a": {"0": -2}}'}, r"-2 \(earliest\)"),
        (
            {"startingOffsets": '{"a": {"0": 5}}', "endingOffsets": '{"a": {"0": 4}}'},
            "startingOffsets 5 of a-0 is after endingOffsets 4",
        ),
        (
            {"startingOffsets": '{"a": {"0": 5}}', "endingOffsets": '{"a": {"1": 9}}'},
            "must name the same partitions; only one of them has a-0, a-1",
        ),
        (
            {"startingTimestamp": "50", "endingTimestamp": "49"},
            "startingTimestamp 50 is after endingTimestamp 49",
        ),
        (
            {
                "startingOffsetsByTimestamp": '{"a": {"0": 5}}',
                "endingOffsetsByTimestamp": '{"a": {"0": 4}}',
            },
            "startingOffsetsByTimestamp 5 of a-0 is after endingOffsetsByTimestamp 4",
        ),
    ],
)
def test_options_that_a_batch_read_cannot_have_are_refused(
    options: dict[str, str], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        source_options({**GOOD, **options}, streaming=False)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("endingOffsets", "latest"),
        ("endingTimestamp", "5"),
        ("endingOffsetsByTimestamp", '{"a": {"0": 5}}'),
    ],
)
def test_a_stream_has_no_end(option: str, value: str) -> None:
    with pytest.raises(ConfigError, match=f"{option} is for batch reads; a stream has no end"):
        source_options({**GOOD, option: value}, streaming=True)


def test_limits_and_task_options_are_parsed() -> None:
    given = {
        "minOffsetsPerTrigger": "10",
        "maxOffsetsPerTrigger": "20",
        "maxTriggerDelay": "2 min",
        "maxBytesPerTrigger": "64MB",
        "minPartitions": "3",
        "maxRecordsPerPartition": "1000",
        "maxTasks": "8",
        "group": " shop ",
    }
    options = source_options({**GOOD, **given}, streaming=True)

    assert (options.min_offsets_per_trigger, options.max_offsets_per_trigger) == (10, 20)
    assert (options.max_trigger_delay_ms, options.max_bytes_per_trigger) == (120_000, 64 << 20)
    assert (options.min_partitions, options.max_records_per_partition) == (3, 1000)
    assert (options.max_tasks, options.group) == (8, "shop")


@pytest.mark.parametrize(
    ("text", "milliseconds"), [("250", 250), ("3s", 3000), ("15M", 900_000), ("1d", 86_400_000)]
)
def test_durations_have_sparks_suffixes(text: str, milliseconds: int) -> None:
    options = source_options({**GOOD, "maxTriggerDelay": text}, streaming=True)

    assert options.max_trigger_delay_ms == milliseconds


def test_a_batch_read_ignores_stream_options_with_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    source_options({**GOOD, "maxOffsetsPerTrigger": "5"}, streaming=False)

    assert "maxOffsetsPerTrigger has no effect in a batch read" in caplog.text


def test_columns_are_chosen_in_any_case_and_order() -> None:
    options = source_options({**GOOD, "columns": "VALUE, offset,value,headers"}, streaming=True)

    assert options.column_names == ("value", "offset", "headers")
    assert options.include_headers
    plain = source_options({**GOOD, "columns": "offset", "includeHeaders": "true"}, streaming=True)
    assert plain.column_names == ("offset",)


def test_options_for_decoding_and_archives_are_parsed() -> None:
    given = {"format": "JSON", "schema": "id int", "onError": "dlq: bad", "archive": "/lake/shop"}
    options = source_options({**GOOD, **given}, streaming=True)

    assert options.decode == DecodeOptions("json", "id int", "dlq", "bad")
    assert options.history == HistoryOptions("/lake/shop", "delta")


def test_an_archive_defaults_to_read_committed() -> None:
    given = {**GOOD, "archive": "/lake/shop"}  # which has no aborted records
    level = {"kafka.isolation.level": "read_uncommitted"}
    found = [source_options(each, streaming=None).client for each in (given, {**given, **level})]

    levels = [consumer_config(each).isolation_level for each in found]
    assert levels == ["read_committed", "read_uncommitted"]


def test_kafka_options_reach_the_client_and_are_checked() -> None:
    given = {**GOOD, "kafka.isolation.level": "read_committed", "kafka.fetch.max.wait.ms": "20"}
    config = consumer_config(source_options(given, streaming=True).client)
    assert (config.isolation_level, config.fetch_max_wait_ms) == ("read_committed", 20)

    wrong = source_options({**GOOD, "kafka.fetch.max.wate.ms": "20"}, streaming=True)
    with pytest.raises(ConfigError, match=r"did you mean 'fetch\.max\.wait\.ms'"):
        consumer_config(wrong.client)


def test_options_of_sparks_connector_without_effect_are_accepted() -> None:
    given = {**GOOD, "groupIdPrefix": "x", "kafka.group.id": "y", "fetchOffset.numRetries": "9"}

    assert source_options(given, streaming=True).client.properties == ()


def test_sink_options_are_parsed_and_unknown_options_refused() -> None:
    given = {"kafka.bootstrap.servers": "h:1", "topic": "out", "kafka.acks": "all"}
    options = sink_options(given, streaming=False)
    assert (options.topic, options.client.properties) == ("out", (("acks", "all"),))
    with pytest.raises(ConfigError, match="unknown option subscribe"):
        sink_options({**given, "subscribe": "a"}, streaming=False)


def test_security_options_reach_the_clients_and_no_repr() -> None:
    secured = {
        **GOOD,
        "kafka.security.protocol": "SASL_SSL",
        "kafka.sasl.mechanism": "PLAIN",
        "kafka.sasl.username": "u",
        "kafka.sasl.password": "hush-hush",
        "kafka.enable.ssl.certificate.verification": "false",
    }
    options = source_options(secured, streaming=True)
    assert "hush-hush" not in repr(options)
    assert consumer_config(options.client).sasl_password == "hush-hush"
    cluster = ClusterClient(options.client)
    try:
        config = cluster._client.config
        assert (config.security_protocol, config.sasl_password) == ("SASL_SSL", "hush-hush")
        assert not config.enable_ssl_certificate_verification
    finally:
        cluster.close()
