"""The broker: one synchronous object that is handed requests, time, and the outcome of syncs.

A shell (the TCP server, a test, a simulation) owns it and calls `open`, then from one thread: `handle` for every
request, `tick` when `next_deadline_ms` is reached, `start_sync` and `finish_sync` around each group commit, and
`close`.

Responses that have to wait are `Deferred`s. They are resolved last, when the broker has come to rest (`_settle`):
resolving one may make the server hand in the next request at once, and that call finds consistent state and leaves
the delivery to the outer one.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import GeneratorType
from typing import Any, Final, NamedTuple, TypeVar

from headrace.broker.access.audit import Audit
from headrace.broker.access.audited import CHANGING, audited
from headrace.broker.access.authentication import Authenticator
from headrace.broker.access.authorizer import Authorizer
from headrace.broker.access.credentials import ScramCredentials
from headrace.broker.access.session import LOCAL, Session
from headrace.broker.configs.broker_settings import BrokerSettings
from headrace.broker.context import CloseConnection, Endpoint, RequestContext, VersionRange
from headrace.broker.coordinators.group_settings import GroupSettings, consumer_times
from headrace.broker.coordinators.group_topics import GroupTopics, load_assignors
from headrace.broker.coordinators.internal_log import InternalLog
from headrace.broker.coordinators.producer_ids import ProducerIds
from headrace.broker.coordinators.transactions import Transactions
from headrace.broker.delay.deliveries import Deliveries
from headrace.broker.delayed import Purgatory
from headrace.broker.delayed_fetch import WaitingFetches
from headrace.broker.endpoints import Endpoints
from headrace.broker.fetch_sessions import FetchSessions
from headrace.broker.handlers import REGISTRY, api_versions
from headrace.broker.log_dirs.background_sync import warn_of_losses
from headrace.broker.log_dirs.group_commit import FailedSync, GroupCommit
from headrace.broker.log_dirs.log_dirs import UnusableDirectory, no_storages, open_log_dirs
from headrace.broker.metadata.metadata_records import (
    BROKER_EPOCHS,
    CLUSTER_ID_KEY,
    ClusterIdRecord,
    LeaderEpochRecord,
    decode,
    encode,
)
from headrace.broker.metadata.metadata_writer import MetadataWriter
from headrace.broker.partition import Partition
from headrace.broker.quotas.client_quotas import ClientQuotas
from headrace.broker.quotas.throttling import Throttled, Throttling
from headrace.broker.recompression import Recompressions
from headrace.broker.replica_manager import ReplicaManager
from headrace.broker.steps import OFFSET_COST, Steps, Work, finished, value_of
from headrace.broker.topic import CheckConfig, Topic, accept_any
from headrace.broker.topic_names import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from headrace.broker.topics import Topics
from headrace.config.broker import BrokerConfig
from headrace.core.coordinator.group.coordinator import GroupCoordinator
from headrace.core.coordinator.runtime import Reply, gather
from headrace.core.coordinator.state.config import GroupConfig
from headrace.core.deferred import Deferred
from headrace.core.log import OpenSegments, Rewriting, RunTasks, Shared, run_in_turn
from headrace.core.quota import Windows
from headrace.errors import ApiError, StorageError
from headrace.ports import Check, Entropy, FileSystem, Journal, MetadataStore, OpenStorage, Put
from headrace.protocol.codec import Message
from headrace.protocol.messages.api_versions import ApiVersionsResponse


class Api(NamedTuple):
    """One row of the registry."""

    key: int
    advertised: VersionRange
    served: VersionRange
    handle: Any
    """`handle(broker, context, request)` of the module; its types differ from API to API."""


APIS: Final[tuple[Api, ...]] = tuple(
    Api(module.API_KEY, module.VERSIONS, getattr(module, "SERVED", module.VERSIONS), module.handle)
    for module in REGISTRY
)
T = TypeVar("T")
_HANDLERS: Final = {
    (api.key, version): audited(api.key, api.handle)
    for api in APIS
    for version in range(api.served.min, api.served.max + 1)
}


class Broker:
    """One Kafka broker, without I/O of its own."""

    deliveries: Deliveries
    fetch_sessions: FetchSessions
    replicas: ReplicaManager
    topics: Topics
    groups: GroupCoordinator
    transactions: Transactions
    leader_epoch: int
    """In which it leads its partitions; one more with every start."""
    _settling = _groups_are_served = False
    check_topic_config: CheckConfig = staticmethod(accept_any)

    def __init__(
        self,
        config: BrokerConfig,
        *,
        files: FileSystem,
        further: Sequence[FileSystem | UnusableDirectory] = (),
        metadata: MetadataStore,
        entropy: Entropy,
        journal: Journal,
        run_tasks: RunTasks = run_in_turn,
        storages: OpenStorage = no_storages,
        segment_files: int | None = None,
    ) -> None:
        """Take over what the broker works with; the caller keeps ownership of files and metadata.

        Args:
            config: Its configuration.
            files: The log directory, or the first one if there are several.
            further: The other log directories.
            metadata: The metadata.
            entropy: Randomness.
            journal: Where log lines go.
            run_tasks: Runs the syncs of a recovery, in parallel if it can.
            storages: Opens what topics name as their `headrace.storage`.
            segment_files: How many files of segments may be open at once; None for any number.

        Raises:
            ConfigError: `advertised.listeners` cannot be read, or OAUTHBEARER is enabled without keys.
        """
        self.config = config
        """What counts at present; changed as a whole by `configure`."""
        self._writer = MetadataWriter(metadata, config.broker_id, entropy.uuid(), journal)
        self.settings = BrokerSettings(config, self._writer, journal)
        self.journal, self.audit = journal, Audit(journal)
        self.apis = APIS
        self.authorizer = Authorizer(config, self._writer, journal)
        self.purgatory, self.waiting_fetches = Purgatory(), WaitingFetches()
        self.quotas = ClientQuotas(self._writer, journal)
        self.steps = Steps(self.purgatory, self.quotas)
        self.recompressions = Recompressions(self.steps, self.purgatory)
        self.credentials = ScramCredentials(self._writer, entropy, journal)
        self.authenticator = Authenticator(
            config,
            self.credentials,
            self.purgatory,
            entropy=entropy,
            journal=journal,
            audit=self.audit,
        )
        self.producer_ids = ProducerIds(self._writer)
        self.group_settings = GroupSettings(self._writer, journal)
        window_ms = config.quota_window_size_seconds * 1000
        self.throttling = Throttling(self.quotas, Windows(config.quota_window_num, window_ms))
        self.cluster_id = ""
        self._endpoints = Endpoints(config.advertised_listeners)
        self._files, self._further = files, further
        self._metadata, self._entropy = metadata, entropy
        self._run_tasks = run_tasks
        self._storages, self._segment_files = storages, segment_files

    # Life

    def open(self, now_ms: int) -> None:
        """Load metadata, logs and groups. Requests may come when it returns.

        Raises:
            ConfigError: An assignor of consumer groups is not there.
            StorageError: Something stored cannot be read, or belongs to another broker.
        """
        self._writer.begin()
        self.settings.load()
        self.config = self.settings.config
        self.quotas.load()
        self.credentials.load()
        self.authorizer.load()
        self.group_settings.load()
        self.fetch_sessions = FetchSessions(
            self.config.max_incremental_fetch_session_cache_slots, self._entropy
        )
        self.cluster_id = self._load_cluster_id()
        dirs = open_log_dirs(
            self._files,
            self._further,
            self.config,
            metadata=self._metadata,
            entropy=self._entropy,
            journal=self.journal,
            cluster_id=self.cluster_id,
            run_tasks=self._run_tasks,
            storages=self._storages,
            shared=Shared(OpenSegments(self._segment_files, self.journal)),
        )
        self.replicas = ReplicaManager(self.config, dirs, self.journal)
        self.topics = self._make_topics()
        self.deliveries = Deliveries(self.replicas, self.journal)
        self.groups = GroupCoordinator(
            GroupConfig.from_broker(self.config),
            InternalLog(OFFSETS_TOPIC, self.topics, self.replicas),
            entropy=self._entropy,
            journal=self.journal,
            topics=GroupTopics(self.topics, self.authorizer, self.journal, self.steps),
            assignors=load_assignors(self.config.group_consumer_assignors),
            times=lambda group: consumer_times(self.group_settings.get(group), self.config),
        )
        self.transactions = Transactions(
            self.config,
            self.topics,
            self.replicas,
            self.groups,
            allocate_producer_id=self.producer_ids.allocate,
            journal=self.journal,
        )
        self.leader_epoch = self._next_leader_epoch()
        self.topics.load(self.leader_epoch, now_ms)
        self.deliveries.load(self.topics, now_ms)
        self._load_groups(now_ms)
        self.transactions.load(now_ms)  # which may end what groups have pending
        self.transactions.end_forgotten(now_ms)
        self._groups_are_served = True
        if not self._files.describe().in_memory:
            warn_of_losses(self.topics.defaults, self.topics, self.journal)
        self._settle()

    def _make_topics(self) -> Topics:
        topics = Topics(
            self.config, self._writer, self.replicas, self._entropy, self.journal, steps=self.steps
        )
        topics.check = self.check_topic_config
        return topics

    def _load_cluster_id(self) -> str:
        entry = self._metadata.get(CLUSTER_ID_KEY)
        if entry is not None:
            return decode(entry, ClusterIdRecord).cluster_id
        cluster_id = base64.urlsafe_b64encode(self._entropy.uuid()).rstrip(b"=").decode()
        self._metadata.commit(
            [Check(CLUSTER_ID_KEY, "absent")],
            [Put(CLUSTER_ID_KEY, encode(ClusterIdRecord(cluster_id)))],
        )
        return cluster_id

    def _next_leader_epoch(self) -> int:
        """Begin a new leader epoch: what was lost in a crash, if anything was, then shows by its epoch (KIP-320)."""
        key = f"{BROKER_EPOCHS}{self.config.broker_id}"
        entry = self._metadata.get(key)
        epoch = 0 if entry is None else decode(entry, LeaderEpochRecord).leader_epoch + 1
        check = Check(key, "absent" if entry is None else entry.version)
        self._metadata.commit([check], [Put(key, encode(LeaderEpochRecord(epoch)))])
        return epoch

    def _load_groups(self, now_ms: int) -> None:
        topic = self.topics.get(OFFSETS_TOPIC)
        if topic is None:
            return
        for index, partition in enumerate(topic.partitions):
            if partition is not None:
                self._load_groups_of(index, now_ms)

    def _load_groups_of(self, index: int, now_ms: int) -> None:
        try:
            self.groups.load(index, now_ms)
        except StorageError as error:
            # Its groups are refused; the others are served.
            self.journal.error(
                "group_partition_not_loaded",
                partition=index,
                error=str(error),
                meaning="groups in this partition are refused with NOT_COORDINATOR",
                remedy=f"restore the directory {OFFSETS_TOPIC}-{index} from a backup, or give up what it holds: "
                "docs/reference/on-disk-format.md, 'A damaged partition of the broker'",
            )
            return
        forgotten = self.groups.forget_deleted_topics(
            index, lambda name: self.topics.get(name) is not None, now_ms
        )
        if forgotten:
            self.journal.info(
                "offsets_of_deleted_topics_forgotten", partition=index, offsets=forgotten
            )

    def _opened_later(self, partition: Partition, now_ms: int) -> None:
        name, index = partition.topic_partition
        if name == OFFSETS_TOPIC:
            self._load_groups_of(index, now_ms)
        elif name == TRANSACTIONS_TOPIC:
            self.transactions.load(now_ms, (index,))

    def _unload_groups(self) -> None:
        """After the first log directory has failed: whoever waits for a commit is told that it may be lost."""
        self._groups_are_served = False
        topic = self.topics.get(OFFSETS_TOPIC)
        for index in range(0 if topic is None else len(topic.partitions)):
            self.groups.unload(index)
        self.transactions.unload()

    def close(self, now_ms: int) -> None:
        """Write everything down and mark the shutdown as clean. No sync may be under way.

        Raises:
            OSError: The clean shutdown could not be written down; the next start recovers.
        """
        self.replicas.close(now_ms)

    @property
    def failed(self) -> bool:
        """Whether the first log directory has failed; the process should end, with an error."""
        return self.replicas.failure is not None

    # Requests

    def handle(self, context: RequestContext, request: Message) -> Message | Deferred[Any] | None:
        """Answer one request.

        Returns:
            The response, a deferred one, or None when none is to be sent.

        Raises:
            CloseConnection: The connection has to be closed instead.
        """
        handle = _HANDLERS.get((request.API_KEY, context.header.api_version))
        if handle is None:
            raise CloseConnection(
                f"API {request.API_KEY} version {context.header.api_version} is not supported"
            )
        if context.now_ms >= context.session.valid_until_ms:
            self.authenticator.gate(context, request.API_KEY)
        self.throttling.now_ms = context.now_ms
        try:
            handled: Any = handle(self, context, request)
            if type(handled) is GeneratorType:
                finishes = request.API_KEY in CHANGING
                handled = self.steps.run(handled, context.session, finishes=finishes)
            reply: Message | Deferred[Any] | None = handled
        finally:
            self._settle()
        if isinstance(reply, Deferred) and reply.done:
            value: Message | None = reply.value
            return value
        return reply

    def finish_in_steps(self, work: Work[T], session: Session) -> T | Deferred[T]:
        """Do some work on an answer after `handle`, such as its encoding; its later steps are done by `tick`.

        The next request of the connection waits until the work is done, unless an earlier one is worked on: then this
        answer belongs to one that has waited.
        """
        return self.steps.run(work, LOCAL if session.busy else session)

    @property
    def now_ms(self) -> int:
        """The time of the latest call: for work that goes on long after the request that it is for."""
        return self.throttling.now_ms

    def throttle(
        self,
        context: RequestContext,
        request: Message,
        reply: Message | Deferred[Any] | None,
        *,
        request_bytes: int,
        used_us: int,
    ) -> Throttled:
        """Charge a request to its client's quotas; called after `handle`, unless `quotas.active` is false.

        Args:
            context: The context of the request.
            request: The request.
            reply: What `handle` returned.
            request_bytes: The size of the request.
            used_us: How long it took to decode the request and to `handle` it. What it takes to encode the response is
                charged with the next request, by `Session.unpaid_us`, as are further steps of a long request.

        Returns:
            The reply to send instead, and for how long nothing more is to be read from the client. A deferred reply
            may also ask for a pause when it is resolved: by its `throttle_time_ms`.
        """
        return self.throttling.throttle(
            context, request, reply, request_bytes=request_bytes, used_us=used_us
        )

    def unsupported_version(self) -> ApiVersionsResponse:
        """Return the answer to an ApiVersions request of unknown version; it has to be encoded as version 0."""
        return api_versions.unsupported(self)

    def endpoint_for(self, context: RequestContext) -> Endpoint:
        """Return the address that a client is told to use."""
        return self._endpoints.endpoint_for(context)

    def ensure_offsets_topic(self, now_ms: int) -> Topic:
        """Return `__consumer_offsets`, creating it when it is needed for the first time.

        Raises:
            ApiError: It cannot be created.
        """
        topic = self.topics.get(OFFSETS_TOPIC)
        if topic is None:
            settings = {
                "cleanup.policy": "compact",
                "compression.type": "producer",
                "segment.bytes": str(self.config.offsets_topic_segment_bytes),
                "headrace.durability": "fsync",
            }
            topic = self.topics.create(
                OFFSETS_TOPIC, self.config.offsets_topic_num_partitions, settings, now_ms=now_ms
            )
            self._load_groups(now_ms)
        return topic

    def delete_topic(self, topic: Topic, now_ms: int) -> Reply[list[None]]:
        """Delete a topic at once; see `delete_topic_in_steps`."""
        return finished(self._delete_topic(topic, now_ms, self.topics.delete))

    def delete_topic_in_steps(self, topic: Topic, now_ms: int) -> Work[Reply[list[None]]]:
        """Delete a topic, its data, and what groups have committed for it; all of it is durable with the reply.

        Raises:
            ApiError: KAFKA_STORAGE_ERROR.
        """
        return self._delete_topic(topic, now_ms, self.topics.delete_in_steps)

    def _delete_topic(
        self, topic: Topic, now_ms: int, delete: Callable[[Topic], Reply[None]]
    ) -> Work[Reply[list[None]]]:
        name, refusal = topic.name, None
        deleted: Reply[None] = None
        try:
            deleted = delete(topic)
        except ApiError as error:
            if self.topics.get(name) is not None:
                raise
            refusal = error  # only its files could not be removed
        replies: list[Reply[None]] = []
        is_back = partial(self._exists, name)
        for count, written in self.groups.forget_offsets(name, now_ms, is_back):
            replies += written
            yield count * OFFSET_COST
        yield from value_of(deleted)
        if refusal is not None:
            raise refusal
        return gather(replies)

    def _exists(self, topic: str) -> bool:
        return self.topics.get(topic) is not None

    def check_settings(self, settings: Mapping[str, str], *, all_brokers: bool) -> None:
        """Refuse settings of this broker, or of all, that are not acceptable, alone or with those of a topic.

        Raises:
            ApiError: With the reason.
        """
        layers = self.settings.changed(settings, all_brokers=all_brokers)
        self.topics.check_defaults(layers.effective)

    def configure(self, settings: Mapping[str, str], *, all_brokers: bool) -> None:
        """Change the settings of this broker, or of all; they are durable and count when this returns.

        Raises:
            ApiError: A setting is not acceptable, or they could not be stored.
        """
        self.check_settings(settings, all_brokers=all_brokers)
        self.settings.change(settings, self._configured, all_brokers=all_brokers)

    def _configured(self, config: BrokerConfig) -> None:
        self.config = config
        self.topics.broker_config_changed(config)

    # Group commit

    @property
    def sync_due(self) -> bool:
        """Whether `start_sync` would return something; cheap enough to be asked after every request."""
        return self.replicas.sync_due

    def start_sync(self) -> GroupCommit | FailedSync | None:
        """Return what has to be synced, None if nothing has or a sync is under way.

        The shell calls `run()` of it, in any thread, and then `finish_sync`. When the broker has `failed` it gets one
        whose `run` raises, so that it learns of it.
        """
        return self.replicas.start_sync()

    def finish_sync(
        self, batch: GroupCommit | FailedSync, error: OSError | None, now_ms: int
    ) -> None:
        """Take note of a sync's outcome: answer who waited, with success or KAFKA_STORAGE_ERROR.

        `error` is that of the whole; what went wrong in one log directory the batch knows itself.
        """
        self.throttling.now_ms = now_ms
        self.replicas.finish_sync(batch, error, now_ms)
        self._settle()

    # Compaction

    @property
    def compaction_due(self) -> bool:
        """Whether `start_compaction` would return something; only a tick or `finish_compaction` changes it."""
        return self.replicas.compaction_due

    def start_compaction(self) -> Rewriting | None:
        """Return work that compacts a log, None if there is none or some is under way.

        The shell calls `run()`, one bounded step, in any thread, and then `finish_compaction`.
        """
        return self.replicas.start_compaction()

    def finish_compaction(self, task: Rewriting, error: Exception | None, now_ms: int) -> None:
        """Take note of a step's outcome: rewritten segments take the place of the old ones."""
        self.replicas.finish_compaction(task, error, now_ms)
        self._settle()

    # Time

    @property
    def next_deadline_ms(self) -> int | None:
        """When `tick` has something to do next."""
        # Asked after every wake-up of the server, hence spelled out.
        if self.steps:
            return self.steps.next_deadline_ms
        earliest = self.purgatory.next_deadline_ms
        transactions = self.transactions.coordinator.next_deadline_ms
        if transactions is not None and (earliest is None or transactions < earliest):
            earliest = transactions
        groups, replicas = self.groups.next_deadline_ms, self.replicas.next_deadline_ms
        if groups is not None and (earliest is None or groups < earliest):
            earliest = groups
        if replicas is not None and (earliest is None or replicas < earliest):
            earliest = replicas
        deliveries = self.deliveries.next_deadline_ms
        if deliveries is not None and (earliest is None or deliveries < earliest):
            earliest = deliveries
        topics = self.topics.next_deadline_ms
        if topics is not None and (earliest is None or topics < earliest):
            earliest = topics
        writer = self._writer.next_deadline_ms
        if writer is not None and (earliest is None or writer < earliest):
            earliest = writer
        return earliest

    def tick(self, now_ms: int) -> None:
        """Do what is due."""
        self.throttling.now_ms = now_ms
        self._writer.tick(now_ms)
        self.steps.tick()
        self.purgatory.expire(now_ms)
        self.groups.expire(now_ms)
        self.transactions.coordinator.expire(now_ms)
        self.deliveries.tick(now_ms)
        self.replicas.tick(now_ms)
        for partition in self.topics.tick(now_ms):
            self._opened_later(partition, now_ms)
        self._settle()

    def _settle(self) -> None:
        """Pass on the high watermarks that moved, then deliver what is complete, until there is nothing left to do."""
        if self._settling:
            return
        self._settling = True
        if self.purgatory.has_delivered:
            self.purgatory.begin_round()
        if self.steps.has_resumed:
            self.steps.begin_round()
        try:
            if self.replicas.failure is not None and self._groups_are_served:
                self._unload_groups()
            while True:
                while self.replicas.advanced:
                    self._pass_on()
                if not self.purgatory.deliver():
                    return
        finally:
            self._settling = False

    def _pass_on(self) -> None:
        advanced, self.replicas.advanced = self.replicas.advanced, {}
        for partition in advanced:
            if partition.waiters:
                partition.release_waiters()
        for partition in advanced:
            if partition.watchers:
                self.purgatory.notices.add(partition)
            if partition.schedules is not None:
                self.deliveries.advanced(partition)
            elif partition.is_internal:
                name, index = partition.topic_partition
                coordinator = (
                    self.groups if name == OFFSETS_TOPIC else self.transactions.coordinator
                )
                coordinator.high_watermark_advanced(index, partition.high_watermark)
