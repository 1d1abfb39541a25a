"""Exactly once: a transaction for each of Spark's partitions, all of them ended by the driver.

A *batch* is one of a stream's micro-batches, or one batch write with `txnVersion`. It may be tried several times, by
tasks that are repeated and by drivers that come after each other; one that was believed dead may go on. Each of its
partitions has a transactional id of its own, `NAME-PARTITION`.

A task (`write_partition`):
1. takes over its id. From then on no attempt before it can write or commit, and what that one left open is aborted;
2. reads the partition's marker, an offset of the group that is called like the id. Only now, and waiting for offsets
   that are being committed: what was committed before the take-over is there, and nothing can be after it. If it says
   that this batch is written, the rows are counted and not written;
3. writes its rows, commits the marker with them (batch + 1, the number of rows and their size), and hands the
   transaction, which is still open, to the driver.

The driver (`commit_batch`), when Spark has accepted one attempt of each task:
1. takes over the id `NAME-claim`, and reads the claim, an offset of the group that is called like it, or the record
   that was written with it;
2. claims the batch: batch + 1, and how it is divided, in a transaction of that id. If the batch is claimed already it
   has to be divided as the claim says, or be committed as a whole; a later batch is refused;
3. commits the tasks' transactions.

Brokers forget offsets of groups that rest, but not the records of a compacted topic (`claims.py`). A batch that comes
after the last claim was not committed in part, whatever has been forgotten. Of one that is claimed, parts without a
marker may be committed if markers may have been forgotten; then there is an error, for nobody can tell.

A claim is read and written under one id, and nothing of a batch is committed before. It is given up only when the id of
each of its partitions was taken over and none has its marker. So all that is ever committed of a batch is divided
alike, and then each part has one id, under which one attempt wins. Whatever fails in between, the batch is tried again:
parts that are committed have their marker, the others have nothing.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Final

from headrace.clients.flows.offsets import OffsetAndMetadata
from headrace.clients.producer.many import Rows
from headrace.errors import HeadraceError, TransactionError
from headrace.spark.options.sink import Once
from headrace.spark.sink.cluster import Cluster
from headrace.spark.sink.producer import OpenTransaction, RowProducer

_log: Final = logging.getLogger("headrace.spark")

MARKERS_KEPT_MS: Final = 6 * 24 * 3_600_000
"""Brokers keep offsets for seven days unless told otherwise, and markers are a little older than the claim."""


@dataclass(frozen=True)
class PartitionWrite:
    """What a task tells the driver."""

    once: Once
    partition: int
    records: int
    """How many rows it was given."""
    transaction: OpenTransaction | None = None
    """With the rows; None if there are none, or an earlier attempt at the batch has written them."""
    earlier_records: int | None = None
    """How many rows that one has written."""
    size: int = 0
    """How many bytes of keys and values the rows have."""
    earlier_size: int | None = None
    """How many were written; earlier versions did not say."""

    @property
    def repeated(self) -> bool:
        """Whether an earlier attempt at the batch has written its partition."""
        return self.earlier_records is not None


@dataclass(frozen=True)
class BatchClaim:
    """How a batch is divided."""

    partitions: int
    written: int
    """Of these, how many have rows."""
    records: int
    at_ms: int | None = field(default=None, compare=False)
    """When it was claimed; earlier versions did not say."""

    @classmethod
    def of(cls, writes: Sequence[PartitionWrite]) -> BatchClaim:
        """Return what a batch's tasks make."""
        counts = [each.records for each in writes]
        return cls(len(counts), sum(1 for count in counts if count), sum(counts), _now_ms())

    @classmethod
    def parse(cls, text: str) -> BatchClaim:
        """Return what was committed as an offset's metadata."""
        partitions, written, records, *at_ms = map(int, text.split())
        return cls(partitions, written, records, *at_ms)

    def __str__(self) -> str:
        return f"{self.partitions} {self.written} {self.records} {self.at_ms}"


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


