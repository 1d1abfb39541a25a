"""A replacement for KafkaContainer of testcontainers: the same methods without Docker, ready in milliseconds.

from headrace.testing import KafkaContainer       # was: from testcontainers.kafka import KafkaContainer

with KafkaContainer() as kafka:
connect(kafka.get_bootstrap_server())
"""

from __future__ import annotations

from types import TracebackType
from typing import Any, Final, Self

from headrace.config.broker import BROKER_ALIASES, BROKER_OPTIONS
from headrace.config.environment import PREFIX, option_name
from headrace.testing.broker import Broker

_OPTIONS: Final = {*BROKER_OPTIONS, *BROKER_ALIASES}
_PLACES: Final = frozenset(
    {"listeners", "advertised.listeners", "listener.security.protocol.map", "log.dirs"}
)
"""Settings of ports and directories inside a container. They are ignored, because there is no container."""


class HeadraceContainer:
    """A broker in this process with the methods of a container.

    Broker settings of `with_env` apply: `KAFKA_NUM_PARTITIONS` sets `num.partitions`. The image, ports, listeners,
    directories and all other arguments about containers are accepted and ignored.

    Attributes:
        broker: The `headrace.testing.Broker` after `start`, for methods that a container does not have. None before.
    """

    def __init__(self, image: str = "", *_: object, **__: object) -> None:
        self.image = image
        self.broker: Broker | None = None
        self._configs: dict[str, str] = {}

    def with_env(self, key: str, value: str) -> Self:
        """Set an environment variable of Kafka's images."""
        name = option_name(key)
        if key.startswith(PREFIX) and name in _OPTIONS and name not in _PLACES:
            self._configs[name] = str(value)
        return self

    def start(self, *_: object, **__: object) -> Self:
        """Start the broker of the container."""
        if self.broker is None:
            self.broker = Broker(configs=self._configs)
        return self

    def stop(self, *_: object, **__: object) -> None:
        """Stop the broker and delete its data."""
        broker, self.broker = self.broker, None
        if broker is not None:
            broker.close()

    def get_bootstrap_server(self) -> str:
        """Return HOST:PORT for clients."""
        assert self.broker is not None, "the container is not started: call start()"
        return self.broker.bootstrap

    def get_container_host_ip(self) -> str:
        """Return the host for clients."""
        return self.get_bootstrap_server().rpartition(":")[0]

    def get_exposed_port(self, port: int = 9093) -> int:  # noqa: ARG002 - there is only one port
        """Return the port for clients."""
        return int(self.get_bootstrap_server().rpartition(":")[2])

    def __getattr__(self, name: str) -> Any:
        if name.startswith("with_"):
            return lambda *_, **__: self
        raise AttributeError(
            f"{type(self).__name__} has no {name!r}; its attribute `broker` may have such a method"
        )

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()


KafkaContainer = HeadraceContainer
"""The name in testcontainers, so that a test only changes its import."""
