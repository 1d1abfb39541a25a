"""The listeners of a broker. Each has a name, an address and a security protocol."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from enum import StrEnum
from typing import Final, NamedTuple

from headrace.errors import ConfigError

ALL_ADDRESSES: Final = "0.0.0.0"  # noqa: S104 - the meaning of a listener without a host
_MAP: Final = "listener.security.protocol.map"
_ADVERTISED: Final = "advertised.listeners"
_PORT_LIMIT: Final = 65535
_PORT: Final = re.compile(r"[0-9]{1,5}")
_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,100}")


class SecurityProtocol(StrEnum):
    """The protection of a connection, by Kafka's names."""

    PLAINTEXT = "PLAINTEXT"
    SSL = "SSL"
    SASL_PLAINTEXT = "SASL_PLAINTEXT"
    SASL_SSL = "SASL_SSL"

    @property
    def encrypted(self) -> bool:
        """Whether the connection uses TLS."""
        return self in {SecurityProtocol.SSL, SecurityProtocol.SASL_SSL}

    @property
    def sasl(self) -> bool:
        """Whether a client has to authenticate with SASL first."""
        return self in {SecurityProtocol.SASL_PLAINTEXT, SecurityProtocol.SASL_SSL}


class ListenAddress(NamedTuple):
    """The address of a listener. With port 0 the operating system chooses a port."""

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

    @property
    def is_wildcard(self) -> bool:
        """Whether the host stands for all addresses of its family."""
        return self.host in {ALL_ADDRESSES, "::"}


class Listener(NamedTuple):
    """A listener of a broker: name, protocol and address."""

    name: str
    protocol: SecurityProtocol
    address: ListenAddress

    def __str__(self) -> str:
        return f"{self.name}://{self.address}"


ANY_PLAINTEXT: Final = Listener(
    SecurityProtocol.PLAINTEXT.value, SecurityProtocol.PLAINTEXT, ListenAddress("127.0.0.1", 0)
)


def parse_protocol_map(text: str) -> dict[str, SecurityProtocol]:
    """Parse `listener.security.protocol.map`. The four protocols are also names, unless the text maps them.

    Raises:
        ConfigError: An entry is not NAME:PROTOCOL, or a name occurs twice.
    """
    given: dict[str, SecurityProtocol] = {}
    for entry in filter(None, map(str.strip, text.split(","))):
        name, colon, protocol = (part.strip().upper() for part in entry.partition(":"))
        if not colon or not _NAME.fullmatch(name) or protocol not in SecurityProtocol.__members__:
            choices = ", ".join(SecurityProtocol)
            raise ConfigError(
                f"{_MAP}: {entry[:80]!r}: expected NAME:PROTOCOL with one of {choices}"
            )
        if name in given:
            raise ConfigError(f"{_MAP}: {name} is named twice")
        given[name] = SecurityProtocol(protocol)
    return {**{protocol.value: protocol for protocol in SecurityProtocol}, **given}


def parse_listener(text: str, protocols: Mapping[str, SecurityProtocol]) -> Listener:
    """Parse `HOST:PORT`, `[IPV6]:PORT` or Kafka's `NAME://HOST:PORT`. Without a host, all addresses are meant.

    Args:
        text: One listener. Without a name it is PLAINTEXT.
        protocols: The result of `parse_protocol_map`.

    Raises:
        ConfigError: The text has another form, or the name has no protocol.
    """
    text = text.strip()
    name, separator, address = text.rpartition("://")
    name = name.upper() if separator else SecurityProtocol.PLAINTEXT.value
    if not _NAME.fullmatch(name):
        raise ConfigError(f"listener {text[:200]!r}: {name[:80]!r} is not the name of a listener")
    if name not in protocols:
        raise ConfigError(
            f"listener {text[:200]!r}: the security protocol of {name} is not known; set it with "
            f"{_MAP}, as in {name}:SSL"
        )
    host, port = split_address(address, f"listener {text[:200]!r}")
    if not host and not separator:
        raise ConfigError(
            f"listener {text!r}: expected HOST:PORT; for all addresses write {ALL_ADDRESSES}:{port}"
        )
    return Listener(name, protocols[name], ListenAddress(host or ALL_ADDRESSES, port))


def parse_listeners(text: str, protocols: Mapping[str, SecurityProtocol]) -> tuple[Listener, ...]:
    """Parse Kafka's `listeners`. Listeners of a KRaft controller, with the name CONTROLLER, are left out.

    Raises:
        ConfigError: There is no listener for clients, a listener is malformed, or two listeners have one name or port.
    """
    entries = filter(None, map(str.strip, text.split(",")))
    ours = [entry for entry in entries if not entry.upper().startswith("CONTROLLER:")]
    if not ours:
        raise ConfigError(f"listeners {text[:200]!r}: expected at least one listener for clients")
    listeners: list[Listener] = []
    for entry in ours:
        listener = parse_listener(entry, protocols)
        for other in listeners:
            _check_apart(listener, other)
        listeners.append(listener)
    return tuple(listeners)


def _check_apart(one: Listener, other: Listener) -> None:
    if one.name == other.name:
        raise ConfigError(
            f"listeners: the name {one.name} is given twice; give each listener its own name, and map it to a protocol "
            f"with {_MAP}"
        )
    if one.address.port != other.address.port or one.address.port == 0:
        return
    same_family = (":" in one.address.host) == (":" in other.address.host)
    wildcard = one.address.is_wildcard or other.address.is_wildcard
    if one.address.host == other.address.host or (wildcard and same_family):
        raise ConfigError(f"listeners: {other} and {one} need the same port")


def parse_advertised(text: str) -> dict[str, ListenAddress]:
    """Parse `advertised.listeners`: the addresses that the broker returns to the clients of a listener, by its name.

    Raises:
        ConfigError: An entry is not NAME://HOST:PORT, clients cannot connect to it, or a name occurs twice.
    """
    advertised: dict[str, ListenAddress] = {}
    for entry in filter(None, map(str.strip, text.split(","))):
        name, separator, address = entry.partition("://")
        name = name.upper()
        if not separator or not _NAME.fullmatch(name):
            raise ConfigError(f"{_ADVERTISED}: expected NAME://host:port, got {entry[:200]!r}")
        host, port = split_address(address, f"{_ADVERTISED}: {entry[:200]!r}")
        told = ListenAddress(host, port)
        if not host or told.is_wildcard:
            raise ConfigError(
                f"{_ADVERTISED}: {entry[:200]!r}: clients cannot connect to this host"
            )
        if port == 0:
            raise ConfigError(f"{_ADVERTISED}: {entry[:200]!r}: clients cannot connect to port 0")
        if name in advertised:
            raise ConfigError(f"{_ADVERTISED}: the listener {name} is named twice")
        advertised[name] = told
    return advertised


def split_address(text: str, what: str) -> tuple[str, int]:
    """Split `HOST:PORT` or `[IPV6]:PORT`. The host may be empty.

    Raises:
        ConfigError: The text has another form. The message begins with `what`.
    """
    host, colon, port = text.rpartition(":")
    if not colon or not _PORT.fullmatch(port) or int(port) > _PORT_LIMIT:
        raise ConfigError(f"{what}: expected HOST:PORT")
    bracketed = host.startswith("[") and host.endswith("]")
    if ":" in host and not bracketed:
        raise ConfigError(f"{what}: an IPv6 address goes in brackets, as in [::1]:9092")
    host = host[1:-1] if bracketed else host
    if any(character.isspace() or character in "[]/,@" for character in host):
        raise ConfigError(f"{what}: {host[:80]!r} is no host")
    return host, int(port)