@dataclass(frozen=True)
class RowBatch:
    """Rows of a task."""

    count: int
    records: Callable[[], Iterable[Rows]]
    """Makes them records."""
    size: int = 0
    """Of their keys and values, in bytes."""


def write_partition(
    cluster: Cluster, once: Once, partition: int, batches: Iterator[RowBatch]
) -> PartitionWrite:
    """Write a task's rows in a transaction that is left open; without rows there is none.

    Raises:
        HeadraceError: They cannot be written, and the transaction is aborted.
    """
    for first in batches:
        if first.count:
            return _write_rows(cluster, once, partition, chain([first], batches))
    return PartitionWrite(once, partition, 0)


def _write_rows(
    cluster: Cluster, once: Once, partition: int, batches: Iterable[RowBatch]
) -> PartitionWrite:
    name = once.part(partition)
    with cluster.new_producer(name) as producer:
        producer.init_transactions()
        marker = cluster.marker(name)
        if marker is not None and marker.offset > once.version:
            if marker.offset > once.version + 1:
                raise _too_old(once, marker.offset - 1)
            count, size = _amount(batches)
            earlier = [int(each) for each in marker.metadata.split()]
            return PartitionWrite(
                once,
                partition,
                count,
                size=size,
                earlier_records=earlier[0],
                earlier_size=earlier[1] if len(earlier) > 1 else None,
            )
        producer.begin_transaction()
        count, size = _amount(_sent(producer, batches))
        mark = OffsetAndMetadata(once.version + 1, f"{count} {size}")
        cluster.mark(producer, name, mark)
        return PartitionWrite(once, partition, count, producer.hand_over(), size=size)


def _sent(producer: RowProducer, batches: Iterable[RowBatch]) -> Iterator[RowBatch]:
    for batch in batches:
        for rows in batch.records():
            producer.send_rows(rows)
        yield batch


def _amount(batches: Iterable[RowBatch]) -> tuple[int, int]:
    """Return how many rows there are, and their size."""
    count = size = 0
    for batch in batches:
        count += batch.count
        size += batch.size
    return count, size


def commit_batch(
    cluster: Cluster,
    writes: Sequence[PartitionWrite],
    *,
    streaming: bool,
    fail_on_lost_marker: bool = True,
) -> None:
    """Commit what tasks have written, all of one batch.

    Args:
        cluster: Where to.
        writes: What each of the tasks has told.
        streaming: Whether batches are counted from 0, so that after that something is known of earlier ones.
        fail_on_lost_marker: Whether it is an error if there is not.

    Raises:
        HeadraceError: Nothing was committed, or not all of it; the batch is to be repeated.
    """
    once = writes[0].once
    with cluster.new_producer(once.claim) as producer:
        producer.init_transactions()
        offset = cluster.marker(once.claim)
        claim = offset or cluster.kept_claim(once.claim)
        claimed = claim is not None and claim.offset > once.version
        if claim is not None and claim.offset > once.version + 1:
            raise _too_old(once, claim.offset - 1)
        divided = BatchClaim.parse(claim.metadata) if claim is not None and claimed else None
        if fail_on_lost_marker:
            _check_known(writes, claim, divided, forgotten=offset is None, streaming=streaming)
        if divided is None:
            _claim(cluster, producer, once, str(BatchClaim.of(writes)))
        elif not _is_divided_as(divided, writes):
            _settle(cluster, producer, divided, writes)
            return
    failures = cluster.end(_open(writes), committed=True)
    for transaction, error in failures.items():
        raise TransactionError(
            f"batch {once.version} is not committed as a whole, {len(failures)} of {len(writes)} partitions are "
            f"missing: {transaction.transactional_id}: {error}. It is repeated when the query is started again, and "
            "what is committed is not written twice. If it took longer than kafka.transaction.timeout.ms, raise that "
            "(brokers allow transaction.max.timeout.ms), or make batches smaller (maxOffsetsPerTrigger)"
        ) from error


