"""The security of the connections to other brokers: the listener, the certificates and the login."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from headrace.clients.config import ClientConfig
from headrace.clients.security import check_security
from headrace.config.broker import BrokerConfig
from headrace.config.jaas import PLAIN_LOGIN_MODULE, SCRAM_LOGIN_MODULE, broker_login
from headrace.config.listeners import Listener
from headrace.config.security import LISTENER_PREFIX
from headrace.errors import ConfigError

_MODULES: Final = {
    "PLAIN": PLAIN_LOGIN_MODULE,
    "SCRAM-SHA-256": SCRAM_LOGIN_MODULE,
    "SCRAM-SHA-512": SCRAM_LOGIN_MODULE,
}
"""The mechanisms with which a broker can log in, each with the login module in its JAAS entry."""


def inter_broker_listener(config: BrokerConfig, listeners: Sequence[Listener]) -> Listener:
    """Return the listener on which the brokers of the cluster connect to each other.

    Raises:
        ConfigError: There is no such listener, or it is named in two ways.
    """
    name, protocol = config.inter_broker_listener_name, config.security_inter_broker_protocol
    if name and protocol:
        raise ConfigError(
            f"inter.broker.listener.name={name} and security.inter.broker.protocol={protocol} are two ways to name one "
            "listener. Set one of them"
        )
    if not name and not protocol:
        return listeners[0]
    wanted = (name or protocol).upper()
    for listener in listeners:
        if listener.name == wanted:
            return listener
    option = "inter.broker.listener.name" if name else "security.inter.broker.protocol"
    names = ", ".join(listener.name for listener in listeners)
    raise ConfigError(f"{option}={name or protocol}: there is no such listener. Use one of {names}")


def peer_config(config: BrokerConfig, listener: Listener) -> ClientConfig:
    """Return the configuration of the connections to other brokers.

    Args:
        config: The configuration of the broker.
        listener: The listener of the other brokers, which has the same configuration as the own one.

    Raises:
        ConfigError: The listener has SASL, and there is no login for it.
    """
    own = config.for_listener(listener.name)
    given: dict[str, Any] = {}
    if listener.protocol.encrypted:
        given = {
            "ssl_ca_location": own.ssl_truststore_location,
            "ssl_ca_pem": own.ssl_truststore_certificates,
            "ssl_certificate_location": own.ssl_certificate_location or own.ssl_keystore_location,
            "ssl_certificate_pem": own.ssl_keystore_certificate_chain,
            "ssl_key_location": own.ssl_key_location or own.ssl_keystore_location,
            "ssl_key_pem": own.ssl_keystore_key,
            "ssl_key_password": own.ssl_key_password,
        }
    if listener.protocol.sasl:
        given |= _login(config, listener)
    found = ClientConfig(
        client_id=f"broker-{config.broker_id}", security_protocol=str(listener.protocol), **given
    )
    check_security(found)
    return found


def login_remedy(listener: Listener) -> str:
    """Return what an administrator can do if a broker and another one do not accept each other."""
    own = f"{LISTENER_PREFIX}{listener.name.lower()}"
    remedies = []
    if listener.protocol.encrypted:
        remedies.append(
            "each broker has to trust the certificates of the others (ssl.truststore.location), which have to be valid "
            "for the host and for servers; with ssl.client.auth=required for clients too"
        )
    if listener.protocol.sasl:
        remedies.append(
            f"the user and the password in {own}.<mechanism>.sasl.jaas.config have to be those that the others know"
        )
    return "; ".join(remedies)


def _login(config: BrokerConfig, listener: Listener) -> dict[str, Any]:
    own = config.for_listener(listener.name)
    mechanism = config.sasl_mechanism_inter_broker_protocol.upper()
    where = f"listener {listener.name}"
    if mechanism not in _MODULES:
        raise ConfigError(
            f"sasl.mechanism.inter.broker.protocol={mechanism}: brokers cannot log in with it. Use one of "
            f"{', '.join(_MODULES)}"
        )
    if mechanism not in own.sasl_enabled_mechanisms.split(","):
        raise ConfigError(
            f"{where}: sasl.mechanism.inter.broker.protocol={mechanism} is not one of sasl.enabled.mechanisms="
            f"{own.sasl_enabled_mechanisms}. Add it there"
        )
    entry: str = getattr(own, f"{mechanism.lower().replace('-', '_')}_sasl_jaas_config")
    login = broker_login(entry)
    if login is None:
        option = f"{LISTENER_PREFIX}{listener.name.lower()}.{mechanism.lower()}.sasl.jaas.config"
        raise ConfigError(
            f"{where}: the broker has no user to log in to other brokers. Set {option}={_MODULES[mechanism]} required "
            'username="..." password="...";'
        )
    return {"sasl_mechanism": mechanism, "sasl_username": login[0], "sasl_password": login[1]}
