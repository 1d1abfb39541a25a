"""The exceptions by which a handler chooses an outcome, and the settings of retries."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum
from typing import Final, Literal

from headrace.errors import ConfigError, HeadraceError, SerializationError

MAX_PAUSE_S: Final = 100 * 365 * 86_400.0
"""The longest pause in seconds that `RetryLater` and `Retry` accept."""


class Skip(Exception):
    """Finish the record without a result and without a dead letter."""


class DeadLetter(Exception):
    """Write the record to the dead-letter topic without further attempts. The text is the reason."""


class RetryLater(Exception):
    """Retry after a pause that the handler chooses. The failed attempt counts.

    Attributes:
        delay_s: The pause in seconds.
    """

    def __init__(self, delay_s: float, reason: str = "") -> None:
        super().__init__(reason or f"try again in {delay_s} s")
        if not 0 <= delay_s <= MAX_PAUSE_S:
            raise ConfigError(
                f"RetryLater({delay_s}): a pause is from 0 to {MAX_PAUSE_S:.0f} seconds"
            )
        self.delay_s = delay_s


class UnusableHandlerError(HeadraceError):
    """The program's code cannot handle any record, so the worker stops at the first one."""


class UnkeptKeyError(UnusableHandlerError):
    """The key of a handled record cannot be kept, so the worker stops: the record would be handled twice."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Retry:
    """The number of attempts for a record, and the pauses between them.

    Attributes:
        attempts: The most attempts for a record, with the first one.
        first: The pause before the second attempt, in seconds. Each further pause is `factor` times longer.
        max: The longest pause, in seconds.
        factor: The ratio of a pause to the pause before it.
        on: The exception classes that lead to a further attempt, one or several. Other exceptions lead to a dead letter
            at once.
        topics: Whether failed records wait in topics `retry.<seconds>.<topic>`. Then later records of the key or
            partition are handled first, so their order is lost.
    """

    attempts: int = 5
    first: float = 0.2
    max: float = 30.0
    factor: float = 2.0
    on: type[Exception] | tuple[type[Exception], ...] = (Exception,)
    topics: bool = False

    def __post_init__(self) -> None:
        if self.attempts % 1 != 0 or self.attempts < 1:
            raise ConfigError(
                "Retry(attempts=...) counts the first attempt: it is a whole number, at least 1"
            )
        if not (0 <= self.first <= MAX_PAUSE_S and 0 <= self.max <= MAX_PAUSE_S):
            raise ConfigError(f"the pauses of a Retry are from 0 to {MAX_PAUSE_S:.0f} seconds")
        if not (self.factor >= 1 and math.isfinite(self.factor)):
            raise ConfigError("the factor of a Retry is at least 1, and finite")
        kinds: tuple[object, ...] = self._kinds
        for kind in kinds:
            if not (isinstance(kind, type) and issubclass(kind, Exception)):
                raise ConfigError(f"Retry(on=...) takes classes of exceptions, not {kind!r}")

    @property
    def _kinds(self) -> tuple[type[Exception], ...]:
        return self.on if isinstance(self.on, tuple) else (self.on,)

    def pause_s(self, attempt: int) -> float:
        """Return the seconds to wait after a failed attempt; the first attempt has number 1."""
        try:
            return min(self.max, self.first * self.factor ** min(attempt - 1, 64))
        except OverflowError:
            return self.max

    def again(self, error: Exception, attempt: int) -> bool:
        """Whether a further attempt follows a failed attempt."""
        if isinstance(error, Skip | DeadLetter) or attempt >= self.attempts:
            return False
        return isinstance(error, (RetryLater, *self._kinds))


NO_RETRY = Retry(attempts=1)
"""The setting for workers that handle each record once."""


class FailureOutcome(Enum):
    """The outcome of records whose handler failed."""

    SKIP = "finished without a result"
    RETRY = "handled again"
    DEAD_LETTER = "written to the dead letters, then finished"
    STOP = "not finished: the worker stops"


OnFailure = Literal["stop", "skip"]


def failure_outcome(
    error: Exception, attempt: int, retry: Retry, *, dead_letters: bool, on_failure: OnFailure
) -> FailureOutcome:
    """Decide the outcome of records after a failed attempt."""
    if isinstance(error, UnusableHandlerError):
        return FailureOutcome.STOP
    if isinstance(error, Skip):
        return FailureOutcome.SKIP
    if not _never_decodes(error) and retry.again(error, attempt):
        return FailureOutcome.RETRY
    if dead_letters:
        return FailureOutcome.DEAD_LETTER
    return FailureOutcome.SKIP if on_failure == "skip" else FailureOutcome.STOP


def _never_decodes(error: Exception) -> bool:
    """Return whether bytes cannot be decoded for a permanent reason. An unreachable schema registry is not one."""
    cause = error.__cause__
    return isinstance(error, SerializationError) and not isinstance(cause, OSError | HeadraceError)
