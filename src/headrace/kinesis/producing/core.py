"""Decides when a producer sends the records of one stream. It reads no clock and does no I/O: time is an argument.

(1) A record waits in a lane: the lane of its partition key, or, if records are aggregated, the lane of its shard. (2) A
request takes one parcel from each lane that has no parcel in flight. So no later record of a lane can overtake a record
that fails. (PutRecords itself promises no order: it writes the records behind a throttled one.) (3) A failed record
returns to the front of its lane. The lane then pauses together with the throttled shard, or the whole stream pauses.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from headrace.errors import HeadraceError, KinesisError
from headrace.kinesis.producing.lane_queue import LaneQueue
from headrace.kinesis.producing.lanes import Parcel, PutResult, RetryPause
from headrace.kinesis.producing.records import Outgoing, SentRecord
from headrace.kinesis.producing.settings import ProducerSettings
from headrace.kinesis.producing.shards import ShardMap

THROTTLED: Final = "ProvisionedThroughputExceededException"
ABOUT_ONE_RECORD: Final = frozenset({"ValidationException", "InvalidArgumentException"})
"""Error codes for a record that the stream does not accept, such as one that is too large.

Some servers refuse only this record, others refuse the whole request."""
_SHARD: Final = re.compile(r"shardId-[0-9]{12,}", re.ASCII)


class RecordOutcome(NamedTuple):
    """The end of a record: it was written, or it was given up with an error."""

    record: Outgoing
    sent: SentRecord | None
    """Shard and sequence number of the record. None: the record was given up."""
    error: HeadraceError | None = None


@dataclass(frozen=True, slots=True, eq=False)
class PutRequest:
    """One call of PutRecords."""

    parcels: list[Parcel]


class StreamCore:
    """The records of one stream.

    The shell adds records (`add`), takes requests until there is none (`next_request`), sends them, and reports the
    answer of each (`on_results`, `on_lost`, `on_refused`). The shell calls again at `next_deadline_ms`, and supplies a
    map of the shards when `wants_map` is true. The methods return the outcomes of records.
    """

    def __init__(
        self, stream: str, settings: ProducerSettings, random: Callable[[], float]
    ) -> None:
        self.stream = stream
        self.flushing = False
        """Whether records are sent at once, without waiting for `linger_ms`."""
        self.wants_map = settings.aggregate_bytes > 0
        """Whether the core needs a new map of the shards."""
        self._settings = settings
        self._random = random
        self._queue = LaneQueue(settings)
        self._mapless = False
        """Whether plain records are sent without a map, because the shards cannot be listed."""
        self._new_map: ShardMap | None = None
        """A map that is used as soon as no request is in flight. None: there is no newer map."""
        self._pause = RetryPause()
        """The pause of the whole stream."""
        self._ages: OrderedDict[Outgoing, None] = OrderedDict()
        """The records whose outcome is not known, the oldest first."""
        self._in_flight: set[PutRequest] = set()
        self._misplaced: list[tuple[Parcel, PutResult]] = []
        """Aggregates that were written to another shard than planned; a new map decides about their records."""

    # Records of the program

    @property
    def idle(self) -> bool:
        """Whether no record is pending or in flight."""
        return not self._in_flight and not self._misplaced and not self._queue.lanes

    def add(self, record: Outgoing) -> None:
        """Accept a record from the program."""
        self._ages[record] = None
        self._queue.add(record)

    def expire(self, now_ms: int) -> list[RecordOutcome]:
        """Give up the records whose time has ended. Records in flight are given up when their request fails."""
        outcomes = []
        while self._ages and self._is_late(next(iter(self._ages)), now_ms):
            record, _ = self._ages.popitem(last=False)
            if record.waiting:
                outcomes.append(self._late(record))
                self._queue.forget_lane_of(record)
        for parcel, result in list(self._misplaced):
            if self._is_late(parcel.records[-1], now_ms):
                self._misplaced.remove((parcel, result))
                for record in parcel.records:
                    record.in_doubt = True
                    outcomes.append(self._late(record))
                self._queue.requeue_last(parcel.lane)
        return outcomes

    def give_up(self, error: HeadraceError) -> list[RecordOutcome]:
        """Give up all records, also those in flight. No method of the core is to be called afterwards."""
        in_flight = [parcel for request in self._in_flight for parcel in request.parcels]
        in_flight += [parcel for parcel, _ in self._misplaced]
        outcomes = [
            self._failed(record, error) for parcel in in_flight for record in parcel.records
        ]
        return outcomes + self._give_up_waiting(error)

    def _give_up_waiting(self, error: HeadraceError) -> list[RecordOutcome]:
        outcomes = [self._failed(record, error) for record in self._queue.waiting()]
        self._queue.forget_empty()
        return outcomes

    def _is_late(self, record: Outgoing, now_ms: int) -> bool:
        return now_ms - record.added_ms >= self._settings.delivery_timeout_ms

    def _late(self, record: Outgoing) -> RecordOutcome:
        doubt = "; it is not known whether it was written" if record.in_doubt else ""
        why = f": {record.reason}" if record.reason else ""
        return self._failed(
            record,
            KinesisError(
                f"a record of key {record.partition_key[:40]!r} was not written to {self.stream} within "
                f"delivery_timeout_ms={self._settings.delivery_timeout_ms}{why}{doubt}"
            ),
        )

    def _failed(self, record: Outgoing, error: HeadraceError) -> RecordOutcome:
        self._finish(record)
        return RecordOutcome(record, None, error)

    # Requests

    def next_request(self, now_ms: int) -> PutRequest | None:
        """Return the request that is to be sent now, or None."""
        if not self._queue.is_due(now_ms, flushing=self.flushing) or self._is_blocked(now_ms):
            return None
        parcels = self._queue.take_parcels(now_ms)
        if not parcels:
            return None
        request = PutRequest(parcels)
        self._in_flight.add(request)
        return request

    def _is_blocked(self, now_ms: int) -> bool:
        """Whether nothing may be sent: during pauses, and while aggregates would be written to wrong shards."""
        misplaces = bool(self._settings.aggregate_bytes) and (
            self.wants_map or self._new_map is not None
        )
        full = len(self._in_flight) >= self._settings.max_in_flight
        return misplaces or full or self._pause.until_ms > now_ms

    def next_deadline_ms(self, now_ms: int) -> int | None:
        """Return when the shell has to call again if no other event occurs before, or None."""
        times = []
        if self._ages:
            times.append(next(iter(self._ages)).added_ms + self._settings.delivery_timeout_ms)
        if self._queue.pausing:
            times.append(self._queue.pausing[0][0])
        if self._pause.until_ms > now_ms:
            times.append(self._pause.until_ms)
        elif self._queue.ready and not self._is_blocked(now_ms):
            times.append(self._queue.first_due_ms())
        return min(times, default=None)

    # Answers

    def on_results(
        self, request: PutRequest, results: Sequence[PutResult], now_ms: int
    ) -> list[RecordOutcome]:
        """Process a response: one result for each parcel, in the order of the parcels."""
        outcomes: list[RecordOutcome] = []
        self._in_flight.discard(request)
        self._pause.attempts = 0
        for parcel, result in zip(request.parcels, results, strict=True):
            if result.error in ABOUT_ONE_RECORD:
                reason = f"writing to {self.stream}: {result.error}: {result.message}"
                outcomes += self._refused(parcel, KinesisError(reason))
            elif result.error:
                outcomes += self._retry_later(parcel, result, now_ms)
            else:
                outcomes += self._written(parcel, result, now_ms)
        self._adopt_map()
        return outcomes

    def on_lost(
        self, request: PutRequest, reason: str, now_ms: int, *, in_doubt: bool
    ) -> list[RecordOutcome]:
        """Process the failure of a whole request that is worth a retry.

        Args:
            request: The request.
            reason: The error as text.
            now_ms: The time in milliseconds.
            in_doubt: Whether Kinesis may have executed the request, as when its response was lost.
        """
        self._in_flight.discard(request)
        settings = self._settings
        self._pause.extend(now_ms, settings.backoff_ms, settings.backoff_max_ms, self._random)
        outcomes: list[RecordOutcome] = []
        for parcel in reversed(request.parcels):
            outcomes += self._put_back(parcel, reason, now_ms, in_doubt=in_doubt)
            self._queue.requeue_first(parcel.lane)
        self._adopt_map()
        return outcomes

    def on_refused(
        self, request: PutRequest, error: HeadraceError, now_ms: int, *, because_of_one: bool
    ) -> list[RecordOutcome]:
        """Process the refusal of a whole request that Kinesis will never accept.

        Args:
            request: The request.
            error: The response of Kinesis.
            now_ms: The time in milliseconds.
            because_of_one: Whether a single record may be the cause. If so, each record is sent again alone.
        """
        self._in_flight.discard(request)
        outcomes: list[RecordOutcome] = []
        for parcel in reversed(request.parcels):
            if because_of_one and len(request.parcels) > 1:
                parcel.lane.alone = True
                outcomes += self._put_back(parcel, str(error), now_ms)
                self._queue.requeue_first(parcel.lane)
            else:
                outcomes += self._refused(parcel, error)
        self._adopt_map()
        return outcomes

    def _refused(self, parcel: Parcel, error: HeadraceError) -> list[RecordOutcome]:
        parcel.lane.alone = False
        outcomes = [self._failed(record, error) for record in parcel.records]
        self._queue.requeue_first(parcel.lane)
        return outcomes

    def _written(self, parcel: Parcel, result: PutResult, now_ms: int) -> list[RecordOutcome]:
        parcel.lane.attempts = 0
        parcel.lane.alone = False
        busy = self._queue.busy_shards.get(result.shard)
        if busy is not None and busy.until_ms <= now_ms:
            del self._queue.busy_shards[result.shard]
        misplaced = parcel.shard is not None and parcel.shard != result.shard
        self.wants_map = self.wants_map or misplaced
        if misplaced and parcel.aggregated:
            self._misplaced.append((parcel, result))
            return []
        self._queue.requeue_last(parcel.lane)
        return self._delivered(parcel, parcel.records, result)

    def _retry_later(self, parcel: Parcel, result: PutResult, now_ms: int) -> list[RecordOutcome]:
        settings = self._settings
        outcomes = self._put_back(parcel, f"{result.error} {result.message}".strip(), now_ms)
        pause = RetryPause()
        pause.attempts = parcel.lane.attempts
        parcel.lane.attempts += 1
        if result.error == THROTTLED:
            named = _SHARD.search(result.message)
            shard = named.group() if named else parcel.shard
            self.wants_map = self.wants_map or (parcel.shard is None and not self._mapless)
            if shard is not None:
                pause = self._queue.busy_shards.setdefault(shard, RetryPause())
        pause.extend(now_ms, settings.backoff_ms, settings.backoff_max_ms, self._random)
        self._queue.requeue_at(parcel.lane, pause.until_ms)
        return outcomes

    def _put_back(
        self, parcel: Parcel, reason: str, now_ms: int, *, in_doubt: bool = False
    ) -> list[RecordOutcome]:
        outcomes, kept = [], []
        for record in parcel.records:
            record.reason = reason
            record.in_doubt = record.in_doubt or in_doubt
            if self._is_late(record, now_ms):
                outcomes.append(self._late(record))
            else:
                kept.append(record)
        parcel.lane.give_back(kept)
        return outcomes

    # The map of the shards

    def on_map(self, shards: ShardMap) -> list[RecordOutcome]:
        """Accept a map of the shards."""
        self.wants_map = False
        outcomes = self._settle(shards)
        self._new_map = shards
        self._adopt_map()
        return outcomes

    def on_no_map(self, error: HeadraceError, *, passing: bool) -> list[RecordOutcome]:
        """Process a failure to list the shards. Plain records are sent without a map; aggregates need one.

        Args:
            error: The reason of the failure.
            passing: Whether a retry may help. If so, records are given up only when their time ends.
        """
        if passing:
            for lane in self._queue.lanes.values():
                for record in lane.waiting:
                    record.reason = str(error)
            return []
        if self._settings.aggregate_bytes:
            return self._give_up_waiting(error)
        self.wants_map, self._mapless = False, True
        return []

    def _settle(self, shards: ShardMap) -> list[RecordOutcome]:
        """Decide about misplaced aggregates by a new map.

        Readers deliver the records of an aggregate whose hash keys belong to the shard that contains the aggregate.
        These records are written; the others are sent again.
        """
        outcomes: list[RecordOutcome] = []
        misplaced, self._misplaced = self._misplaced, []
        for parcel, result in misplaced:
            if not shards.knows(result.shard):  # the map is older than the shard
                self._misplaced.append((parcel, result))
                continue
            inside = [one for one in parcel.records if shards.takes(result.shard, one.hash_key)]
            outcomes += self._delivered(parcel, inside, result)
            strays = [record for record in parcel.records if not record.done]
            self._time_again(strays)
            parcel.lane.give_back(strays)
            self._queue.requeue_last(parcel.lane)
        self.wants_map = bool(self._misplaced)
        return outcomes

    def _time_again(self, records: Sequence[Outgoing]) -> None:
        """Let `expire` check records again: it has dropped those that were in flight when their time ended."""
        for record in reversed(records):
            if record not in self._ages:  # then it is older than all records in `_ages`
                self._ages[record] = None
                self._ages.move_to_end(record, last=False)

    def _adopt_map(self) -> None:
        """Use the new map as soon as no aggregate is in flight: otherwise lanes of old and new shards would mix."""
        aggregates = self._settings.aggregate_bytes > 0
        if self._new_map is None or (aggregates and (self._in_flight or self._misplaced)):
            return
        shards, self._new_map = self._new_map, None
        self._queue.adopt(shards)

    # Outcomes

    def _delivered(
        self, parcel: Parcel, records: Iterable[Outgoing], result: PutResult
    ) -> list[RecordOutcome]:
        chosen = set(map(id, records))
        outcomes = []
        for number, record in enumerate(parcel.records):
            if id(record) in chosen:
                self._finish(record)
                sub_sequence = number if parcel.aggregated else None
                sent = SentRecord(result.shard, result.sequence_number, sub_sequence)
                outcomes.append(RecordOutcome(record, sent))
        return outcomes

    def _finish(self, record: Outgoing) -> None:
        record.done = True
        self._ages.pop(record, None)
