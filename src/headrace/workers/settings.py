"""The settings of a worker, from the arguments of `@app.worker` and `@app.publishes`, checked."""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, get_args

from headrace.dead_letters.letter_headers import (
    DEAD_LETTER_PREFIX,
    RETRY_PREFIX,
    STREAM_PREFIX,
    retry_topic,
)
from headrace.errors import ConfigError
from headrace.serdes.serde import Serde
from headrace.workers.delivery import MODES, Delivery, DeliveryMode
from headrace.workers.failure_policy import FailureRules
from headrace.workers.handlers import Handler
from headrace.workers.origins import Origins
from headrace.workers.outcomes import NO_RETRY, OnFailure, Retry
from headrace.workers.scheduler import Ordering
from headrace.workers.seen.declared import TOPIC_PREFIX as SEEN_PREFIX
from headrace.workers.seen.declared import SeenFile, SeenTopic
from headrace.workers.seen.keys import SeenKeys
from headrace.workers.source import DeadLetterStream, StreamSelection

DEFAULT_CONCURRENCY: Final = 16
DEFAULT_TRANSACTION_MS: Final = 100
DEFAULT_TRANSACTION_RECORDS: Final = 1_000
DEFAULT_TRANSACTION_TIMEOUT_MS: Final = 10_000
MIN_TRANSACTION_TIMEOUT_MS: Final = 1_000
DEFAULT_RETRY: Final = Retry()


