"""Listeners, and the security options that apply to all of them or to one."""

from __future__ import annotations

import pytest

from headrace.config.broker import BROKER_OPTIONS, parse_broker_config
from headrace.config.listeners import (
    ListenAddress,
    Listener,
    SecurityProtocol,
    parse_advertised,
    parse_listener,
    parse_listeners,
    parse_protocol_map,
)
from headrace.errors import ConfigError

PROTOCOLS = parse_protocol_map("EXTERNAL:SASL_SSL, internal:plaintext")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("127.0.0.1:9092", ("PLAINTEXT", "PLAINTEXT", "127.0.0.1", 9092)),
        ("[::1]:0", ("PLAINTEXT", "PLAINTEXT", "::1", 0)),
        ("SSL://:9093", ("SSL", "SSL", "0.0.0.0", 9093)),
        ("sasl_ssl://host:1", ("SASL_SSL", "SASL_SSL", "host", 1)),
        ("External://[2001:db8::1]:65535", ("EXTERNAL", "SASL_SSL", "2001:db8::1", 65535)),
        ("INTERNAL://localhost:9092", ("INTERNAL", "PLAINTEXT", "localhost", 9092)),
    ],
)
def test_a_listener_is_parsed_and_its_printed_form_parses_back(
    text: str, expected: tuple[str, str, str, int]
) -> None:
    name, protocol, host, port = expected
    listener = parse_listener(text, PROTOCOLS)
    assert listener == Listener(name, SecurityProtocol(protocol), ListenAddress(host, port))
    assert parse_listener(str(listener), PROTOCOLS) == listener


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "HOST:PORT"),
        ("9092", "HOST:PORT"),
        (":9092", "all addresses"),
        ("a:70000", "HOST:PORT"),
        ("a:0000009092", "HOST:PORT"),
        ("a:\u0661", "HOST:PORT"),
        ("::1:9092", "brackets"),
        ("SSL://a b:1", "no host"),
        ("://a:1", "not the name"),
        ("NEW NAME://a:1", "not the name"),
        ("OTHER://a:1", "listener.security.protocol.map, as in OTHER:SSL"),
    ],
)
def test_the_error_for_a_malformed_listener_has_the_reason(text: str, said: str) -> None:
    with pytest.raises(ConfigError, match="listener") as caught:
        parse_listener(text, PROTOCOLS)
    assert said in str(caught.value)


def test_several_listeners_without_those_of_a_controller() -> None:
    text = "INTERNAL://127.0.0.1:9092, EXTERNAL://:9093 ,CONTROLLER://:9094"
    assert [listener.name for listener in parse_listeners(text, PROTOCOLS)] == [
        "INTERNAL",
        "EXTERNAL",
    ]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "at least one"),
        ("CONTROLLER://:9094", "at least one"),
        ("SSL://a:1,ssl://a:2", "SSL is given twice"),
        ("SSL://a:1,PLAINTEXT://a:1", "the same port"),
        ("SSL://:1,PLAINTEXT://127.0.0.1:1", "the same port"),
        ("SSL://[::]:1,PLAINTEXT://[::1]:1", "the same port"),
    ],
)
def test_listeners_that_clash_are_refused(text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        parse_listeners(text, PROTOCOLS)


@pytest.mark.parametrize(
    "text",
    ["SSL://a:0,PLAINTEXT://a:0", "SSL://:1,PLAINTEXT://[::1]:1", "SSL://10.0.0.1:1,PLAINTEXT://127.0.0.1:1"],
)  # fmt: skip
def test_listeners_that_only_look_alike(text: str) -> None:
    assert len(parse_listeners(text, PROTOCOLS)) == 2


@pytest.mark.parametrize("text", ["A", "A:TLS", "A:SSL,a:PLAINTEXT", ":SSL", "a b:SSL"])
def test_a_malformed_protocol_map(text: str) -> None:
    with pytest.raises(ConfigError, match=r"listener\.security\.protocol\.map"):
        parse_protocol_map(text)


def test_advertised_addresses_by_name() -> None:
    assert parse_advertised("a://host:1, B://[fd00::1]:2") == {
        "A": ListenAddress("host", 1),
        "B": ListenAddress("fd00::1", 2),
    }


def test_options_of_a_listener_override_the_general_options() -> None:
    config = parse_broker_config(
        {
            "ssl.client.auth": "none",
            "listener.name.external.ssl.client.auth": "required",
            "listener.name.External.ssl.principal.mapping.rules": "RULE:^CN=(.*?),.*$/$1/",
        }
    )
    external = config.for_listener("EXTERNAL")
    assert external.ssl_client_auth == "required"
    assert external.ssl_principal_mapping_rules == "RULE:^CN=(.*?),.*$/$1/"
    assert config.for_listener("INTERNAL") is config


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("listener.name.a.ssl.client.auth", "maybe", "expected one of"),
        ("listener.name.a.ssl.client.aut", "none", "did you mean"),
        ("listener.name.a", "none", "expected listener.name"),
        ("listener.name.a.super.users", "User:a", "whole broker"),
        ("super.users", "alice", "write User:alice"),
        ("super.users", "user:alice", "write User:alice, in this spelling"),
        ("super.users", "User: alice", "write User:alice, in this spelling"),
        ("super.users", "User:alice, User:bob", "semicolons"),
        ("ssl.keystore.type", "JKS", "keytool -importkeystore"),
        ("ssl.truststore.type", "PKCS12", "keytool -list -rfc"),
        ("ssl.enabled.protocols", "TLSv1.2,TLSv1.1", "not safe"),
        ("sasl.enabled.mechanisms", "GSSAPI", "no Kerberos"),
        ("listener.security.protocol.map", "A:B", "listener.security.protocol.map"),
        ("advertised.listeners", "A", "advertised.listeners"),
    ],
)
def test_wrong_options_are_refused(key: str, value: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_broker_config({key: value})
    assert said in str(caught.value)


def test_two_spellings_of_a_listener_do_not_contend() -> None:
    option = "ssl.client.auth"
    with pytest.raises(ConfigError, match="given twice"):
        parse_broker_config(
            {f"listener.name.A.{option}": "required", f"listener.name.a.{option}": "none"}
        )


def test_secrets_are_marked_and_not_shown() -> None:
    secrets = {"ssl.key.password": "hush-1", "ssl.keystore.key": "hush-2"}
    assert all(BROKER_OPTIONS[name].sensitive for name in secrets)
    config = parse_broker_config({**secrets, "listener.name.a.ssl.key.password": "hush-3"})
    assert "hush" not in repr(config)
    assert "hush" not in repr(config.for_listener("a"))
