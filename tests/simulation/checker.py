"""The invariants of a simulation run, checked after every step of the broker and at the end of the run.

Messages of violations have the number of the invariant:

* 1: acknowledged data is durable
* 3: the high watermark never moves back, and never passes the log end offset
* 6, 7, 8: once a batch was readable, its offset never has another batch; offsets have no gaps; all reads are equal
* 9, 10: no reader receives records beyond the high watermark, or with read_committed beyond the last stable offset. The
  last stable offset is the minimum of the high watermark and the begin of the first undecided transaction
* 11: the epoch of a producer never decreases
* 14: a partition has one owner in a generation
* 15, 16: committed offsets never move back, and are never lost
* 17: a batch of an idempotent producer is in the log once, and an acknowledged batch is in the log
* 18: a transaction is committed in all its partitions and offsets, or in none, as its producer requested
* 19: no two producers receive the same producer id and epoch
* 20: every transaction ends
* 25: the broker logs no error
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from headrace.broker.broker import Broker
from headrace.broker.topic_names import TRANSACTIONS_TOPIC
from headrace.core.log import Marker, PartitionLog, read_marker
from headrace.protocol.codec import Message
from headrace.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from headrace.protocol.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from headrace.protocol.messages.end_txn import EndTxnRequest, EndTxnResponse
from headrace.protocol.messages.fetch import FetchRequest, FetchResponse
from headrace.protocol.messages.init_producer_id import (
    InitProducerIdRequest,
    InitProducerIdResponse,
)
from headrace.protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchResponse
from headrace.records.batch import BatchHeader, iterate_headers
from headrace.records.reader import read_records
from headrace.types import FileRange, TopicPartition
from tests.fixtures.history.checker import check
from tests.simulation.clients import Client
from tests.simulation.history import Recorder
from tests.simulation.machine import ViolationError
from tests.simulation.network import Frame
from tests.simulation.owners import PartitionOwners

READ_COMMITTED = 1


class Kept(NamedTuple):
    """The checker's copy of one batch."""

    header: BatchHeader
    values: tuple[bytes | None, ...]
    marker: Marker | None

    @property
    def base(self) -> int:
        return self.header.base_offset


class Mirror:
    """The checker's copy of a partition: its batches, and its undecided transactions."""

    def __init__(self, name: TopicPartition) -> None:
        self.name = name
        self.batches: list[Kept] = []
        self.end = 0
        self.exposed = 0
        """The highest high watermark until now."""
        self.open: dict[int, int] = {}
        self.decided: list[tuple[int, int]] = []
        """The offset of the marker, and the first offset, of each transaction whose marker was not yet readable."""
        self.sequences: dict[int, tuple[int, int]] = {}
        """The epoch and the next sequence of each producer id."""

    def look(self, log: PartitionLog) -> None:
        """Copy new batches, and check the offsets of the log."""
        if log.log_end_offset != self.end:
            self._read_on(log)
        if log.high_watermark < self.exposed or log.high_watermark > self.end:
            raise ViolationError(
                f"{self.name}: high watermark {log.high_watermark} after {self.exposed}, end {self.end} (3)"
            )
        self.exposed = log.high_watermark
        stable = self.last_stable_offset
        told = min(log.last_stable_offset, log.high_watermark)
        if told != stable:
            raise ViolationError(f"{self.name}: last stable offset {told}, should be {stable} (10)")

    @property
    def last_stable_offset(self) -> int:
        self.decided = [each for each in self.decided if each[0] >= self.exposed]
        firsts = [*self.open.values(), *(first for _, first in self.decided)]
        return min([*firsts, self.exposed])

    def _read_on(self, log: PartitionLog) -> None:
        while found := log.read(self.end, max_bytes=1 << 20, up_to=1 << 60, minimum_one=True):
            data = found.read()
            for position, header in iterate_headers(data):
                self.add(header, data[position : position + header.size])

    def add(self, header: BatchHeader, data: bytes) -> None:
        if header.base_offset != self.end:
            raise ViolationError(
                f"{self.name}: a batch at {header.base_offset}, end {self.end} (7)"
            )
        self.end = header.next_offset
        marker = None
        values: tuple[bytes | None, ...] = ()
        producer_id = header.producer_id
        if header.is_control:
            marker = read_marker(data)
            first = self.open.pop(producer_id, None)
            if first is not None:
                self.decided.append((header.base_offset, first))
        else:
            values = tuple(record.value for record in read_records(data))
            if producer_id >= 0:
                self._check_sequence(header)
            if header.is_transactional:
                self.open.setdefault(producer_id, header.base_offset)
        self.batches.append(Kept(header, values, marker))

    def _check_sequence(self, header: BatchHeader) -> None:
        epoch, following = self.sequences.get(header.producer_id, (-1, 0))
        if header.producer_epoch < epoch:
            raise ViolationError(f"{self.name}: {header} after epoch {epoch} (11, 17)")
        if header.producer_epoch == epoch and header.base_sequence != following:
            raise ViolationError(f"{self.name}: {header}, where sequence {following} was next (17)")
        self.sequences[header.producer_id] = header.producer_epoch, header.last_sequence + 1

    def recovered(self, log: PartitionLog) -> None:
        """Compare the copy with the log that a restarted broker has recovered."""
        if log.log_end_offset < self.exposed:
            raise ViolationError(
                f"{self.name}: ends at {log.log_end_offset}, and {self.exposed} was visible (1)"
            )
        before = {batch.base: batch.header.crc for batch in self.batches}
        exposed = self.exposed
        self.__init__(self.name)  # type: ignore[misc]  # the copy is made again
        self._read_on(log)
        self.exposed = exposed
        for batch in self.batches:
            if batch.base < exposed and before.get(batch.base) != batch.header.crc:
                raise ViolationError(f"{self.name}@{batch.base} has become another batch (6)")


