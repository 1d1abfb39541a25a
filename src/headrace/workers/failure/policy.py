"""The decisions about records whose handler failed, and about dead letters that no topic accepts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple

from headrace.dead_letters.error_text import repr_of
from headrace.dead_letters.letter_headers import (
    Headers,
    dead_letter_headers,
    retry_headers,
    retry_topic,
)
from headrace.errors import HeadraceError, TransportError, WorkerFailedError
from headrace.workers.core.delivery import DeliveryMode
from headrace.workers.core.origins import Origins
from headrace.workers.core.scheduler import Job
from headrace.workers.failure.outcomes import (
    MAX_PAUSE_S,
    FailureOutcome,
    OnFailure,
    Retry,
    RetryLater,
    Skip,
    UnkeptKeyError,
    UnusableHandlerError,
    failure_outcome,
)
from headrace.workers.failure.refusals import is_over, remedy
from headrace.workers.failure.tracebacks import Failures, place_in

WRITE_AGAIN_MS: Final = 1_000
"""The pause in milliseconds before a dead letter, or a record for a retry topic, is written again."""
REFUSALS_EVERY_MS: Final = 30_000
"""The least time in milliseconds between two warnings that a topic accepts no records."""


class RetryInPlace(NamedTuple):
    """Handle the records again at a time, in milliseconds since 1970. Their lane waits until then."""

    due_ms: int


class WriteRetry(NamedTuple):
    """Write the record to a retry topic, where it waits until `due_ms`."""

    topic: str
    headers: Headers
    due_ms: int


class WriteDeadLetter(NamedTuple):
    """Write the record to a dead-letter topic."""

    topic: str
    headers: Headers


class FinishRecords(NamedTuple):
    """Finish the records without a result."""


class SplitBatch(NamedTuple):
    """Handle the records of the batch one by one."""


class StopWorker(NamedTuple):
    """Stop the worker with an error."""

    error: WorkerFailedError


class WriteAgain(NamedTuple):
    """Write the record again at a time, in milliseconds since 1970."""

    due_ms: int
    advice: str | None
    """The text to add to a warning about the refusal; None if there was such a warning a short time ago."""


FailureAction = (
    RetryInPlace | WriteRetry | WriteDeadLetter | FinishRecords | SplitBatch | StopWorker
)


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureRules:
    """The settings of a worker that concern failures."""

    worker: str
    """The worker's name, for messages."""
    retry: Retry
    pauses_s: list[float]
    """The pauses between attempts, each once, the shortest first; one retry topic exists for each."""
    dead_letter_topic: Callable[[str], str] | None
    """Returns the dead-letter topic for a result of `Origins.home`. None if there are no dead letters."""
    on_failure: OnFailure
    mode: DeliveryMode
    reads_streams: bool
    """Whether the worker reads Kinesis streams."""


