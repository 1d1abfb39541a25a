"""The checker of a run: it checks every write to the rows, every processed record, and the end state."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping

from headrace.core.lease.lease import Lease, LeaseKey
from tests.simulation.leases.stream import Shard, Stream


class ViolationError(AssertionError):
    """An invariant is violated."""


class ShardState:
    """The checker's state of one shard."""

    def __init__(self, shard: Shard) -> None:
        self.shard = shard
        self.first = 0
        """The index of the first record that the group has to process."""
        self.handled: list[int] = []
        """The lease epoch in which each record was last processed; 0 if it was not processed."""
        self.prefix = 0
        """The number of records at the beginning that were processed without a gap."""
        self.taken_at: dict[int, int] = {}
        """The index of the first record of each lease epoch."""
        self.next: dict[int, int] = {}
        self.checkpoint = 0

    @property
    def is_finished(self) -> bool:
        return self.shard.closed and self.prefix >= len(self.shard.times)


class LeaseChecker:
    """Raises `ViolationError` when an invariant is violated."""

    def __init__(
        self, streams: Mapping[str, Stream], counts: Counter[str], run_seed: Callable[[str], None]
    ) -> None:
        self._streams = streams
        self._counts = counts
        self._log = run_seed
        self._states: dict[tuple[str, str], ShardState] = {}
        self.rows: dict[LeaseKey, Lease] = {}
        self.clean: set[tuple[LeaseKey, int]] = set()
        """Lease keys and epochs that ended with a final checkpoint: their records must not be processed again."""
        self._begun: dict[str, int] = {}
        """The latest start time of a LATEST group, by stream, in the rows before the first lease was taken."""
        self._taken: set[str] = set()

    def state(self, stream: str, shard: str) -> ShardState:
        """Return the state of a shard."""
        state = self._states.get((stream, shard))
        if state is None:
            state = self._states[stream, shard] = ShardState(self._streams[stream].shards[shard])
        return state

    # Writes

    def created(self, lease: Lease, *, is_ghost: bool) -> None:
        """Check a created row."""
        stream = lease.key.stream
        stamp = lease.checkpoint.timestamp_ms
        if stamp is not None and stream not in self._taken:
            self._begun[stream] = max(self._begun.get(stream, stamp), stamp)
        state = self.state(stream, lease.key.shard)
        if stamp is not None:
            state.first = state.shard.index_after(lease.checkpoint)
            state.prefix = max(state.prefix, state.first)
        if lease.checkpoint.is_end and not is_ghost and not state.is_finished:
            self._accuse(f"{lease.key} was created as finished, and is not")

    def written(self, before: Lease, after: Lease) -> None:
        """Check a changed row."""
        key = after.key
        state = self.state(key.stream, key.shard)
        if after.checkpoint.is_before(before.checkpoint):
            self._accuse(f"the checkpoint of {key} goes back: {before.checkpoint} -> {after}")
        if before.checkpoint != after.checkpoint:
            self._check_checkpoint(state, after)
        if after.epoch != before.epoch and after.owner is not None:
            self._taken.add(key.stream)
            state.taken_at[after.epoch] = self._index(state, after)

    def _check_checkpoint(self, state: ShardState, lease: Lease) -> None:
        index = self._index(state, lease)
        state.checkpoint = max(state.checkpoint, index)
        if index > state.prefix:
            self._accuse(f"{lease} passes over record {state.prefix}")
        if not lease.checkpoint.is_end:
            return
        if not state.is_finished:
            self._accuse(f"{lease} is no end: the shard has {len(state.shard.times)} records")
        for child in state.shard.children:
            key = lease.key._replace(shard=child.shard)
            if key not in self.rows and child.shard not in self._streams[key.stream].gone:
                self._accuse(f"{lease.key} is marked as finished before {child.shard} has a lease")

    def _index(self, state: ShardState, lease: Lease) -> int:
        return max(state.first, state.shard.index_after(lease.checkpoint))

    # Records

    def handled(self, who: str, lease: Lease, index: int) -> None:
        """Check a record that a member processes."""
        key, epoch = lease.key, lease.epoch
        row = self.rows.get(key)
        if row is None or (row.owner, row.epoch) != (who, epoch):
            self._accuse(f"{who} handles a record of {key} in epoch {epoch}, but it is {row}")
        state = self.state(key.stream, key.shard)
        expected = state.next.get(epoch, state.taken_at.get(epoch))
        if index != expected:
            self._accuse(f"{who} handles record {index} of {key}, not {expected}")
        state.next[epoch] = index + 1
        for parent in state.shard.parents & self._streams[key.stream].shards.keys():
            if not self.state(key.stream, parent).is_finished:
                self._accuse(f"{key} is read before its parent {parent} is finished")
        self._count(state, lease, index)

    def _count(self, state: ShardState, lease: Lease, index: int) -> None:
        handled = state.handled
        handled.extend([0] * (index + 1 - len(handled)))
        self._counts["records"] += 1
        if handled[index]:
            self._counts["again"] += 1
            if (lease.key, handled[index]) in self.clean:
                self._accuse(f"record {index} of {lease.key} again, after a clean end of {lease}")
            if index < state.checkpoint and index < state.taken_at[lease.epoch]:
                self._accuse(f"record {index} of {lease.key} again, before the checkpoint")
        handled[index] = lease.epoch
        while state.prefix < len(handled) and handled[state.prefix]:
            state.prefix += 1

    # The end

    def is_over(self) -> bool:
        """Return whether every record was processed, and the end of every shard is written."""
        for name, stream in self._streams.items():
            begun = self._begun.get(name)
            for shard in stream.shards.values():
                state = self.state(name, shard.shard)
                if any(
                    (begun is None or at >= begun)
                    and (index >= len(state.handled) or not state.handled[index])
                    for index, at in enumerate(shard.times)
                ):
                    return False
                row = self.rows.get(LeaseKey("g", name, shard.shard))
                if row is not None and shard.closed and not row.checkpoint.is_end:
                    return False
        return True

    def missing(self) -> list[str]:
        """Return descriptions of the records that were not processed."""
        lines = []
        for (stream, shard), state in self._states.items():
            row = self.rows.get(LeaseKey("g", stream, shard))
            if state.prefix < len(state.shard.times) or (
                state.shard.closed and row is not None and not row.checkpoint.is_end
            ):
                lines.append(f"{shard}: {state.prefix} of {len(state.shard.times)}, {row}")
        return lines

    def _accuse(self, problem: str) -> None:
        self._log(f"VIOLATION {problem}")
        raise ViolationError(problem)
