"""The broker options of Kafka: each is supported, has no effect for a reason, or is refused for a reason."""

from __future__ import annotations

import pytest

from headrace.config.broker import BROKER_ALIASES, BROKER_OPTIONS, parse_broker_config
from headrace.config.environment import from_environment, option_name, variable_of
from headrace.config.foreign import (
    ACCEPTED,
    DIRECTORY_OPTIONS,
    REFUSED,
    kafka_options,
    part_foreign,
)
from headrace.config.jaas import PLAIN_LOGIN_MODULE, plain_users
from headrace.errors import ConfigError

OURS = {*BROKER_OPTIONS, *BROKER_ALIASES, *DIRECTORY_OPTIONS}


def test_every_option_of_kafka_has_one_place() -> None:
    assert len(kafka_options()) > 300
    assert kafka_options() - OURS - {*ACCEPTED} - {*REFUSED} == set()
    assert not (set(ACCEPTED) & set(REFUSED) | (set(ACCEPTED) | set(REFUSED)) & OURS)
    assert (set(ACCEPTED) | set(REFUSED)) - kafka_options() == set()


@pytest.mark.parametrize("name", sorted(kafka_options() - OURS))
def test_no_option_of_kafka_is_unknown(name: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_broker_config({name: "1"})
    assert "unknown" not in str(caught.value)


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_a_refused_option_has_values_that_ask_for_nothing(name: str) -> None:
    for harmless in REFUSED[name].harmless:
        assert part_foreign({name: harmless})[0] == {}
    with pytest.raises(ConfigError, match="is not supported") as caught:
        part_foreign({name: "com.example.hush"})
    assert "hush" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "place"),
    [
        ("background.threads", "ignored"),
        ("sasl.kerberos.min.time.before.relogin", "ignored"),
        ("zookeeper.connect", "ours"),
        ("zookeeper.ssl.keystore.location", "ours"),
        ("zookeeper.connection.timeout.ms", "ours"),
        ("zookeeper.max.in.flight.requests", "ignored"),
        ("password.encoder.secret", "ignored"),
        ("config.providers.file.class", "ignored"),
        ("listener.name.inner.num.network.threads", "ignored"),
        ("listener.name.inner.gssapi.sasl.jaas.config", "ignored"),
        ("listener.name.inner.scram-sha-256.sasl.jaas.config", "ours"),
        ("listener.name.inner.sasl.login.class", "ignored"),
        ("listener.name.controller.ssl.keystore.location", "ignored"),
        ("listener.name.inner.plain.sasl.jaas.config", "ours"),
        ("listener.name.inner.ssl.client.auth", "ours"),
        ("nmu.partitions", "ours"),
        ("listener.name.inner.oauthbearer.sasl.server.callback.handler.class", "refused"),
        ("principal.builder.class", "refused"),
    ],
)
def test_each_name_is_supported_ignored_or_refused(name: str, place: str) -> None:
    try:
        ours, ignored = part_foreign({name: "x"})
    except ConfigError:
        assert place == "refused"
        return
    assert (name in ours, name in ignored) == (place == "ours", place == "ignored")


@pytest.mark.parametrize("controllers", ["CONTROLLER", "raft,CONTROLLER"])
def test_a_controller_in_the_same_process_is_left_out(controllers: str) -> None:
    first = controllers.partition(",")[0].upper()
    ours, ignored = part_foreign(
        {
            "process.roles": "broker,controller",
            "controller.listener.names": controllers,
            "listeners": f"PLAINTEXT://127.0.0.1:9092,{first}://:9093",
            "advertised.listeners": f"{first}://localhost:9093, PLAINTEXT://localhost:9092",
        }
    )
    assert ours == {
        "listeners": "PLAINTEXT://127.0.0.1:9092",
        "advertised.listeners": "PLAINTEXT://localhost:9092",
    }
    assert set(ignored) == {"process.roles", "controller.listener.names"}


def test_a_process_that_is_a_controller_only_is_refused() -> None:
    with pytest.raises(ConfigError, match="this is a broker"):
        part_foreign({"process.roles": "controller"})


def test_the_finest_unit_of_a_time_counts() -> None:
    names = {"log.retention.hours": "168", "log.retention.minutes": "2", "log.retention.ms": "5"}
    assert parse_broker_config(names).log_retention_ms == 5
    del names["log.retention.ms"]
    assert parse_broker_config(names).log_retention_ms == 120_000
    assert parse_broker_config({"node.id": "3", "broker.id": "3"}).broker_id == 3


@pytest.mark.parametrize(
    "name", ["num.partitions", "listener.name.sasl_ssl.scram-sha-256.x", "a-b_c.d"]
)
def test_names_of_variables(name: str) -> None:
    assert option_name(variable_of(name)) == name


def test_every_option_can_be_a_variable() -> None:
    names = {*BROKER_OPTIONS, *kafka_options()}
    found = from_environment({variable_of(name): "1" for name in names})
    assert set(found.settings) == names
    assert not found.doubtful


def test_users_of_plain() -> None:
    entry = f"""{PLAIN_LOGIN_MODULE} required username="broker" password="b"
        user_alice="it\\"s" user_o.hara='x y' user_bob=z;"""
    assert plain_users(entry) == {"alice": 'it"s', "o.hara": "x y", "bob": "z"}
    assert plain_users("") == {}


@pytest.mark.parametrize(
    "entry",
    [
        f'{PLAIN_LOGIN_MODULE} required user_="hush";',
        f'{PLAIN_LOGIN_MODULE} required user_alice="";',
        'com.example.Module required user_alice="hush";',
        "hush",
    ],
)
def test_users_of_plain_that_cannot_be_meant(entry: str) -> None:
    with pytest.raises(ConfigError) as caught:
        plain_users(entry)
    assert "hush" not in str(caught.value)
    with pytest.raises(ConfigError):
        parse_broker_config({"listener.name.inner.plain.sasl.jaas.config": entry})
