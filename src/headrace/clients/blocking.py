"""A blocking Kafka client for programs that process whole record batches: the command, the Spark source, the demo.

It reads and writes encoded record batches; `headrace.records` builds and decodes them. For single records see
`headrace.clients.producer` and `headrace.clients.consumer`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar

from headrace.clients.config import ClientConfig, parse_config
from headrace.clients.drivers import Target, open_blocking_driver
from headrace.clients.drivers.unclosed import warn_unclosed
from headrace.clients.flows import admin, groups, metadata, offsets
from headrace.clients.flows import fetch as fetch_flows
from headrace.clients.flows import list_offsets as list_offsets_flows
from headrace.clients.flows import produce as produce_flows
from headrace.clients.flows.admin import (
    ClusterDescription,
    ConfigEntry,
    ConfigSource,
    ConfigSynonym,
    NewTopic,
)
from headrace.clients.flows.cluster import (
    BrokerAddress,
    ClusterMetadata,
    PartitionMetadata,
    TopicMetadata,
)
from headrace.clients.flows.effects import Flow
from headrace.clients.flows.fetch import FetchedPartition, FetchLimits, FetchPosition
from headrace.clients.flows.groups import GroupDescription, GroupListing, MemberDescription
from headrace.clients.flows.list_offsets import (
    EARLIEST,
    LATEST,
    MAX_TIMESTAMP,
    READ_COMMITTED,
    READ_UNCOMMITTED,
    ListedOffset,
)
from headrace.clients.flows.offsets import CommitIdentity, OffsetAndMetadata
from headrace.clients.flows.produce import ProducedPartition, ProducerIdentity
from headrace.config.resources import ConfigResourceType
from headrace.errors import ApiError
from headrace.types import Buffer, TopicPartition

__all__ = [
    "EARLIEST",
    "LATEST",
    "MAX_TIMESTAMP",
    "READ_COMMITTED",
    "READ_UNCOMMITTED",
    "BlockingClient",
    "BrokerAddress",
    "ClusterDescription",
    "ClusterMetadata",
    "ConfigEntry",
    "ConfigResourceType",
    "ConfigSource",
    "ConfigSynonym",
    "FetchPosition",
    "FetchedPartition",
    "GroupDescription",
    "GroupListing",
    "ListedOffset",
    "MemberDescription",
    "NewTopic",
    "OffsetAndMetadata",
    "PartitionMetadata",
    "ProducedPartition",
    "ProducerIdentity",
    "TopicMetadata",
]

T = TypeVar("T")


class BlockingClient:
    """A client of a cluster; a context manager that closes itself.

    Every method waits for the response, retries what may succeed later, and gives up after `request.timeout.ms`.
    Errors are `ApiError` (a broker refused; `.code` is the reason) and `TransportError` (no broker answered in time).
    """

    def __init__(
        self,
        bootstrap: Target,
        *,
        client_id: str = "headrace",
        request_timeout_ms: int = 30_000,
        **properties: Any,
    ) -> None:
        """Prepare a client. The first call opens the first connection.

        Args:
            bootstrap: HOST:PORT, several separated by commas, or a `Broker` of this process.
            client_id: The name of the client in the broker's log and in quotas.
            request_timeout_ms: Milliseconds that one method may take, including retries and backoff.
            properties: More properties, `retry_backoff_ms=50` or `**{"retry.backoff.ms": 50}`.

        Raises:
            ConfigError: A property is unknown or malformed.
        """
        self.config = parse_config(
            ClientConfig,
            properties,
            bootstrap_servers=bootstrap if isinstance(bootstrap, str) else None,
            client_id=client_id,
            request_timeout_ms=request_timeout_ms,
        )
        self.driver = open_blocking_driver(bootstrap, self.config)
        self.state = self.driver.engine.state

    def __del__(self) -> None:
        driver = getattr(self, "driver", None)  # missing if the constructor has raised an exception
        if driver is not None and not driver.ended:
            warn_unclosed(self, "close()", driver.close, in_thread=not driver.by_hand)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections of the client."""
        self.driver.close()

    def connect(self) -> None:
        """Check that a broker answers; try each bootstrap server once.

        Raises:
            TransportError: No broker answers. The message has the reason for each server.
        """
        self.driver.connect()

    def run(self, flow: Flow[T], timeout_ms: int | None = None) -> T:
        """Run a flow of `headrace.clients.flows` with the `state` and the connections of this client."""
        return self.driver.run(flow, timeout_ms)

    def metadata(
        self, topics: Sequence[str] | None = None, *, auto_create: bool = False
    ) -> ClusterMetadata:
        """Request and return metadata of brokers and topics.

        Args:
            topics: The topics; None is all topics. A topic that does not exist is returned with its `error`.
            auto_create: Whether the broker may create missing topics.
        """
        known = self.run(metadata.refresh(self.state, topics, auto_create=auto_create))
        names = (
            known.topics if topics is None else [name for name in topics if name in known.topics]
        )
        return ClusterMetadata(
            dict(known.brokers),
            known.controller_id,
            known.cluster_id,
            {name: known.topics[name] for name in names},
        )

    def create_topics(
        self,
        topics: Sequence[NewTopic],
        *,
        timeout_ms: int = 30_000,
        validate_only: bool = False,
    ) -> dict[str, ApiError | None]:
        """Create topics. Return one entry for each topic: None, or the reason why it was not created."""
        flow = admin.create_topics(self.state, topics, timeout_ms, validate_only=validate_only)
        return self.run(flow)

    def delete_topics(
        self, names: Sequence[str], *, timeout_ms: int = 30_000
    ) -> dict[str, ApiError | None]:
        """Delete topics. Return one entry for each topic: None, or the reason why it was not deleted."""
        return self.run(admin.delete_topics(self.state, names, timeout_ms))

    def describe_configs(
        self, resource_type: ConfigResourceType, names: Sequence[str]
    ) -> dict[str, list[ConfigEntry]]:
        """Return the configuration values of topics, or of brokers by node id."""
        return self.run(admin.describe_configs(self.state, resource_type, names))

    def describe_cluster(self) -> ClusterDescription:
        """Return the cluster's id, controller and brokers."""
        return self.run(admin.describe_cluster(self.state))

    def list_offsets(
        self,
        targets: Mapping[TopicPartition, int],
        isolation_level: int = READ_UNCOMMITTED,
        *,
        delayed: bool = False,
    ) -> dict[TopicPartition, ListedOffset]:
        """Request one offset in each partition.

        Args:
            targets: EARLIEST, LATEST, MAX_TIMESTAMP, or a timestamp in milliseconds, by partition. A timestamp finds
                the first record that is not older; the offset is -1 if there is none.
            isolation_level: With READ_COMMITTED, LATEST is the last stable offset.
            delayed: Whether to request the number of scheduled records, which only Headrace's brokers return.
        """
        flow = list_offsets_flows.list_offsets(
            self.state, targets, isolation_level, delayed=delayed
        )
        return self.run(flow)

    def fetch(
        self,
        positions: Mapping[TopicPartition, FetchPosition],
        max_wait_ms: int = 500,
        min_bytes: int = 1,
        max_bytes: int = fetch_flows.DEFAULT_FETCH_MAX_BYTES,
        isolation_level: int = READ_UNCOMMITTED,
    ) -> dict[TopicPartition, FetchedPartition]:
        """Fetch encoded batches once from each partition's leader. Errors are returned by partition, not raised.

        Args:
            positions: The position in each partition.
            max_wait_ms: Milliseconds that a broker may wait for `min_bytes`.
            min_bytes: The bytes of records with which a broker responds before `max_wait_ms` has passed.
            max_bytes: The largest response in bytes. The first batch is returned whole even if it is larger.
            isolation_level: READ_COMMITTED ends at the last stable offset and returns the aborted transactions.
        """
        limits = FetchLimits(max_wait_ms, min_bytes, max_bytes, isolation_level)
        timeout_ms = self.config.request_timeout_ms + max_wait_ms
        return self.run(fetch_flows.fetch(self.state, positions, limits), timeout_ms)

    def produce(
        self,
        topic_partition: TopicPartition,
        batch: Buffer,
        acks: int = -1,
        timeout_ms: int = 30_000,
    ) -> ProducedPartition:
        """Write one record batch to a partition, and return its offset.

        Args:
            topic_partition: The partition.
            batch: One batch as `headrace.records.builder` builds it.
            acks: The replicas that must store the batch: -1 all in sync, 1 the leader, 0 none (no response).
            timeout_ms: Milliseconds that the broker may wait for replicas.
        """
        flow = produce_flows.produce(self.state, topic_partition, batch, acks, timeout_ms)
        return self.run(flow)

    def init_producer_id(self, previous: ProducerIdentity | None = None) -> ProducerIdentity:
        """Request an id for an idempotent producer, or the next epoch of `previous`."""
        return self.run(produce_flows.init_producer_id(self.state, previous))

    def commit_offsets(
        self,
        group: str,
        offsets_by_partition: Mapping[TopicPartition, OffsetAndMetadata],
        generation: int = -1,
        member: str = "",
        group_instance_id: str | None = None,
    ) -> None:
        """Commit offsets of a group: as a member of a generation, or by default for a group without members."""
        committer = CommitIdentity(generation, member, group_instance_id)
        self.run(offsets.commit_offsets(self.state, group, offsets_by_partition, committer))

    def committed_offsets(
        self, group: str, partitions: Iterable[TopicPartition] | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return the committed offsets of a group. `partitions` None is all; partitions without one are left out."""
        return self.run(offsets.committed_offsets(self.state, group, partitions))

    def list_groups(self) -> list[GroupListing]:
        """Return all groups of the cluster, sorted by name."""
        return self.run(groups.list_groups(self.state))

    def describe_groups(self, names: Iterable[str]) -> dict[str, GroupDescription]:
        """Describe groups and their members. A group that does not exist has the state "Dead"."""
        return self.run(groups.describe_groups(self.state, names))
