"""What a producer does with the records of one stream, and when. No clock, no I/O: time comes with each call.

(1) Records wait in lanes: a partition key's, or, where records are aggregated, a shard's. (2) A request takes one
parcel of each lane that has nothing under way, so whatever fails of it, no later record of the lane has overtaken it.
PutRecords by itself promises no order: a record that is throttled does not hold up those behind it. (3) What fails goes
back to the front of its lane and pauses, with the shard that was too busy, or with the stream.
"""

from __future__ import annotations

import heapq
import re
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from headrace.errors import HeadraceError, KinesisError
from headrace.kinesis.aggregation.encoding import Aggregate
from headrace.kinesis.producing.lanes import Lane, Parcel, Pause, Result
from headrace.kinesis.producing.records import Outgoing, SentRecord
from headrace.kinesis.producing.settings import ProducerSettings
from headrace.kinesis.producing.shards import ShardMap

THROTTLED: Final = "ProvisionedThroughputExceededException"
ABOUT_ONE_RECORD: Final = frozenset({"ValidationException", "InvalidArgumentException"})
"""What a record is called that the stream does not take, as one that is too large; some servers refuse only that one,
others the whole request."""
_SHARD: Final = re.compile(r"shardId-[0-9]{12,}", re.ASCII)
_NOWHERE: Final = "?"
"""The lane of records whose shard is not known yet."""


class Outcome(NamedTuple):
    """A record's fate."""

    record: Outgoing
    sent: SentRecord | None
    error: HeadraceError | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Request:
    """One call of PutRecords."""

    parcels: list[Parcel]


