"""One partition of which this broker has a replica: its role, its log, and the requests that wait for it.

The requests that wait at a leader wait in one leader epoch. When the leader epoch ends, all of them are completed with
NOT_LEADER_OR_FOLLOWER: the next leader may replace their records. `Replicas` changes the role.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from headrace.broker.log_dirs.log_dir import LogDir
from headrace.broker.waiting.notices import Watcher
from headrace.core.log import AbortedLookup, AbortedTransaction, PartitionLog, SelectiveReading
from headrace.core.replica.acks import AckQueues
from headrace.core.replica.isr import Isr
from headrace.core.replica.progress import ALL_IN_SYNC
from headrace.core.replica.role import NO_EPOCH, UNKNOWN_LEADERSHIP, Role
from headrace.errors import ApiError, ErrorCode
from headrace.types import FileRange, Payload, TopicPartition

Waiter = Callable[[ErrorCode], None]
READ_COMMITTED: Final = 1
Found = tuple[Payload | None, Sequence[AbortedTransaction] | None]
"""Batches, and the aborted transactions with records in them; None for readers of uncommitted records."""


class Partition:
    """A partition of this broker: its log, and the requests that wait for it."""

    __slots__ = (
        "acks",
        "companion",
        "epoch_start_offset",
        "follower_fetches",
        "is_internal",
        "isr",
        "leader_epoch",
        "least_acks",
        "log",
        "log_dir",
        "max_delay_ms",
        "min_insync_replicas",
        "newest",
        "refusal",
        "role",
        "schedules",
        "sync_interval_ms",
        "topic_partition",
        "waiters",
        "watchers",
    )

    def __init__(
        self,
        topic_partition: TopicPartition,
        log: PartitionLog,
        log_dir: LogDir,
        *,
        is_internal: bool,
        sync_interval_ms: int = 0,
    ) -> None:
        """Begin without a role."""
        self.topic_partition = topic_partition
        self.log = log
        self.log_dir = log_dir
        self.role = Role.OFFLINE
        self.leader_epoch = NO_EPOCH
        """The leader epoch of the role."""
        self.newest = UNKNOWN_LEADERSHIP
        """The newest state of the partition, from which the role follows."""
        self.epoch_start_offset = 0
        """The log end offset at which this broker began to lead the partition."""
        self.refusal = ErrorCode.NOT_LEADER_OR_FOLLOWER
        """The error for requests to the partition. NONE while this broker leads it. UNKNOWN_TOPIC_OR_PARTITION after
        the deletion of its topic, KAFKA_STORAGE_ERROR after the failure of its log directory, both for good.
        """
        self.acks: AckQueues[Waiter] | None = None
        """The requests with acks other than -1 that wait while the partition has several replicas. None if this broker
        has the only one: its progress is the high watermark, for which all requests wait.
        """
        self.isr: Isr | None = None
        """The in-sync replicas, while this broker leads a partition with several replicas. None like `acks`."""
        self.follower_fetches: dict[Watcher, None] | None = None
        """The fetches of followers that are notified of every append; None before the first one."""
        self.min_insync_replicas = 1
        """The topic's `min.insync.replicas`. Partitions with one replica do not use it."""
        self.least_acks = 1
        """The topic's `headrace.acks`. Partitions with one replica do not use it."""
        self.is_internal = is_internal
        """Whether the partition belongs to an internal topic. Its records are always synced, whatever the durability
        of topics.
        """
        self.sync_interval_ms = sync_interval_ms
        """The time from the acknowledgement of a record to its sync, in milliseconds; 0 if it is synced before."""
        self.max_delay_ms: int | None = None
        """The longest delay of scheduled records, in milliseconds; None if the topic does not delay records."""
        self.schedules: Partition | None = None
        """The partition itself if it has a schedule; the partition that a schedule belongs to; None for other
        partitions.
        """
        self.companion: Partition | None = None
        """The schedule, which is a partition with the same replicas and the same role; None if there is none, or if it
        is not open yet."""
        self.watchers: dict[Watcher, None] = {}
        """The fetches that are notified when the high watermark moves, or when the partition is not served any more."""
        self.waiters: deque[tuple[int, Waiter]] | None = None
        """The functions to call when the high watermark reaches an offset, in the order of the offsets. None until the
        first one: an empty deque takes 0.7 KB, and a broker may have thousands of partitions."""

    def __repr__(self) -> str:
        return (
            f"Partition({self.topic_partition}, leader_epoch={self.leader_epoch}, log={self.log})"
        )

    @property
    def high_watermark(self) -> int:
        """The offset below which records are durable and visible."""
        return self.log.high_watermark

    @property
    def last_stable_offset(self) -> int:
        """The offset below which no transaction is open; never above the high watermark."""
        return min(self.log.last_stable_offset, self.log.high_watermark)

    @property
    def log_start_offset(self) -> int:
        """The offset of the first record in the log."""
        return self.log.log_start_offset

    def visible_end(self, isolation_level: int) -> int:
        """Return the offset below which a consumer of this isolation level may read."""
        if isolation_level == READ_COMMITTED:
            return self.last_stable_offset
        return self.log.high_watermark

    def read(
        self, offset: int, *, max_bytes: int, up_to: int, minimum_one: bool
    ) -> FileRange | None:
        """Return whole batches from the batch that contains `offset` on; see `PartitionLog.read`."""
        return self.log.read(offset, max_bytes=max_bytes, up_to=up_to, minimum_one=minimum_one)

    def select(
        self,
        offset: int,
        reading: SelectiveReading,
        *,
        max_bytes: int,
        isolation_level: int,
        minimum_one: bool,
        lookup: AbortedLookup,
        among: int = 1,
    ) -> Found:
        """Return the records for a selective reader, and the aborted transactions with records among them."""
        found = reading.select(
            self.log,
            offset,
            max_bytes=max_bytes,
            up_to=self.visible_end(isolation_level),
            minimum_one=minimum_one,
            among=among,
        )
        if found is None:
            return self.with_aborted(offset, None, isolation_level, lookup)
        if isinstance(found.records, FileRange):
            return self.with_aborted(found.start_offset, found.records, isolation_level, lookup)
        if isolation_level != READ_COMMITTED:
            return found.records, None
        return lookup.within_selected(self.log, found)

    def with_aborted(
        self, offset: int, found: FileRange | None, isolation_level: int, lookup: AbortedLookup
    ) -> Found:
        """Return a range for a response, and the aborted transactions with records in it.

        Raises:
            StorageError: The index of aborted transactions cannot be read.
        """
        if isolation_level != READ_COMMITTED:
            return found, None
        if found is None:
            return None, ()
        return lookup.within_range(self.log, offset, found)

    def available_bytes(
        self, offset: int, *, enough: int, max_bytes: int, isolation_level: int
    ) -> int:
        """Return how many bytes a fetch at `offset` would get that waits for `enough` bytes.

        A read ends with its segment. If the next segment has records, a wait would not help; this counts as enough.
        """
        end = self.visible_end(isolation_level)
        found = self.log.read(offset, max_bytes=max_bytes, up_to=end, minimum_one=True)
        if found is None:
            return 0
        if len(found) < enough:
            newest = self.log.read(end - 1, max_bytes=1, up_to=end, minimum_one=True)
            if newest is not None and newest.file is not found.file:
                return enough
        return len(found)

    def check_leader_epoch(self, current_leader_epoch: int) -> None:
        """Compare a client's leader epoch with the partition's (KIP-320), and check that this broker leads it.

        Args:
            current_leader_epoch: The leader epoch that the client knows; -1 if it sends none.

        Raises:
            ApiError: FENCED_LEADER_EPOCH or UNKNOWN_LEADER_EPOCH, otherwise `refusal`.
        """
        if current_leader_epoch >= 0 and current_leader_epoch != self.leader_epoch:
            code = (
                ErrorCode.FENCED_LEADER_EPOCH
                if current_leader_epoch < self.leader_epoch
                else ErrorCode.UNKNOWN_LEADER_EPOCH
            )
            raise ApiError(code, f"{self.topic_partition} is at leader epoch {self.leader_epoch}")
        if self.refusal:
            raise self.refused()

    def refused(self) -> ApiError:
        """Return the error of a request that this broker refuses."""
        reason = f"this broker is not the leader of {self.topic_partition}"
        if self.refusal is not ErrorCode.NOT_LEADER_OR_FOLLOWER:
            reason = f"{self.topic_partition} was deleted or is offline"
        return ApiError.for_code(self.refusal, reason)

    @property
    def gone(self) -> bool:
        """Whether its topic was deleted, or its log directory has failed."""
        return bool(self.refusal) and self.refusal is not ErrorCode.NOT_LEADER_OR_FOLLOWER

    def lost_since(self, leader_epoch: int) -> ErrorCode:
        """Return why what was appended in a leader epoch may be lost; NONE if this broker still leads in that epoch."""
        if not self.refusal and leader_epoch != self.leader_epoch:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        return self.refusal

    # Role

    def lead(self, leader_epoch: int, isr: Isr | None) -> None:
        """Begin to lead the partition.

        Args:
            leader_epoch: The leader epoch, above all earlier ones.
            isr: The in-sync replicas; None if this broker has the only replica.
        """
        if self.role is Role.LEADER:
            self.fail_waiters(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        self.log.become_leader(leader_epoch)
        self.log.follows = False
        self.role, self.leader_epoch = Role.LEADER, leader_epoch
        self.epoch_start_offset = self.log.log_end_offset
        self.isr = isr
        self.acks = None if isr is None else AckQueues(isr.progress)
        if self.refusal is ErrorCode.NOT_LEADER_OR_FOLLOWER:
            self.refusal = ErrorCode.NONE

    def resign(self, role: Role, leader_epoch: int) -> None:
        """Become a follower, or go offline. Requests that wait are completed with NOT_LEADER_OR_FOLLOWER."""
        self.role, self.leader_epoch = role, leader_epoch
        self.log.follows = True
        if not self.refusal:
            self.refusal = ErrorCode.NOT_LEADER_OR_FOLLOWER
        self.fail_waiters(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        self.acks = self.isr = None
        self.notify_watchers()

    def require_in_sync(self, acks: int) -> None:
        """Check that enough replicas are in sync for an append.

        Args:
            acks: The number of in-sync replicas that have to have the records; -1 for all of them.

        Raises:
            ApiError: NOT_ENOUGH_REPLICAS, or INVALID_REQUIRED_ACKS if the partition never has so many replicas. The
                error of the partition if this broker does not lead it.
        """
        if self.refusal:
            raise self.refused()
        isr = self.isr
        count = 1 if isr is None else isr.replicas_count
        least = max(acks, min(self.least_acks, count))
        if acks > count:
            raise ApiError(
                ErrorCode.INVALID_REQUIRED_ACKS,
                f"acks={acks}, and {self.topic_partition} has {count} replicas",
            )
        is_below_min = isr is not None and isr.is_below_min and acks == ALL_IN_SYNC
        if isr is None or (isr.size >= least and not is_below_min):
            return
        wanted = f"acks={acks}" if acks == least else f"headrace.acks={self.least_acks}"
        if is_below_min:
            wanted = f"min.insync.replicas={self.min_insync_replicas}"
        raise ApiError(
            ErrorCode.NOT_ENOUGH_REPLICAS,
            f"{self.topic_partition} has {isr.size} replicas in sync: too few for {wanted}",
        )

    # Waiting

    def effective_acks(self, acks: int) -> int:
        """Return the `acks` with which a request waits: at least the topic's `headrace.acks`, and -1 stays -1."""
        if self.isr is None or acks == ALL_IN_SYNC:
            return acks
        return max(acks, min(self.least_acks, self.isr.replicas_count))

    def wait(self, acks: int, end_offset: int, waiter: Waiter) -> None:
        """Call `waiter(NONE)` when records up to `end_offset` are acknowledged, or with the error that prevents it.

        Args:
            acks: The `acks` of the request; see `Progress.acknowledged_end`.
            end_offset: The offset after the last record.
            waiter: The function to call.
        """
        if self.acks is not None and acks != ALL_IN_SYNC:
            self.acks.add(self.effective_acks(acks), end_offset, waiter)
        elif self.waiters is None:
            self.waiters = deque([(end_offset, waiter)])
        else:
            self.waiters.append((end_offset, waiter))

    def await_high_watermark(self, end_offset: int, waiter: Waiter) -> None:
        """Call `waiter(NONE)` when the high watermark reaches `end_offset`, or with the error that prevents it.

        Offsets come in ascending order, as appends do. (The retry of a batch may come with an earlier one:
        then it waits for what was appended before it, which one sync makes durable together.)
        """
        if self.waiters is None:
            self.waiters = deque([(end_offset, waiter)])
        else:
            self.waiters.append((end_offset, waiter))

    def release_waiters(self) -> None:
        """Answer the produces that the high watermark has passed."""
        high_watermark = self.log.high_watermark
        waiters = self.waiters
        while waiters and waiters[0][0] <= high_watermark:
            waiters.popleft()[1](ErrorCode.NONE)

    def fail_waiters(self, error: ErrorCode) -> None:
        """Answer all waiting produces with an error."""
        waiters, self.waiters = self.waiters, None
        waiting = [waiter for _, waiter in waiters or ()]
        if self.acks is not None:
            waiting += self.acks.clear()
        for waiter in waiting:
            waiter(error)

    def fail_unreachable_waiters(self) -> None:
        """Complete the requests that wait for more replicas than are in sync."""
        if self.isr is None or self.acks is None:
            return
        waiting, least = self.acks.clear_above(self.isr.size), self.effective_acks(1)
        if self.isr.is_below_min or self.isr.size < least:
            waiting += [waiter for _, waiter in self.waiters or ()]
            self.waiters = None
        for waiter in waiting:
            waiter(ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND)

    def notify_followers(self) -> None:
        """Let the fetches of followers check the partition: it has new records."""
        for watcher in list(self.follower_fetches or ()):
            watcher.partition_changed(self)

    def notify_watchers(self) -> None:
        """Let the fetches that watch the partition check it again."""
        for watcher in list(self.watchers):
            watcher.partition_changed(self)

    def mark_gone(self, error: ErrorCode) -> None:
        """Fail all requests that wait: the partition is not served any more, whatever its role."""
        self.refusal = error
        self.fail_waiters(error)
        self.notify_watchers()
