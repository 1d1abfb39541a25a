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
    """Creates, describes and changes topics, groups, users and rights; a context manager that closes itself.

    Every method waits for its answer, tries again what may succeed later, and gives up after `request.timeout.ms`.
    Errors are `ApiError` (a broker said no; `.code` says what) and `TransportError` (nobody answered in time).
    """

    def __init__(
        self,
        target: Target = "127.0.0.1:9092",
        *,
        request_timeout_ms: Count | None = None,
        client_id: str = "headrace",
        **properties: Unpack[AdminProperties],
    ) -> None:
        """Prepare a client; nothing is connected before the first call.

        Args:
            target: HOST:PORT, several separated by commas, or a `Broker` of this process.
            request_timeout_ms: How long one method may take, attempts and pauses included.
            client_id: The name by which brokers know the client.
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
        """Close all connections."""
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
            name: Its name.
            partitions: How many partitions it has; -1 is the broker's default.
            replication_factor: How many brokers keep it; -1 is the broker's default.
            configs: Its configuration under Kafka's names: text, numbers or booleans. A name that ends with .ms takes
                a duration ("1h"), one that ends with .bytes a size ("64MiB").
            storage: `headrace.storage`, where its records are kept.
            partitioner: The partitioner that Headrace's producers use, unless they are told otherwise: a name, which
                is built in, registered or offered by an installed package; or a class or an object, of which the
                topic keeps the name and the parameters.
            partitioner_parameters: What the partitioner is made with, as keyword arguments; kept as JSON.
            serde: The serde of its values: a name, a class or an object; or a type, whose values are JSON.
            serde_parameters: What the serde is made with, as keyword arguments; kept as JSON. `{"schema": ...}` for
                "avro".
            key_serde: The serde of its keys.
            key_serde_parameters: What the serde of its keys is made with.

        Raises:
            ConfigError: Nothing is known here by the name of a partitioner or serde, or the parameters do not fit it.
            ApiError: TOPIC_ALREADY_EXISTS, or what is wrong with name, numbers or configuration.
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
        """Delete a topic and everything in it.

        Raises:
            ApiError: UNKNOWN_TOPIC_OR_PARTITION.
        """
        await self._driver.run(self._core.delete_topic(name))

    async def add_partitions(self, topic: str, total: Int32) -> None:
        """Raise a topic's number of partitions to `total`. Keys may then go to other partitions than before.

        Raises:
            ApiError: INVALID_PARTITIONS: it has as many already, or more.
        """
        await self._driver.run(self._core.add_partitions(topic, total))

    async def truncate(
        self, topic: str, before: int | Mapping[int, int] | None = None
    ) -> dict[TopicPartition, int]:
        """Delete a topic's oldest records.

        Args:
            topic: The topic.
            before: The offset of the first record to keep, in every partition or by partition; None keeps none.

        Returns:
            Where each partition now begins.

        Raises:
            ApiError: OFFSET_OUT_OF_RANGE: a partition does not reach so far. Others may have been truncated.
        """
        return await self._driver.run(self._core.truncate(topic, before))

    async def topics(self, *, internal: bool = False) -> list[str]:
        """Return the names of all topics, sorted; with `internal`, also those that brokers keep for themselves."""
        return await self._driver.run(self._core.topics(internal=internal))

    async def describe_topic(self, name: str) -> TopicMetadata:
        """Return a topic's partitions, their leaders and replicas.

        Raises:
            ApiError: UNKNOWN_TOPIC_OR_PARTITION.
        """
        return await self._driver.run(self._core.describe_topic(name))

    async def configs(self, topic: str) -> dict[str, ConfigEntry]:
        """Return a topic's configuration by name, with where each value comes from.

        Raises:
            ApiError: UNKNOWN_TOPIC_OR_PARTITION.
        """
        return await self._driver.run(self._core.configs(topic))

    async def alter_configs(self, topic: str, changes: Mapping[str, Value | None]) -> None:
        """Change some of a topic's configuration; the rest stays.

        Args:
            topic: The topic.
            changes: Name to value, as for `create_topic`; None takes back what was set, so that the broker's default
                counts.

        Raises:
            ApiError: INVALID_CONFIG: a name or value is not known.
        """
        await self._driver.run(self._core.alter_configs(topic, changes))

    async def describe_cluster(self) -> ClusterDescription:
        """Return the cluster's id, controller and brokers."""
        return await self._driver.run(self._core.describe_cluster())

    async def features(self) -> BrokerFeatures:
        """Return the versions of APIs that a broker speaks, and the features that the cluster has agreed on."""
        return await self._driver.run(self._core.features())

    async def log_dirs(self) -> list[LogDirDescription]:
        """Return the log directories of every broker, with the size of each partition in them.

        Raises:
            ApiError: CLUSTER_AUTHORIZATION_FAILED: it takes the right to describe the cluster.
        """
        return await self._driver.run(self._core.log_dirs())
