"""The broker: one synchronous object. It gets requests, the time, and the results of syncs.

A shell owns it: the TCP server, a program with an embedded broker, a test, or a simulation. The shell calls `open`
first. Then it calls from one thread: `handle` for every request, `tick` when `next_deadline_ms` is reached,
`start_sync` and `finish_sync` around each group commit, and at the end `close`.

A response that has to wait is a `Deferred`. The broker resolves deferreds last, when no state is being changed
(`_settle`): the server may call `handle` with the next request as soon as a deferred is resolved. That inner call finds
consistent state, and leaves the delivery of its own deferreds to the outer call.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import GeneratorType
from typing import Any, TypeVar

from headrace.broker.apis import AdvertisedApis, Api
from headrace.broker.cluster.draining import Draining
from headrace.broker.configs.loggers import Loggers
from headrace.broker.context import RequestContext
from headrace.broker.coordinators.loading import load_at_start
from headrace.broker.dispatch import APIS, CHANGING, HANDLERS, throttle
from headrace.broker.environment import Environment
from headrace.broker.handlers import api_versions
from headrace.broker.log_dirs.background_sync import warn_of_losses
from headrace.broker.log_dirs.group_commit import FailedSync, GroupCommit
from headrace.broker.log_dirs.log_dirs import UnusableDirectory, no_storages
from headrace.broker.partitions.topic import CheckConfig, Topic, accept_any
from headrace.broker.peers import LocalPeers
from headrace.broker.quotas.client_quotas import ClientQuotas
from headrace.broker.quotas.throttling import Throttled
from headrace.broker.replication.partition import Partition
from headrace.broker.services import open_services
from headrace.broker.session import LOCAL, Session
from headrace.broker.topic_names import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from headrace.broker.waiting.steps import LARGE_REQUEST_BYTES, Work
from headrace.config.broker import BrokerConfig
from headrace.core.coordinator.runtime import Reply
from headrace.core.log import Rewriting, RunTasks, run_in_turn
from headrace.deferred import Deferred
from headrace.ports import Entropy, FileSystem, Journal, MetadataStore, OpenStorage, Peers
from headrace.protocol.codec import Message
from headrace.protocol.messages.api_versions import ApiVersionsResponse

T = TypeVar("T")


class Broker:
    """One Kafka broker, without I/O of its own."""

    _settling = _groups_are_served = False

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
        check_topic_config: CheckConfig = accept_any,
        loggers: Loggers | None = None,
        peers: Peers | None = None,
        boot_id: str | None = None,
    ) -> None:
        """Make the services of the broker, and load their state from the metadata store.

        Topics, logs and groups are loaded by `open`. The caller still owns the files and the metadata store.

        Args:
            config: The configuration.
            files: The first log directory.
            further: The other log directories.
            metadata: The metadata store.
            entropy: The source of random numbers.
            journal: Receives the log events.
            run_tasks: Runs the tasks of a recovery, in parallel if the shell has threads.
            storages: Opens the storage that a topic names in `headrace.storage`.
            segment_files: The greatest number of open segment files; None for no limit.
            check_topic_config: Raises ConfigError for the configuration of a topic that clients may not set.
            loggers: The loggers whose levels clients can change; None if there are none.
            peers: Sends requests to the brokers of the cluster; None for a single broker.
            boot_id: An id that changes when the machine starts; None if it is unknown.

        Raises:
            ConfigError: The configuration is invalid, see `open_services`; or another broker of the cluster has the
                same broker id.
            StorageError: A stored entry cannot be read, or belongs to another broker.
        """
        environment = Environment(
            files=files,
            further=further,
            metadata=metadata,
            entropy=entropy,
            journal=journal,
            run_tasks=run_tasks,
            storages=storages,
            segment_files=segment_files,
            check_topic_config=check_topic_config,
            loggers=Loggers() if loggers is None else loggers,
            peers=peers or LocalPeers(config.broker_id, self.handle, lambda: self.services),
            is_clustered=peers is not None,
            boot_id=boot_id,
        )
        self._apis = AdvertisedApis(APIS)
        self._in_memory = files.describe().in_memory
        self.services = open_services(config, environment, self._apis)
        """The parts of the broker."""

    # Open and close

    def open(self, now_ms: int) -> None:
        """Load topics, logs and groups. `handle` may be called afterwards; `tick` loads what is left of many groups.

        Raises:
            StorageError: A stored topic or log cannot be read, or the broker cannot register in its cluster.
        """
        services = self.services
        services.time.now_ms = now_ms
        topics, groups = services.topics, services.offsets_topic
        topics.load()
        services.deliveries.load(topics, services.partitions, now_ms)
        load_at_start(groups.loading, groups.begin_all(), services.transactions.begin_all())
        self._groups_are_served = True
        services.replicas.on_role = self._role_changed
        topics.on_opened = self._opened_later
        if services.member is not None:
            services.member.start()
        if not self._in_memory:
            warn_of_losses(topics.defaults, topics, services.journal)
        self._settle()

    def _role_changed(self, partition: Partition) -> None:
        """Begin or end what the leader of a partition does: schedules, and the coordination of internal topics."""
        services, (name, index) = self.services, partition.topic_partition
        services.deliveries.role_changed(partition, services.time.now_ms)
        services.transactions.remote.role_changed(partition.topic_partition)
        if name == OFFSETS_TOPIC:
            services.offsets_topic.end(index)
        elif name == TRANSACTIONS_TOPIC:
            services.transactions.end(index)
        self._opened_later(partition)

    def _opened_later(self, partition: Partition) -> None:
        """Coordinate a partition of an internal topic that was opened after the start, if this broker leads it."""
        if partition.refusal:
            return
        name, index = partition.topic_partition
        if name == OFFSETS_TOPIC:
            self.services.offsets_topic.begin(index)
        elif name == TRANSACTIONS_TOPIC:
            self.services.transactions.begin(index)

    def drain(self, now_ms: int) -> Draining | None:
        """Begin a controlled shutdown: the controller moves the leadership of partitions to other brokers.

        Returns:
            The progress; None without a cluster.
        """
        services = self.services
        if services.member is None:
            return None
        services.time.now_ms = now_ms
        draining = Draining(services.member, services.replicas)
        self._settle()
        return draining

    def close(self, now_ms: int) -> None:
        """Write everything to the files, and mark the shutdown as clean. No sync may be in flight.

        The broker no longer follows the metadata store, which stays open.

        Raises:
            OSError: The shutdown could not be marked as clean; the next start recovers the logs.
        """
        self.services.metadata.close()
        self.services.log_store.close(now_ms)

    @property
    def failed(self) -> bool:
        """Whether the first log directory has failed, or another process of this broker has begun.

        The process should end with an error then.
        """
        return self.services.log_store.failure is not None

    @property
    def config(self) -> BrokerConfig:
        """The configuration in force; another object after every change."""
        return self.services.settings.config

    @property
    def quotas(self) -> ClientQuotas:
        """The quotas of clients. While `quotas.active` is true, the shell calls `throttle` after `handle`."""
        return self.services.quotas

    @property
    def apis(self) -> tuple[Api, ...]:
        """The APIs and versions that ApiVersions reports."""
        return self._apis.rows

    # Requests

    def handle(self, context: RequestContext, request: Message) -> Message | Deferred[Any] | None:
        """Handle one request.

        Returns:
            The response, now or deferred, or None if the request gets no response.

        Raises:
            CloseConnection: The connection has to be closed instead.
        """
        handle = HANDLERS[request.API_KEY, context.header.api_version]
        services = self.services
        if context.now_ms >= context.session.valid_until_ms:
            services.authenticator.gate(context, request.API_KEY)
        services.time.now_ms = context.now_ms
        try:
            handled: Any = handle(services, context, request)
            if type(handled) is GeneratorType:
                finishes = request.API_KEY in CHANGING
                is_large = context.request_bytes > LARGE_REQUEST_BYTES
                handled = services.steps.run(
                    handled, context.session, finishes=finishes, postponed=is_large
                )
            reply: Message | Deferred[Any] | None = handled
        finally:
            self._settle()
        if isinstance(reply, Deferred) and reply.done:
            value: Message | None = reply.value
            return value
        return reply

    def finish_in_steps(self, work: Work[T], session: Session) -> T | Deferred[T]:
        """Do work on a response after `handle`, such as its encoding. `tick` does the later steps of the work.

        The next request of the connection waits until the work is done. If an earlier request is being handled in
        steps, this response belongs to a request that was delayed, and only its own delivery waits.
        """
        return self.services.steps.run(work, LOCAL if session.busy else session)

    def throttle(
        self,
        context: RequestContext,
        request: Message,
        reply: Message | Deferred[Any] | None,
        *,
        request_bytes: int,
        used_us: int,
    ) -> Throttled:
        """Charge a request to the quotas of its client.

        The shell calls this method after `handle`, while `quotas.active` is true.

        Args:
            context: The context of the request.
            request: The request.
            reply: The result of `handle`.
            request_bytes: The size of the request.
            used_us: The time to decode and `handle` the request, in microseconds. The encoding of the response and
                later steps are charged with the next request, by `Session.unpaid_us`.

        Returns:
            The reply to send instead, and for how long the shell must not read from the client. A deferred reply may
            also have a pause in its `throttle_time_ms` when it is resolved.
        """
        return throttle(
            self.services.throttling,
            context,
            request,
            reply,
            request_bytes=request_bytes,
            used_us=used_us,
        )

    def unsupported_version(self) -> ApiVersionsResponse:
        """Return the response to an ApiVersions request of unknown version. The shell encodes it as version 0."""
        return api_versions.unsupported(self.services)

    def delete_topic(self, topic: Topic, now_ms: int) -> Reply[Any]:
        """Delete a topic and the offsets that groups have committed for it. The reply waits until that is durable.

        The value of the reply is an ApiError if the deletion fails in a later step.

        Raises:
            ApiError: KAFKA_STORAGE_ERROR.
        """
        services = self.services
        services.time.now_ms = now_ms
        return services.steps.run(services.topic_admin.delete_in_steps(topic), finishes=True)

    # Group commit

    @property
    def sync_due(self) -> bool:
        """Whether `start_sync` would return something. The shell may ask after every request."""
        return self.services.log_store.sync_due

    def start_sync(self) -> GroupCommit | FailedSync | None:
        """Return the logs to sync; None if there are none, or if a sync is in flight.

        The shell calls `run()` of the result in any thread, and `finish_sync` afterwards. When the broker has `failed`,
        `run` raises the error, so that the shell learns of it.
        """
        return self.services.log_store.start_sync()

    def finish_sync(
        self, batch: GroupCommit | FailedSync, error: OSError | None, now_ms: int
    ) -> None:
        """Complete the requests that waited for a sync, with success or KAFKA_STORAGE_ERROR.

        `error` is the error of the sync as a whole. `batch` has the errors of single log directories.
        """
        services = self.services
        services.time.now_ms = now_ms
        services.replicas.synced(services.log_store.finish_sync(batch, error, now_ms))
        self._settle()

    # Compaction

    @property
    def compaction_due(self) -> bool:
        """Whether `start_compaction` would return something. Only a tick or `finish_compaction` changes it."""
        return self.services.log_store.compaction_due

    def start_compaction(self) -> Rewriting | None:
        """Return a compaction of a log; None if there is none to do, or one is in flight.

        The shell calls `run()`, which does one bounded step, in any thread, and `finish_compaction` afterwards.
        """
        return self.services.log_store.start_compaction()

    def finish_compaction(self, task: Rewriting, error: Exception | None, now_ms: int) -> None:
        """Complete a step of a compaction: the rewritten segments replace the old ones."""
        self.services.log_store.finish_compaction(task, error, now_ms)
        self._settle()

    # Time

    @property
    def next_deadline_ms(self) -> int | None:
        """The time at which `tick` has something to do next; None if there is no such time."""
        # The server reads this property after every wake-up, hence no loop.
        services = self.services
        if services.steps:
            return services.steps.next_deadline_ms
        earliest = services.purgatory.next_deadline_ms
        transactions = services.transactions.coordinator.next_deadline_ms
        if transactions is not None and (earliest is None or transactions < earliest):
            earliest = transactions
        groups, logs = services.groups.next_deadline_ms, services.log_store.next_deadline_ms
        if groups is not None and (earliest is None or groups < earliest):
            earliest = groups
        if logs is not None and (earliest is None or logs < earliest):
            earliest = logs
        deliveries = services.deliveries.next_deadline_ms
        if deliveries is not None and (earliest is None or deliveries < earliest):
            earliest = deliveries
        topics = services.topics.opening.next_deadline_ms
        if topics is not None and (earliest is None or topics < earliest):
            earliest = topics
        metadata = services.metadata.next_deadline_ms
        if metadata is not None and (earliest is None or metadata < earliest):
            earliest = metadata
        return earliest

    def tick(self, now_ms: int) -> None:
        """Do everything whose deadline has passed."""
        services = self.services
        services.time.now_ms = now_ms
        services.metadata.tick(now_ms)
        services.steps.tick()
        services.purgatory.expire(now_ms)
        services.groups.expire(now_ms)
        services.transactions.coordinator.expire(now_ms)
        services.deliveries.tick(now_ms)
        services.log_store.tick(now_ms)
        services.topics.tick(now_ms)
        self._settle()

    def _settle(self) -> None:
        """Report the high watermarks that have moved and deliver complete responses, until nothing is left to do."""
        if self._settling:
            return
        self._settling = True
        services = self.services
        purgatory, replicas = services.purgatory, services.replicas
        if purgatory.has_delivered:
            purgatory.begin_round()
        if services.steps.has_resumed:
            services.steps.begin_round()
        try:
            if services.log_store.failure is not None and self._groups_are_served:
                self._unload_groups()
            while True:
                while replicas.advanced:
                    self._report_high_watermarks()
                if not purgatory.deliver():
                    return
        finally:
            self._settling = False

    def _unload_groups(self) -> None:
        """Stop serving groups and transactions: the first log directory has failed."""
        self._groups_are_served = False
        self.services.offsets_topic.end_all()
        self.services.transactions.end_all()

    def _report_high_watermarks(self) -> None:
        services = self.services
        advanced, services.replicas.advanced = services.replicas.advanced, {}
        for partition in advanced:
            if partition.waiters:
                partition.release_waiters()
        for partition in advanced:
            if partition.watchers:
                services.purgatory.notices.add(partition)
            if partition.schedules is not None:
                services.deliveries.advanced(partition)
            elif partition.is_internal:
                name, index = partition.topic_partition
                coordinator = (
                    services.groups if name == OFFSETS_TOPIC else services.transactions.coordinator
                )
                coordinator.high_watermark_advanced(index, partition.high_watermark)