@dataclass(frozen=True, slots=True)
class Publication:
    """A topic for results, with their key and serde."""

    topic: str
    key: Callable[[Any], Any] | None
    serde: Serde | None


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSettings:
    """One worker.

    Attributes:
        name: What counters and messages call it; the function's name unless given.
        handler: What it calls.
        topics: The topics, one or several.
        streams: What is read in place of topics: `kinesis("orders")`.
        pattern: In place of topics, a regular expression that the whole name of a topic must match.
        attached: In place of both, whatever the group is attached to, which an administrator may change while it runs;
            the group's assignor is used then. Only Headrace's brokers keep such a thing.
        group: The consumer group; the app's unless given.
        ordering: Which records are handled one after another: a partition's, those with the same key, or none.
        concurrency: How many calls of the handler may run at once.
        batch: At most so many records a call, for handlers of batches; 100 unless given.
        retry: How often a failed record is handled again; a number is that of attempts. Five unless given, or one
            where delivery is at most once.
        dead_letter: Whether records whose attempts are used up go to `dlq.<topic>`, or the name of a topic for them; of
            a stream's records also `kinesis://STREAM`.
        on_failure: What happens to them without dead letters: "stop" ends the worker with an error before anything is
            lost, "skip" takes them for finished.
        dedupe: Returns a value's key; a record with a key that was handled is skipped.
        seen: Where handled keys are kept: a `SeenTopic`, a `SeenFile`, or an object with `key in seen` and
            `seen.add(key)`. None remembers the last 100,000 in memory, which a restart forgets.
        serde: How bytes become values: the one that was given, else that of the handler's annotation. None is what the
            topic's metadata say.
        delivery: "at_least_once"; "at_most_once": offsets are committed before records are handled; or "exactly_once":
            results and positions are committed in one transaction, and only committed records are read.
        transaction_ms: How often that is, for exactly once: results can be read so much later.
        transaction_records: So many results make a transaction at once.
        transaction_timeout_ms: After how long the broker aborts the transaction of a worker that is gone; until then
            nobody goes on behind it. What is not delivered in half of it is tried again later. Not more than the
            broker's `transaction.max.timeout.ms`.
        transactional_id: By what name; None is one of the app's client id, the group, the worker and, of a static
            member, its instance id, or else something random.
        drain_timeout_s: How long handlers may take to finish when their partition goes.
        max_buffered: Records of one partition that are taken in and not finished, at most.
        commit_interval_s: How often positions are committed.
        consumer: Further properties of the consumer, `max_poll_records=100`, `auto_offset_reset="latest"`.
        publications: Where results go.
    """

    name: str
    handler: Handler
    topics: tuple[str, ...]
    streams: StreamSelection | None = None
    pattern: re.Pattern[str] | None
    attached: bool
    group: str
    ordering: Ordering
    concurrency: int
    batch: int | None
    retry: Retry
    dead_letter: bool | str
    on_failure: OnFailure
    dedupe: Callable[[Any], Hashable] | None
    seen: SeenKeys | SeenTopic | SeenFile | None
    serde: Serde | None
    delivery: Delivery
    transaction_ms: int
    transaction_records: int
    transaction_timeout_ms: int
    transactional_id: str | None
    drain_timeout_s: float
    max_buffered: int
    commit_interval_s: float
    consumer: Mapping[str, Any]
    publications: list[Publication] = field(default_factory=list)

    def __post_init__(self) -> None:
        chosen = sum(
            map(bool, (self.topics, self.streams, self.pattern is not None, self.attached))
        )
        if not chosen:
            raise ConfigError(
                f"the worker {self.name!r} needs a topic, a list of topics, pattern=, or attached=True"
            )
        if chosen > 1:
            raise ConfigError(
                f"the worker {self.name!r} takes topics, a pattern or attached=True, not several of them"
            )
        _one_of(self.ordering, get_args(Ordering), "ordering")
        _one_of(self.delivery, get_args(Delivery), "delivery")
        _one_of(self.on_failure, get_args(OnFailure), "on_failure")
        self._check_streams()
        if self.concurrency < 1 or self.max_buffered < 1 or (self.batch or 1) < 1:
            raise ConfigError("concurrency, batch and max_buffered are at least 1")
        if self.transaction_ms < 1 or self.transaction_records < 1:
            raise ConfigError("transaction_ms and transaction_records are at least 1")
        if self.transaction_timeout_ms < MIN_TRANSACTION_TIMEOUT_MS:
            raise ConfigError(
                f"transaction_timeout_ms={self.transaction_timeout_ms} leaves no time for a commit: it is at least "
                f"{MIN_TRANSACTION_TIMEOUT_MS}"
            )
        if self.drain_timeout_s < 0 or self.commit_interval_s <= 0:
            raise ConfigError("drain_timeout_s is not negative, commit_interval_s is positive")
        if self.batch is not None and not self.handler.wants_batches:
            raise ConfigError(
                f"batch={self.batch} needs a handler of batches: annotate its first parameter as list[...], or give an "
                "object with handle(batch)"
            )
        if self.retry.topics and (not self.topics or self.handler.wants_batches):
            raise ConfigError(
                "Retry(topics=True) goes neither with pattern=, attached=True, streams nor with batches"
            )

    def _check_streams(self) -> None:
        if self.streams is not None:
            self.streams.check(delivery=self.delivery, dead_letter=self.dead_letter)
        elif isinstance(self.dead_letter, str) and "://" in self.dead_letter:
            raise ConfigError(
                f"dead_letter={self.dead_letter!r}: dead letters of topics go to a topic, and this is no name of one"
            )

    @property
    def pauses_s(self) -> list[float]:
        """The pauses between attempts, each once, the shortest first."""
        return sorted({self.retry.pause_s(attempt) for attempt in range(1, self.retry.attempts)})

    def describe(self) -> str:
        """Return what it reads and how, for the log."""
        what = f"topics {', '.join(self.topics)}"
        if self.streams is not None:
            what = f"streams {', '.join(self.streams.names)}"
        elif self.pattern is not None:
            what = f"topics that match {self.pattern.pattern!r}"
        elif self.attached:
            what = "what its group is attached to"
        aside: str = self.on_failure
        if self.dead_letter:
            aside = self.dead_letter if isinstance(self.dead_letter, str) else "dead letter"
        results = ", ".join(each.topic for each in self.publications)
        return (
            f"reads {what}; group {self.group}; delivery {self.delivery}; ordering {self.ordering}; concurrency "
            f"{self.concurrency}; {f'batches of {self.batch}; ' if self.batch else ''}attempts {self.retry.attempts}, "
            f"then {aside}{f'; results to {results}' if results else ''}"
        )

    def has_id_of(self, other: WorkerSettings) -> bool:
        """Whether both are to write transactions by one name."""
        both = self.delivery == other.delivery == "exactly_once"
        return (
            both
            and self.transactional_id is not None
            and self.transactional_id == other.transactional_id
        )

    def homes(self) -> tuple[str, ...]:
        """Return what dead-letter topics are called after, as far as it is known before; see `Places.home`."""
        if self.streams is not None:
            return tuple(f"{STREAM_PREFIX}{name}" for name in self.streams.names)
        return self.topics

    def retry_topics(self) -> dict[str, str]:
        """Return the topics in which records wait for their next attempt, each with the topic they come from."""
        if not self.retry.topics:
            return {}
        return {
            retry_topic(topic, pause): topic for pause in self.pauses_s for topic in self.topics
        }

    @property
    def mode(self) -> DeliveryMode:
        """The object that decides what `delivery` determines."""
        return MODES[self.delivery]

    def origins(self) -> Origins:
        """Return what finds the origins of this worker's records."""
        return Origins(self.group, self.topics, self.retry_topics(), self.pauses_s)

    def failure_rules(self) -> FailureRules:
        """Return the settings that concern failures."""
        return FailureRules(
            worker=self.name,
            retry=self.retry,
            pauses_s=self.pauses_s,
            dead_letter_topic=None if self.dead_letter is False else self.dead_letter_topic,
            on_failure=self.on_failure,
            mode=self.mode,
            reads_streams=self.streams is not None,
        )

    def exclude(self) -> str | tuple[()]:
        """Return what a pattern does not take unless it begins so: dead letters, what waits elsewhere, and keys.

        The pattern that a group is attached to is an administrator's: it never takes them, names do.
        """
        aside = "|".join(map(re.escape, (DEAD_LETTER_PREFIX, RETRY_PREFIX, SEEN_PREFIX)))
        if self.topics:
            return ()
        if self.pattern is not None and re.match(
            r"\^?(dlq|retry|headrace-seen)", self.pattern.pattern
        ):
            return ()
        named = [self.dead_letter] if isinstance(self.dead_letter, str) else []
        if isinstance(self.seen, SeenTopic):
            named.append(self.seen.name_for(self.group, self.name))
        return "|".join([f"({aside}).*", *map(re.escape, named)])

    def open_letters(self) -> DeadLetterStream | None:
        """Return what writes dead letters where they do not go to a topic."""
        place = self.dead_letter
        if self.streams is None or not isinstance(place, str) or "://" not in place:
            return None
        return self.streams.open_letters(place)

    def dead_letter_topic(self, home: str) -> str:
        """Return where the dead letters of a topic or stream go; see `Places.home`."""
        if isinstance(self.dead_letter, str):
            return self.dead_letter
        return f"{DEAD_LETTER_PREFIX}{home}"


def as_retry(given: Retry | int | None, delivery: Delivery) -> Retry:
    """Return how failures are repeated; a number is that of attempts."""
    if isinstance(given, Retry):
        return given
    if given is not None:
        return Retry(attempts=given)
    return NO_RETRY if delivery == "at_most_once" else DEFAULT_RETRY


def as_topics(given: str | Sequence[str] | StreamSelection | None) -> tuple[str, ...]:
    """Return the topics of one name, or of several."""
    if given is None or isinstance(given, StreamSelection):
        return ()
    return (given,) if isinstance(given, str) else tuple(given)


def as_streams(given: object, properties: Mapping[str, Any]) -> StreamSelection | None:
    """Return what is read in place of topics, which has no properties of a consumer; None for topics."""
    if not isinstance(given, StreamSelection):
        return None
    if properties:
        raise ConfigError(
            f"{', '.join(sorted(properties))}: these are properties of a topic's consumer; how streams are read is "
            "said in kinesis(...)"
        )
    return given


def _one_of(value: object, choices: tuple[object, ...], what: str) -> None:
    if value not in choices:
        raise ConfigError(f"{what} is one of {', '.join(map(repr, choices))}, not {value!r}")
