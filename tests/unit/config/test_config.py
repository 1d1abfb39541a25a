"""Configuration: names, limits, hints, and the defaults that topics inherit from the broker."""

from __future__ import annotations

import dataclasses

import pytest

from headrace.config.broker import BROKER_OPTIONS, BrokerConfig, parse_broker_config
from headrace.config.options import (
    OptionType,
    attribute_name,
    options_of,
    parse_value,
    render_value,
)
from headrace.config.topic import (
    TOPIC_OPTIONS,
    UNSUPPORTED_TOPIC_OPTIONS,
    TopicConfig,
)
from headrace.config.topic_parsing import parse_topic_config, topic_defaults
from headrace.errors import ConfigError


@pytest.mark.parametrize("config", [TopicConfig, BrokerConfig])
def test_every_field_is_documented_and_its_default_is_acceptable(config):
    for name, option in options_of(config).items():
        assert option.documentation.endswith(".")
        default = getattr(config(), attribute_name(name))
        assert parse_value(name, option, render_value(default)) == default


def test_a_topic_without_settings_has_the_brokers_defaults():
    assert parse_topic_config({}, BrokerConfig()) == TopicConfig()
    tuned = BrokerConfig(log_retention_ms=5, message_max_bytes=6, log_segment_bytes=7000)
    config = parse_topic_config({"segment.bytes": "9000", "retention.ms": None}, tuned)
    assert (config.retention_ms, config.max_message_bytes, config.segment_bytes) == (5, 6, 9000)


def test_every_topic_option_has_its_broker_option_of_the_same_type():
    own = {name for name in TOPIC_OPTIONS if name.endswith(".parameters")}  # each belongs to a name
    own.add("headrace.acks")  # a default of all topics would refuse topics with fewer replicas
    names = {f.name for f in dataclasses.fields(TopicConfig)}
    assert names - set(topic_defaults(BrokerConfig())) == {n.replace(".", "_") for n in own}
    for name, option in TOPIC_OPTIONS.items():
        assert (option.broker_name is None) == (name in own)
        if option.broker_name is not None:
            assert BROKER_OPTIONS[option.broker_name].type is option.type


def test_topics_keep_two_weeks_by_default():
    assert TopicConfig().retention_ms == 14 * 24 * 3600 * 1000


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("retention.ms", "soon", "expected an integer"),
        ("retention.ms", "1_000", "expected an integer"),
        ("retention.ms", "٣", "expected an integer"),
        ("retention.ms", "-2", "at least -1"),
        ("retention.ms", str(2**63), "at most"),
        ("segment.bytes", "13", "at least 14"),
        ("segment.bytes", str(2**31), "at most"),
        ("min.cleanable.dirty.ratio", "nan", "at least 0"),
        ("min.cleanable.dirty.ratio", "1.5", "at most 1"),
        ("preallocate", "yes", "true or false"),
        ("cleanup.policy", "delete,shred", "expected one of delete, compact"),
        ("compression.gzip.level", "0", "expected -1, or 1 to 9"),
        ("compression.gzip.level", "10", "at most 9"),
        ("compression.gzip.level", "-2", "at least -1"),
        ("compression.lz4.level", "0", "at least 1"),
        ("compression.lz4.level", "18", "at most 17"),
        ("compression.zstd.level", "23", "at most 22"),
        ("compression.zstd.level", "-131073", "at least -131072"),
        ("compression.type", "brotli", "expected one of"),
        ("message.timestamp.type", "createtime", "expected one of"),
        ("retention.ms", "1" * 20_000, "longer than"),
    ],
)
def test_a_refused_value_has_a_reason(name: str, text: str, reason: str):
    with pytest.raises(ConfigError, match=reason) as refusal:
        parse_topic_config({name: text}, BrokerConfig())
    assert name in str(refusal.value)
    assert len(str(refusal.value)) < 300


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("retention.ms", " -1 ", -1),
        ("cleanup.policy", "compact, delete", "compact,delete"),
        ("cleanup.policy", "compact", "compact"),
        ("preallocate", "TRUE", True),
        ("min.cleanable.dirty.ratio", "0.25", 0.25),
    ],
)
def test_a_value_that_is_accepted(name: str, text: str, value: object):
    config = parse_topic_config({name: text}, BrokerConfig())
    assert getattr(config, name.replace(".", "_")) == value


def test_compaction_lags_do_not_exclude_each_other():
    lags = {"min.compaction.lag.ms": "9", "max.compaction.lag.ms": "5"}
    with pytest.raises(ConfigError, match=r"min\.compaction\.lag\.ms"):
        parse_topic_config(lags, BrokerConfig())


def test_an_unknown_key_suggests_the_nearest():
    with pytest.raises(ConfigError, match=r"did you mean retention\.ms"):
        parse_topic_config({"retention.msec": "1"}, BrokerConfig())
    with pytest.raises(ConfigError, match=r"did you mean num\.partitions"):
        parse_broker_config({"num.partition": "3"})


def test_options_of_kafka_that_we_do_not_have_say_why():
    with pytest.raises(ConfigError, match="there is no tiered storage"):
        parse_topic_config({"remote.storage.enable": "true"}, BrokerConfig())
    assert not set(UNSUPPORTED_TOPIC_OPTIONS) & set(TOPIC_OPTIONS)


def test_the_broker_takes_kafkas_other_names():
    config = parse_broker_config(
        {"log.retention.hours": "2", "node.id": "7", "log.roll.hours": "1"}
    )
    assert (config.log_retention_ms, config.broker_id, config.log_roll_ms) == (
        7_200_000,
        7,
        3_600_000,
    )
    assert parse_broker_config({"log.retention.hours": "-1"}).log_retention_ms == -1
    with pytest.raises(ConfigError, match="two names"):
        parse_broker_config({"node.id": "7", "broker.id": "8"})


def test_options_that_do_nothing_yet_say_so():
    text = TOPIC_OPTIONS["segment.jitter.ms"].documentation
    assert "not acted on yet" in text


@pytest.mark.parametrize(
    ("value", "text"), [(True, "true"), (False, "false"), (5, "5"), (0.5, "0.5"), ("a,b", "a,b")]
)
def test_values_are_written_as_kafka_writes_them(value, text):
    assert render_value(value) == text


def test_types_are_kafkas_numbers():
    assert TOPIC_OPTIONS["cleanup.policy"].type is OptionType.LIST
    assert TOPIC_OPTIONS["retention.ms"].type is OptionType.LONG
    assert TOPIC_OPTIONS["segment.bytes"].type is OptionType.INT
