"""Calls: what is asked, and the log of what was."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

_KEPT: Final = 100_000


@dataclass(slots=True)
class Call:
    """A request that is being handled.

    Attributes:
        operation: Its name, such as `GetRecords`.
        request: Its members.
        now_ms: When it arrives.
        stream: The stream that it is about; None where it is about none, or about a table.
        shard: The shard that it is about; None where it is about none, or several.
        failing: Which records of a PutRecords a fault refuses, from 0, and with what.
    """

    operation: str
    request: dict[str, Any]
    now_ms: int
    stream: str | None = None
    shard: str | None = None
    failing: dict[int, str] = field(default_factory=dict)


class LoggedCall(NamedTuple):
    """A call that was made.

    Attributes:
        at_ms: When.
        operation: What.
        stream: Of which stream; the table in a log of DynamoDB.
        shard: Of which shard.
        error: What it was refused with; None if it was not.
    """

    at_ms: int
    operation: str
    stream: str | None
    shard: str | None
    error: str | None


@dataclass(slots=True)
class CallLog:
    """All calls since the beginning, or since `clear`.

    Attributes:
        last: The last 100,000 of them, oldest first.
    """

    last: deque[LoggedCall] = field(default_factory=lambda: deque(maxlen=_KEPT))
    _counts: Counter[tuple[str, str | None, str | None, str | None]] = field(
        default_factory=Counter
    )

    def note(self, call: Call, error: str | None) -> None:
        """Note a call and how it ended."""
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
        """Return how many calls there were, of all or those that are asked for.

        Args:
            operation: Only of this operation.
            stream: Only of this stream, or table.
            shard: Only of this shard.
            error: Only those that were refused with this.
        """
        wanted = (operation, stream, shard, error)
        return sum(
            count
            for key, count in list(self._counts.items())
            if all(want is None or want == has for want, has in zip(wanted, key, strict=True))
        )

    def counts(self) -> dict[str, int]:
        """Return how many calls there were of each operation."""
        found: Counter[str] = Counter()
        for (operation, *_), count in list(self._counts.items()):
            found[operation] += count
        return dict(found)

    def clear(self) -> None:
        """Forget all counted calls."""
        self.last.clear()
        self._counts.clear()
