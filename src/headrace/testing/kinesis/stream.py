"""One stream: its shards, and what it is changing into."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from typing import Final

from headrace.core.lease.lease import HashRange
from headrace.testing.kinesis.errors import in_use, invalid, not_found
from headrace.testing.kinesis.limits import Window
from headrace.testing.kinesis.numbers import uniform_ranges
from headrace.testing.kinesis.shard import Shard

ACCOUNT: Final = "000000000000"
HOUR_MS: Final = 3_600_000
_NEVER: Final = 1 << 62
CREATING: Final = "CREATING"
ACTIVE: Final = "ACTIVE"
UPDATING: Final = "UPDATING"
DELETING: Final = "DELETING"


class Stream:
    """Shards under a name.

    Attributes:
        name: What it is called.
        arn: The same for all of AWS.
        created_ms: When; a stream that is deleted and created again has another time.
        status: `CREATING`, `ACTIVE`, `UPDATING` or `DELETING`.
        shards: All that are not forgotten yet, by number; closed ones for as long as they may have records.
        retention_hours: How long records stay.
        max_record_bytes: The most that a record's data may have.
        mode: `PROVISIONED` or `ON_DEMAND`.
        key_id: The key that encrypts it; None without encryption.
        list_calls: Its ListShards.
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
        self._first_closed_ms = _NEVER
        self._routes: list[Shard] = []
        """Open shards by hash key; empty: to be found anew."""

    def begin(self, status: str, until_ms: int, then: Callable[[int], object]) -> None:
        """Change: with this status until a time, when the rest is done."""
        self.status = status
        self._due = until_ms, then

    def build(self, now_ms: int) -> None:
        """Make the first shards."""
        for hash_range in uniform_ranges(self._wanted):
            self.add_shard(hash_range, now_ms)

    def settle(self, now_ms: int) -> None:
        """Do what is due by now."""
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
        self._first_closed_ms = min(closed, default=_NEVER)

    def horizon_ms(self, now_ms: int) -> int:
        """Return when the oldest records arrived that are kept."""
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
        """Return the shards that take records, by hash key."""
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
        """Return a shard that takes records."""
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
