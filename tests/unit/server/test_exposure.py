"""The check of listeners that other machines can reach."""

from __future__ import annotations

import pytest

from headrace.config.broker import parse_broker_config
from headrace.config.listeners import parse_listener, parse_protocol_map
from headrace.errors import ConfigError
from headrace.server.listen import check_exposure, chosen_listeners
from headrace.server.listeners import BoundListener
from tests.unit.server.fakes import RecordingJournal

PROTOCOLS = parse_protocol_map("INNER:SASL_PLAINTEXT,OUTER:SSL")
REQUIRED = parse_broker_config({"listener.name.outer.ssl.client.auth": "required"})
PLAIN = parse_broker_config({})


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "[::1]", "localhost"])
def test_loopback_needs_no_protection(host: str) -> None:
    check_exposure(parse_listener(f"{host}:1", PROTOCOLS), PLAIN, insecure=False)


@pytest.mark.parametrize("text", ["SASL_SSL://0.0.0.0:1", "OUTER://example.org:1"])
def test_a_listener_with_encryption_and_authentication_may_be_exposed(text: str) -> None:
    check_exposure(parse_listener(text, PROTOCOLS), REQUIRED, insecure=False)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("0.0.0.0:1", "neither encrypted nor authenticated"),
        ("[::]:1", "neither encrypted nor authenticated"),
        ("example.org:1", "SASL_SSL, or SSL with ssl.client.auth=required"),
        ("SSL://:1", "clients are not authenticated"),
        ("OUTER://10.0.0.1:1", "Set ssl.client.auth=required"),
        ("INNER://10.0.0.1:1", "connections are not encrypted"),
    ],
)
def test_an_exposed_listener_without_protection_is_refused(text: str, said: str) -> None:
    listener = parse_listener(text, PROTOCOLS)
    with pytest.raises(ConfigError, match="--insecure") as caught:
        check_exposure(listener, PLAIN, insecure=False)
    assert said in str(caught.value)
    check_exposure(listener, PLAIN, insecure=True)


def test_settings_of_an_unknown_listener_are_refused() -> None:
    """Without the check, a mistyped name would leave the other listener unprotected."""
    with pytest.raises(ConfigError, match=r"listener\.name\.outer\.ssl\.client\.auth: .* OUTER"):
        chosen_listeners(["SSL://127.0.0.1:1"], REQUIRED, insecure=False)
    mapped = {
        "listener.security.protocol.map": "OUTER:SSL",
        "listener.name.controller.ssl.key.password": "x",
    }
    config = parse_broker_config({"listener.name.outer.ssl.client.auth": "required", **mapped})
    assert chosen_listeners(["SSL://127.0.0.1:1"], config, insecure=False)


def test_a_sasl_listener_without_mechanisms_is_refused() -> None:
    protocols = parse_protocol_map("")
    config = parse_broker_config({"listener.name.sasl_plaintext.sasl.enabled.mechanisms": ""})
    with pytest.raises(ConfigError, match=r"SASL_PLAINTEXT: sasl\.enabled\.mechanisms is empty"):
        BoundListener(
            parse_listener("SASL_PLAINTEXT://127.0.0.1:0", protocols), config, RecordingJournal()
        )


def test_every_listener_is_checked() -> None:
    with pytest.raises(ConfigError, match=r"PLAINTEXT://0\.0\.0\.0:2"):
        chosen_listeners(["SASL_SSL://0.0.0.0:1", "0.0.0.0:2"], REQUIRED, insecure=False)
