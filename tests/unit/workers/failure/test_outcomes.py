"""The outcome for a record whose handler failed, decided without any I/O."""

from __future__ import annotations

import pytest

from headrace.errors import ConfigError, SerializationError
from headrace.workers.failure.outcomes import (
    DeadLetter,
    FailureOutcome,
    Retry,
    RetryLater,
    Skip,
    failure_outcome,
)


def verdict(error: Exception, attempt: int = 1, *, retry=None, letters=True, failure="stop"):
    return failure_outcome(
        error, attempt, retry or Retry(attempts=3), dead_letters=letters, on_failure=failure
    )


def undecodable(cause: Exception) -> SerializationError:
    error = SerializationError("no")
    error.__cause__ = cause
    return error


def test_an_error_is_repeated_until_its_attempts_are_used_up() -> None:
    verdicts = [verdict(ValueError(), attempt) for attempt in (1, 2, 3)]
    assert verdicts == [FailureOutcome.RETRY, FailureOutcome.RETRY, FailureOutcome.DEAD_LETTER]


@pytest.mark.parametrize(
    ("failure", "expected"), [("stop", FailureOutcome.STOP), ("skip", FailureOutcome.SKIP)]
)
def test_without_dead_letters_the_worker_stops_unless_it_may_skip(failure, expected) -> None:
    assert verdict(ValueError(), 3, letters=False, failure=failure) is expected


def test_only_chosen_errors_are_repeated() -> None:
    retry = Retry(attempts=3, on=(TimeoutError,))
    assert verdict(TimeoutError(), retry=retry) is FailureOutcome.RETRY
    assert verdict(ValueError(), retry=retry) is FailureOutcome.DEAD_LETTER
    assert verdict(RetryLater(1), retry=retry) is FailureOutcome.RETRY


def test_a_handler_chooses_the_outcome_of_a_record() -> None:
    assert verdict(Skip()) is FailureOutcome.SKIP
    assert verdict(DeadLetter("why")) is FailureOutcome.DEAD_LETTER
    assert verdict(DeadLetter("why"), letters=False) is FailureOutcome.STOP
    assert verdict(RetryLater(5), 3) is FailureOutcome.DEAD_LETTER


def test_undecodable_bytes_are_not_retried_but_a_registry_is() -> None:
    assert verdict(undecodable(ValueError("no JSON"))) is FailureOutcome.DEAD_LETTER
    assert (
        verdict(undecodable(ConfigError("the schema registry does not answer")))
        is FailureOutcome.RETRY
    )
    assert verdict(undecodable(OSError())) is FailureOutcome.RETRY


def test_pauses_grow_up_to_the_longest() -> None:
    retry = Retry(attempts=9, first=0.5, factor=3, max=10)
    assert [retry.pause_s(attempt) for attempt in (1, 2, 3, 4, 1000)] == [0.5, 1.5, 4.5, 10, 10]


@pytest.mark.parametrize("wrong", [{"attempts": 0}, {"first": -1}, {"factor": 0.5}, {"max": -1}])
def test_an_invalid_retry_is_refused(wrong) -> None:
    with pytest.raises(ConfigError):
        Retry(**wrong)


@pytest.mark.parametrize("pause", [-1, float("inf"), float("nan"), 1e300])
def test_a_pause_has_a_limit(pause: float) -> None:
    with pytest.raises(ConfigError, match="a pause is from 0 to"):
        RetryLater(pause)
    with pytest.raises(ConfigError, match="the pauses of a Retry are from 0 to"):
        Retry(first=pause)
    with pytest.raises(ConfigError, match="the pauses of a Retry are from 0 to"):
        Retry(max=pause)


def test_a_retry_takes_exceptions_one_or_several() -> None:
    assert Retry(on=ValueError).again(ValueError(), 1)
    assert not Retry(on=(ValueError, OSError)).again(KeyError(), 1)
    for wrong in ("ValueError", (ValueError, "OSError"), [ValueError], int):
        with pytest.raises(ConfigError, match="takes classes of exceptions"):
            Retry(on=wrong)  # type: ignore[arg-type]  # that is the case
    for count in (0, 1.5, float("nan")):
        with pytest.raises(ConfigError, match="whole number"):
            Retry(attempts=count)  # type: ignore[arg-type]  # that is the case
    with pytest.raises(ConfigError, match="finite"):
        Retry(factor=float("inf"))
    assert Retry(attempts=2000, factor=1e300, max=5).pause_s(1500) == 5
