"""The addresses of listeners: which were requested, the check of exposed listeners, and binding."""

from __future__ import annotations

import errno
import os
import socket
import sys
from collections.abc import Collection, Sequence

from headrace.config.broker import BrokerConfig
from headrace.config.listeners import (
    ListenAddress,
    Listener,
    parse_advertised,
    parse_listeners,
    parse_protocol_map,
)
from headrace.config.security import LISTENER_PREFIX
from headrace.errors import ConfigError


def chosen_listeners(
    texts: Sequence[str], config: BrokerConfig, *, insecure: bool
) -> tuple[Listener, ...]:
    """Return the requested listeners.

    Args:
        texts: The listeners as `HOST:PORT` or `NAME://HOST:PORT`. If there are none, the setting `listeners` counts.
        config: The broker's configuration.
        insecure: Whether other machines may reach unprotected listeners.

    Raises:
        ConfigError: A listener is malformed or exposed, or an advertised or configured listener does not exist.
    """
    protocols = parse_protocol_map(config.listener_security_protocol_map)
    listeners = parse_listeners(",".join(texts) or config.listeners, protocols)
    for listener in listeners:
        check_exposure(listener, config, insecure=insecure)
    names = [listener.name for listener in listeners]
    for name in parse_advertised(config.advertised_listeners):
        if name not in names:
            raise ConfigError(
                f"advertised.listeners: there is no listener {name}, but {', '.join(names)}"
            )
    _check_overrides(config, {name.lower() for name in (*names, *protocols, "CONTROLLER")})
    return listeners


def _check_overrides(config: BrokerConfig, names: Collection[str]) -> None:
    """Refuse settings of a listener that does not exist: they may be meant for a listener with a mistyped name."""
    for key, _ in config.listener_overrides:
        name, _, option = key.partition(".")
        if name not in names:
            raise ConfigError(
                f"{LISTENER_PREFIX}{name}.{option}: there is no listener {name.upper()}, in `listeners` or in "
                "listener.security.protocol.map"
            )


def check_exposure(listener: Listener, config: BrokerConfig, *, insecure: bool) -> None:
    """Refuse a listener that other machines can reach without protection, unless `insecure` is true.

    Raises:
        ConfigError: The address is not a loopback address, and the listener does not both encrypt and authenticate.
    """
    if listener.address.is_loopback or insecure:
        return
    protocol = listener.protocol
    required = config.for_listener(listener.name).ssl_client_auth == "required"
    authenticated = protocol.sasl or (protocol.encrypted and required)
    if protocol.encrypted and authenticated:
        return
    if protocol.encrypted:
        lacking = "clients are not authenticated, and any client that reaches the port can read and delete everything"
        remedy = "Set ssl.client.auth=required, or give it the protocol SASL_SSL"
    elif authenticated:
        lacking = (
            "connections are not encrypted, and everybody on the network can read what is sent"
        )
        remedy = "Give it the protocol SASL_SSL"
    else:
        lacking = (
            "connections there are neither encrypted nor authenticated, and any client that reaches the port can "
            "read and delete everything"
        )
        remedy = "Give it the protocol SASL_SSL, or SSL with ssl.client.auth=required"
    raise ConfigError(
        f"refusing to listen on {listener}: {lacking}. {remedy}; or listen on 127.0.0.1:{listener.address.port}; or "
        "say --insecure (insecure=True to `Broker.listen`) if the network is trusted"
    )


def bind(address: ListenAddress) -> list[socket.socket]:
    """Bind a port without listening. It is claimed before a long recovery, and refuses connections until then.

    A name with several addresses is bound on each of them; with port 0 only on the first.

    Raises:
        ConfigError: The address is in use, unknown or not allowed.
    """
    try:
        found = socket.getaddrinfo(
            address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
    except OSError as error:
        raise ConfigError(f"cannot listen on {address}: {error.strerror}") from error
    sockets: list[socket.socket] = []
    for family, kind, protocol, _, where in sorted(set(found), key=lambda entry: entry[0]):
        try:
            sockets.append(_bind_one(family, kind, protocol, where))
        except OSError as error:
            if sockets and error.errno in {errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT}:
                continue  # a name such as localhost can have an IPv6 address that this machine does not have
            for sock in sockets:
                sock.close()
            hint = (
                "; another server has it, choose another port"
                if error.errno == errno.EADDRINUSE
                else ""
            )
            text = os.strerror(error.errno) if error.errno else str(error)
            raise ConfigError(f"cannot listen on {address}: {text}{hint}") from error
        if address.port == 0:
            break
    return sockets


def _bind_one(family: int, kind: int, protocol: int, where: tuple[object, ...]) -> socket.socket:
    sock = socket.socket(family, kind, protocol)
    try:
        if sys.platform != "win32":  # on other systems the option lets two servers share a port
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        sock.bind(where)
    except OSError:
        sock.close()
        raise
    sock.settimeout(0)
    return sock
