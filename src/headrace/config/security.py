"""The settings of a broker for listeners, encryption, authentication and ACLs, under Kafka's names.

They are part of `BrokerConfig`. Most of them can have another value for one listener: `listener.name.<name>.<option>`.
`BrokerSecurityConfig.for_listener` returns the settings of one listener.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, Self

from headrace.config.authorization import AUTHORIZERS, parse_super_users
from headrace.config.jaas import check_scram_entry, plain_users
from headrace.config.listeners import SecurityProtocol
from headrace.config.options import (
    TEXT_LIMIT,
    Option,
    OptionType,
    attribute_name,
    kafka_name,
    option,
    options_of,
    parse_value,
    unknown_key,
)
from headrace.errors import ConfigError

LISTENER_PREFIX: Final = "listener.name."
_INT: Final = OptionType.INT
_LIST: Final = OptionType.LIST
_PASSWORD: Final = OptionType.PASSWORD
_LISTENER_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,100}")

_KEYSTORE_AS_PEM: Final = (
    "only PEM is. Convert it: keytool -importkeystore -srckeystore FILE -destkeystore server.p12 "
    "-deststoretype PKCS12; then openssl pkcs12 -in server.p12 -out server.pem -nodes, and name server.pem"
)
_TRUSTSTORE_AS_PEM: Final = (
    "only PEM is. Convert it: keytool -list -rfc -keystore FILE > truststore.pem, and name that"
)
STORE_TYPES: Final = ("PEM",)
KEYSTORE_HINT: Final = dict.fromkeys(("JKS", "PKCS12", "jks", "pkcs12"), _KEYSTORE_AS_PEM)
TRUSTSTORE_HINT: Final = dict.fromkeys(("JKS", "PKCS12", "jks", "pkcs12"), _TRUSTSTORE_AS_PEM)
_OLD_TLS: Final = dict.fromkeys(
    ("SSLv2", "SSLv3", "TLSv1", "TLSv1.1"), "it is not safe; TLSv1.2 and TLSv1.3 are"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerSecurityConfig:
    """The security options of a broker."""

    allow_everyone_if_no_acl_found: bool = option(
        default=False,
        documentation="Whether everybody may use a resource that no ACL names. Only with an authorizer.",
    )
    authorizer_class_name: str = option(
        "",
        "The authorizer, which checks ACLs. Empty: no authorizer, and everything is allowed. "
        "`org.apache.kafka.metadata.authorizer.StandardAuthorizer` or `headrace`: everything is denied that "
        "no ACL allows.",
        choices=AUTHORIZERS,
    )
    connection_failed_authentication_delay_ms: int = option(
        100,
        "The time after a failed authentication until the broker answers and closes the connection.",
        type=_INT,
        minimum=0,
        maximum=10_000,
    )
    connections_max_reauth_ms: int = option(
        0,
        "The time for which an authentication by SASL is valid. A client that does not authenticate again "
        "in time is disconnected. With 0 the authentication is valid for as long as the connection or the "
        "token lasts.",
        minimum=0,
    )
    headrace_sasl_plain_allow_plaintext: bool = option(
        default=False,
        documentation="Whether clients on other machines can send their password with PLAIN over connections that "
        "are not encrypted.",
    )
    headrace_ssl_crl_location: str = option(
        "",
        "Files with certificate revocation lists (CRLs, PEM or DER), separated by commas. With "
        "ssl.client.auth a client is refused if a list names its certificate, or if no list of its "
        "certificate authority is valid now. The broker reads the files again when they change.",
        type=_LIST,
    )
    inter_broker_listener_name: str = option(
        "",
        "The listener on which the brokers of a cluster connect to each other. Empty: the listener with the name in "
        "security.inter.broker.protocol, or the first of `listeners`. The brokers show each other the certificate of "
        "the listener, trust the authorities in ssl.truststore.location, and log in as the user in "
        "listener.name.<name>.<mechanism>.sasl.jaas.config. With an authorizer this user needs to be one of "
        "super.users, or the permission CLUSTER_ACTION.",
    )
    listener_security_protocol_map: str = option(
        "",
        "The security protocol of each listener: NAME:PROTOCOL, separated by commas. A protocol is "
        "PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL. A listener with the name of a protocol has that "
        "protocol.",
    )
    plain_sasl_jaas_config: str = option(
        "",
        "Users of PLAIN with their passwords, as in Kafka: a JAAS entry with the options "
        'user_<name>="<password>", for one listener: listener.name.<name>.plain.sasl.jaas.config. The '
        "broker looks up other names among the users of the cluster. In a cluster the broker logs in to other brokers "
        "with the options `username` and `password`. The entry is read as data; no class is loaded.",
        sensitive=True,
        check=plain_users,
    )
    sasl_enabled_mechanisms: str = option(
        "SCRAM-SHA-256,SCRAM-SHA-512",
        "The mechanisms with which clients can authenticate on a listener with SASL.",
        type=_LIST,
        choices=("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"),
        unsupported={"GSSAPI": "there is no Kerberos"},
    )
    sasl_mechanism_inter_broker_protocol: str = option(
        "SCRAM-SHA-512",
        "The mechanism with which the brokers of a cluster log in to each other, if the listener that they use has "
        "SASL: PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512.",
    )
    sasl_oauthbearer_clock_skew_seconds: int = option(
        30,
        "The largest difference that is accepted between the clocks of the broker and of the token issuer.",
        type=_INT,
        minimum=0,
        maximum=600,
    )
    sasl_oauthbearer_expected_audience: str = option(
        "",
        "The accepted audiences of a token, of which a token must have one. Empty: any audience.",
        type=_LIST,
    )
    sasl_oauthbearer_expected_issuer: str = option(
        "", "The issuer from which a token must come. Empty: any issuer."
    )
    sasl_oauthbearer_jwks_endpoint_refresh_ms: int = option(
        3_600_000, "The time between two reads of the keys of the token issuer.", minimum=1_000
    )
    sasl_oauthbearer_jwks_endpoint_url: str = option(
        "",
        "The address of the keys with which tokens are signed: an https: or file: URL of a JSON Web Key "
        "Set.",
    )
    sasl_oauthbearer_sub_claim_name: str = option(
        "sub", "The claim of a token that has the name of the user."
    )
    sasl_server_max_receive_size: int = option(
        524_288,
        "The size in bytes of the largest request that the broker reads before a client has authenticated.",
        type=_INT,
        minimum=1_024,
    )
    scram_sha_256_sasl_jaas_config: str = option(
        "",
        "The user as which this broker logs in to other brokers with SCRAM-SHA-256, as in Kafka: a JAAS entry with "
        'the options username="<name>" and password="<password>", for one listener: '
        "listener.name.<name>.scram-sha-256.sasl.jaas.config. The entry is read as data; no class is loaded.",
        sensitive=True,
        check=check_scram_entry,
    )
    scram_sha_512_sasl_jaas_config: str = option(
        "",
        "The user as which this broker logs in to other brokers with SCRAM-SHA-512, as in Kafka: a JAAS entry with "
        'the options username="<name>" and password="<password>", for one listener: '
        "listener.name.<name>.scram-sha-512.sasl.jaas.config. The entry is read as data; no class is loaded.",
        sensitive=True,
        check=check_scram_entry,
    )
    security_inter_broker_protocol: str = option(
        "",
        "The security protocol with which the brokers of a cluster connect to each other, in place of "
        "inter.broker.listener.name: the name of a listener that is named like its protocol.",
        choices=("", *SecurityProtocol),
    )
    ssl_certificate_location: str = option(
        "",
        "A PEM file with the certificate of the broker and its chain. The key is in ssl.key.location. "
        "ssl.keystore.location is one file with both.",
    )
    ssl_cipher_suites: str = option(
        "",
        "The allowed cipher suites, with their names of IANA or OpenSSL. Empty: the choice of OpenSSL. A "
        "list without a suite of TLS 1.3 switches TLS 1.3 off. The suites of TLS 1.3 are on or off "
        "together.",
        type=_LIST,
    )
    ssl_client_auth: str = option(
        "none",
        "Whether clients must show a certificate: 'none' asks for none, 'requested' checks the certificate "
        "of clients that show one, 'required' refuses clients without one.",
        choices=("none", "requested", "required"),
    )
    ssl_enabled_protocols: str = option(
        "TLSv1.2,TLSv1.3",
        "The accepted versions of TLS.",
        type=_LIST,
        choices=("TLSv1.2", "TLSv1.3"),
        unsupported=_OLD_TLS,
    )
    ssl_key_location: str = option(
        "", "A PEM file with the private key of ssl.certificate.location."
    )
    ssl_key_password: str = option("", "The password of the private key.", sensitive=True)
    ssl_keystore_certificate_chain: str = option(
        "",
        "The certificate of the broker and its chain, as PEM text in place of a file.",
        type=_PASSWORD,
    )
    ssl_keystore_key: str = option(
        "", "The private key of ssl.keystore.certificate.chain, as PEM text.", sensitive=True
    )
    ssl_keystore_location: str = option(
        "", "A PEM file with the private key of the broker, its certificate and the chain."
    )
    ssl_keystore_type: str = option(
        "PEM", "The format of the key store.", choices=STORE_TYPES, unsupported=KEYSTORE_HINT
    )
    ssl_principal_mapping_rules: str = option(
        "DEFAULT",
        "Rules that turn the subject of a client's certificate into a user name. The first rule that "
        "matches is used: RULE:pattern/replacement/[LU], or DEFAULT for the whole subject.",
    )
    ssl_truststore_certificates: str = option(
        "",
        "The certificate authorities that sign the certificates of clients, as PEM text in place of a file.",
        type=_PASSWORD,
    )
    ssl_truststore_location: str = option(
        "", "A PEM file with the certificate authorities that sign the certificates of clients."
    )
    ssl_truststore_type: str = option(
        "PEM", "The format of the trust store.", choices=STORE_TYPES, unsupported=TRUSTSTORE_HINT
    )
    super_users: str = option(
        "",
        "The users that may do everything, whatever the ACLs say, separated by semicolons: "
        "User:alice;User:bob.",
        check=parse_super_users,
    )
    listener_overrides: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    """The settings of single listeners: pairs of `name.option`, with the name in lower case, and the value as text."""

    def for_listener(self, name: str) -> Self:
        """Return the settings of one listener."""
        prefix = name.lower() + "."
        own: dict[str, Any] = {
            attribute_name(key.removeprefix(prefix)): text
            for key, text in self.listener_overrides
            if key.startswith(prefix)
        }
        for attribute, text in own.items():
            option_name = kafka_name(attribute)
            own[attribute] = parse_value(option_name, SECURITY_OPTIONS[option_name], text)
        return replace(self, **own) if own else self


SECURITY_OPTIONS: Final[Mapping[str, Option]] = options_of(BrokerSecurityConfig)

_NOT_PER_LISTENER: Final = frozenset(
    {
        "allow.everyone.if.no.acl.found",
        "authorizer.class.name",
        "inter.broker.listener.name",
        "listener.security.protocol.map",
        "sasl.mechanism.inter.broker.protocol",
        "security.inter.broker.protocol",
        "super.users",
    }
)


def split_overrides(
    values: Mapping[str, str | None],
) -> tuple[dict[str, str | None], tuple[tuple[str, str], ...]]:
    """Divide settings into those of the broker and those of single listeners. The latter are checked.

    Raises:
        ConfigError: A key is not `listener.name.<name>.<option>` or occurs twice, or its value is invalid.
    """
    plain: dict[str, str | None] = {}
    overrides: dict[str, str] = {}
    for key, text in values.items():
        if not key.startswith(LISTENER_PREFIX):
            plain[key] = text
            continue
        name, _, option_name = key.removeprefix(LISTENER_PREFIX).partition(".")
        described = SECURITY_OPTIONS.get(option_name)
        if not _LISTENER_NAME.fullmatch(name) or not option_name:
            raise ConfigError(f"{key[:200]!r}: expected {LISTENER_PREFIX}<name>.<option>")
        if described is None:
            raise unknown_key(
                key, [f"{LISTENER_PREFIX}{name}.{known}" for known in SECURITY_OPTIONS]
            )
        if option_name in _NOT_PER_LISTENER:
            raise ConfigError(
                f"{key}: {option_name} applies to the whole broker; set it without the prefix"
            )
        if text is None:
            continue
        if len(text) > TEXT_LIMIT:
            raise ConfigError(f"{key}: the value is longer than {TEXT_LIMIT} characters")
        parse_value(key, described, text)
        own = f"{name.lower()}.{option_name}"
        if own in overrides:
            raise ConfigError(f"{key}: given twice, in different spellings of {name}")
        overrides[own] = text
    return plain, tuple(sorted(overrides.items()))
