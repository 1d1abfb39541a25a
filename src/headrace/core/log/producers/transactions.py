"""The transactions of one log: the open ones, the aborted ones, and the offset below which all are decided.

A transaction is open in a log from its producer's first transactional batch to the marker that ends it. Everything
below the first offset of the first open transaction is decided, and `read_committed` consumers read up to there. A
marker only counts once the high watermark has passed it: before that, a crash may remove it.

Aborted transactions are kept as long as a record of them may be read: see `aborted_history`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable

from headrace.core.log.index.aborted_transactions import AbortedTransaction
from headrace.core.log.offsets import MAX_OFFSET
from headrace.core.log.producers.aborted_history import AbortedHistory


class LogTransactions:
    """The transactions of one log. A log without transactions only pays for one comparison."""

    __slots__ = ("_start_offset", "aborted", "decided", "first_unstable_offset", "open")

    def __init__(self, aborted: AbortedHistory | None = None) -> None:
        """Begin without open transactions, and with the aborted ones that are known."""
        self._start_offset = 0
        self.aborted = AbortedHistory() if aborted is None else aborted
        self.decided: list[tuple[int, int]] = []
        """(offset of the marker, first offset) of each transaction whose marker the high watermark has not passed yet.
        """
        self.first_unstable_offset = MAX_OFFSET
        """The first offset of the first transaction that is open or not durably decided. `MAX_OFFSET` without one."""
        self.open: dict[int, int] = {}
        """First offset of the open transaction by producer id, in ascending order of offsets."""

    def begin(self, producer_id: int, offset: int) -> None:
        """Note a transactional batch. It begins a transaction unless one of its producer is open."""
        if producer_id not in self.open:
            self.open[producer_id] = offset
            self.first_unstable_offset = min(self.first_unstable_offset, offset)

    def end(self, producer_id: int, offset: int, *, committed: bool) -> None:
        """Note a marker. A marker without an open transaction changes nothing."""
        first_offset = self.open.pop(producer_id, None)
        if first_offset is None:
            return
        if not committed:
            stable = next(iter(self.open.values()), offset + 1)
            entry = AbortedTransaction(producer_id, first_offset, offset, stable)
            self.aborted.append(entry)
        self.decided.append((offset, first_offset))

    def high_watermark_moved(self, high_watermark: int) -> None:
        """Count the markers below the high watermark. Called when there are `decided` transactions."""
        passed = bisect_left(self.decided, (high_watermark,))
        del self.decided[:passed]
        self._find_first_unstable()

    def move_start(self, offset: int) -> None:
        """Note a log start offset that is not durable yet: after a crash the log may begin below it again."""
        self._start_offset = offset
        self._find_first_unstable()

    def start_at(self, offset: int) -> None:
        """Forget what lies below the log start offset."""
        self.move_start(offset)
        self.aborted.start_at(offset)

    def keep_decided(self, decided: Iterable[tuple[int, int]], end_offset: int) -> None:
        """Note which transactions the high watermark has not passed yet, from those of a log that was truncated."""
        self.decided = [entry for entry in decided if entry[0] < end_offset]
        self._find_first_unstable()

    def restore(self, open_transactions: Iterable[tuple[int, int]]) -> None:
        """Begin with these open transactions: (producer id, first offset) each."""
        self.open = dict(sorted(open_transactions, key=lambda entry: entry[1]))
        self._find_first_unstable()

    def _find_first_unstable(self) -> None:
        first = min((first for _, first in self.decided), default=MAX_OFFSET)
        first = min(first, next(iter(self.open.values()), MAX_OFFSET))
        self.first_unstable_offset = max(first, self._start_offset)
