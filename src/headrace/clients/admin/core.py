"""The calls of `Admin` as flows: topics, records, groups, offsets, users and access rights."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from headrace.clients.admin.offsets import Reset, lag, reset_offsets, topic_partitions
from headrace.clients.arguments import shown
from headrace.clients.config import ClientConfig, parse_config
from headrace.clients.flows import (
    acls,
    admin,
    alter,
    attachments,
    cluster_admin,
    groups,
    metadata,
    offsets,
    scram,
    stopping,
    transaction_admin,
)
from headrace.clients.flows.admin import ClusterDescription, ConfigEntry, NewTopic
from headrace.clients.flows.alter import ConfigAlteration
from headrace.clients.flows.attachments import Attachments
from headrace.clients.flows.cluster import TopicMetadata
from headrace.clients.flows.cluster_admin import BrokerFeatures, LogDirDescription
from headrace.clients.flows.effects import ClientState, Flow
from headrace.clients.flows.groups import GroupDescription, GroupListing, MemberDescription
from headrace.clients.flows.offsets import OffsetAndMetadata
from headrace.clients.flows.scram import UserDescription
from headrace.clients.flows.stopping import StopOutcome
from headrace.clients.flows.transaction_admin import (
    HangingTransaction,
    ProducerState,
    TransactionDescription,
    TransactionListing,
)
from headrace.clients.topic_strategies import Strategies, check_configs, configs_of
from headrace.config.options import Value, render_value
from headrace.config.resources import ConfigResourceType
from headrace.config.units import plain_number
from headrace.errors import ApiError, ConfigError, ErrorCode
from headrace.protocol.config_operation import ConfigOperation
from headrace.security.acls import AclBinding, AclFilter
from headrace.types import TopicPartition

STORAGE: Final = "headrace.storage"
HIGH_WATERMARK: Final = -1
"""The offset in a request that deletes all records below the high watermark."""


def admin_config(target: object, properties: Mapping[str, Any], **named: Any) -> ClientConfig:
    """Return the configuration of an admin client.

    Raises:
        ConfigError: A property is unknown or malformed.
    """
    bootstrap = target if isinstance(target, str) else None
    return parse_config(ClientConfig, properties, bootstrap_servers=bootstrap, **named)


class AdminCore:
    """The flows of one admin client. The methods of `Admin` that run them have the documentation."""

    def __init__(self, state: ClientState, config: ClientConfig) -> None:
        self._state = state
        self._timeout_ms = config.request_timeout_ms

    # Topics

    def create_topic(
        self,
        name: str,
        partitions: int,
        replication_factor: int,
        configs: Mapping[str, Value],
        strategies: Strategies,
    ) -> Flow[None]:
        """Create a topic with its serdes, its partitioner and its storage."""
        objects = self._state.objects
        found = strategies.named(keeps_objects=objects is not None)
        given = configs_of(found)
        if strategies.storage is not None:
            given[STORAGE] = self._storage(strategies.storage)
        check_configs({key: render_value(value) for key, value in configs.items()})
        topic = NewTopic(name, partitions, replication_factor, {**configs, **given})
        _raise(name, (yield from admin.create_topics(self._state, [topic], self._timeout_ms)))
        if objects is not None:
            objects.keep(name, found)
        self._state.stale_topics.add(name)

    def _storage(self, storage: Any) -> str:
        if isinstance(storage, str):
            return storage
        keeps_a_segment = hasattr(storage, "roll")
        if not hasattr(storage, "write_file") and not (
            keeps_a_segment and isinstance(storage, type)
        ):
            hint = f"; give the class, {type(storage).__name__}" if keeps_a_segment else ""
            raise ConfigError(
                f"storage is a name, a class or a log directory, not {shown(storage)}{hint}"
            )
        if self._state.objects is None:
            raise ConfigError(
                f"storage {shown(storage)} cannot be sent to a broker in another process: register it there, and pass "
                "its name"
            )
        return self._state.objects.keep_storage(storage)

    def delete_topic(self, name: str) -> Flow[None]:
        """Delete a topic with its records."""
        _raise(name, (yield from admin.delete_topics(self._state, [name], self._timeout_ms)))

    def add_partitions(self, topic: str, total: int) -> Flow[None]:
        """Raise a topic's number of partitions to `total`."""
        counts = {topic: total}
        _raise(topic, (yield from alter.create_partitions(self._state, counts, self._timeout_ms)))

    def topics(self, *, internal: bool) -> Flow[list[str]]:
        """Return the names of topics, sorted."""
        known = yield from metadata.refresh(self._state, None)
        return sorted(
            name for name, topic in known.topics.items() if internal or not topic.is_internal
        )

    def describe_topic(self, name: str) -> Flow[TopicMetadata]:
        """Request and return the metadata of a topic."""
        self._state.stale_topics.add(name)
        yield from metadata.ensure(self._state, [name])
        return self._state.metadata.topics[name]

    def configs(self, topic: str) -> Flow[dict[str, ConfigEntry]]:
        """Return a topic's configuration by name."""
        found = yield from admin.describe_configs(self._state, ConfigResourceType.TOPIC, [topic])
        return {entry.name: entry for entry in found[topic]}

    def alter_configs(self, topic: str, changes: Mapping[str, Value | None]) -> Flow[None]:
        """Change settings of a topic. None removes the topic's own value."""
        wanted = [
            ConfigAlteration(
                name,
                None if value is None else plain_number(name, render_value(value)),
                ConfigOperation.DELETE if value is None else ConfigOperation.SET,
            )
            for name, value in changes.items()
        ]
        check_configs({each.name: each.value for each in wanted if each.value is not None})
        outcomes = yield from alter.alter_configs(
            self._state, ConfigResourceType.TOPIC, {topic: wanted}
        )
        self._state.topic_settings.pop(topic, None)
        _raise(topic, outcomes)

    def truncate(
        self, topic: str, before: int | Mapping[int, int] | None
    ) -> Flow[dict[TopicPartition, int]]:
        """Delete a topic's records below offsets, or all records."""
        if isinstance(before, Mapping):
            wanted = {TopicPartition(topic, number): offset for number, offset in before.items()}
        else:
            offset = HIGH_WATERMARK if before is None else before
            wanted = dict.fromkeys((yield from topic_partitions(self._state, [topic])), offset)
        return (yield from alter.delete_records(self._state, wanted, self._timeout_ms))

    def describe_cluster(self) -> Flow[ClusterDescription]:
        """Return the cluster's id, controller and brokers."""
        return admin.describe_cluster(self._state)

    def features(self) -> Flow[BrokerFeatures]:
        """Return the API versions and features of a broker."""
        return cluster_admin.describe_features()

    def log_dirs(self) -> Flow[list[LogDirDescription]]:
        """Return the log directories of all brokers."""
        return cluster_admin.describe_log_dirs(self._state)

    # Groups

    def groups(self) -> Flow[list[GroupListing]]:
        """Return all groups of the cluster."""
        return groups.list_groups(self._state)

    def describe_group(self, group: str) -> Flow[GroupDescription]:
        """Return the state and the members of a group."""
        found = yield from groups.describe_groups(self._state, [group])
        if found[group].state == "Dead":
            raise ApiError.for_code(ErrorCode.GROUP_ID_NOT_FOUND, f"group {group!r} does not exist")
        return found[group]

    def members(self, group: str) -> Flow[list[MemberDescription]]:
        """Return the members of a group."""
        return list((yield from self.describe_group(group)).members)

    def remove_member(
        self, group: str, member_id: str, group_instance_id: str | None
    ) -> Flow[None]:
        """Remove a member from its group."""
        return groups.remove_member(self._state, group, member_id, group_instance_id)

    def stop_member(
        self,
        group: str,
        member_id: str,
        group_instance_id: str | None,
        timeout_ms: int,
        now_ms: Callable[[], int],
    ) -> Flow[StopOutcome]:
        """Stop a member gracefully, and wait until it has left."""
        return stopping.stop_member(
            self._state,
            group,
            member_id=member_id,
            group_instance_id=group_instance_id,
            timeout_ms=timeout_ms,
            now_ms=now_ms,
        )

    def delete_group(self, group: str) -> Flow[None]:
        """Delete a group without members."""
        _raise(group, (yield from alter.delete_groups(self._state, [group])))

    # Attachments of groups to topics

    def create_group(
        self,
        name: str,
        assignor: str | None,
        topics: str | Iterable[str] | None,
        pattern: str | None,
    ) -> Flow[None]:
        """Create a group with its attachments."""
        given = _names(topics)
        return attachments.create_group(
            self._state, name, assignor=assignor, topics=given, pattern=pattern
        )

    def attach(
        self, group: str, topics: str | Iterable[str] | None, pattern: str | None
    ) -> Flow[Attachments]:
        """Attach a group to more topics, or to a pattern."""
        return attachments.attach(self._state, group, _names(topics), pattern)

    def detach(self, group: str, topics: str | Iterable[str] | None) -> Flow[Attachments]:
        """Detach a group from topics. None is all topics and the pattern."""
        return attachments.detach(self._state, group, None if topics is None else _names(topics))

    def attachments(self, group: str) -> Flow[Attachments]:
        """Return the attachments of a group."""
        return attachments.group_attachments(self._state, group)

    # Offsets

    def offsets(self, group: str) -> Flow[dict[TopicPartition, OffsetAndMetadata]]:
        """Return the committed offsets of a group."""
        return offsets.committed_offsets(self._state, group, None)

    def lag(self, group: str) -> Flow[dict[TopicPartition, int]]:
        """Return the number of offsets between each committed offset and the end offset."""
        return lag(self._state, group)

    def reset_offsets(
        self, group: str, reset: Reset, *, dry_run: bool
    ) -> Flow[dict[TopicPartition, int]]:
        """Commit other offsets for a group without members."""
        return reset_offsets(self._state, group, reset, dry_run=dry_run)

    # Transactions

    def transactions(
        self, states: Iterable[str], producer_ids: Iterable[int], longer_than_ms: int | None
    ) -> Flow[list[TransactionListing]]:
        """Return the transactional ids of the cluster."""
        return transaction_admin.list_transactions(
            self._state,
            states=_names(states),
            producer_ids=list(producer_ids),
            longer_than_ms=-1 if longer_than_ms is None else longer_than_ms,
        )

    def describe_transaction(self, transactional_id: str) -> Flow[TransactionDescription]:
        """Describe a transactional id."""
        return transaction_admin.describe_transaction(self._state, transactional_id)

    def fence_producer(self, transactional_id: str) -> Flow[None]:
        """Fence the producer of a transactional id that exists."""
        yield from transaction_admin.describe_transaction(self._state, transactional_id)
        yield from transaction_admin.fence_producer(self._state, transactional_id)

    def producers(self, partition: TopicPartition) -> Flow[list[ProducerState]]:
        """Return the producers in the state of a partition."""
        found = yield from transaction_admin.describe_producers(self._state, [partition])
        return found[partition]

    def hanging_transactions(
        self, topics: str | Iterable[str] | None, idle_since_ms: int
    ) -> Flow[list[HangingTransaction]]:
        """Return open transactions that no coordinator will end."""
        if topics is None:
            topics = yield from self.topics(internal=True)
        partitions = yield from topic_partitions(self._state, _names(topics))
        return (
            yield from transaction_admin.find_hanging(
                self._state, partitions, idle_since_ms=idle_since_ms
            )
        )

    def abort_hanging(self, partition: TopicPartition, start_offset: int) -> Flow[ProducerState]:
        """End a hanging transaction in one partition."""
        return transaction_admin.abort_hanging(self._state, partition, start_offset)

    # Users

    def list_users(self) -> Flow[list[str]]:
        """List users with SCRAM credentials."""
        return list((yield from scram.describe_users(None)))

    def describe_users(self, names: str | Iterable[str] | None) -> Flow[dict[str, UserDescription]]:
        """Describe users. None is all users."""
        found = yield from scram.describe_users(None if names is None else _names(names))
        described = {}
        for name, user in found.items():
            if isinstance(user, ApiError):
                raise ApiError.for_code(user.code, f"user {name!r}: {user.message}")
            described[name] = user
        return described

    def set_user(
        self,
        name: str,
        password: str,
        mechanisms: Iterable[str],
        iterations: int,
        random_bytes: Callable[[int], bytes],
    ) -> Flow[None]:
        """Set the password of a user. `random_bytes` returns the salts."""
        salted = scram.salt_password(password, mechanisms, iterations, random_bytes)
        return scram.set_user(name, salted)

    def delete_user(self, name: str) -> Flow[None]:
        """Delete a user's credentials."""
        return scram.delete_user(name)

    # Access control lists

    def create_acls(self, bindings: Iterable[AclBinding]) -> Flow[None]:
        """Create access control entries."""
        wanted = list(bindings)
        outcomes = yield from acls.create_acls(wanted)
        for binding, error in zip(wanted, outcomes, strict=True):
            if error is not None:
                raise ApiError.for_code(error.code, f"{acls.words(binding)}: {error.message}")

    def describe_acls(self, which: AclFilter | None) -> Flow[list[AclBinding]]:
        """Return the access control entries that match a filter."""
        return acls.describe_acls(AclFilter() if which is None else which)

    def delete_acls(self, filters: Iterable[AclFilter]) -> Flow[list[AclBinding]]:
        """Delete access control entries."""
        outcomes = yield from acls.delete_acls(list(filters))
        for outcome in outcomes:
            if outcome.error is not None:
                raise outcome.error
        return sorted({binding for outcome in outcomes for binding in outcome.bindings})


def _names(topics: str | Iterable[str] | None) -> list[str]:
    if topics is None:
        return []
    return [topics] if isinstance(topics, str) else list(topics)


def _raise(name: str, outcomes: Mapping[str, ApiError | None]) -> None:
    error = outcomes[name]
    if error is not None:
        raise error
