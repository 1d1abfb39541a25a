"""The lanes of one stream: which are ready to be sent, which pause, and which parcels form the next request."""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Iterator
from typing import Final

from headrace.kinesis.aggregation.encoding import Aggregate
from headrace.kinesis.producing.lanes import Lane, Parcel, RetryPause
from headrace.kinesis.producing.records import Outgoing
from headrace.kinesis.producing.settings import ProducerSettings
from headrace.kinesis.producing.shards import ShardMap

_UNKNOWN_SHARD: Final = "?"
"""The name of the lane of records whose shard is not known yet."""


class LaneQueue:
    """The lanes that have records. Each lane is ready, pauses, or has a parcel in flight."""

    def __init__(self, settings: ProducerSettings) -> None:
        self.lanes: dict[object, Lane] = {}
        """All lanes by name: partition keys, or shards if records are aggregated."""
        self.busy_shards: dict[str, RetryPause] = {}
        """The pauses of the shards that have throttled a record."""
        self._settings = settings
        self._aggregates = settings.aggregate_bytes > 0
        self._map = ShardMap({})
        self.ready: OrderedDict[Lane, None] = OrderedDict()
        """The lanes that can be sent, in the order in which requests take them."""
        self._ready_bytes = 0
        """An estimate of the bytes that the ready lanes can send now."""
        self.pausing: list[tuple[int, int, Lane]] = []
        """A heap of pausing lanes: the end of the pause in milliseconds, a number that breaks ties, the lane."""
        self._pauses = 0

    def add(self, record: Outgoing) -> None:
        """Append a record to its lane."""
        name = self._lane_of(record)
        lane = self.lanes.get(name)
        if lane is None:
            lane = self.lanes[name] = Lane(name)
            self.ready[lane] = None
        lane.add(record)
        if self._aggregates or len(lane.waiting) == 1:
            self._ready_bytes += record.size

    def _lane_of(self, record: Outgoing) -> object:
        if self._aggregates:
            return self._map.find(record.hash_key) or _UNKNOWN_SHARD
        return record.partition_key if self._settings.ordered else record

    def waiting(self) -> Iterator[Outgoing]:
        """Yield the records that wait in lanes and whose outcome is not known."""
        for lane in self.lanes.values():
            for record in lane.waiting:
                if not record.done:
                    yield record

    def forget_lane_of(self, record: Outgoing) -> None:
        """Drop the lane of a record that was given up, if the lane is ready and has no further records."""
        self._forget_if_empty(self.lanes[self._lane_of(record)])

    def forget_empty(self) -> None:
        """Drop the ready lanes whose records were all given up."""
        for lane in list(self.ready):
            self._forget_if_empty(lane)

    def _forget_if_empty(self, lane: Lane) -> None:
        if lane.head() is None and lane in self.ready:
            del self.ready[lane]
            del self.lanes[lane.name]

    # The next request

    def is_due(self, now_ms: int, *, flushing: bool) -> bool:
        """Make the lanes ready whose pause has ended; return whether a request is to be sent now."""
        while self.pausing and self.pausing[0][0] <= now_ms:
            self.requeue_first(heapq.heappop(self.pausing)[2])
        if not self.ready:
            return False
        settings = self._settings
        enough = (
            len(self.ready) >= settings.request_records
            or self._ready_bytes >= settings.request_bytes
        )
        if enough or flushing:
            return True
        return next(iter(self.ready)).waiting[0].added_ms + settings.linger_ms <= now_ms

    def first_due_ms(self) -> int:
        """Return the time at which the first ready record has waited for `linger_ms`."""
        return next(iter(self.ready)).waiting[0].added_ms + self._settings.linger_ms

    def take_parcels(self, now_ms: int) -> list[Parcel]:
        """Take one parcel from each ready lane, as far as the limits of a request allow."""
        parcels: list[Parcel] = []
        size = 0
        while self.ready and len(parcels) < self._settings.request_records:
            lane = next(iter(self.ready))
            parcel = self._form(lane)
            if parcel is not None and parcels and size + parcel.size > self._settings.request_bytes:
                lane.give_back(parcel.records)
                break
            del self.ready[lane]
            if parcel is None:
                self.lanes.pop(lane.name, None)
                continue
            pause = self.busy_shards.get(parcel.shard or "")
            if pause is not None and pause.until_ms > now_ms:
                lane.give_back(parcel.records)
                self._pause(lane, pause.until_ms)
                continue
            if lane.alone and parcels:
                lane.give_back(parcel.records)
                self._put_first(lane)
                break
            parcels.append(parcel)
            size += parcel.size
            if lane.alone:
                break
        few = len(self.ready) < self._settings.request_records  # more are enough by their number
        self._ready_bytes = sum(map(self._weight, self.ready)) if few else 0
        return parcels

    def _weight(self, lane: Lane) -> int:
        return lane.size if self._aggregates else lane.waiting[0].size

    def _form(self, lane: Lane) -> Parcel | None:
        """Form a parcel from the first records of a lane: one record, or as many as an aggregate can hold."""
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

    # Lanes whose parcel is not in flight any more

    def requeue_last(self, lane: Lane) -> None:
        """Make a lane ready behind the others, or drop it if it has no records."""
        if lane.head() is None:
            self.lanes.pop(lane.name, None)
        else:
            self.ready[lane] = None

    def requeue_first(self, lane: Lane) -> None:
        """Make a lane ready before the others, or drop it if it has no records."""
        if lane.head() is None:
            self.lanes.pop(lane.name, None)
        else:
            self._put_first(lane)

    def requeue_at(self, lane: Lane, until_ms: int) -> None:
        """Let a lane pause until a time in milliseconds, or drop it if it has no records."""
        if lane.head() is None:
            self.lanes.pop(lane.name, None)
        else:
            self._pause(lane, until_ms)

    def _put_first(self, lane: Lane) -> None:
        self.ready[lane] = None
        self.ready.move_to_end(lane, last=False)
        self._ready_bytes += self._weight(lane)

    def _pause(self, lane: Lane, until_ms: int) -> None:
        self._pauses += 1
        heapq.heappush(self.pausing, (until_ms, self._pauses, lane))

    def adopt(self, shards: ShardMap) -> None:
        """Use another map of the shards. If records are aggregated, sort all waiting records into new lanes."""
        self._map = shards
        if not self._aggregates:
            return
        lanes = list(self.lanes.values())
        self.lanes, self.ready, self.pausing = {}, OrderedDict(), []
        self._ready_bytes = 0
        for lane in lanes:
            for record in lane.waiting:
                if not record.done:
                    self.add(record)
