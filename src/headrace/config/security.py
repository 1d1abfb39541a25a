"""What a broker is told about listeners, encryption, authentication and access, under Kafka's names.

Part of `BrokerConfig`. Most of it can be said for one listener only, as `listener.name.<name>.<option>`:
`SecurityConfig.for_listener` is what counts there.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, Self

from headrace.config.authorization import AUTHORIZERS, parse_super_users
from headrace.config.jaas import plain_users
from headrace.config.options import (
    TEXT_LIMIT,
    Option,
    OptionType,
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
class SecurityConfig:
    """The options of a broker that have to do with security."""

    allow_everyone_if_no_acl_found: bool = option(
        default=False,
        documentation="With an authorizer: whether what no ACL names is allowed to everybody.",
    )
    authorizer_class_name: str = option(
        "",
        "What decides who may do what: empty for nothing, or Kafka's name of its own authorizer, "
        "org.apache.kafka.metadata.authorizer.StandardAuthorizer. With it everything is refused that no ACL allows. "
        "'headrace' means the same.",
        choices=AUTHORIZERS,
    )
    connection_failed_authentication_delay_ms: int = option(
        100,
        "How long after a failed authentication the client is answered and its connection closed.",
        type=_INT,
        minimum=0,
        maximum=10_000,
    )
    connections_max_reauth_ms: int = option(
        0,
        "How long an authentication by SASL counts; a client that does not repeat it in time is disconnected. "
        "0: for as long as the connection lasts, or the token says.",
        minimum=0,
    )
    headrace_sasl_plain_allow_plaintext: bool = option(
        default=False,
        documentation="Whether clients on other machines may send their password by PLAIN over connections that are "
        "not encrypted. Headrace's own option.",
    )
    headrace_ssl_crl_location: str = option(
        "",
        "Files with lists of revoked certificates (X.509 CRLs, PEM or DER), with commas between: with ssl.client.auth "
        "a client is refused whose certificate is in one, or whose authority has none that counts now. They are read "
        "again when they change. Headrace's own option.",
        type=_LIST,
    )
    listener_security_protocol_map: str = option(
        "",
        "The security protocol of each listener, as NAME:PROTOCOL with commas between: PLAINTEXT, SSL, SASL_PLAINTEXT "
        "or SASL_SSL. A listener with one of these names has that protocol.",
    )
    plain_sasl_jaas_config: str = option(
        "",
        "Users of PLAIN with their passwords, as Kafka has them: an entry of JAAS with the options "
        'user_<name>="<password>", for one listener: listener.name.<name>.plain.sasl.jaas.config. Other names are '
        "looked up among the users of the cluster. The entry is read as data, and no class is loaded.",
        sensitive=True,
        check=plain_users,
    )
    sasl_enabled_mechanisms: str = option(
        "SCRAM-SHA-256,SCRAM-SHA-512",
        "The mechanisms by which clients may authenticate on a listener with SASL.",
        type=_LIST,
        choices=("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"),
        unsupported={"GSSAPI": "there is no Kerberos"},
    )
    sasl_oauthbearer_clock_skew_seconds: int = option(
        30,
        "By how much the clocks of the broker and of the issuer of tokens may differ.",
        type=_INT,
        minimum=0,
        maximum=600,
    )
    sasl_oauthbearer_expected_audience: str = option(
        "", "The audiences, one of which a token has to be for; empty for no such rule.", type=_LIST
    )
    sasl_oauthbearer_expected_issuer: str = option(
        "", "The issuer that a token has to come from; empty for no such rule."
    )
    sasl_oauthbearer_jwks_endpoint_refresh_ms: int = option(
        3_600_000, "How often the keys of the issuer are read anew.", minimum=1_000
    )
    sasl_oauthbearer_jwks_endpoint_url: str = option(
        "",
        "Where the keys are that tokens are signed with: an https: or a file: URL of a JSON Web Key Set.",
    )
    sasl_oauthbearer_sub_claim_name: str = option(
        "sub", "The claim of a token that names the user."
    )
    sasl_server_max_receive_size: int = option(
        524_288,
        "Largest request that is read from a client before it has authenticated.",
        type=_INT,
        minimum=1_024,
    )
    ssl_certificate_location: str = option(
        "",
        "A PEM file with the certificate of the broker and its chain; the key is in ssl.key.location. Or use "
        "ssl.keystore.location for one file with both. Headrace's own option.",
    )
    ssl_cipher_suites: str = option(
        "",
        "The cipher suites to allow, by the names of IANA or of OpenSSL; empty for OpenSSL's choice. A list without a "
        "suite of TLS 1.3 turns TLS 1.3 off; those of TLS 1.3 are on or off together.",
        type=_LIST,
    )
    ssl_client_auth: str = option(
        "none",
        "Whether clients show a certificate: 'none', 'requested' (those who do have it checked) or 'required'.",
        choices=("none", "requested", "required"),
    )
    ssl_enabled_protocols: str = option(
        "TLSv1.2,TLSv1.3",
        "The versions of TLS that are spoken.",
        type=_LIST,
        choices=("TLSv1.2", "TLSv1.3"),
        unsupported=_OLD_TLS,
    )
    ssl_key_location: str = option(
        "", "A PEM file with the key to ssl.certificate.location. Headrace's own option."
    )
    ssl_key_password: str = option("", "The password of the private key.", sensitive=True)
    ssl_keystore_certificate_chain: str = option(
        "",
        "The certificate of the broker and its chain, as PEM, in place of a file.",
        type=_PASSWORD,
    )
    ssl_keystore_key: str = option(
        "", "The key to ssl.keystore.certificate.chain, as PEM.", sensitive=True
    )
    ssl_keystore_location: str = option(
        "", "A PEM file with the private key of the broker, its certificate, and the chain."
    )
    ssl_keystore_type: str = option(
        "PEM", "The format of the key store.", choices=STORE_TYPES, unsupported=KEYSTORE_HINT
    )
    ssl_principal_mapping_rules: str = option(
        "DEFAULT",
        "How the name of a client is made from the subject of its certificate: rules, the first that matches counts, "
        "RULE:pattern/replacement/[LU] or DEFAULT (the whole name).",
    )
    ssl_truststore_certificates: str = option(
        "",
        "The authorities that sign the certificates of clients, as PEM, in place of a file.",
        type=_PASSWORD,
    )
    ssl_truststore_location: str = option(
        "", "A PEM file with the authorities that sign the certificates of clients."
    )
    ssl_truststore_type: str = option(
        "PEM", "The format of the trust store.", choices=STORE_TYPES, unsupported=TRUSTSTORE_HINT
    )
    super_users: str = option(
        "",
        "Who may do everything, whatever the ACLs say, with semicolons between: User:alice;User:bob.",
        check=parse_super_users,
    )
    listener_overrides: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    """What counts for one listener only: pairs of `name.option`, the name in lower case, and text."""

    def for_listener(self, name: str) -> Self:
        """Return the options as they count for one listener."""
        prefix = name.lower() + "."
        own: dict[str, Any] = {
            key.removeprefix(prefix).replace(".", "_"): text
            for key, text in self.listener_overrides
            if key.startswith(prefix)
        }
        for attribute, text in own.items():
            option_name = attribute.replace("_", ".")
            own[attribute] = parse_value(option_name, SECURITY_OPTIONS[option_name], text)
        return replace(self, **own) if own else self


SECURITY_OPTIONS: Final[Mapping[str, Option]] = options_of(SecurityConfig)

_NOT_PER_LISTENER: Final = frozenset(
    {
        "allow.everyone.if.no.acl.found",
        "authorizer.class.name",
        "listener.security.protocol.map",
        "super.users",
    }
)


def split_overrides(
    values: Mapping[str, str | None],
) -> tuple[dict[str, str | None], tuple[tuple[str, str], ...]]:
    """Part settings into those of the broker and those of single listeners, which are checked.

    Raises:
        ConfigError: A key is not `listener.name.<name>.<option>`, is given twice, or its value is not acceptable.
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
            raise ConfigError(f"{key}: {option_name} counts for the whole broker; set it so")
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
