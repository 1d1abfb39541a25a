"""The follower's side of replication: one fetch loop for each leader broker.

A loop has one request in flight. The request reports the progress of all partitions that the leader broker leads, and
asks for their next records. It uses a fetch session, so that partitions without news cost nothing. The next request is
sent when all records of the last response are appended, and synced if they have to be: its offsets are promises.

A request without a response, or a response with an error, ends the session: the next request names all partitions
again. A partition with an error is left out for a while, at most for `replica.fetch.backoff.ms`. Often the leader has
changed, and the image will say so.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from headrace.broker.context import LatestTime
from headrace.broker.replication.fetch_plan import FetchPlan
from headrace.broker.replication.follower_log import FollowerLogs
from headrace.broker.replication.partition import Partition
from headrace.broker.replication.replicas import Replicas
from headrace.broker.topic_names import is_schedule
from headrace.broker.waiting.purgatory import Alarm, Purgatory
from headrace.config.broker import BrokerConfig
from headrace.core.replica.following import (
    Append,
    BeginAt,
    Decision,
    Fetched,
    Stop,
    Truncate,
)
from headrace.core.replica.role import Role
from headrace.errors import ApiError, ErrorCode, StorageError
from headrace.ports import Journal, Peers
from headrace.protocol.messages.fetch import FetchResponse, PartitionData
from headrace.types import FileRange

STOPPED_MS: Final = 60_000
"""The time until a replica that has stopped fetches again, in milliseconds: its leader may be repaired meanwhile."""
FIRST_BACKOFF_MS: Final = 20
"""The first pause of a partition that its leader refuses, in milliseconds. Often the leader does not know yet that it
leads. The pause doubles up to `replica.fetch.backoff.ms`."""
TIMEOUT_MS: Final = 10_000
"""The longest time beyond `replica.fetch.wait.max.ms` after which a follower gives up a request, in milliseconds. It is
less with a short `replica.lag.time.max.ms`, a third of which may pass: a lost request must not remove a replica."""
SHORTEST_TIMEOUT_MS: Final = 1_000
"""The shortest such time, in milliseconds."""

_SESSION_ERRORS: Final = frozenset(
    {
        ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
        ErrorCode.INVALID_FETCH_SESSION_EPOCH,
        ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
    }
)
"""The errors of a leader that does not know the fetch session: the next request begins another one."""


class Fetchers:
    """The fetch loops of a broker."""

    __slots__ = (
        "_config",
        "_journal",
        "_logs",
        "_loops",
        "_peers",
        "_purgatory",
        "_replicas",
        "_time",
    )

    def __init__(
        self,
        replicas: Replicas,
        peers: Peers,
        config: BrokerConfig,
        *,
        purgatory: Purgatory,
        time: LatestTime,
        journal: Journal,
    ) -> None:
        """Follow the roles of the replicas from now on."""
        self._replicas = replicas
        self._peers = peers
        self._config = config
        self._purgatory = purgatory
        self._time = time
        self._journal = journal
        self._logs = FollowerLogs(replicas)
        self._loops: dict[int, _Loop] = {}
        """The loops by the id of the leader broker."""
        replicas.on_follow = self._role_changed
        replicas.on_synced_follower = self._synced

    def _role_changed(self, partition: Partition) -> None:
        for each in self._loops.values():
            each.remove(partition)
        if is_schedule(partition.topic_partition):
            return  # the leader says whether it has one
        if partition.role is not Role.FOLLOWER or partition.gone:
            return
        leader = partition.newest.leader
        loop = self._loops.get(leader)
        if loop is None:
            loop = self._loops[leader] = _Loop(
                leader,
                self._replicas,
                self._peers,
                self._logs,
                config=self._config,
                purgatory=self._purgatory,
                time=self._time,
                journal=self._journal,
            )
        loop.add(partition)

    def _synced(self, partition: Partition) -> None:
        loop = self._loops.get(partition.newest.leader)
        if loop is not None:
            loop.synced(partition)


class _Loop:
    """The fetch loop for one leader broker."""

    __slots__ = (
        "_backoff_ms",
        "_delayed",
        "_failures",
        "_is_in_flight",
        "_is_scheduled",
        "_journal",
        "_leader",
        "_logs",
        "_pauses",
        "_peers",
        "_plan",
        "_purgatory",
        "_replicas",
        "_time",
        "_timeout_ms",
        "_tries",
        "_unsynced",
        "_wait_ms",
    )

    def __init__(
        self,
        leader: int,
        replicas: Replicas,
        peers: Peers,
        logs: FollowerLogs,
        *,
        config: BrokerConfig,
        purgatory: Purgatory,
        time: LatestTime,
        journal: Journal,
    ) -> None:
        self._leader = leader
        self._replicas = replicas
        self._peers = peers
        self._logs = logs
        self._purgatory = purgatory
        self._time = time
        self._journal = journal
        self._backoff_ms = config.replica_fetch_backoff_ms
        self._wait_ms = config.replica_fetch_wait_max_ms
        within_lag_ms = max(SHORTEST_TIMEOUT_MS, config.replica_lag_time_max_ms // 3)
        self._timeout_ms = self._wait_ms + min(TIMEOUT_MS, within_lag_ms)
        self._plan = FetchPlan(
            config.replica_fetch_max_bytes, config.replica_fetch_response_max_bytes
        )
        self._delayed: dict[Partition, int] = {}
        """The partitions that are left out after an error, each with the leader epoch of its role."""
        self._tries: dict[Partition, int] = {}
        """The number of retries of partitions that the leader has refused since it last accepted a fetch."""
        self._unsynced: dict[Partition, None] = {}
        """The partitions whose last records are not synced, although they have to be."""
        self._failures = 0
        """The number of requests since the last response without an error."""
        self._is_in_flight = False
        self._pauses = False
        """Whether the loop pauses after an error."""
        self._is_scheduled = False
        """Whether `_send` will be called when no state is being changed."""

    def add(self, partition: Partition) -> None:
        """Fetch a partition from now on."""
        self._plan.add(partition)
        self._send_soon()

    def remove(self, partition: Partition) -> None:
        """Fetch a partition no longer."""
        self._plan.remove(partition)
        self._delayed.pop(partition, None)
        self._tries.pop(partition, None)
        self._unsynced.pop(partition, None)
        self._send_soon()

    def synced(self, partition: Partition) -> None:
        """Continue if everything that was appended is synced."""
        if partition in self._unsynced and self._plan.is_ready(partition):
            del self._unsynced[partition]
            self._send_soon()

    def _later(self, what: Callable[[], object], delay_ms: int | None = None) -> None:
        delay_ms = self._backoff_ms if delay_ms is None else delay_ms
        self._purgatory.add(Alarm(what), self._time.now_ms + delay_ms)

    # Requests

    def _send_soon(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            self._purgatory.deliver_later(self._send)

    def _send(self) -> None:
        self._is_scheduled = False
        if self._is_in_flight or self._pauses or self._unsynced or not self._plan:
            return
        self._unsynced = dict.fromkeys(self._plan.unready())
        if self._unsynced:
            return
        replicas = self._replicas
        request = self._plan.request(replicas.broker_id, replicas.registration, self._wait_ms)
        self._is_in_flight = True
        deadline_ms = self._time.now_ms + self._timeout_ms
        self._peers.send(self._leader, request, deadline_ms).on_done(self._received)

    def _received(self, response: FetchResponse | ApiError) -> None:
        self._is_in_flight = False
        if isinstance(response, ApiError):
            self._failed(response.code, is_refused=False)
            return
        if code := _refusal(response):
            self._failed(code, is_refused=True)
            return
        self._failures = 0
        for partition, data in self._plan.received(response):
            self._handle(partition, data)
        self._send_soon()

    def _failed(self, code: ErrorCode, *, is_refused: bool) -> None:
        """Begin another session: at once if the leader has lost the session, otherwise after a pause."""
        self._plan.end_session()
        self._failures += 1
        if code in _SESSION_ERRORS and self._failures == 1:
            self._send_soon()
            return
        if is_refused and self._failures == 1:
            self._journal.error("follower_fetch_refused", leader=self._leader, error=code.name)
        self._pauses = True
        self._later(self._end_pause)

    def _end_pause(self) -> None:
        self._pauses = False
        self._send_soon()

    # Responses

    def _handle(self, partition: Partition, data: PartitionData) -> None:
        code = ErrorCode(data.error_code)
        is_out_of_range = code is ErrorCode.OFFSET_OUT_OF_RANGE
        if code and not is_out_of_range:
            tries = self._tries[partition] = self._tries.get(partition, -1) + 1
            self._delay(partition, min(self._backoff_ms, FIRST_BACKOFF_MS << min(tries, 10)))
            return
        self._tries.pop(partition, None)
        diverging = data.diverging_epoch
        fetched = Fetched(
            data.high_watermark,
            data.log_start_offset,
            None if diverging is None else (diverging.epoch, diverging.end_offset),
            is_out_of_range=is_out_of_range,
        )
        decision = self._plan.decide(partition, fetched)
        if decision is None:
            if is_out_of_range:
                self._delay(partition)
            self._plan.end_session()  # the leader takes for known what was not taken
            return
        try:
            self._apply(partition, decision, fetched, data)
        except (ApiError, StorageError, OSError) as error:
            self._journal.error(
                "replication_failed",
                partition=str(partition.topic_partition),
                leader=self._leader,
                error=str(error),
            )
            self._delay(partition)

    def _apply(
        self, partition: Partition, decision: Decision, fetched: Fetched, data: PartitionData
    ) -> None:
        now_ms = self._time.now_ms
        if isinstance(decision, Append):
            records = data.records
            if records:
                buffer = records.read() if isinstance(records, FileRange) else records
                self._logs.append(partition, buffer, now_ms)
                self._plan.moved(partition)
            if self._logs.take_offsets(partition, fetched, now_ms):
                self._plan.moved(partition)
            if data.headrace_schedule:
                self._follow_schedule(partition)
        elif isinstance(decision, Truncate):
            self._logs.truncate(partition, decision.end_offset, now_ms)
            self._plan.moved(partition)
            self._journal.info(
                "log_truncated",
                partition=str(partition.topic_partition),
                leader=self._leader,
                leader_epoch=partition.leader_epoch,
                end_offset=partition.log.log_end_offset,
            )
        elif isinstance(decision, BeginAt):
            self._logs.begin_at(partition, decision.offset, now_ms)
            self._plan.moved(partition)
        else:
            self._stop(partition, decision)

    def _follow_schedule(self, partition: Partition) -> None:
        """Fetch the schedule of a partition too: the leader has one.

        Raises:
            ApiError: KAFKA_STORAGE_ERROR: the schedule cannot be opened now.
        """
        schedule = self._replicas.open_schedule(partition, self._time.now_ms)
        if schedule is None or schedule in self._plan or schedule in self._delayed:
            return
        if schedule.role is Role.FOLLOWER and schedule.leader_epoch == partition.leader_epoch:
            self.add(schedule)

    def _stop(self, partition: Partition, stop: Stop) -> None:
        self._journal.error(
            "replica_stopped",
            partition=str(partition.topic_partition),
            leader=self._leader,
            leader_epoch=partition.leader_epoch,
            reason=stop.reason,
        )
        self._delay(partition, STOPPED_MS)

    def _delay(self, partition: Partition, delay_ms: int | None = None) -> None:
        """Leave a partition out for a while; None is `replica.fetch.backoff.ms`."""
        self._plan.remove(partition)
        self._unsynced.pop(partition, None)
        self._delayed[partition] = partition.leader_epoch
        self._later(partial(self._resume, partition), delay_ms)

    def _resume(self, partition: Partition) -> None:
        is_present = self._delayed.pop(partition, None) == partition.leader_epoch
        if is_present and partition.role is Role.FOLLOWER:  # its directory may have failed
            self.add(partition)


def _refusal(response: FetchResponse) -> ErrorCode:
    """Return the error of a whole fetch; NONE if there is none.

    A leader that does not authorize the follower's principal refuses each partition with the same error, as Kafka does.
    """
    if not response.error_code and response.responses and response.responses[0].partitions:
        code = ErrorCode(response.responses[0].partitions[0].error_code)
        return code if code is ErrorCode.TOPIC_AUTHORIZATION_FAILED else ErrorCode.NONE
    return ErrorCode(response.error_code)