class StreamCore:
    """The records of one stream.

    The shell gives records (`add`), asks for requests until there is none (`next_request`), sends them, and tells what
    came of each (`on_results`, `on_lost`, `on_refused`). It comes back at `next_deadline_ms`, and brings a map of the
    shards when `wants_map`. Fates are in what the methods return.
    """

    def __init__(
        self, stream: str, settings: ProducerSettings, random: Callable[[], float]
    ) -> None:
        self.stream = stream
        self.flushing = False
        self.wants_map = settings.aggregate_bytes > 0
        self._settings = settings
        self._random = random
        self._map = ShardMap({})
        self._mapless = False
        self._new_map: ShardMap | None = None
        self._lanes: dict[object, Lane] = {}
        self._ready: OrderedDict[Lane, None] = OrderedDict()
        self._ready_bytes = 0
        self._resting: list[tuple[int, int, Lane]] = []
        self._rests = 0
        self._busy_shards: dict[str, Pause] = {}
        self._pause = Pause()
        self._ages: OrderedDict[Outgoing, None] = OrderedDict()  # those without a fate, by age
        self._in_flight: set[Request] = set()
        self._misplaced: list[tuple[Parcel, Result]] = []

    # What the program gives

    @property
    def idle(self) -> bool:
        """Whether nothing waits, and nothing is under way."""
        return not self._in_flight and not self._misplaced and not self._lanes

    def add(self, record: Outgoing) -> None:
        """Take a record over."""
        self._ages[record] = None
        self._enqueue(record)

    def _enqueue(self, record: Outgoing) -> None:
        name = self._lane_of(record)
        lane = self._lanes.get(name)
        if lane is None:
            lane = self._lanes[name] = Lane(name)
            self._wait(lane)
        lane.add(record)
        if self._settings.aggregate_bytes or len(lane.waiting) == 1:
            self._ready_bytes += record.size

    def _lane_of(self, record: Outgoing) -> object:
        if self._settings.aggregate_bytes:
            return self._map.find(record.hash_key) or _NOWHERE
        return record.partition_key if self._settings.ordered else record

    def expire(self, now_ms: int) -> list[Outcome]:
        """Give up records whose time is over; those under way are given up when they fail."""
        outcomes = []
        while self._ages and self._is_late(next(iter(self._ages)), now_ms):
            record, _ = self._ages.popitem(last=False)
            if record.waiting:
                outcomes.append(self._late(record))
                self._forget_empty(self._lanes[self._lane_of(record)])
        for parcel, result in list(self._misplaced):
            if self._is_late(parcel.records[-1], now_ms):
                self._misplaced.remove((parcel, result))
                for record in parcel.records:
                    record.in_doubt = True
                    outcomes.append(self._late(record))
                self._continue(parcel.lane, self._wait)
        return outcomes

    def give_up(self, error: HeadraceError) -> list[Outcome]:
        """Give up everything, also what is under way; nothing is to be told or asked of the core afterwards."""
        under_way = [parcel for request in self._in_flight for parcel in request.parcels]
        under_way += [parcel for parcel, _ in self._misplaced]
        outcomes = [
            self._failed(record, error) for parcel in under_way for record in parcel.records
        ]
        return outcomes + self._give_up_waiting(error)

    def _give_up_waiting(self, error: HeadraceError) -> list[Outcome]:
        outcomes = [
            self._failed(record, error)
            for lane in self._lanes.values()
            for record in lane.waiting
            if not record.done
        ]
        for lane in list(self._ready):
            self._forget_empty(lane)
        return outcomes

    def _forget_empty(self, lane: Lane) -> None:
        """Drop a lane that waits, and of which nothing is left but records that were given up."""
        if lane.head() is None and lane in self._ready:
            del self._ready[lane]
            del self._lanes[lane.name]

    def _is_late(self, record: Outgoing, now_ms: int) -> bool:
        return now_ms - record.added_ms >= self._settings.delivery_timeout_ms

    def _late(self, record: Outgoing) -> Outcome:
        doubt = "; whether it is written is not known" if record.in_doubt else ""
        why = f": {record.reason}" if record.reason else ""
        return self._failed(
            record,
            KinesisError(
                f"a record of key {record.partition_key[:40]!r} was not written to {self.stream} within "
                f"delivery_timeout_ms={self._settings.delivery_timeout_ms}{why}{doubt}"
            ),
        )

    def _failed(self, record: Outgoing, error: HeadraceError) -> Outcome:
        self._finish(record)
        return Outcome(record, None, error)

    # What is to be sent

    def next_request(self, now_ms: int) -> Request | None:
        """Return what is to be sent now, or None."""
        while self._resting and self._resting[0][0] <= now_ms:
            self._continue(heapq.heappop(self._resting)[2], self._rise)
        if self._is_blocked(now_ms) or not self._is_due(now_ms):
            return None
        parcels: list[Parcel] = []
        size = 0
        while self._ready and len(parcels) < self._settings.request_records:
            lane = next(iter(self._ready))
            parcel = self._form(lane)
            if parcel is not None and parcels and size + parcel.size > self._settings.request_bytes:
                lane.give_back(parcel.records)
                break
            del self._ready[lane]
            if parcel is None:
                self._lanes.pop(lane.name, None)
                continue
            pause = self._busy_shards.get(parcel.shard or "")
            if pause is not None and pause.until_ms > now_ms:
                lane.give_back(parcel.records)
                self._rest(lane, pause.until_ms)
                continue
            if lane.alone and parcels:
                lane.give_back(parcel.records)
                self._rise(lane)
                break
            parcels.append(parcel)
            size += parcel.size
            if lane.alone:
                break
        few = len(self._ready) < self._settings.request_records  # more are enough by their number
        self._ready_bytes = sum(map(self._weight, self._ready)) if few else 0
        if not parcels:
            return None
        request = Request(parcels)
        self._in_flight.add(request)
        return request

    def _is_blocked(self, now_ms: int) -> bool:
        """Whether nothing may be sent: during pauses, and while aggregates would go astray."""
        strays = bool(self._settings.aggregate_bytes) and (
            self.wants_map or self._new_map is not None
        )
        full = len(self._in_flight) >= self._settings.max_in_flight
        return strays or full or self._pause.until_ms > now_ms

    def _is_due(self, now_ms: int) -> bool:
        if not self._ready:
            return False
        settings = self._settings
        enough = (
            len(self._ready) >= settings.request_records
            or self._ready_bytes >= settings.request_bytes
        )
        return enough or self.flushing or self._first_ready_ms() + settings.linger_ms <= now_ms

    def _first_ready_ms(self) -> int:
        return next(iter(self._ready)).waiting[0].added_ms

    def _weight(self, lane: Lane) -> int:
        return lane.size if self._settings.aggregate_bytes else lane.waiting[0].size

    def _wait(self, lane: Lane) -> None:
        self._ready[lane] = None

    def _rise(self, lane: Lane) -> None:
        self._ready[lane] = None
        self._ready.move_to_end(lane, last=False)
        self._ready_bytes += self._weight(lane)

    def _rest(self, lane: Lane, until_ms: int) -> None:
        self._rests += 1
        heapq.heappush(self._resting, (until_ms, self._rests, lane))

    def _form(self, lane: Lane) -> Parcel | None:
        """Make a parcel of the first records of a lane: one, or as many as an aggregate holds."""
        first = lane.head()
        if first is None:
            return None
        shard = self._map.find(first.hash_key)
        limit = self._settings.aggregate_bytes
        if limit and shard is not None:
            whole = Aggregate(
                min(limit, self._settings.record_bytes - len(first.partition_key.encode()))
            )
            records: list[Outgoing] = []
            while (head := lane.head()) is not None and whole.add(
                head.partition_key, head.explicit_hash_key, head.data
            ):
                records.append(lane.take())
            if len(records) > 1:
                return Parcel(
                    lane, records, first.partition_key, str(first.hash_key), whole.encode(), shard
                )
            lane.give_back(records)
        lane.take()
        return Parcel(
            lane, [first], first.partition_key, first.explicit_hash_key, first.data, shard
        )

    def next_deadline_ms(self, now_ms: int) -> int | None:
        """Return when to come back if nothing happens before."""
        times = []
        if self._ages:
            times.append(next(iter(self._ages)).added_ms + self._settings.delivery_timeout_ms)
        if self._resting:
            times.append(self._resting[0][0])
        if self._pause.until_ms > now_ms:
            times.append(self._pause.until_ms)
        elif self._ready and not self._is_blocked(now_ms):
            times.append(self._first_ready_ms() + self._settings.linger_ms)
        return min(times, default=None)

    # What came of it

    def on_results(self, request: Request, results: Sequence[Result], now_ms: int) -> list[Outcome]:
        """Take an answer: one result for each parcel, in their order."""
        outcomes: list[Outcome] = []
        self._in_flight.discard(request)
        self._pause.attempts = 0
        for parcel, result in zip(request.parcels, results, strict=True):
            if result.error in ABOUT_ONE_RECORD:
                said = f"writing to {self.stream}: {result.error}: {result.message}"
                outcomes += self._refused(parcel, KinesisError(said))
            elif result.error:
                outcomes += self._again(parcel, result, now_ms)
            else:
                outcomes += self._written(parcel, result, now_ms)
        self._adopt_map()
        return outcomes

    def on_lost(
        self, request: Request, reason: str, now_ms: int, *, in_doubt: bool
    ) -> list[Outcome]:
        """Take a request that failed as a whole and is worth another try.

        Args:
            request: What was sent.
            reason: What happened, in words.
            now_ms: The time.
            in_doubt: Whether it may have been carried out, as when the answer was lost.
        """
        self._in_flight.discard(request)
        settings = self._settings
        self._pause.extend(now_ms, settings.backoff_ms, settings.backoff_max_ms, self._random)
        outcomes: list[Outcome] = []
        for parcel in reversed(request.parcels):
            outcomes += self._put_back(parcel, reason, now_ms, in_doubt=in_doubt)
            self._continue(parcel.lane, self._rise)
        self._adopt_map()
        return outcomes

    def on_refused(
        self, request: Request, error: HeadraceError, now_ms: int, *, because_of_one: bool
    ) -> list[Outcome]:
        """Take a request that Kinesis will never carry out.

        Args:
            request: What was sent.
            error: What Kinesis says.
            now_ms: The time.
            because_of_one: Whether one record may be to blame: then each is tried alone.
        """
        self._in_flight.discard(request)
        outcomes: list[Outcome] = []
        for parcel in reversed(request.parcels):
            if because_of_one and len(request.parcels) > 1:
                parcel.lane.alone = True
                outcomes += self._put_back(parcel, str(error), now_ms)
                self._continue(parcel.lane, self._rise)
            else:
                outcomes += self._refused(parcel, error)
        self._adopt_map()
        return outcomes

    def _refused(self, parcel: Parcel, error: HeadraceError) -> list[Outcome]:
        parcel.lane.alone = False
        outcomes = [self._failed(record, error) for record in parcel.records]
        self._continue(parcel.lane, self._rise)
        return outcomes

    def _written(self, parcel: Parcel, result: Result, now_ms: int) -> list[Outcome]:
        parcel.lane.attempts = 0
        parcel.lane.alone = False
        busy = self._busy_shards.get(result.shard)
        if busy is not None and busy.until_ms <= now_ms:
            del self._busy_shards[result.shard]
        astray = parcel.shard is not None and parcel.shard != result.shard
        self.wants_map = self.wants_map or astray
        if astray and parcel.aggregated:
            self._misplaced.append((parcel, result))
            return []
        self._continue(parcel.lane, self._wait)
        return self._delivered(parcel, parcel.records, result)

    def _again(self, parcel: Parcel, result: Result, now_ms: int) -> list[Outcome]:
        settings = self._settings
        outcomes = self._put_back(parcel, f"{result.error} {result.message}".strip(), now_ms)
        pause = Pause()
        pause.attempts = parcel.lane.attempts
        parcel.lane.attempts += 1
        if result.error == THROTTLED:
            named = _SHARD.search(result.message)
            shard = named.group() if named else parcel.shard
            self.wants_map = self.wants_map or (parcel.shard is None and not self._mapless)
            if shard is not None:
                pause = self._busy_shards.setdefault(shard, Pause())
        pause.extend(now_ms, settings.backoff_ms, settings.backoff_max_ms, self._random)
        until_ms = pause.until_ms
        self._continue(parcel.lane, lambda lane: self._rest(lane, until_ms))
        return outcomes

    def _put_back(
        self, parcel: Parcel, reason: str, now_ms: int, *, in_doubt: bool = False
    ) -> list[Outcome]:
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

    def _continue(self, lane: Lane, place: Callable[[Lane], None]) -> None:
        """A lane has nothing under way any more: let it wait or pause, or forget it."""
        if lane.head() is None:
            self._lanes.pop(lane.name, None)
        else:
            place(lane)

    # Where shards are

    def on_map(self, shards: ShardMap) -> list[Outcome]:
        """Take a map of the open shards."""
        self.wants_map = False
        outcomes = self._settle(shards)
        self._new_map = shards
        self._adopt_map()
        return outcomes

    def on_no_map(self, error: HeadraceError, *, passing: bool) -> list[Outcome]:
        """Take that the shards are not listed: plain records do without, others cannot be written.

        Args:
            error: Why not.
            passing: Whether it is worth another try: then nothing is given up before its time is over.
        """
        if passing:
            for lane in self._lanes.values():
                for record in lane.waiting:
                    record.reason = str(error)
            return []
        if self._settings.aggregate_bytes:
            return self._give_up_waiting(error)
        self.wants_map, self._mapless = False, True
        return []

    def _settle(self, shards: ShardMap) -> list[Outcome]:
        """Tell aggregates that landed elsewhere apart: readers keep of each what belongs to the shard it is in."""
        outcomes: list[Outcome] = []
        misplaced, self._misplaced = self._misplaced, []
        for parcel, result in misplaced:
            if not shards.knows(result.shard):  # the list of shards is older than it
                self._misplaced.append((parcel, result))
                continue
            inside = [one for one in parcel.records if shards.takes(result.shard, one.hash_key)]
            outcomes += self._delivered(parcel, inside, result)
            strays = [record for record in parcel.records if not record.done]
            self._time_again(strays)
            parcel.lane.give_back(strays)
            self._continue(parcel.lane, self._wait)
        self.wants_map = bool(self._misplaced)
        return outcomes

    def _time_again(self, records: Sequence[Outgoing]) -> None:
        """Have `expire` look at records again: it drops those that are under way when their time ends."""
        for record in reversed(records):
            if record not in self._ages:  # then it is older than all that are
                self._ages[record] = None
                self._ages.move_to_end(record, last=False)

    def _adopt_map(self) -> None:
        """Go on by a new map as soon as nothing is under way: until then lanes of old and new shards would mix."""
        aggregates = self._settings.aggregate_bytes > 0
        if self._new_map is None or (aggregates and (self._in_flight or self._misplaced)):
            return
        self._map, self._new_map = self._new_map, None
        if not aggregates:
            return
        lanes = list(self._lanes.values())
        self._lanes, self._ready, self._resting = {}, OrderedDict(), []
        self._ready_bytes = 0
        for lane in lanes:
            for record in lane.waiting:
                if not record.done:
                    self._enqueue(record)

    # Fates

    def _delivered(
        self, parcel: Parcel, records: Iterable[Outgoing], result: Result
    ) -> list[Outcome]:
        chosen = set(map(id, records))
        outcomes = []
        for number, record in enumerate(parcel.records):
            if id(record) in chosen:
                self._finish(record)
                sub_sequence = number if parcel.aggregated else None
                outcomes.append(
                    Outcome(record, SentRecord(result.shard, result.sequence_number, sub_sequence))
                )
        return outcomes

    def _finish(self, record: Outgoing) -> None:
        record.done = True
        self._ages.pop(record, None)