@dataclass
class Transaction:
    """The expected effects of one transaction of a program."""

    name: str
    wanted: bool | None = None
    """True if the program requested a commit, False if an abort; None before its request."""
    told: bool | None = None
    """The outcome that the client reported; None while it is unknown."""
    sources: list[tuple[int, int]] = field(default_factory=list)
    """The partition number and offset of each input record."""
    acknowledged: list[bytes] = field(default_factory=list)
    steps: list[list[Any]] = field(default_factory=list)
    """The polls and sends, in the form of a history."""


class Checker:
    """The history of a run: requests, responses, and everything that clients have read and written."""

    def __init__(self, group: str, now_ms: Callable[[], int]) -> None:
        self.group = group
        self.history = Recorder(now_ms)
        self.mirrors: dict[TopicPartition, Mirror] = {}
        self.transactions: dict[str, Transaction] = {}
        self.seen: dict[tuple[TopicPartition, int], bytes | None] = {}
        self.owners: dict[tuple[int, TopicPartition], str] = {}
        self.identities: dict[tuple[int, int], Client] = {}
        self.plain_acknowledged: set[bytes] = set()
        self.committed: dict[TopicPartition, int] = {}
        """The acknowledged committed offsets of the group."""
        self.counts: Counter[str] = Counter()
        self.broker: Broker | None = None
        self._owners = PartitionOwners(group)
        self._decided: dict[int, tuple[Message, PartitionLog, int]] = {}
        self._asked: dict[int, dict[TopicPartition, int]] = {}

    # At every step

    def look(self, broker: Broker) -> None:
        self.broker = broker
        for name, mirror in self.mirrors.items():
            mirror.look(_log(broker, name))

    def look_again(self) -> None:
        """Copy new batches in the middle of a step."""
        assert self.broker is not None
        self.look(self.broker)

    def at_rest(self, broker: Broker) -> None:
        """Check the broker after a step."""
        self.look(broker)
        self._owners.check(broker)

    def restarted(self, broker: Broker) -> None:
        self.broker = broker
        for name, mirror in self.mirrors.items():
            mirror.recovered(_log(broker, name))

    def asked(self, frame: Frame, request: Message) -> None:
        """Record a request that has reached the broker."""
        if isinstance(request, ConsumerGroupHeartbeatRequest):
            self._owners.asked(request)
        if isinstance(request, OffsetFetchRequest) and request.require_stable:
            self._asked[id(request)] = dict(self.committed)

    def decided(self, request: Message) -> None:
        """Record what the broker has written for a request. It must be durable before the response."""
        if isinstance(request, EndTxnRequest | InitProducerIdRequest | AddOffsetsToTxnRequest):
            log = self._coordinators_log(request.transactional_id)
            if log is not None:
                self._decided[id(request)] = request, log, log.log_end_offset

    def _coordinators_log(self, transactional_id: str | None) -> PartitionLog | None:
        assert self.broker is not None
        if transactional_id is None:
            return None
        partition = self.broker.services.transactions.coordinator.partition_for(transactional_id)
        if partition is None:
            return None
        return _log(self.broker, TopicPartition(TRANSACTIONS_TOPIC, partition))

    def answered(self, frame: Frame, request: Message, response: Message) -> None:
        """Check a response of the broker."""
        if id(request) in self._decided:
            _, log, end = self._decided.pop(id(request))
            if not getattr(response, "error_code", 0) and log.high_watermark < end:
                raise ViolationError(f"{request} is answered before it is durable (1)")
        if isinstance(response, FetchResponse) and isinstance(request, FetchRequest):
            self._fetched(request, response)
        elif isinstance(response, InitProducerIdResponse | EndTxnResponse):
            self._identified(frame, response)
        elif isinstance(response, ConsumerGroupHeartbeatResponse):
            assert isinstance(request, ConsumerGroupHeartbeatRequest)
            self._owners.answered(request, response)
        elif isinstance(response, OffsetFetchResponse) and id(request) in self._asked:
            self._fetched_offsets(self._asked.pop(id(request)), response)

    def _fetched(self, request: FetchRequest, response: FetchResponse) -> None:
        if not any(part.records for topic in response.responses for part in topic.partitions):
            return
        self.look_again()
        for topic in response.responses:
            for part in topic.partitions:
                if not part.records:
                    continue
                mirror = self.mirrors.get(TopicPartition(topic.topic, part.partition_index))
                if mirror is None:
                    continue
                committed = request.isolation_level == READ_COMMITTED
                limit = mirror.last_stable_offset if committed else mirror.exposed
                records = part.records
                data = records.read() if isinstance(records, FileRange) else bytes(records)
                last = max(header.next_offset for _, header in iterate_headers(data))
                if last > limit:
                    raise ViolationError(
                        f"{mirror.name}: {last} was read, the limit is {limit} (9)"
                    )
                self.counts["fetched"] += 1

    def _identified(self, frame: Frame, response: InitProducerIdResponse | EndTxnResponse) -> None:
        if response.error_code or response.producer_id < 0:
            return
        identity = response.producer_id, response.producer_epoch
        who = frame.client
        if who is None:
            return
        if self.identities.setdefault(identity, who) != who:
            before = self.identities[identity].process.name
            raise ViolationError(f"{identity} was assigned to {before} and {who.process.name} (19)")

    def _fetched_offsets(
        self, known: dict[TopicPartition, int], response: OffsetFetchResponse
    ) -> None:
        for group in response.groups:
            if group.group_id != self.group or group.error_code:
                continue
            for topic in group.topics:
                for part in topic.partitions:
                    name = TopicPartition(topic.name, part.partition_index)
                    told = part.committed_offset
                    if not part.error_code and told < known.get(name, -1):
                        raise ViolationError(
                            f"{name}: committed {known[name]}, and {told} was read (15)"
                        )

    # Reports of programs

    def assigned(self, member: str, generation: int, partitions: list[TopicPartition]) -> None:
        for name in partitions:
            owner = self.owners.setdefault((generation, name), member)
            if owner != member:
                raise ViolationError(
                    f"{name} belongs to {owner} and {member} in generation {generation} (14)"
                )

    def read(self, name: TopicPartition, offset: int, value: bytes | None) -> None:
        if self.seen.setdefault((name, offset), value) != value:
            raise ViolationError(
                f"{name}@{offset} was {self.seen[name, offset]!r}, is {value!r} (8)"
            )

    def ended(self, transaction: Transaction) -> None:
        """Record that a program's commit of a transaction was acknowledged."""
        for partition, offset in transaction.sources:
            name = TopicPartition("in", partition)
            self.committed[name] = max(self.committed.get(name, -1), offset + 1)

    # At the end

    def outcomes(self) -> dict[bytes, list[bool]]:
        """Return for each transactional value the outcome of each time that it was written."""
        found: dict[bytes, list[bool]] = defaultdict(list)
        for mirror in self.mirrors.values():
            is_open: dict[int, list[bytes]] = defaultdict(list)
            for batch in mirror.batches:
                producer_id = batch.header.producer_id
                if batch.marker is not None:
                    for value in is_open.pop(producer_id, ()):
                        found[value].append(batch.marker.committed)
                elif batch.header.is_transactional:
                    is_open[producer_id] += [value for value in batch.values if value is not None]
            if is_open:
                raise ViolationError(f"{mirror.name}: {dict(is_open)} never end (20)")
        return found

    def check_transactions(self, final: dict[TopicPartition, int]) -> None:
        """Check that every transaction is committed everywhere or nowhere, and every input was processed once.

        Args:
            final: The committed offsets of the group at the end.
        """
        by_transaction: dict[str, set[bool]] = defaultdict(set)
        sources: Counter[tuple[int, int]] = Counter()
        outcomes = self.outcomes()
        for value, decisions in outcomes.items():
            name, partition, offset, *_ = value.decode().split("|")
            if name not in self.transactions:
                continue  # a value of the careless producer
            by_transaction[name] |= set(decisions)
            if len(decisions) > 1:
                raise ViolationError(f"{value!r} is there {len(decisions)} times (17)")
            if decisions[0]:
                sources[int(partition), int(offset)] += 1
        for name, transaction in self.transactions.items():
            decisions_of = by_transaction.get(name, set())
            self._check_outcome(transaction, decisions_of)
            if transaction.told and not all(outcomes.get(v) for v in transaction.acknowledged):
                raise ViolationError(f"{name}: acknowledged records are lost (17)")
            self.counts["committed"] += True in decisions_of
            self.counts["aborted"] += False in decisions_of
        self._check_sources(sources, final)

    def _check_outcome(self, transaction: Transaction, decisions: set[bool]) -> None:
        name = transaction.name
        if len(decisions) > 1:
            raise ViolationError(f"{name} is committed in some partitions only (18)")
        if True in decisions and not transaction.wanted:
            raise ViolationError(f"{name} is committed, but its producer did not request that (18)")
        if decisions and transaction.told is not None and transaction.told not in decisions:
            raise ViolationError(
                f"{name}: {transaction.told} was answered, {decisions} is in the log (18)"
            )

    def _check_sources(
        self, sources: Counter[tuple[int, int]], final: dict[TopicPartition, int]
    ) -> None:
        for (partition, offset), times in sources.items():
            if times > 1:
                raise ViolationError(f"in-{partition}@{offset} counts {times} times (18)")
        for name, mirror in self.mirrors.items():
            if name.topic != "in":
                continue
            position = final.get(name, 0)
            for batch in mirror.batches:
                for delta in range(len(batch.values)):
                    offset = batch.base + delta
                    counts = sources[name.partition, offset]
                    if (offset < position) != (counts == 1):
                        raise ViolationError(
                            f"{name}@{offset} counts {counts} times, {position} is committed (18)"
                        )

    def check_plain(self) -> None:
        """Check the records of the idempotent producers of the input."""
        found = Counter(
            value
            for name, mirror in self.mirrors.items()
            if name.topic == "in"
            for batch in mirror.batches
            for value in batch.values
        )
        for value, times in found.items():
            if times > 1:
                raise ViolationError(f"{value!r} was written {times} times (17)")
        missing = self.plain_acknowledged - set(found)
        if missing:
            raise ViolationError(f"acknowledged and lost: {sorted(missing)[:3]} (1, 17)")

    def check_history(self) -> None:
        """Check the clients' history of operations."""
        anomalies = check(self.history.operations)
        if anomalies:
            raise ViolationError(f"the history has {len(anomalies)} anomalies: {anomalies[0]}")

    def expected(self, name: TopicPartition, *, committed: bool) -> list[tuple[int, bytes | None]]:
        """Return the records of a partition that a reader must have read at the end."""
        mirror = self.mirrors[name]
        result: list[tuple[int, bytes | None]] = []
        aborted: set[int] = set()
        if committed:
            is_open: dict[int, list[int]] = defaultdict(list)
            for batch in mirror.batches:
                if batch.marker is not None:
                    ended = is_open.pop(batch.header.producer_id, [])
                    aborted.update(() if batch.marker.committed else ended)
                elif batch.header.is_transactional:
                    is_open[batch.header.producer_id].append(batch.base)
        for batch in mirror.batches:
            if batch.base not in aborted:
                result += [(batch.base + delta, value) for delta, value in enumerate(batch.values)]
        return result


def _log(broker: Broker, name: TopicPartition) -> PartitionLog:
    return broker.services.partitions.require(name.topic, name.partition).log