def _check_known(
    writes: Sequence[PartitionWrite],
    claim: OffsetAndMetadata | None,
    divided: BatchClaim | None,
    *,
    forgotten: bool,
    streaming: bool,
) -> None:
    """Check that markers, or that there are none, can be relied on.

    Raises:
        HeadraceError: The batch may be committed in part, and what tells it is gone.
    """
    once = writes[0].once
    if claim is None:
        known = not (streaming and once.version) and not any(each.repeated for each in writes)
    elif divided is None:
        known = not any(
            each.repeated for each in writes
        )  # nothing is committed before it is claimed
    else:
        at_ms = _now_ms() if divided.at_ms is None else divided.at_ms
        old = forgotten or _now_ms() - at_ms > MARKERS_KEPT_MS
        known = not old or all(each.repeated or not each.records for each in writes)
    if not known:
        raise HeadraceError(
            f"nothing is known any more of how far {once.name} is: brokers forget markers when a query has rested for "
            "longer than offsets.retention.minutes (7 days), or its marker or claim topic was deleted, or the query "
            f"was not exactly once before. Whether batch {once.version} was written in part cannot be told. If it was "
            "not, or if that does no harm, start the query once with failOnLostMarker=false"
        )


def _is_divided_as(claim: BatchClaim, writes: Sequence[PartitionWrite]) -> bool:
    """Whether a batch that is repeated has the rows it had, and where it had them; numbers and sizes tell."""
    alike = all(
        each.earlier_records in {None, each.records} and each.earlier_size in {None, each.size}
        for each in writes
    )
    return alike and claim == BatchClaim.of(writes)


def _settle(
    cluster: Cluster, producer: RowProducer, claim: BatchClaim, writes: Sequence[PartitionWrite]
) -> None:
    """Find out what is committed of a batch that is repeated with another division; return if it is all of it.

    Raises:
        HeadraceError: It is a part, or nothing; then the batch is as if it had never been tried.
    """
    once, now = writes[0].once, BatchClaim.of(writes)
    abort_batch(cluster, writes)
    committed = sum(_is_committed(cluster, once, number) for number in range(claim.partitions))
    if committed == claim.written and claim.records == now.records:
        return
    was = (
        f"batch {once.version} of {once.name} was begun as {claim.partitions} partitions of {claim.records} rows, and "
        f"now that it is repeated it has {now.partitions} of {now.records}, or other ones"
    )
    if not committed:
        _claim(cluster, producer, replace(once, version=once.version - 1))
        raise TransactionError(f"{was}. Nothing of it was committed: start it again")
    raise HeadraceError(
        f"{was}. {committed} were committed. Start it with what it had until this batch is done: the same query, "
        "spark.sql.shuffle.partitions, the source's maxTasks, number of cores. Or start it once with "
        "delivery=at_least_once, which writes all rows of the batch again"
    )


def _is_committed(cluster: Cluster, once: Once, partition: int) -> bool:
    """Whether a partition of a batch is; if not, it cannot be any more."""
    name = once.part(partition)
    with cluster.new_producer(name) as producer:
        producer.init_transactions()
        marker = cluster.marker(name)
        return marker is not None and marker.offset > once.version


def _claim(cluster: Cluster, producer: RowProducer, once: Once, divided: str = "") -> None:
    producer.begin_transaction()
    cluster.claim(producer, once.claim, OffsetAndMetadata(once.version + 1, divided))
    producer.commit_transaction()


def _too_old(once: Once, newest: int) -> HeadraceError:
    return HeadraceError(
        f"batch {once.version} of {once.name} is to be written after batch {newest} was: a checkpoint was set back, or "
        "txnVersion does not grow. Whether its rows were written cannot be told; if they are to be, start with a new "
        "checkpoint, or a new txnAppId"
    )


def abort_batch(cluster: Cluster, writes: Sequence[PartitionWrite]) -> None:
    """Abort what tasks have written, as far as it is not committed; what cannot be is aborted when its time is up."""
    for transaction, error in cluster.end(_open(writes), committed=False).items():
        _log.info("%s is not aborted: %s", transaction.transactional_id, error)


def _open(writes: Sequence[PartitionWrite]) -> list[OpenTransaction]:
    return [write.transaction for write in writes if write.transaction is not None]
