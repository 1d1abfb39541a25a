"""The transactions of one log: which are open, up to where all is decided, and which were aborted.

A transaction is open in a log from its producer's first transactional batch to the marker that ends it. Below the first
offset of the first open one everything is decided, and that is what `read_committed` consumers see. A marker counts
only once the high watermark has passed it: before, a crash may take it away again.

Which were aborted is remembered as long as a record of them may be read: see `aborted_history`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from headrace.core.log.index.aborted_transactions import AbortedTransaction
from headrace.core.log.offsets import MAX_OFFSET
from headrace.core.log.producers.aborted_history import AbortedHistory


class LogTransactions:
    """The transactions of one log. Without any, all there is to it is one comparison."""

    __slots__ = ("_start_offset", "aborted", "decided", "first_unstable_offset", "open")

    def __init__(self, aborted: AbortedHistory | None = None) -> None:
        """Begin without any, or with what is known of aborted ones."""
        self._start_offset = 0
        self.aborted = AbortedHistory() if aborted is None else aborted
        self.decided: deque[tuple[int, int]] = deque()
        """Marker and first offset of those whose marker the high watermark has not passed yet."""
        self.first_unstable_offset = MAX_OFFSET
        """Where the first transaction begins that is open, or not durably decided."""
        self.open: dict[int, int] = {}
        """First offset by producer id, in ascending order."""

    def begin(self, producer_id: int, offset: int) -> None:
        """Take note of a transactional batch; nothing happens if it is not the transaction's first."""
        if producer_id not in self.open:
            self.open[producer_id] = offset
            self.first_unstable_offset = min(self.first_unstable_offset, offset)

    def end(self, producer_id: int, offset: int, *, committed: bool) -> None:
        """Take note of a marker; one that ends nothing changes nothing."""
        first_offset = self.open.pop(producer_id, None)
        if first_offset is None:
            return
        if not committed:
            stable = next(iter(self.open.values()), offset + 1)
            entry = AbortedTransaction(producer_id, first_offset, offset, stable)
            self.aborted.append(entry)
        self.decided.append((offset, first_offset))

    def high_watermark_moved(self, high_watermark: int) -> None:
        """Count the markers below the high watermark; call it when there are `decided` ones."""
        decided = self.decided
        while decided and decided[0][0] < high_watermark:
            decided.popleft()
        self._find_first_unstable()

    def start_at(self, offset: int) -> None:
        """Forget what lies below the log's start."""
        self._start_offset = offset
        self.aborted.start_at(offset)
        self._find_first_unstable()

    def restore(self, open_transactions: Iterable[tuple[int, int]]) -> None:
        """Begin with these open ones: producer id and first offset."""
        self.open = dict(sorted(open_transactions, key=lambda entry: entry[1]))
        self._find_first_unstable()

    def _find_first_unstable(self) -> None:
        first = min((first for _, first in self.decided), default=MAX_OFFSET)
        first = min(first, next(iter(self.open.values()), MAX_OFFSET))
        self.first_unstable_offset = max(first, self._start_offset)
