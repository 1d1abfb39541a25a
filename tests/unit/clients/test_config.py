"""Property names and values."""

from __future__ import annotations

import inspect
import re

import pytest

import headrace
import headrace.aio
from headrace.clients.config import (
    ClientConfig,
    ConsumerConfig,
    ProducerConfig,
    parse_bootstrap,
    parse_config,
)
from headrace.errors import ConfigError


def test_java_names_librdkafka_names_and_attributes_mean_the_same() -> None:
    by_name = [
        parse_config(ProducerConfig, {name: "7"}).linger_ms
        for name in ("linger.ms", "queue.buffering.max.ms", "linger_ms")
    ]
    assert by_name == [7, 7, 7]


def test_properties_win_over_defaults_and_none_is_no_default() -> None:
    config = parse_config(ClientConfig, {"client.id": "a"}, client_id="b", request_timeout_ms=None)
    assert config.client_id == "a"
    assert config.request_timeout_ms == ClientConfig().request_timeout_ms


@pytest.mark.parametrize(
    ("properties", "text"),
    [
        ({"request.timeout": "1"}, "did you mean 'request.timeout.ms'"),
        ({"batch.size": "1"}, "belongs to a producer"),
        ({"group.id": "g"}, "belongs to a consumer"),
        ({"zzz": "1"}, "unknown property 'zzz'$"),
        ({"request.timeout.ms": "soon"}, "whole number"),
        ({"request.timeout.ms": "-5"}, "negative"),
        ({"security.protocol": "TLS"}, "is one of PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL"),
        ({"bootstrap.servers": "host:port"}, "not HOST:PORT"),
    ],
)
def test_mistakes_are_named(properties: dict[str, str], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        parse_config(ClientConfig, properties)


@pytest.mark.parametrize(
    ("value", "acks"),
    [("all", -1), ("ALL", -1), (-1, -1), ("-1", -1), (1, 1), ("0", 0), ("2", 2), (32767, 32767)],
)
def test_acks_accepts_numbers_and_names(value, acks: int) -> None:
    assert parse_config(ProducerConfig, {"acks": value}).acks == acks


@pytest.mark.parametrize("value", ["", "none", -2, "1.5", 32768, "\u0662", "+1", True, None])
def test_acks_are_all_or_a_number_of_replicas(value) -> None:
    with pytest.raises(ConfigError, match="is all or a number of replicas up to 32767, not "):
        parse_config(ProducerConfig, {"acks": value})


@pytest.mark.parametrize("asked_for", ["enable.idempotence", "transactional.id"])
def test_acks_of_two_replicas_exclude_idempotence_and_transactions(asked_for: str) -> None:
    assert not parse_config(ProducerConfig, {"acks": 2}).enable_idempotence
    with pytest.raises(ConfigError, match="acks=all"):
        parse_config(ProducerConfig, {"acks": 2, asked_for: "true"})


def test_acks_that_rule_idempotence_out_switch_it_off_unless_it_was_asked_for() -> None:
    assert parse_config(ProducerConfig, {}).enable_idempotence
    assert not parse_config(ProducerConfig, {"acks": "1"}).enable_idempotence
    assert not parse_config(ProducerConfig, {"max.in.flight": "8"}).enable_idempotence
    with pytest.raises(ConfigError, match="acks=all"):
        parse_config(ProducerConfig, {"acks": "1", "enable.idempotence": "true"})
    with pytest.raises(ConfigError, match="at most 5"):
        parse_config(ProducerConfig, {"max.in.flight": "8", "enable.idempotence": "yes"})


def test_offset_resets_have_many_names() -> None:
    resets = {
        name: parse_config(ConsumerConfig, {"auto.offset.reset": name}).auto_offset_reset
        for name in ("smallest", "END", "error")
    }
    assert resets == {"smallest": "earliest", "END": "latest", "error": "none"}


@pytest.mark.parametrize(
    ("text", "addresses"),
    [
        ("a:1,b:2", [("a", 1), ("b", 2)]),
        (" a ", [("a", 9092)]),
        ("[::1]:5,[::1]", [("::1", 5), ("::1", 9092)]),
        ("PLAINTEXT://h:19092", [("h", 19092)]),
    ],
)
def test_bootstrap_servers_are_parsed(text: str, addresses: list[tuple[str, int]]) -> None:
    assert parse_bootstrap(text) == addresses


@pytest.mark.parametrize("text", ["", ",", "a:0", "a:99999", ":9092", "a:b"])
def test_invalid_bootstrap_servers_are_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        parse_bootstrap(text)


@pytest.mark.parametrize(
    "name", ["session.timeout.ms", "heartbeat.interval.ms", "partition.assignment.strategy"]
)
def test_properties_of_the_classic_protocol_cannot_be_set_under_the_protocol_consumer(
    name: str,
) -> None:
    value = "range" if name.startswith("partition") else "1000"
    parse_config(ConsumerConfig, {name: value})
    with pytest.raises(ConfigError, match=f"'{name}' cannot be set with group.protocol=consumer"):
        parse_config(ConsumerConfig, {name: value, "group.protocol": "Consumer"})


def test_an_assignor_of_the_coordinators_cannot_be_named_under_the_protocol_classic() -> None:
    given = {"group.remote.assignor": "range", "group.protocol": "classic"}
    with pytest.raises(ConfigError, match="name assignors by"):
        parse_config(ConsumerConfig, given)
    config = parse_config(ConsumerConfig, given | {"group.protocol": "consumer"})
    assert config.group_remote_assignor == "range"
    with pytest.raises(ConfigError, match="classic, consumer"):
        parse_config(ConsumerConfig, {"group.protocol": "modern"})


@pytest.mark.parametrize(
    ("client", "config", "names"),
    [
        (headrace.Producer, ProducerConfig, {"linger_ms", "batch_size", "transaction_timeout_ms"}),
        (
            headrace.aio.Producer,
            ProducerConfig,
            {"linger_ms", "batch_size", "transaction_timeout_ms"},
        ),
        (headrace.Admin, ClientConfig, {"request_timeout_ms"}),
        (headrace.aio.Admin, ClientConfig, {"request_timeout_ms"}),
    ],
)
def test_docstrings_of_clients_name_the_defaults_of_the_configuration(
    client, config, names
) -> None:
    text = inspect.getdoc(client.__init__) or ""
    arguments = re.findall(r"^ {4}(\w+): (.*(?:\n {8}.*)*)", text, re.MULTILINE)
    documented = {
        name: int(default[1].replace(",", ""))
        for name, description in arguments
        if (default := re.search(r"None is ([\d,]+)\.", description))
    }
    assert documented == {name: getattr(config(), name) for name in names}