class FailurePolicy:
    """Decides the next action for failed records."""

    def __init__(self, rules: FailureRules, origins: Origins, failures: Failures) -> None:
        self._rules = rules
        self._origins = origins
        self._failures = failures
        self._warn_again_ms: dict[str, int] = {}
        """The time of the next warning about refusals, by topic, in milliseconds since 1970."""

    def on_failure(self, job: Job, error: Exception, now_ms: int) -> FailureAction:
        """Decide what happens to the records of a job whose attempt failed."""
        rules = self._rules
        outcome = failure_outcome(
            error,
            job.attempt,
            rules.retry,
            dead_letters=rules.dead_letter_topic is not None,
            on_failure=rules.on_failure,
        )
        if outcome is FailureOutcome.RETRY:
            return self._retry(job, error, now_ms)
        if len(job.records) > 1 and not isinstance(error, Skip | UnusableHandlerError):
            return SplitBatch()
        if outcome is FailureOutcome.SKIP:
            return FinishRecords()
        if outcome is FailureOutcome.DEAD_LETTER and rules.dead_letter_topic is not None:
            record = job.records[0]
            headers = dead_letter_headers(
                record,
                self._origins.of(record),
                self._origins.group,
                job.attempt,
                error,
                traceback=self._failures.text(error),
            )
            return WriteDeadLetter(rules.dead_letter_topic(self._origins.home(record)), headers)
        return StopWorker(self._failed(job, error))

    def _retry(self, job: Job, error: Exception, now_ms: int) -> RetryInPlace | WriteRetry:
        rules = self._rules
        pause_s = _requested_pause_s(error)
        if pause_s is None:
            pause_s = rules.retry.pause_s(job.attempt)
        due_ms = now_ms + round(pause_s * 1000)
        if not rules.retry.topics:
            return RetryInPlace(due_ms)
        record = job.records[0]
        long_enough = [pause for pause in rules.pauses_s if pause >= pause_s]
        seconds = min(long_enough, default=rules.pauses_s[-1])
        headers = retry_headers(
            record,
            self._origins.of(record),
            self._origins.group,
            job.attempt + 1,
            due_ms,
            delayed=rules.mode.can_schedule_records,
        )
        return WriteRetry(retry_topic(self._origins.source(record), seconds), headers, due_ms)

    def on_refused(
        self, job: Job, topic: str, error: HeadraceError, now_ms: int
    ) -> WriteAgain | StopWorker:
        """Decide what happens to a record that could not be written to a retry topic or dead-letter topic."""
        if job.refused_ms is None:
            job.refused_ms = now_ms
        if is_over(error, job.refused_ms, now_ms):
            return StopWorker(self._unwritten(job, topic, error))
        advice = None
        # One warning for all records that wait for the topic.
        if now_ms >= self._warn_again_ms.get(topic, 0):
            self._warn_again_ms[topic] = now_ms + REFUSALS_EVERY_MS
            advice = self._advice(error)
        return WriteAgain(now_ms + WRITE_AGAIN_MS, advice)

    def _advice(self, error: HeadraceError) -> str:
        """Return a hint for a worker that reads streams and gets no response: it may have no broker at all."""
        if not self._rules.reads_streams or not isinstance(error, TransportError):
            return ""
        return '. Is a broker running there? dead_letter="kinesis://STREAM" needs none'

    # The errors with which a worker stops

    def broken(self, job: Job, error: BaseException) -> WorkerFailedError:
        """Return the error for a failure that neither the handler nor a broker caused."""
        return self._stopped(
            f"at the record at {self._origins.text(job.records[0])}, which is not committed: {repr_of(error)}",
            error,
        )

    def _unwritten(self, job: Job, topic: str, error: HeadraceError) -> WorkerFailedError:
        reason = "" if job.error is None else repr_of(job.error)
        return self._stopped(
            f": the record at {self._origins.text(job.records[0])} failed with {reason} and cannot be written to "
            f"{topic!r}: {error}. {remedy(error)}, and start the worker again. {self._rules.mode.fate}",
            error,
        )

    def _failed(self, job: Job, error: Exception) -> WorkerFailedError:
        place, advice = self._origins.text(job.records[0]), ""
        if isinstance(error, UnkeptKeyError):
            what = f"the record at {place} {error}"
        elif isinstance(error, UnusableHandlerError):
            what = f"the record at {place} was not handled: {error}"
        else:
            what = (
                f"the record at {place} failed in attempt {job.attempt} of {self._rules.retry.attempts} with "
                f"{repr_of(error)}{place_in(error)}"
            )
            advice = ' dead_letter=True keeps such records in a topic, on_failure="skip" drops them'
        return self._stopped(f": {what}. {self._rules.mode.fate}{advice}", error)

    def _stopped(self, why: str, cause: BaseException) -> WorkerFailedError:
        space = "" if why.startswith(":") else " "
        failure = WorkerFailedError(f"the worker {self._rules.worker!r} stopped{space}{why}")
        failure.__cause__ = cause
        return failure


def _requested_pause_s(error: Exception) -> float | None:
    """Return the pause in seconds that a handler requested; None without a request, or if the pause is too long."""
    delay_s = getattr(error, "delay_s", None) if isinstance(error, RetryLater) else None
    if isinstance(delay_s, int | float) and 0 <= delay_s <= MAX_PAUSE_S:
        return delay_s
    return None
