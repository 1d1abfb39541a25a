"""Security between brokers: which listener and which login a broker uses for the others."""

from __future__ import annotations

import pytest

from headrace.clients.config import ClientConfig
from headrace.config.broker import parse_broker_config
from headrace.config.listeners import Listener, parse_listeners, parse_protocol_map
from headrace.errors import ConfigError
from headrace.server.peer_security import inter_broker_listener, login_remedy, peer_config

LISTENERS = "CLIENT://127.0.0.1:1,INNER://127.0.0.1:2,SSL://127.0.0.1:3"
MAP = "CLIENT:PLAINTEXT,INNER:SASL_SSL"
PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule required"
SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule required"


def chosen(**settings: str) -> Listener:
    config = parse_broker_config({name.replace("_", "."): text for name, text in settings.items()})
    return inter_broker_listener(config, parse_listeners(LISTENERS, parse_protocol_map(MAP)))


def secured(settings: dict[str, str], name: str = "INNER") -> ClientConfig:
    config = parse_broker_config(settings)
    listeners = parse_listeners(LISTENERS, parse_protocol_map(MAP))
    return peer_config(config, next(each for each in listeners if each.name == name))


def test_brokers_use_the_named_listener_and_otherwise_the_first() -> None:
    assert chosen().name == "CLIENT"
    assert chosen(inter_broker_listener_name="INNER").name == "INNER"
    assert chosen(inter_broker_listener_name="inner").name == "INNER"
    assert chosen(security_inter_broker_protocol="SSL").name == "SSL"


def test_a_listener_that_does_not_exist_is_refused_with_the_existing_ones() -> None:
    with pytest.raises(ConfigError, match=r"name=OUTER: .*Use one of CLIENT, INNER, SSL"):
        chosen(inter_broker_listener_name="OUTER")
    with pytest.raises(ConfigError, match=r"protocol=PLAINTEXT: .*Use one of CLIENT"):
        chosen(security_inter_broker_protocol="PLAINTEXT")
    with pytest.raises(ConfigError, match="two ways to name one listener"):
        chosen(inter_broker_listener_name="SSL", security_inter_broker_protocol="SSL")


def test_a_broker_logs_in_as_the_user_in_the_entry_of_its_mechanism() -> None:
    entry = f'{SCRAM} username="b1" password="hush";'
    found = secured({"listener.name.inner.scram-sha-512.sasl.jaas.config": entry})
    assert (found.sasl_mechanism, found.sasl_username) == ("SCRAM-SHA-512", "b1")
    assert found.sasl_password == "hush"
    assert found.security_protocol == "SASL_SSL"
    entry = f'{PLAIN} username="b2" password="hush" user_alice="other";'
    found = secured(
        {
            "listener.name.inner.plain.sasl.jaas.config": entry,
            "listener.name.inner.sasl.enabled.mechanisms": "PLAIN",
            "sasl.mechanism.inter.broker.protocol": "PLAIN",
        }
    )
    assert (found.sasl_mechanism, found.sasl_username) == ("PLAIN", "b2")


def test_a_broker_shows_the_certificate_of_its_listener_and_trusts_the_same_authorities() -> None:
    found = secured(
        {
            "listener.name.ssl.ssl.keystore.location": "/own.pem",
            "ssl.keystore.location": "/other.pem",
            "ssl.truststore.location": "/authority.pem",
            "ssl.key.password": "hush",
        },
        "SSL",
    )
    assert found.ssl_certificate_location == found.ssl_key_location == "/own.pem"
    assert (found.ssl_ca_location, found.ssl_key_password) == ("/authority.pem", "hush")
    assert found.ssl_endpoint_identification_algorithm == "https"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, r"Set listener\.name\.inner\.scram-sha-512\.sasl\.jaas\.config=.*ScramLoginModule"),
        (
            {"listener.name.inner.scram-sha-512.sasl.jaas.config": f"{SCRAM};"},
            "no user to log in to other brokers",
        ),
        ({"sasl.mechanism.inter.broker.protocol": "GSSAPI"}, "Use one of PLAIN, SCRAM-SHA-256"),
        ({"sasl.mechanism.inter.broker.protocol": "PLAIN"}, "sasl.enabled.mechanisms=.*Add it"),
    ],
)
def test_a_missing_login_is_refused_with_what_to_set(
    settings: dict[str, str], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        secured(settings)


@pytest.mark.parametrize("entry", ["hush", f'{PLAIN} username="a" password="hush";'])
def test_an_entry_of_scram_names_the_module_of_scram(entry: str) -> None:
    with pytest.raises(ConfigError, match="a secret and not shown"):
        parse_broker_config({"listener.name.inner.scram-sha-256.sasl.jaas.config": entry})


def test_the_remedy_names_what_the_listener_uses() -> None:
    inner = chosen(inter_broker_listener_name="INNER")
    assert "listener.name.inner.<mechanism>.sasl.jaas.config" in login_remedy(inner)
    assert "ssl.truststore.location" in login_remedy(inner)
    assert login_remedy(chosen()) == ""
