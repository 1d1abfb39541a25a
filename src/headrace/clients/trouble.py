"""Errors that a client retries, for the messages of timeouts and for the log.

A call that times out has failed for a reason that was seen before: no broker accepted the connection, the broker's disk
is full, the topic is missing. Each retried error is noted here, so that the message of the timeout contains it, and so
that it is logged while the call still waits.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from headrace.errors import ApiError, ErrorCode, HeadraceError, TransportError

WARN_AFTER_MS: Final = 1_000
"""Milliseconds after which an error that persists is logged."""
WARN_AGAIN_MS: Final = 60_000
"""Milliseconds before an error that persists is logged again."""
FORGET_AFTER_MS: Final = 30_000
"""Milliseconds without an error after which it counts as new."""
KINDS_KEPT: Final = 32
"""The largest number of different errors that are kept; then all of them are forgotten."""

ADVICE: Final[dict[ErrorCode, str]] = {
    ErrorCode.KAFKA_STORAGE_ERROR: "free space on the broker's disk, or see the broker's log for what failed",
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: "create the topic, or check its name",
    ErrorCode.UNKNOWN_TOPIC_ID: "create the topic, or check its name",
    ErrorCode.LEADER_NOT_AVAILABLE: "see whether all brokers of the cluster run",
    ErrorCode.NOT_LEADER_OR_FOLLOWER: "see whether the brokers agree on who leads the partition",
    ErrorCode.NOT_ENOUGH_REPLICAS: "start the brokers that are missing, or lower min.insync.replicas",
    ErrorCode.COORDINATOR_NOT_AVAILABLE: "see the broker's log for why its internal topics cannot be used",
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS: "wait until the broker has loaded its groups, or raise the time-out",
    ErrorCode.CONCURRENT_TRANSACTIONS: "wait until the transaction before is complete, or raise the time-out",
    ErrorCode.UNSTABLE_OFFSET_COMMIT: "end the transaction that has offsets pending",
    ErrorCode.THROTTLING_QUOTA_EXCEEDED: "raise the quota of this client, or send less",
    ErrorCode.NETWORK_EXCEPTION: "see whether a broker runs there and can be reached",
}
"""Advice for the operator, by error code, for errors that may persist."""
ADVICE_FOR_TRANSPORT: Final = "see whether a broker runs there and can be reached"


_NUMBERS: Final = re.compile(r"(?<![\w.:-])\d+(?![\w-]|\.\w)")
"""Numbers that stand alone. Numbers in names of topics, partitions and addresses distinguish errors."""


@dataclass(slots=True)
class _Kind:
    """One error that repeats, with the times of the first and the last occurrence and of the last warning."""

    first_ms: int
    last_ms: int
    warned_ms: int | None = None


class Trouble:
    """The errors after which one client retries."""

    def __init__(self) -> None:
        self.warn: Callable[[str], object] | None = None
        """Logs a warning; None logs nothing."""
        self._last: HeadraceError | None = None
        self._last_ms = 0
        self._kinds: dict[tuple[str, str], _Kind] = {}
        """The errors by type and text. The text is without numbers, because offsets and sizes differ each time."""

    def note(self, error: HeadraceError, now_ms: int) -> None:
        """Note an error that is retried.

        Errors of brokers are logged here. `Outages` logs once that a broker cannot be reached.
        """
        self._last, self._last_ms = error, now_ms
        name = type(error).__name__, _NUMBERS.sub("", str(error))
        kind = self._kinds.get(name)
        if kind is None or now_ms - kind.last_ms > FORGET_AFTER_MS:
            if len(self._kinds) >= KINDS_KEPT:
                self._kinds.clear()
            self._kinds[name] = _Kind(now_ms, now_ms)
            return
        kind.last_ms = now_ms
        since_ms = now_ms - kind.first_ms
        again = kind.warned_ms is None or now_ms - kind.warned_ms >= WARN_AGAIN_MS
        if self.warn is None or isinstance(error, TransportError):
            return
        if again and since_ms >= WARN_AFTER_MS:
            kind.warned_ms = now_ms
            self.warn(f"tried again for {since_ms / 1000:.0f} s: {advised(error)}")

    def explain(self, text: str, since_ms: int) -> str:
        """Return the message of a timeout, with the last error if there was one.

        Args:
            text: The message.
            since_ms: The time at which the call began. Earlier errors are ignored.
        """
        if self._last is None or self._last_ms < since_ms:
            return text
        return f"{text}; last error: {advised(self._last)}"


def advised(error: HeadraceError) -> str:
    """Return the text of an error, with advice if there is any."""
    advice = None
    if isinstance(error, ApiError):
        advice = ADVICE.get(error.code)
    elif isinstance(error, TransportError):
        advice = ADVICE_FOR_TRANSPORT
    text = str(error)
    return text if advice is None or advice in text else f"{text} ({advice})"
