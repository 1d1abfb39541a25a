"""What a handler may ask for by raising, and how failures are repeated."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Literal

from headrace.errors import ConfigError, HeadraceError, SerializationError


class Skip(Exception):  # noqa: N818 - a wish of the handler, not a fault
    """Take the record for finished, without a result and without a dead letter."""


class DeadLetter(Exception):  # noqa: N818 - as above
    """Do not try again: write the record to the dead-letter topic, with this text as the reason."""


class RetryLater(Exception):  # noqa: N818 - as above
    """Try again after a pause of the handler's choice; it counts as an attempt.

    Attributes:
        delay_s: Seconds until then.
    """

    def __init__(self, delay_s: float, reason: str = "") -> None:
        super().__init__(reason or f"try again in {delay_s} s")
        if delay_s < 0:
            raise ConfigError(f"a pause of {delay_s} seconds is negative")
        self.delay_s = delay_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Retry:
    """How often and when a failed record is handled again.

    Attributes:
        attempts: How often it is handled at most, the first time included.
        first: Seconds before the second attempt; each further pause is `factor` times longer.
        max: The longest pause, in seconds.
        factor: How pauses grow.
        on: Exceptions that are worth another attempt; others go to the dead letters at once.
        topics: Wait in topics `retry.<seconds>.<topic>` instead of in place: other records of the key or partition are
            handled meanwhile, so their order is lost.
    """

    attempts: int = 5
    first: float = 0.2
    max: float = 30.0
    factor: float = 2.0
    on: tuple[type[Exception], ...] = (Exception,)
    topics: bool = False

    def __post_init__(self) -> None:
        if self.attempts < 1:
            raise ConfigError("Retry(attempts=...) counts the first attempt: it is at least 1")
        if self.first < 0 or self.max < 0 or self.factor < 1:
            raise ConfigError("the pauses of a Retry are not negative and do not shrink")

    def pause_s(self, attempt: int) -> float:
        """Return the seconds to wait after a failed attempt; the first attempt has number 1."""
        return min(self.max, self.first * self.factor ** min(attempt - 1, 64))

    def again(self, error: Exception, attempt: int) -> bool:
        """Whether an attempt that failed is followed by another."""
        if isinstance(error, Skip | DeadLetter) or attempt >= self.attempts:
            return False
        return isinstance(error, (RetryLater, *self.on))


NO_RETRY = Retry(attempts=1)


class Verdict(Enum):
    """What becomes of records whose handler failed."""

    SKIP = "finished without a result"
    RETRY = "handled again"
    DEAD_LETTER = "written to the dead letters, then finished"
    STOP = "not finished: the worker stops"


OnFailure = Literal["stop", "skip"]


def judge(
    error: Exception, attempt: int, retry: Retry, *, dead_letters: bool, on_failure: OnFailure
) -> Verdict:
    """Decide what becomes of records after a failed attempt."""
    if isinstance(error, Skip):
        return Verdict.SKIP
    if not _hopeless(error) and retry.again(error, attempt):
        return Verdict.RETRY
    if dead_letters:
        return Verdict.DEAD_LETTER
    return Verdict.SKIP if on_failure == "skip" else Verdict.STOP


def _hopeless(error: Exception) -> bool:
    """Whether bytes do not decode for a reason that stays; a schema registry that does not answer comes back."""
    cause = error.__cause__
    return isinstance(error, SerializationError) and not isinstance(cause, OSError | HeadraceError)
