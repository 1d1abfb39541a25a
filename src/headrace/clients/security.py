"""Security settings of clients: TLS and SASL, under the names of librdkafka and of the Java client.

Values are data: a property never names code to load or run. Secrets appear in no `repr` and in no error message.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from headrace.config.jaas import PLAIN_LOGIN_MODULE, SCRAM_LOGIN_MODULE, parse_jaas_entry
from headrace.config.listeners import SecurityProtocol
from headrace.errors import ConfigError

MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")

SECURITY_ALIASES: Final[dict[str, str]] = {
    "sasl.mechanisms": "sasl.mechanism",
    "ssl.truststore.location": "ssl.ca.location",
    "ssl.truststore.certificates": "ssl.ca.pem",
    "ssl.keystore.certificate.chain": "ssl.certificate.pem",
    "ssl.keystore.key": "ssl.key.pem",
}
"""Other names of properties, with the names that are used here."""

JAVA_ONLY: Final = (
    "sasl.jaas.config",
    "ssl.truststore.type",
    "ssl.keystore.type",
    "ssl.keystore.location",
)
"""Properties of the Java client that are translated into other properties. They are no fields of the configuration."""

KEY_STORE_HINT: Final = (
    "only PEM is read; convert a JKS or PKCS12 store: keytool -importkeystore -srckeystore STORE -destkeystore "
    "store.p12 -deststoretype PKCS12 && openssl pkcs12 -in store.p12 -out store.pem"
)

_LOGIN_MODULES: Final = {
    PLAIN_LOGIN_MODULE: ("PLAIN",),
    SCRAM_LOGIN_MODULE: ("SCRAM-SHA-256", "SCRAM-SHA-512"),
}
_MECHANISM_NAMES: Final = ("sasl.mechanism", "sasl.mechanisms")

OAuthCallback = Callable[[str], Any]
"""The type of `oauth_cb`, as in librdkafka. The function takes `sasl.oauthbearer.config`, and returns (token, expiry in
seconds since 1970[, principal[, extensions]]); for an asyncio client it may return an awaitable of that."""
TokenCallback = Callable[[], Any]
"""The type of `sasl_oauthbearer_token`: a function that returns a token, or for an asyncio client an awaitable."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientSecurityConfig:
    """Security settings of a client's connections. Files are in PEM format."""

    security_protocol: str = "PLAINTEXT"
    """PLAINTEXT, SSL (TLS), SASL_PLAINTEXT (authentication), or SASL_SSL (both)."""
    ssl_ca_location: str = ""
    """The file with the certificates of the authorities that the client trusts. "" is those that the system trusts."""
    ssl_ca_pem: str = field(default="", repr=False)
    """These certificates as text, in place of a file. "" is none."""
    ssl_certificate_location: str = ""
    """The file with the client's certificate, followed by the intermediate certificates. "" is no certificate."""
    ssl_certificate_pem: str = field(default="", repr=False)
    """The client's certificates as text, in place of a file. "" is none."""
    ssl_key_location: str = ""
    """The file with the private key of the client's certificate. "" is none."""
    ssl_key_pem: str = field(default="", repr=False)
    """The private key as text, in place of a file. "" is none."""
    ssl_key_password: str = field(default="", repr=False)
    """The password of the private key. "" is a key without a password."""
    enable_ssl_certificate_verification: bool = True
    """Whether the client checks the broker's certificate. Without the check any machine can pose as the broker."""
    ssl_endpoint_identification_algorithm: str = "https"
    """https: the broker's certificate must name the host that the client connects to. none: any trusted certificate is
    accepted."""
    sasl_mechanism: str = ""
    """PLAIN, SCRAM-SHA-256, SCRAM-SHA-512 or OAUTHBEARER. "" is none; SASL needs one."""
    sasl_username: str = ""
    """The user name for PLAIN and SCRAM."""
    sasl_password: str = field(default="", repr=False)
    """The password for PLAIN and SCRAM."""
    sasl_oauthbearer_config: str = field(default="", repr=False)
    """The argument of `oauth_cb`."""
    oauth_cb: OAuthCallback | None = field(default=None, repr=False)
    """The function that returns a token for OAUTHBEARER, as in librdkafka. None is none."""
    sasl_oauthbearer_token: TokenCallback | None = field(default=None, repr=False)
    """A function that returns a token for OAUTHBEARER, without an argument. None is none."""

    @property
    def encrypted(self) -> bool:
        """Whether connections use TLS."""
        return SecurityProtocol(self.security_protocol).encrypted

    @property
    def authenticates(self) -> bool:
        """Whether the client authenticates by SASL."""
        return SecurityProtocol(self.security_protocol).sasl


