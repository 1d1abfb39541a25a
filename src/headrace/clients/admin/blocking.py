"""The blocking admin client: what `headrace.Admin` is."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, Unpack

from headrace.clients.admin.core import AdminCore, admin_config
from headrace.clients.admin.offsets import Place, Reset
from headrace.clients.admin.transactions import TransactionCalls
from headrace.clients.arguments import Count, Int16, Int32, checks_arguments
from headrace.clients.consumer.settings import milliseconds
from headrace.clients.drivers import Target, open_blocking_driver
from headrace.clients.drivers.unclosed import warn_unclosed
from headrace.clients.flows.admin import ClusterDescription, ConfigEntry
from headrace.clients.flows.attachments import Attachments
from headrace.clients.flows.cluster import TopicMetadata
from headrace.clients.flows.cluster_admin import BrokerFeatures, LogDirDescription
from headrace.clients.flows.groups import GroupDescription, GroupListing, MemberDescription
from headrace.clients.flows.offsets import OffsetAndMetadata
from headrace.clients.flows.scram import DEFAULT_ITERATIONS, MECHANISMS, UserDescription
from headrace.clients.flows.stopping import DEFAULT_TIMEOUT_S, StopOutcome
from headrace.clients.strategies import PartitionerChoice, StorageChoice, Strategies
from headrace.config.options import Value
from headrace.security.acls import AclBinding, AclFilter
from headrace.serdes.serde import AnySerde
from headrace.types import TopicPartition

if TYPE_CHECKING:
    from headrace.clients.properties import AdminProperties


@checks_arguments
class Admin(TransactionCalls):
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
        self._driver = open_blocking_driver(target, self.config)
        self._core = AdminCore(self._driver.engine.state, self.config)

    def __del__(self) -> None:
        driver = getattr(self, "_driver", None)  # none if the arguments were wrong
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
        """Close all connections."""
        self._driver.close()

    # Topics

    def create_topic(
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
        self._driver.run(
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

    def delete_topic(self, name: str) -> None:
        """Delete a topic and everything in it.

        Raises:
            ApiError: UNKNOWN_TOPIC_OR_PARTITION.
        """
        self._driver.run(self._core.delete_topic(name))

    def add_partitions(self, topic: str, total: Int32) -> None:
        """Raise a topic's number of partitions to `total`. Keys may then go to other partitions than before.

        Raises:
            ApiError: INVALID_PARTITIONS: it has as many already, or more.
        """
        self._driver.run(self._core.add_partitions(topic, total))

    def truncate(
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
        return self._driver.run(self._core.truncate(topic, before))

    def topics(self, *, internal: bool = False) -> list[str]:
        """Return the names of all topics, sorted; with `internal`, also those that brokers keep for themselves."""
        return self._driver.run(self._core.topics(internal=internal))

    def describe_topic(self, name: str) -> TopicMetadata:
        """Return a topic's partitions, their leaders and replicas.

        Raises:
            ApiError: UNKNOWN_TOPIC_OR_PARTITION.
        """
        return self._driver.run(self._core.describe_topic(name))

    def configs(self, topic: str) -> dict[str, ConfigEntry]:
        """Return a topic's configuration by name, with where each value comes from.

        Raises:
            ApiError: UNKNOWN_TOPIC_OR_PARTITION.
        """
        return self._driver.run(self._core.configs(topic))

    def alter_configs(self, topic: str, changes: Mapping[str, Value | None]) -> None:
        """Change some of a topic's configuration; the rest stays.

        Args:
            topic: The topic.
            changes: Name to value, as for `create_topic`; None takes back what was set, so that the broker's default
                counts.

        Raises:
            ApiError: INVALID_CONFIG: a name or value is not known.
        """
        self._driver.run(self._core.alter_configs(topic, changes))

    def describe_cluster(self) -> ClusterDescription:
        """Return the cluster's id, controller and brokers."""
        return self._driver.run(self._core.describe_cluster())

    def features(self) -> BrokerFeatures:
        """Return the versions of APIs that a broker speaks, and the features that the cluster has agreed on."""
        return self._driver.run(self._core.features())

    def log_dirs(self) -> list[LogDirDescription]:
        """Return the log directories of every broker, with the size of each partition in them.

        Raises:
            ApiError: CLUSTER_AUTHORIZATION_FAILED: it takes the right to describe the cluster.
        """
        return self._driver.run(self._core.log_dirs())

    # Groups

    def groups(self) -> list[GroupListing]:
        """Return every group of the cluster, sorted by name."""
        return self._driver.run(self._core.groups())

    def describe_group(self, group: str) -> GroupDescription:
        """Return a group's state and members.

        Raises:
            ApiError: GROUP_ID_NOT_FOUND.
        """
        return self._driver.run(self._core.describe_group(group))

    def members(self, group: str) -> list[MemberDescription]:
        """Return a group's members and what each reads.

        Raises:
            ApiError: GROUP_ID_NOT_FOUND.
        """
        return self._driver.run(self._core.members(group))

    def remove_member(
        self, group: str, member_id: str = "", *, group_instance_id: str | None = None
    ) -> None:
        """Take a member out of its group; the others take over what it read.

        A member that is alive joins again with its next heartbeat: see `stop_member`.

        Args:
            group: The group.
            member_id: The member, as `members` tells.
            group_instance_id: The name of a static member, instead.

        Raises:
            ApiError: UNKNOWN_MEMBER_ID.
        """
        self._driver.run(self._core.remove_member(group, member_id, group_instance_id))

    def stop_member(
        self,
        group: str,
        member_id: str = "",
        *,
        group_instance_id: str | None = None,
        timeout_s: float = DEFAULT_TIMEOUT_S,
    ) -> StopOutcome:
        """Stop one member gracefully: it finishes what it works on, commits, leaves, and does not join again.

        It hears of that with its next heartbeat. The others take over what it read. The call waits until it has left.
        A member that has not left in time is removed by force, also one of another client that does not know the
        message; such a member may join again. Calling it again is harmless.

        Args:
            group: The group.
            member_id: The member, as `members` tells.
            group_instance_id: The name of a static member, instead. Its place is not kept.
            timeout_s: Seconds that the member has.

        Returns:
            "stopped" if the member has left by itself, "removed" if it was removed by force, and "gone" if it is no
            member any more and the broker does not know why: its session has ended, or the broker was restarted.

        Raises:
            ApiError: UNKNOWN_MEMBER_ID, GROUP_AUTHORIZATION_FAILED; UNSUPPORTED_VERSION where the broker is not
                Headrace, and then nothing has changed.
        """
        timeout_ms = milliseconds(timeout_s, 0)
        flow = self._core.stop_member(
            group, member_id, group_instance_id, timeout_ms, self._driver.now_ms
        )
        return self._driver.run(flow, timeout_ms + self.config.request_timeout_ms)

    def delete_group(self, group: str) -> None:
        """Delete a group without members, and what it has committed.

        Raises:
            ApiError: NON_EMPTY_GROUP, GROUP_ID_NOT_FOUND.
        """
        self._driver.run(self._core.delete_group(group))

    # What groups are attached to

    def create_group(
        self,
        name: str,
        *,
        assignor: str | None = None,
        topics: str | Iterable[str] | None = None,
        pattern: str | None = None,
    ) -> None:
        """Create a group; members that subscribe to nothing themselves read what it is attached to.

        Only Headrace keeps such a thing. On other brokers a group comes into being when its first consumer subscribes.

        Args:
            name: Its name.
            assignor: The name of the assignor that divides its partitions; None is range.
            topics: The topics that it is attached to, or
            pattern: a regular expression that matches their whole names. With neither, members wait.

        Raises:
            ConfigError: The broker is not Headrace; the text says what to do instead.
            ApiError: INVALID_REQUEST: it was created before. INVALID_CONFIG: a name or the pattern is malformed.
        """
        self._driver.run(self._core.create_group(name, assignor, topics, pattern))

    def attach(
        self,
        group: str,
        topics: str | Iterable[str] | None = None,
        *,
        pattern: str | None = None,
    ) -> Attachments:
        """Attach a group to more topics, or to a pattern in place of the one before; its members rejoin and read them.

        Args:
            group: The group.
            topics: The topics, which need not exist yet, or
            pattern: a regular expression that matches their whole names.

        Returns:
            What the group is attached to now.

        Raises:
            ConfigError: The broker is not Headrace.
            ApiError: GROUP_ID_NOT_FOUND. INVALID_CONFIG: topics and a pattern exclude each other.
        """
        return self._driver.run(self._core.attach(group, topics, pattern))

    def detach(self, group: str, topics: str | Iterable[str] | None = None) -> Attachments:
        """Detach a group from topics, or with None from everything; its members rejoin and read them no more.

        What it has committed stays, and counts when it is attached again.

        Returns:
            What the group is attached to now.

        Raises:
            ConfigError: The broker is not Headrace.
            ApiError: GROUP_ID_NOT_FOUND. UNKNOWN_TOPIC_OR_PARTITION: it is not attached to one of them.
        """
        return self._driver.run(self._core.detach(group, topics))

    def attachments(self, group: str) -> Attachments:
        """Return what a group is attached to; to nothing, if nobody has attached it.

        Raises:
            ConfigError: The broker is not Headrace.
        """
        return self._driver.run(self._core.attachments(group))

    # Offsets

    def offsets(self, group: str) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return what a group has committed; a partition without a commit is left out."""
        return self._driver.run(self._core.offsets(group))

    def lag(self, group: str) -> dict[TopicPartition, int]:
        """Return how many records a group has still to finish; a partition without a commit is left out."""
        return self._driver.run(self._core.lag(group))

    def reset_offsets(
        self,
        group: str,
        offsets: Mapping[TopicPartition, int] | None = None,
        *,
        topics: Iterable[str] | None = None,
        partitions: Iterable[TopicPartition] | None = None,
        to: Place | None = None,
        offset: int | None = None,
        shift: int | None = None,
        dry_run: bool = False,
    ) -> dict[TopicPartition, int]:
        """Have a group without members go on elsewhere.

        Args:
            group: The group; created if there is none.
            offsets: Partition to the offset of the next record; or:
            topics: The topics of which all partitions are moved, or
            partitions: the partitions; with neither, all for which the group has committed something;
            to: to "earliest", "latest", or the first record not older than a timestamp in milliseconds since 1970, or
            offset: to this offset, or the end of the log that is nearer, or
            shift: by as many offsets, back if it is negative, as far as the log reaches.
            dry_run: Tell what would be committed, and commit nothing.

        Returns:
            What was committed.

        Raises:
            ConfigError: What is asked for contradicts itself, or there is nothing to move.
            ApiError: UNKNOWN_MEMBER_ID: the group has members.
        """
        reset = Reset(offsets, topics, partitions, to, offset, shift)
        return self._driver.run(self._core.reset_offsets(group, reset, dry_run=dry_run))

    # Users, who prove a password by SCRAM

    def list_users(self) -> list[str]:
        """Return the names of all users with SCRAM credentials, sorted.

        Raises:
            ApiError: CLUSTER_AUTHORIZATION_FAILED.
        """
        return self._driver.run(self._core.list_users())

    def describe_users(
        self, names: str | Iterable[str] | None = None
    ) -> dict[str, UserDescription]:
        """Return by name the mechanisms by which users can authenticate, and how often their passwords are hashed.

        Args:
            names: Which users; None is all.

        Raises:
            ApiError: RESOURCE_NOT_FOUND: one has no SCRAM credentials. CLUSTER_AUTHORIZATION_FAILED.
        """
        return self._driver.run(self._core.describe_users(names))

    def set_user(
        self,
        name: str,
        password: str,
        *,
        mechanisms: Iterable[str] = MECHANISMS,
        iterations: Int32 = DEFAULT_ITERATIONS,
    ) -> None:
        """Give a user a password, whether there is such a user or not; an earlier password is void.

        The password is salted and hashed here: no broker ever sees it.

        Args:
            name: The user.
            password: The password.
            mechanisms: How the user can authenticate with it, "SCRAM-SHA-256" or "SCRAM-SHA-512" or both; by no other
                mechanism any more.
            iterations: How often it is hashed, 4096 to 16384: what somebody pays who got hold of the broker's data and
                tries passwords, and the user's clients when they connect.

        Raises:
            SaslError: Mechanism, iterations or password are none that brokers take.
            ApiError: The broker refuses: CLUSTER_AUTHORIZATION_FAILED, or what is wrong with the name.
        """
        self._driver.run(self._core.set_user(name, password, mechanisms, iterations, os.urandom))

    def delete_user(self, name: str) -> None:
        """Delete a user's credentials. Connections that the user has stay; what the user may do stays known.

        Raises:
            ApiError: RESOURCE_NOT_FOUND: there are none. CLUSTER_AUTHORIZATION_FAILED.
        """
        self._driver.run(self._core.delete_user(name))

    # Rights

    def create_acls(self, bindings: Iterable[AclBinding]) -> None:
        """Allow or deny something; what is there already stays as it is.

        Args:
            bindings: Who may do, or not do, what to which resource.

        Raises:
            ApiError: The first refusal; others may have been created. SECURITY_DISABLED: the broker has no authorizer.
        """
        self._driver.run(self._core.create_acls(bindings))

    def describe_acls(self, which: AclFilter | None = None) -> list[AclBinding]:
        """Return who is allowed and denied what, sorted.

        Args:
            which: Which bindings; None is all.

        Raises:
            ApiError: SECURITY_DISABLED: the broker has no authorizer. CLUSTER_AUTHORIZATION_FAILED.
        """
        return self._driver.run(self._core.describe_acls(which))

    def delete_acls(self, filters: Iterable[AclFilter]) -> list[AclBinding]:
        """Delete what one of the filters means.

        Args:
            filters: Which bindings. `AclFilter()` means all of them.

        Returns:
            What was deleted, sorted.

        Raises:
            ApiError: The first refusal; others may have been deleted. SECURITY_DISABLED: the broker has no authorizer.
        """
        return self._driver.run(self._core.delete_acls(filters))
