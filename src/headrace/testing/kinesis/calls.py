"""Calls: a request that is being handled, and the log of all calls."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

_KEPT: Final = 100_000


@dataclass(slots=True)
class Call:
    """A request that is being handled.

    Attributes:
        operation: The name of the operation, such as `GetRecords`.
        request: The members of the request.
        now_ms: The time of arrival in milliseconds.
        stream: The name of the stream, or of the table. None: the request is about neither.
        shard: The name of the shard. None: the request is about no shard, or about several.
        failing: The error types by index of the records of a PutRecords that a fault refuses.
    """

    operation: str
    request: dict[str, Any]
    now_ms: int
    stream: str | None = None
    shard: str | None = None
    failing: dict[int, str] = field(default_factory=dict)


class LoggedCall(NamedTuple):
    """A call in the log.

    Attributes:
        at_ms: The time of the call in milliseconds.
        operation: The name of the operation.
        stream: The name of the stream; in a log of DynamoDB, of the table.
        shard: The name of the shard, or None.
        error: The error type of the refusal; None if the call succeeded.
    """

    at_ms: int
    operation: str
    stream: str | None
    shard: str | None
    error: str | None


@dataclass(slots=True)
class CallLog:
    """All calls since the start, or since `clear`.

    Attributes:
        last: The last 100,000 calls, oldest first.
    """

    last: deque[LoggedCall] = field(default_factory=lambda: deque(maxlen=_KEPT))
    _counts: Counter[tuple[str, str | None, str | None, str | None]] = field(
        default_factory=Counter
    )

    def note(self, call: Call, error: str | None) -> None:
        """Add a call and its result to the log."""
        self.last.append(LoggedCall(call.now_ms, call.operation, call.stream, call.shard, error))
        self._counts[call.operation, call.stream, call.shard, error] += 1

    def count(
        self,
        operation: str | None = None,
        *,
        stream: str | None = None,
        shard: str | None = None,
        error: str | None = None,
    ) -> int:
        """Return the number of calls, of all or of those that match.

        Args:
            operation: Count only calls of this operation.
            stream: Count only calls about this stream or table.
            shard: Count only calls about this shard.
            error: Count only calls that were refused with this error type.
        """
        wanted = (operation, stream, shard, error)
        return sum(
            count
            for key, count in list(self._counts.items())
            if all(want is None or want == has for want, has in zip(wanted, key, strict=True))
        )

    def counts(self) -> dict[str, int]:
        """Return the number of calls of each operation."""
        found: Counter[str] = Counter()
        for (operation, *_), count in list(self._counts.items()):
            found[operation] += count
        return dict(found)

    def clear(self) -> None:
        """Forget all counted calls."""
        self.last.clear()
        self._counts.clear()
