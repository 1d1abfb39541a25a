"""The settings of the brokers of one supervisor: each broker has an id, ports and directories of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from headrace.config.listeners import ListenAddress, parse_advertised
from headrace.errors import ConfigError
from headrace.server.data_directory import BROKER_DIRECTORY

_PORT_LIMIT: Final = 65_535


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberSettings:
    """The settings that the process of a broker gets from its supervisor, as JSON.

    Attributes:
        values: The settings of the broker, by Kafka's names.
        listeners: The listeners as text.
        insecure: Whether unprotected listeners beyond loopback are allowed.
        data: The data directories.
        loop: "asyncio", "uvloop" or "auto".
        log_level: The least level of a log line.
        log_format: "text" or "json".
    """

    values: Mapping[str, str]
    listeners: Sequence[str]
    insecure: bool
    data: Sequence[str]
    loop: str
    log_level: str
    log_format: str

    def of_broker(self, number: int) -> dict[str, object]:
        """Return the settings of one broker, as the arguments of this class.

        Raises:
            ConfigError: A port is too large.
        """
        data = [f"{directory}/{BROKER_DIRECTORY}{number}" for directory in self.data]
        values = {**self.values, "broker.id": str(number), "log.dirs": ",".join(data)}
        values.pop("node.id", None)
        if addresses := values.get("advertised.listeners"):
            values["advertised.listeners"] = ",".join(
                f"{name}://{_moved(address, number - 1)}"
                for name, address in parse_advertised(addresses).items()
            )
        return {
            "values": values,
            "listeners": [moved_listener(listener, number - 1) for listener in self.listeners],
            "insecure": self.insecure,
            "data": data,
            "loop": self.loop,
            "log_level": self.log_level,
            "log_format": self.log_format,
        }


def moved_listener(text: str, ports: int) -> str:
    """Return a listener with a higher port; port 0 stays.

    Raises:
        ConfigError: The port is too large.
    """
    address, _, port = text.rpartition(":")
    if int(port) == 0:
        return text
    if int(port) + ports > _PORT_LIMIT:
        raise ConfigError(
            f"{text}: the next {ports} ports are for the other brokers, and there are not so many"
        )
    return f"{address}:{int(port) + ports}"


def _moved(address: ListenAddress, ports: int) -> str:
    return moved_listener(str(address), ports)
