"""Addresses to listen on: parsing, the rule about plaintext beyond loopback, binding."""

from __future__ import annotations

import errno
import ipaddress
import os
import socket
import sys
from typing import NamedTuple

from headrace.errors import ConfigError


class ListenAddress(NamedTuple):
    """Where to listen; port 0 lets the system choose."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def is_loopback(self) -> bool:
        """Whether only programs on this machine can connect."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False


def parse_listen_address(text: str) -> ListenAddress:
    """Read `HOST:PORT`, `[IPV6]:PORT` or Kafka's `PLAINTEXT://HOST:PORT` (no host: all addresses).

    Raises:
        ConfigError: It is none of them.
    """
    scheme, separator, rest = text.strip().rpartition("://")
    if separator and scheme.upper() != "PLAINTEXT":
        raise ConfigError(f"listener {text!r}: only PLAINTEXT is supported")
    host, colon, port = rest.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    if not colon or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise ConfigError(f"listener {text!r}: expected HOST:PORT")
    if ":" in host and not bracketed:
        raise ConfigError(f"listener {text!r}: an IPv6 address goes in brackets, as in [::1]:9092")
    if not host and not separator:
        raise ConfigError(
            f"listener {text!r}: expected HOST:PORT; for all addresses say 0.0.0.0:{port}"
        )
    return ListenAddress(host.strip("[]") or "0.0.0.0", int(port))  # noqa: S104 - what the user wrote


def check_exposure(address: ListenAddress, *, insecure: bool) -> None:
    """Refuse a plaintext listener that other machines can reach, unless the user insists.

    Raises:
        ConfigError: It is not a loopback address and `insecure` is not set.
    """
    if not address.is_loopback and not insecure:
        raise ConfigError(
            f"refusing to listen on {address}: connections there are neither encrypted nor authenticated, and whoever "
            f"reaches the port can read and delete everything. Listen on 127.0.0.1:{address.port}, or say --insecure "
            "(insecure=True to `Broker.listen`) if the network is trusted"
        )


def bind(address: ListenAddress) -> list[socket.socket]:
    """Bind (not yet listen): the port is claimed before a long recovery, and refuses connections until it is over.

    A name that stands for several addresses is bound on each; with port 0 only on the first.

    Raises:
        ConfigError: The address is taken, unknown or not allowed.
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
                continue  # a name such as localhost whose IPv6 address this machine does not have
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
        if sys.platform != "win32":  # there the option lets two servers share a port
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        sock.bind(where)
    except OSError:
        sock.close()
        raise
    sock.settimeout(0)
    return sock
