"""The address that clients are told: a configured one, or the one by which they came."""

from __future__ import annotations

from typing import Final

from headrace.broker.context import Endpoint
from headrace.errors import ConfigError

_PORT_LIMIT: Final = 65535
_MAPPED_IPV4: Final = "::ffff:"


def parse_advertised_listeners(text: str) -> Endpoint | None:
    """Read `advertised.listeners`; None when it is empty.

    Raises:
        ConfigError: It is not one PLAINTEXT://host:port.
    """
    listeners = [listener.strip() for listener in text.split(",") if listener.strip()]
    if not listeners:
        return None
    if len(listeners) > 1:
        raise ConfigError("advertised.listeners: only one listener is supported")
    name, separator, address = listeners[0].partition("://")
    host, colon, port = address.rpartition(":")
    if not separator or not colon or name.upper() != "PLAINTEXT":
        raise ConfigError(f"advertised.listeners: expected PLAINTEXT://host:port, got {text!r}")
    host = host.removeprefix("[").removesuffix("]")
    if not host or host == "0.0.0.0" or host == "::":  # noqa: S104, PLR1714 - compared with, not bound to
        raise ConfigError("advertised.listeners: clients cannot connect to this host")
    if not port.isascii() or not port.isdigit() or not 0 < int(port) <= _PORT_LIMIT:
        raise ConfigError(f"advertised.listeners: {port!r} is no port")
    return Endpoint(host, int(port))


def adaptive_endpoint(listener_host: str, listener_port: int) -> Endpoint:
    """Return the local address of an accepted socket as an endpoint.

    A dual-stack listener reports IPv4 clients as mapped IPv6 addresses, which not every client can connect to.
    """
    if listener_host.lower().startswith(_MAPPED_IPV4) and "." in listener_host:
        listener_host = listener_host[len(_MAPPED_IPV4) :]
    return Endpoint(listener_host, listener_port)
