"""The parts of an open broker, which the handlers may use.

`open_services` makes all of them when the broker opens. The record does not change afterwards, and no part of it is
ever missing. State that changes while the broker runs is inside a part: the configuration is
`services.settings.config`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from headrace.broker.access.audit import Audit
from headrace.broker.access.authentication import Authenticator
from headrace.broker.access.authorizer import Authorizer
from headrace.broker.access.credentials import ScramCredentials
from headrace.broker.access.permissions import Permissions
from headrace.broker.apis import AdvertisedApis
from headrace.broker.cluster.control import Control
from headrace.broker.cluster.member import Member
from headrace.broker.cluster.unclean_start import Departures
from headrace.broker.configs.broker_settings import BrokerSettings
from headrace.broker.context import LatestTime
from headrace.broker.coordinators.group_settings import StoredGroupSettings, consumer_times
from headrace.broker.coordinators.group_topics import GroupTopics, load_assignors
from headrace.broker.coordinators.internal_log import InternalLog
from headrace.broker.coordinators.internal_topics import InternalTopics
from headrace.broker.coordinators.offsets_topic import OffsetsTopic
from headrace.broker.coordinators.producer_ids import ProducerIds
from headrace.broker.coordinators.topic_deletion import forget_offsets
from headrace.broker.coordinators.transactions import Transactions
from headrace.broker.endpoints import Endpoints
from headrace.broker.environment import Environment
from headrace.broker.log_dirs.log_dirs import open_log_dirs
from headrace.broker.log_dirs.unsynced_topics import UnsyncedTopics
from headrace.broker.metadata.identity import (
    load_cluster_id,
    refuse_other_incarnation,
    register,
)
from headrace.broker.metadata.metadata_writer import MetadataWriter
from headrace.broker.metadata.migration import carry_over
from headrace.broker.partitions.damaged_replicas import DamagedReplicas
from headrace.broker.partitions.local_partitions import LocalPartitions
from headrace.broker.partitions.lost_replicas import LostReplicas
from headrace.broker.partitions.partition_deletion import PartitionDeletion
from headrace.broker.partitions.replica_placement import ReplicaPlacement
from headrace.broker.partitions.role_changes import RoleChanges
from headrace.broker.partitions.topic_admin import TopicAdmin
from headrace.broker.partitions.topics import Topics
from headrace.broker.quotas.client_quotas import ClientQuotas
from headrace.broker.quotas.throttling import Throttling
from headrace.broker.recompression import Recompressions
from headrace.broker.replication.fetchers import Fetchers
from headrace.broker.replication.follower_fetches import FollowerFetches
from headrace.broker.replication.isr_changes import IsrChanges
from headrace.broker.replication.log_store import LogStore
from headrace.broker.replication.partition_loader import PartitionLoader
from headrace.broker.replication.replicas import Replicas
from headrace.broker.scheduled_records import Deliveries
from headrace.broker.topic_names import OFFSETS_TOPIC
from headrace.broker.waiting.delayed_fetch import WaitingFetches
from headrace.broker.waiting.fetch_sessions import FetchSessions
from headrace.broker.waiting.purgatory import Purgatory
from headrace.broker.waiting.steps import Steps
from headrace.config.broker import BrokerConfig
from headrace.config.listeners import parse_advertised
from headrace.core.cluster.membership import Membership
from headrace.core.cluster.records import LiveRecord
from headrace.core.coordinator.group_coordinator import GroupCoordinator
from headrace.core.coordinator.state.config import GroupConfig
from headrace.core.log import OpenSegments, Shared
from headrace.core.meta_properties import DIRECTORY_ID, read_meta
from headrace.core.quota import Windows
from headrace.ports import Journal


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """The parts of an open broker.

    Attributes:
        settings: The configuration of the broker, and its changes.
        journal: Receives the log events.
        time: The time of the latest call.
        metadata: Writes to the metadata store.
        apis: The APIs and versions that ApiVersions reports.
        cluster_id: The id of the cluster.
        member: The registration of this broker in its cluster; None without a cluster.
        membership: The live brokers and the controller. Without a cluster, this broker is both.
        control: This broker as the controller, or as a candidate; None without a cluster.
        endpoints: The addresses that clients connect to.
        audit: Writes the audit log.
        authenticator: Authenticates clients by SASL.
        credentials: The passwords of SCRAM and PLAIN.
        authorizer: The ACLs and the decisions by them.
        permissions: The permission checks of the handlers.
        quotas: The quotas of clients.
        throttling: The rates of clients, and the pauses of those above their quotas.
        purgatory: The delayed requests.
        waiting_fetches: The delayed fetches by connection, and their memory.
        fetch_sessions: The fetch sessions.
        follower_fetches: Handles the fetches of followers.
        steps: The requests that are handled in steps.
        recompressions: The produced batches that are compressed again.
        log_store: The logs: group commit, compaction, errors of log directories.
        replicas: The partitions as replicas: append, high watermark.
        loader: Opens partitions.
        deletion: Deletes partitions and records.
        partitions: The partitions that this broker serves, by topic.
        topics: The topics.
        topic_admin: Creates, grows, configures and deletes topics.
        deliveries: The schedules of scheduled records.
        group_settings: The configurations of groups.
        groups: The group coordinator.
        internal_topics: Creates the topics of the coordinators.
        offsets_topic: The topic of the group coordinator.
        producer_ids: Allocates producer ids.
        transactions: The transaction coordinator.
    """

    settings: BrokerSettings
    journal: Journal
    time: LatestTime
    metadata: MetadataWriter
    apis: AdvertisedApis
    cluster_id: str
    member: Member | None
    membership: Membership
    control: Control | None
    endpoints: Endpoints
    audit: Audit
    authenticator: Authenticator
    credentials: ScramCredentials
    authorizer: Authorizer
    permissions: Permissions
    quotas: ClientQuotas
    throttling: Throttling
    purgatory: Purgatory
    waiting_fetches: WaitingFetches
    fetch_sessions: FetchSessions
    follower_fetches: FollowerFetches
    steps: Steps
    recompressions: Recompressions
    log_store: LogStore
    replicas: Replicas
    loader: PartitionLoader
    deletion: PartitionDeletion
    partitions: LocalPartitions
    topics: Topics
    topic_admin: TopicAdmin
    deliveries: Deliveries
    group_settings: StoredGroupSettings
    groups: GroupCoordinator
    internal_topics: InternalTopics
    offsets_topic: OffsetsTopic
    producer_ids: ProducerIds
    transactions: Transactions


def open_services(static: BrokerConfig, environment: Environment, apis: AdvertisedApis) -> Services:
    """Make the services, and load their state from the metadata store. Topics, logs and groups are not loaded yet.

    Raises:
        ConfigError: The configuration is invalid: `advertised.listeners`, OAUTHBEARER without keys, or an unknown
            assignor of consumer groups.
        StorageError: Something stored cannot be read, or belongs to another broker.
    """
    entropy, journal, time = environment.entropy, environment.journal, LatestTime()
    stored = _load_stored(static, environment)
    cluster_id = load_cluster_id(stored.metadata, entropy)
    parts = _open_partitions(environment, stored, cluster_id, time)
    replicas = parts.replicas
    membership, member = _join(environment, stored, parts, time)
    admin = _make_topic_admin(environment, stored, parts, membership)
    followers = _replicate(environment, stored, parts, membership, time)
    groups = _make_groups(environment, stored, parts, time)
    return Services(
        settings=stored.settings,
        journal=journal,
        time=time,
        metadata=stored.metadata,
        apis=apis,
        cluster_id=cluster_id,
        member=member,
        membership=membership,
        control=_make_control(environment, stored, parts, member, time),
        endpoints=stored.endpoints,
        audit=stored.audit,
        authenticator=stored.authenticator,
        credentials=stored.credentials,
        authorizer=stored.authorizer,
        permissions=Permissions(
            stored.authorizer, stored.audit, is_clustered=environment.is_clustered
        ),
        quotas=stored.quotas,
        throttling=_make_throttling(static, stored, time),
        purgatory=stored.purgatory,
        waiting_fetches=followers.waiting,
        fetch_sessions=followers.sessions,
        follower_fetches=followers,
        steps=stored.steps,
        recompressions=Recompressions(stored.steps, stored.purgatory),
        log_store=replicas.store,
        replicas=replicas,
        loader=parts.loader,
        deletion=parts.deletion,
        partitions=parts.partitions,
        topics=parts.topics,
        topic_admin=admin,
        deliveries=Deliveries(replicas, parts.loader, journal),
        group_settings=stored.group_settings,
        groups=groups,
        internal_topics=_make_internal_topics(stored, parts, admin),
        offsets_topic=_make_offsets_topic(stored, parts, groups, time, journal),
        producer_ids=stored.producer_ids,
        transactions=_make_transactions(environment, stored, parts, groups, time),
    )


def _join(
    environment: Environment, stored: _Stored, parts: _Partitions, time: LatestTime
) -> tuple[Membership, Member | None]:
    """Register a broker without a cluster. A broker of a cluster registers when its logs are open."""
    metadata, replicas = stored.metadata, parts.replicas
    rack = stored.settings.config.broker_rack or None
    if not environment.is_clustered:
        replicas.registration = register(metadata, replicas.broker_id)
        return Membership.of_one(replicas.broker_id, replicas.registration, rack), None
    membership = Membership()
    membership.consume(metadata.image)
    endpoints = parse_advertised(stored.settings.config.advertised_listeners)
    live = LiveRecord(0, replicas.store.dirs.first.directory_id, dict(endpoints), rack)
    return membership, Member(
        live,
        replicas,
        parts.roles,
        metadata,
        membership,
        departures=Departures(parts.topics, parts.partitions, metadata, membership),
        purgatory=stored.purgatory,
        time=time,
        journal=environment.journal,
    )


def _make_control(
    environment: Environment,
    stored: _Stored,
    parts: _Partitions,
    member: Member | None,
    time: LatestTime,
) -> Control | None:
    if member is None:
        return None
    control = Control(
        parts.topics,
        parts.replicas,
        stored.metadata,
        member.membership,
        purgatory=stored.purgatory,
        steps=stored.steps,
        time=time,
        journal=environment.journal,
    )
    member.on_registered = control.registered
    return control


def _replicate(
    environment: Environment,
    stored: _Stored,
    parts: _Partitions,
    membership: Membership,
    time: LatestTime,
) -> FollowerFetches:
    """Serve the fetches of followers. In a cluster, let leaders change their in-sync replicas, and followers fetch."""
    replicas, journal, purgatory = parts.replicas, environment.journal, stored.purgatory
    config = stored.settings.config
    if environment.is_clustered:
        IsrChanges(
            replicas, stored.metadata, membership, purgatory=purgatory, time=time, journal=journal
        )
        Fetchers(
            replicas, environment.peers, config, purgatory=purgatory, time=time, journal=journal
        )
        DamagedReplicas(
            parts.topics,
            parts.partitions,
            parts.loader,
            replicas,
            metadata=stored.metadata,
            purgatory=purgatory,
            time=time,
            journal=journal,
        )
        LostReplicas(
            parts.topics, replicas, stored.metadata, purgatory=purgatory, time=time, journal=journal
        )
    slots = config.max_incremental_fetch_session_cache_slots
    return FollowerFetches(
        replicas,
        parts.partitions.require,
        membership,
        name_of=parts.topics.name_of,
        sessions=FetchSessions(slots, environment.entropy),
        purgatory=purgatory,
        waiting=WaitingFetches(),
        steps=stored.steps,
        time=time,
        journal=journal,
    )


def _make_throttling(static: BrokerConfig, stored: _Stored, time: LatestTime) -> Throttling:
    windows = Windows(static.quota_window_num, static.quota_window_size_seconds * 1000)
    return Throttling(stored.quotas, windows, time)


def _make_topic_admin(
    environment: Environment, stored: _Stored, parts: _Partitions, membership: Membership
) -> TopicAdmin:
    return TopicAdmin(
        stored.settings,
        stored.metadata,
        parts.topics,
        parts.replicas,
        ReplicaPlacement(stored.settings, membership, parts.topics.states),
        entropy=environment.entropy,
        check=environment.check_topic_config,
    )


def _make_internal_topics(stored: _Stored, parts: _Partitions, admin: TopicAdmin) -> InternalTopics:
    metadata, steps = stored.metadata, stored.steps
    return InternalTopics(stored.settings, metadata, parts.topics, admin, steps)


def _make_offsets_topic(
    stored: _Stored,
    parts: _Partitions,
    groups: GroupCoordinator,
    time: LatestTime,
    journal: Journal,
) -> OffsetsTopic:
    topics, partitions, steps = parts.topics, parts.partitions, stored.steps
    return OffsetsTopic(topics, partitions, groups, steps=steps, time=time, journal=journal)


def _make_transactions(
    environment: Environment,
    stored: _Stored,
    parts: _Partitions,
    groups: GroupCoordinator,
    time: LatestTime,
) -> Transactions:
    return Transactions(
        stored.settings.config,
        parts.topics,
        parts.partitions,
        replicas=parts.replicas,
        groups=groups,
        allocate_producer_id=stored.producer_ids.allocate,
        peers=environment.peers,
        steps=stored.steps,
        time=time,
        journal=environment.journal,
    )


class _Stored(NamedTuple):
    """The services that need no partitions. Most of them keep their state in the metadata store."""

    metadata: MetadataWriter
    settings: BrokerSettings
    purgatory: Purgatory
    quotas: ClientQuotas
    steps: Steps
    audit: Audit
    authorizer: Authorizer
    credentials: ScramCredentials
    authenticator: Authenticator
    group_settings: StoredGroupSettings
    producer_ids: ProducerIds
    endpoints: Endpoints


def _load_stored(static: BrokerConfig, environment: Environment) -> _Stored:
    entropy, journal = environment.entropy, environment.journal
    metadata = MetadataWriter(environment.metadata, static.broker_id, entropy.uuid(), journal)
    purgatory, quotas, audit = Purgatory(), ClientQuotas(metadata, journal), Audit(journal)
    credentials = ScramCredentials(metadata, entropy, journal)
    stored = _Stored(
        metadata=metadata,
        settings=BrokerSettings(static, metadata, journal, environment.loggers),
        purgatory=purgatory,
        quotas=quotas,
        steps=Steps(purgatory, quotas),
        audit=audit,
        authorizer=Authorizer(static, metadata, journal),
        credentials=credentials,
        authenticator=Authenticator(
            static, credentials, purgatory, entropy=entropy, journal=journal, audit=audit
        ),
        group_settings=StoredGroupSettings(metadata, journal),
        producer_ids=ProducerIds(metadata),
        endpoints=Endpoints(static.advertised_listeners),
    )
    if environment.is_clustered:
        incarnation = (read_meta(environment.files) or {}).get(DIRECTORY_ID, "")
        metadata.begin(partial(refuse_other_incarnation, static.broker_id, incarnation))
    else:
        metadata.begin()
    carry_over(metadata, journal)
    stored.settings.load()
    quotas.load()
    credentials.load()
    stored.authorizer.load()
    stored.group_settings.load()
    return stored


class _Partitions(NamedTuple):
    """The services that hold the topics and partitions."""

    replicas: Replicas
    loader: PartitionLoader
    deletion: PartitionDeletion
    partitions: LocalPartitions
    topics: Topics
    roles: RoleChanges


def _open_partitions(
    environment: Environment, stored: _Stored, cluster_id: str, time: LatestTime
) -> _Partitions:
    config, entropy, journal = stored.settings.config, environment.entropy, environment.journal
    dirs = open_log_dirs(
        environment.files,
        environment.further,
        config,
        metadata=stored.metadata,
        entropy=entropy,
        journal=journal,
        cluster_id=cluster_id,
        run_tasks=environment.run_tasks,
        storages=environment.storages,
        shared=Shared(OpenSegments(environment.segment_files, journal)),
        unsynced=partial(UnsyncedTopics, boot_id=environment.boot_id)
        if environment.is_clustered
        else None,
    )
    replicas = Replicas(LogStore(dirs, journal), config, time)
    loader, deletion = PartitionLoader(config, replicas, journal), PartitionDeletion(replicas)
    partitions = LocalPartitions(config.broker_id, replicas)
    topics = Topics(
        config,
        stored.metadata,
        local=partitions,
        loader=loader,
        deletion=deletion,
        steps=stored.steps,
        time=time,
        journal=journal,
    )
    stored.settings.check = topics.check_defaults
    stored.settings.on_change = topics.broker_config_changed
    topics.on_fewer_settings = stored.settings.retry
    roles = RoleChanges(
        topics.states,
        topics.__iter__,
        partitions,
        replicas,
        steps=stored.steps,
        journal=journal,
    )
    return _Partitions(replicas, loader, deletion, partitions, topics, roles)


def _make_groups(
    environment: Environment, stored: _Stored, parts: _Partitions, time: LatestTime
) -> GroupCoordinator:
    settings, group_settings, journal = stored.settings, stored.group_settings, environment.journal
    groups = GroupCoordinator(
        GroupConfig.from_broker(settings.config),
        InternalLog(OFFSETS_TOPIC, parts.topics, parts.partitions, parts.replicas),
        entropy=environment.entropy,
        journal=journal,
        topics=GroupTopics(parts.topics, stored.authorizer, journal, stored.steps),
        assignors=load_assignors(settings.config.group_consumer_assignors),
        times=lambda group: consumer_times(group_settings.get(group), settings.config),
    )
    parts.topics.on_deleted = partial(forget_offsets, groups, parts.topics, time)
    stored.group_settings.on_attachment = lambda group: groups.rebalance(
        group, "what the group is attached to changed", time.now_ms
    )
    return groups
