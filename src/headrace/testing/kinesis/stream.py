"""One stream: its shards, its settings, and a change in progress."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from typing import Final

from headrace.core.lease.lease import HashRange
from headrace.testing.kinesis.errors import in_use, invalid, not_found
from headrace.testing.kinesis.limits import Window
from headrace.testing.kinesis.numbers import uniform_ranges
from headrace.testing.kinesis.shard import Shard
from headrace.types import NEVER_MS

ACCOUNT: Final = "000000000000"
HOUR_MS: Final = 3_600_000
CREATING: Final = "CREATING"
ACTIVE: Final = "ACTIVE"
UPDATING: Final = "UPDATING"
DELETING: Final = "DELETING"


class Stream:
    """A stream with its shards.

    Attributes:
        name: The name of the stream.
        arn: The ARN of the stream.
        created_ms: The creation time in milliseconds. A stream that is deleted and created again has another time.
        status: `CREATING`, `ACTIVE`, `UPDATING` or `DELETING`.
        shards: The shards by number: open ones, and closed ones as long as they may have records.
        retention_hours: The hours for which records are kept.
        max_record_bytes: The most bytes of a record's data.
        mode: `PROVISIONED` or `ON_DEMAND`.
        key_id: The id of the encryption key; None without encryption.
        list_calls: The calls of ListShards in the last second.
    """

    def __init__(self, name: str, arn: str, shards: int, now_ms: int, mode: str) -> None:
        self.name = name
        self.arn = arn
        self.created_ms = now_ms
        self.status = CREATING
        self.mode = mode
        self.retention_hours = 24
        self.max_record_bytes = 1 << 20
        self.key_id: str | None = None
        self.list_calls = Window()
        self.shards: dict[int, Shard] = {}
        self._next_shard = 0
        self._records = 0
        self._due: tuple[int, Callable[[int], object]] | None = None
        self._wanted = shards
        self._first_closed_ms = NEVER_MS
        self._routes: list[Shard] = []
        """The open shards by hash key; empty if they have to be computed again."""

    def begin(self, status: str, until_ms: int, then: Callable[[int], object]) -> None:
        """Begin a change: the status lasts until a time, at which `then` is called."""
        self.status = status
        self._due = until_ms, then

    def build(self, now_ms: int) -> None:
        """Create the first shards of the stream."""
        for hash_range in uniform_ranges(self._wanted):
            self.add_shard(hash_range, now_ms)

    def settle(self, now_ms: int) -> None:
        """Execute what is due by now."""
        if self._due is not None and now_ms >= self._due[0]:
            done_ms, then = self._due
            self._due = None
            then(done_ms)
            if self.status != DELETING:
                self.status = ACTIVE
            self._note_closed()
        if self._first_closed_ms < self.horizon_ms(now_ms):
            self.shards = {each.number: each for each in self.listed(now_ms)}
            self._note_closed()

    def _note_closed(self) -> None:
        self._routes = []
        closed = [shard.closed_ms for shard in self.shards.values() if shard.closed_ms is not None]
        self._first_closed_ms = min(closed, default=NEVER_MS)

    def horizon_ms(self, now_ms: int) -> int:
        """Return the arrival time of the oldest records that are kept."""
        return now_ms - self.retention_hours * HOUR_MS

    def listed(self, now_ms: int) -> list[Shard]:
        """Return the shards that may have records: open ones, and those closed within the retention period."""
        horizon_ms = self.horizon_ms(now_ms)
        return [
            each
            for each in self.shards.values()
            if each.closed_ms is None or each.closed_ms >= horizon_ms
        ]

    def open_shards(self) -> list[Shard]:
        """Return the shards that accept records, by hash key."""
        found = [shard for shard in self.shards.values() if shard.closed_ms is None]
        return sorted(found, key=lambda shard: shard.hash_range.first)

    def add_shard(
        self, hash_range: HashRange, now_ms: int, parents: tuple[Shard, ...] = ()
    ) -> Shard:
        """Create a shard of the stream."""
        shard = Shard(self._next_shard, hash_range, now_ms, parents)
        self.shards[shard.number] = shard
        self._next_shard += 1
        return shard

    def shard(self, name: str) -> Shard:
        """Return a shard by its name."""
        number = name.removeprefix("shardId-")
        found = self.shards.get(int(number)) if number.isdecimal() and number.isascii() else None
        if found is None:
            raise not_found(
                f"Could not find shard {name} in stream {self.name} under account {ACCOUNT}."
            )
        return found

    def open_shard(self, name: str) -> Shard:
        """Return a shard by its name, if it accepts records."""
        found = self.shard(name)
        if found.closed_ms is not None:
            raise invalid(
                f"Shard {name} in stream {self.name} under account {ACCOUNT} has already been "
                "merged or split, "
                "and thus is not eligible for merging or splitting."
            )
        return found

    def shard_of(self, hash_key: int) -> Shard:
        """Return the open shard that a hash key belongs to."""
        if not self._routes:
            self._routes = self.open_shards()
        after = bisect_right(self._routes, hash_key, key=lambda shard: shard.hash_range.first)
        return self._routes[after - 1]

    def next_record(self) -> int:
        """Return the number of the next record."""
        self._records += 1
        return self._records

    def require_active(self) -> None:
        """Refuse a change while another change is in progress."""
        if self.status != ACTIVE:
            raise in_use(
                f"Stream {self.name} under account {ACCOUNT} not ACTIVE, instead in state "
                f"{self.status}"
            )
