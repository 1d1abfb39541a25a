"""The asyncio admin client: what `headrace.aio.Admin` is."""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, Unpack

from headrace.clients.admin.aio_groups import GroupCalls
from headrace.clients.admin.aio_transactions import TransactionCalls
from headrace.clients.admin.aio_users import UserCalls
from headrace.clients.admin.core import AdminCore, admin_config
from headrace.clients.admin.lifetime import AsyncAdminLifetime
from headrace.clients.arguments import Count, Int16, Int32, checks_arguments
from headrace.clients.drivers import Target, open_aio_driver
from headrace.clients.flows.admin import ClusterDescription, ConfigEntry
from headrace.clients.flows.cluster import TopicMetadata
from headrace.clients.flows.cluster_admin import BrokerFeatures, LogDirDescription
from headrace.clients.topic_strategies import PartitionerChoice, StorageChoice, Strategies
from headrace.config.options import Value
from headrace.serdes.serde import AnySerde
from headrace.types import TopicPartition

if TYPE_CHECKING:
    from headrace.clients.properties import AdminProperties


@checks_arguments
class Admin(GroupCalls, UserCalls, TransactionCalls, AsyncAdminLifetime):
    """Creates, describes and changes topics, groups, users and access rights; a context manager that closes itself.

    Every method waits for the response, retries what may succeed later, and gives up after `request.timeout.ms`.
    Errors are `ApiError` (a broker refused; `.code` is the reason) and `TransportError` (no broker answered in time).
    """

    def __init__(
        self,
        target: Target = "127.0.0.1:9092",
        *,
        request_timeout_ms: Count | None = None,
        client_id: str = "headrace",
        **properties: Unpack[AdminProperties],
    ) -> None:
        """Prepare a client. The first call opens the first connection.

        Args:
            target: HOST:PORT, several separated by commas, or a `Broker` of this process.
            request_timeout_ms: Milliseconds that one method may take, including retries. None is 30,000.
            client_id: The name of the client in the broker's log and in quotas.
            properties: More properties, `retry_backoff_ms=50` or `**{"retry.backoff.ms": 50}`.

        Raises:
            ConfigError: A property is unknown or malformed.
        """
        self.config = admin_config(
            target, properties, request_timeout_ms=request_timeout_ms, client_id=client_id
        )
        self._driver = open_aio_driver(target, self.config)
        self._core = AdminCore(self._driver.engine.state, self.config)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close all connections of the client."""
        await self._driver.close()

    # Topics

    async def create_topic(
        self,
        name: str,
        partitions: Int32 = -1,
        *,
        replication_factor: Int16 = -1,
        configs: Mapping[str, Value] | None = None,
        storage: StorageChoice | None = None,
        partitioner: PartitionerChoice | None = None,
        partitioner_parameters: Mapping[str, Any] | None = None,
        serde: AnySerde | None = None,
        serde_parameters: Mapping[str, Any] | None = None,
        key_serde: AnySerde | None = None,
        key_serde_parameters: Mapping[str, Any] | None = None,
    ) -> None:
        """Create a topic.

        Args:
            name: The name of the topic.
            partitions: The number of partitions. -1 is the broker's default.
            replication_factor: The number of replicas. -1 is the broker's default.
            configs: The topic's configuration under Kafka's names: text, numbers or booleans. A name that ends with .ms
                takes a duration ("1h"), one that ends with .bytes a size ("64MiB"). None is the broker's defaults.
            storage: The storage of the topic's records (`headrace.storage`). None is the broker's default.
            partitioner: The default partitioner of Headrace's producers for this topic: a name (built in, registered or
                offered by an installed package), a class, or an object. The topic stores its name and its parameters.
                None stores nothing.
            partitioner_parameters: Keyword arguments for the partitioner, stored as JSON. None is no arguments.
            serde: The default serde of the topic's values: a name, a class, an object, or a type whose values are
                written as JSON. None stores nothing.
            serde_parameters: Keyword arguments for the serde, stored as JSON; `{"schema": ...}` for "avro". None is no
                arguments.
            key_serde: The default serde of the topic's keys, in the same ways.
            key_serde_parameters: Keyword arguments for the serde of the keys. None is no arguments.

        Raises:
            ConfigError: This process does not know a partitioner or serde of that name, or the parameters do not fit.
            ApiError: TOPIC_ALREADY_EXISTS, or an error about the name, the numbers or the configuration.
        """
        await self._driver.run(
            self._core.create_topic(
                name,
                partitions,
                replication_factor,
                configs or {},
                Strategies(
                    storage,
                    partitioner,
                    partitioner_parameters,
                    serde,
                    serde_parameters,
                    key_serde,
                    key_serde_parameters,
                ),
            )
        )

    async def delete_topic(self, name: str) -> None:
        """Delete a topic with all its records.

        Raises:
            ApiError: UNKNOWN_TOPIC_OR_PARTITION.
        """
        await self._driver.run(self._core.delete_topic(name))

    async def add_partitions(self, topic: str, total: Int32) -> None:
        """Raise a topic's number of partitions to `total`. Keys may then be written to other partitions than before.

        Raises:
            ApiError: INVALID_PARTITIONS: the topic has as many partitions already, or more.
        """
        await self._driver.run(self._core.add_partitions(topic, total))

    async def truncate(
        self, topic: str, before: int | Mapping[int, int] | None = None
    ) -> dict[TopicPartition, int]:
        """Delete a topic's oldest records.

        Args:
            topic: The topic.
            before: The offset of the first record to keep, one for all partitions or one for each. None deletes all
                records.

        Returns:
            The first offset of each partition afterwards.

        Raises:
            ApiError: OFFSET_OUT_OF_RANGE: a partition ends before the offset. Other partitions may be truncated.
        """
        return await self._driver.run(self._core.truncate(topic, before))

    async def topics(self, *, internal: bool = False) -> list[str]:
        """Return the names of all topics, sorted; with `internal`, also those of internal topics."""
        return await self._driver.run(self._core.topics(internal=internal))

    async def describe_topic(self, name: str) -> TopicMetadata:
        """Return a topic's partitions, their leaders and replicas.

        Raises:
            ApiError: UNKNOWN_TOPIC_OR_PARTITION.
        """
        return await self._driver.run(self._core.describe_topic(name))

    async def configs(self, topic: str) -> dict[str, ConfigEntry]:
        """Return a topic's configuration by name, with the source of each value.

        Raises:
            ApiError: UNKNOWN_TOPIC_OR_PARTITION.
        """
        return await self._driver.run(self._core.configs(topic))

    async def alter_configs(self, topic: str, changes: Mapping[str, Value | None]) -> None:
        """Change settings of a topic; settings that are not named stay.

        Args:
            topic: The topic.
            changes: Values by name, as for `create_topic`. None removes the topic's own value, so that the broker's
                default applies.

        Raises:
            ApiError: INVALID_CONFIG: a name or a value is unknown.
        """
        await self._driver.run(self._core.alter_configs(topic, changes))

    async def describe_cluster(self) -> ClusterDescription:
        """Return the cluster's id, controller and brokers."""
        return await self._driver.run(self._core.describe_cluster())

    async def features(self) -> BrokerFeatures:
        """Return the API versions of a broker, and the finalized features of the cluster."""
        return await self._driver.run(self._core.features())

    async def log_dirs(self) -> list[LogDirDescription]:
        """Return the log directories of every broker, with the size of each partition in them.

        Raises:
            ApiError: CLUSTER_AUTHORIZATION_FAILED: the client may not describe the cluster.
        """
        return await self._driver.run(self._core.log_dirs())
