"""Objects that a program passes to a consumer of batches: clients of aiobotocore, and a logger."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any, Final

from headrace.errors import ConfigError
from headrace.kinesis.client.settings import AwsSettings
from headrace.stream_record import shard_name
from headrace.types import TopicPartition

if TYPE_CHECKING:
    from headrace.kinesis.client.settings import AwsClient
    from headrace.kinesis.group.consumer import StreamConsumer

_OPERATIONS: Final = {"kinesis": "get_records", "dynamodb": "update_item"}
"""A method of each service's client. The result of `session.create_client(...)` does not have it."""


class InjectedClients:
    """Clients of AWS that the program passes; the others are opened and closed here."""

    def __init__(self, aws: AwsSettings | None, **given: Any) -> None:
        """Accept settings or clients; nothing is opened yet.

        Args:
            aws: The settings of the clients that are opened here.
            given: A client of each service, or the result of `session.create_client(...)`. None: the client is opened
                here.

        Raises:
            ConfigError: The program passes both settings and clients.
        """
        self._given = {name: client for name, client in given.items() if client is not None}
        if aws is not None and self._given:
            raise ConfigError("aws= opens clients: pass either aws=, or kinesis= and dynamodb=")
        self._open: dict[str, AwsClient] = {}
        self._stack = AsyncExitStack()
        self.settings = aws or AwsSettings(clients=self._open)
        """The settings for `open_client`. They contain the passed clients from `open` on."""

    async def open(self) -> None:
        """Open the clients that are not open yet.

        Raises:
            ConfigError: A passed object is not a client.
        """
        for service, client in self._given.items():
            if hasattr(client, _OPERATIONS[service]):
                self._open[service] = client
            elif hasattr(client, "__aenter__"):
                self._open[service] = await self._stack.enter_async_context(client)
            else:
                raise ConfigError(
                    f"{service}={client!r} is not a client of aiobotocore for {service}"
                )

    async def close(self) -> None:
        """Close the clients that were opened here."""
        await self._stack.aclose()


class ShardLog:
    """Logs which shards the member gains and loses, and which service does not answer."""

    def __init__(self, logger: Any) -> None:
        """Accept a logger whose methods take fields by name."""
        self._logger = logger
        self._held: set[TopicPartition] = set()
        self._trouble: str | None = None

    def look(self, source: StreamConsumer) -> None:
        """Log the changes since the last call."""
        held = set(source.positions())
        if held != self._held:
            for name in sorted(held - self._held):
                self._logger.info("shard acquired", shard_id=shard_name(name.partition))
            for name in sorted(self._held - held):
                self._logger.info("shard released", shard_id=shard_name(name.partition))
            self._held = held
        trouble = source.trouble()
        if trouble != self._trouble:
            if trouble is not None:
                self._logger.warning("a service does not answer", trouble=trouble)
            else:
                self._logger.info("all services answer again")
            self._trouble = trouble