def parse_protocol(name: str, value: Any) -> str:
    """Return the name of a security protocol."""
    return _one_of(name, str(value).upper(), [str(each) for each in SecurityProtocol])


def parse_mechanism(name: str, value: Any) -> str:
    """Return the name of a SASL mechanism that the clients speak."""
    return _one_of(name, str(value).strip().upper(), MECHANISMS)


def parse_identification(name: str, value: Any) -> str:
    """Return https or none; Java users write an empty value for none."""
    return _one_of(name, str(value).lower() or "none", ("https", "none"))


def parse_callback(name: str, value: Any) -> Any:
    """Return a callback, checked to be callable."""
    if value is not None and not callable(value):
        raise ConfigError(f"property {name!r} wants a function, not {type(value).__name__}")
    return value


def _one_of(name: str, value: str, choices: Any) -> str:
    if value not in choices:
        raise ConfigError(f"property {name!r} is one of {', '.join(choices)}, not {value!r}")
    return value


def translate_java(properties: Mapping[str, Any]) -> dict[str, Any]:
    """Return the properties, those of `JAVA_ONLY` translated. Names may have dots or underscores.

    Raises:
        ConfigError: A store is not in PEM, or a login module is not one of those that are data only.
    """
    found: dict[str, Any] = {}
    java: dict[str, str] = {}
    for name, value in properties.items():
        dotted = name.replace("_", ".")
        if dotted in JAVA_ONLY:
            java[dotted] = str(value)
        else:
            found[name] = value
    for name in ("ssl.truststore.type", "ssl.keystore.type"):
        if java.get(name, "PEM").upper() != "PEM":
            raise ConfigError(f"property {name!r}: {KEY_STORE_HINT}")
    if "ssl.keystore.location" in java:
        place = java["ssl.keystore.location"]
        found |= {"ssl.certificate.location": place, "ssl.key.location": place}
    if "sasl.jaas.config" in java:
        mechanism = next(
            (value for name, value in found.items() if name.replace("_", ".") in _MECHANISM_NAMES),
            None,
        )
        _log_in_by(found, java["sasl.jaas.config"], mechanism)
    return found


def _log_in_by(found: dict[str, Any], jaas: str, mechanism: str | None) -> None:
    module, username, password = parse_jaas(jaas)
    allowed = _LOGIN_MODULES[module]
    if mechanism is not None and str(mechanism).upper() not in allowed:
        raise ConfigError(
            f"sasl.jaas.config names {module.rpartition('.')[2]}, which is for {' and '.join(allowed)}, "
            f"but sasl.mechanism is {mechanism}"
        )
    if mechanism is None and len(allowed) == 1:
        found["sasl.mechanism"] = allowed[0]
    found |= {"sasl.username": username, "sasl.password": password}


def parse_jaas(text: str) -> tuple[str, str, str]:
    """Return login module, user name and password of a `sasl.jaas.config`.

    Further options, such as the users in a broker's entry, do not concern a client.

    Raises:
        ConfigError: It is no such entry, or names a module other than Kafka's for PLAIN and SCRAM.
    """
    module, options = parse_jaas_entry(text)
    if module not in _LOGIN_MODULES:
        raise ConfigError(
            f"sasl.jaas.config names the module {module!r}; only PlainLoginModule and ScramLoginModule of Kafka are "
            "known, and none is ever loaded; for OAUTHBEARER give oauth_cb or sasl_oauthbearer_token"
        )
    if options.get("tokenauth", "").lower() == "true":
        raise ConfigError("sasl.jaas.config asks for a delegation token, which is not supported")
    missing = {"username", "password"} - options.keys()
    if missing:
        raise ConfigError(f"sasl.jaas.config lacks {' and '.join(sorted(missing))}")
    return module, options["username"], options["password"]


def check_security(config: ClientSecurityConfig) -> None:
    """Look for combinations that cannot be meant.

    Raises:
        ConfigError: There is one; the text says what to do.
    """
    _check_tls(config)
    _check_sasl(config)


def _check_tls(config: ClientSecurityConfig) -> None:
    for name in ("ca", "certificate", "key"):
        by_path = getattr(config, f"ssl_{name}_location")
        by_value = getattr(config, f"ssl_{name}_pem")
        if by_path and by_value:
            raise ConfigError(
                f"ssl.{name}.location and ssl.{name}.pem are two ways to say one: give one"
            )
        if (by_path or by_value) and not config.encrypted:
            given = "location" if by_path else "pem"
            raise ConfigError(
                f"ssl.{name}.{given} is given, but security.protocol={config.security_protocol} has no TLS: "
                "set SSL or SASL_SSL"
            )
    certificate = config.ssl_certificate_location or config.ssl_certificate_pem
    key = config.ssl_key_location or config.ssl_key_pem
    if certificate and not key:
        raise ConfigError(
            "the client's certificate has no key: set ssl.key.location or ssl.key.pem"
        )
    if key and not certificate:
        raise ConfigError(
            "the client's key has no certificate: set ssl.certificate.location or ssl.certificate.pem"
        )
    if config.ssl_key_password and not key:
        raise ConfigError(
            "ssl.key.password is given, but no key: set ssl.key.location or ssl.key.pem"
        )


def _check_sasl(config: ClientSecurityConfig) -> None:
    callbacks = config.oauth_cb is not None, config.sasl_oauthbearer_token is not None
    if not config.authenticates:
        given = {
            "sasl.mechanism": config.sasl_mechanism,
            "sasl.username": config.sasl_username,
            "sasl.password": config.sasl_password,
            "a function for tokens": any(callbacks),
        }
        name = next((name for name, value in given.items() if value), None)
        if name is not None:
            raise ConfigError(
                f"{name} is given, but security.protocol={config.security_protocol} does not log in: "
                "set SASL_SSL or SASL_PLAINTEXT"
            )
    elif not config.sasl_mechanism:
        raise ConfigError(
            f"security.protocol={config.security_protocol} needs sasl.mechanism: one of {', '.join(MECHANISMS)}"
        )
    elif config.sasl_mechanism == "OAUTHBEARER":
        _check_tokens(config, sum(callbacks))
    elif any(callbacks):
        raise ConfigError(f"a function for tokens is for OAUTHBEARER, not {config.sasl_mechanism}")
    elif not config.sasl_username or not config.sasl_password:
        missing = "password" if config.sasl_username else "username"
        raise ConfigError(f"sasl.mechanism={config.sasl_mechanism} needs sasl.{missing}")


def _check_tokens(config: ClientSecurityConfig, callbacks: int) -> None:
    if config.sasl_username or config.sasl_password:
        raise ConfigError("OAUTHBEARER knows neither sasl.username nor sasl.password")
    if callbacks != 1:
        raise ConfigError(
            "OAUTHBEARER needs one function that gets a token: oauth_cb or sasl_oauthbearer_token"
            + (", not both" if callbacks else "")
        )
