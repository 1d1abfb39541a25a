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
from headrace.workers.core.delivery import MODES, Delivery, DeliveryMode
from headrace.workers.core.origins import Origins
from headrace.workers.core.scheduler import Ordering
from headrace.workers.deduplication.declared import TOPIC_PREFIX as SEEN_PREFIX
from headrace.workers.deduplication.declared import SeenFile, SeenTopic
from headrace.workers.deduplication.keys import SeenKeys
from headrace.workers.failure.outcomes import NO_RETRY, OnFailure, Retry
from headrace.workers.failure.policy import FailureRules
from headrace.workers.handler.signature import Handler
from headrace.workers.source import DeadLetterDestination, StreamSelection

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
    """The settings of one worker.

    Attributes:
        name: The worker's name in counters and messages: the function's name unless the program gives one.
        handler: The handler.
        topics: The input topics; empty if the worker reads streams, a pattern or attached topics.
        streams: The Kinesis streams that the worker reads in place of topics; None if it reads topics.
        pattern: The regular expression that the whole name of an input topic must match; None without a pattern.
        attached: Whether the worker reads the topics that are attached to its group. Administrators can change them
            while it runs. The group then has an assignor of its own. Only Headrace's brokers support this.
        group: The consumer group.
        ordering: Which records are handled one after another: those of a partition, those with the same key, or none.
        concurrency: The most handler calls that run at once.
        batch: The most records of one call, for handlers of batches; None for handlers of single records.
        retry: The number of attempts and the pauses between them.
        dead_letter: Whether records without further attempts go to `dlq.<topic>`; or the name of a topic for them, or
            `kinesis://STREAM` if the worker reads streams.
        on_failure: What happens to these records without dead letters: "stop" ends the worker with an error before a
            record is lost, "skip" finishes them.
        dedupe: Returns the key of a value; a record whose key was handled before is skipped. None handles all records.
        seen: Keeps the handled keys: a `SeenTopic`, a `SeenFile`, or an object with `key in seen` and `seen.add(key)`.
            None keeps the last 100,000 keys in memory until the process ends.
        serde: The serde of values, from the program or from the handler's annotation; None is the serde of each topic.
        delivery: "at_least_once"; "at_most_once": offsets are committed before records are handled; or "exactly_once":
            one transaction commits results and offsets, and only committed records are read.
        transaction_ms: The time between two transactions in milliseconds. Results are readable that much later.
        transaction_records: The number of results at which a transaction begins earlier.
        transaction_timeout_ms: The time in milliseconds after which the broker aborts the transaction of a worker that
            has crashed. Until then consumers do not read past it. Results that are not delivered in half of this time
            are written again later. The limit is the broker's `transaction.max.timeout.ms`.
        transactional_id: The transactional id. None makes one of client id, group, worker, and the group instance id of
            a static member or else a random part.
        drain_timeout_s: How long handlers may run on after their partition is revoked, in seconds.
        max_buffered: The number of unfinished records at which a partition is paused.
        commit_interval_s: The time between two commits, in seconds.
        consumer: Further properties of the consumer, such as `max_poll_records` and `auto_offset_reset`.
        publications: The topics for results.
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
                f"the worker {self.name!r} has several of topics, pattern= and attached=True: use one of them"
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
                "Retry(topics=True) cannot be combined with pattern=, attached=True, streams or batches"
            )

    def _check_streams(self) -> None:
        if self.streams is not None:
            self.streams.check(delivery=self.delivery, dead_letter=self.dead_letter)
        elif isinstance(self.dead_letter, str) and "://" in self.dead_letter:
            raise ConfigError(
                f"dead_letter={self.dead_letter!r} is not a valid topic name. Only a worker that reads streams can "
                "write dead letters to a stream"
            )

    @property
    def pauses_s(self) -> list[float]:
        """The pauses between attempts, each once, the shortest first."""
        return sorted({self.retry.pause_s(attempt) for attempt in range(1, self.retry.attempts)})

    def describe(self) -> str:
        """Return a description of the worker for the log: its input, its group and its main settings."""
        what = f"topics {', '.join(self.topics)}"
        if self.streams is not None:
            what = f"streams {', '.join(self.streams.names)}"
        elif self.pattern is not None:
            what = f"topics that match {self.pattern.pattern!r}"
        elif self.attached:
            what = "the topics attached to its group"
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
        """Return whether both workers write transactions with the same transactional id."""
        both = self.delivery == other.delivery == "exactly_once"
        return (
            both
            and self.transactional_id is not None
            and self.transactional_id == other.transactional_id
        )

    def homes(self) -> tuple[str, ...]:
        """Return the results of `Origins.home` for all records, as far as the settings name topics or streams."""
        if self.streams is not None:
            return tuple(f"{STREAM_PREFIX}{name}" for name in self.streams.names)
        return self.topics

    def retry_topics(self) -> dict[str, str]:
        """Return the retry topics, each with the topic of its records."""
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
        """Return an object that finds the origins of this worker's records."""
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
        """Return a pattern for topics that the worker does not read: dead-letter topics, retry topics and key topics.

        A worker reads them if its topics name them, or if its pattern begins with their prefix. The attached pattern of
        a group never selects them.
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

    def open_letters(self) -> DeadLetterDestination | None:
        """Return the stream for dead letters; None if they go to a topic, or if there are none."""
        place = self.dead_letter
        if self.streams is None or not isinstance(place, str) or "://" not in place:
            return None
        return self.streams.open_letters(place)

    def dead_letter_topic(self, home: str) -> str:
        """Return the dead-letter topic for a result of `Origins.home`."""
        if isinstance(self.dead_letter, str):
            return self.dead_letter
        return f"{DEAD_LETTER_PREFIX}{home}"


def as_retry(given: Retry | int | None, delivery: Delivery) -> Retry:
    """Return the `Retry` for the argument `retry=`. A number is the number of attempts."""
    if isinstance(given, Retry):
        return given
    if given is not None:
        return Retry(attempts=given)
    return NO_RETRY if delivery == "at_most_once" else DEFAULT_RETRY


def as_topics(given: str | Sequence[str] | StreamSelection | None) -> tuple[str, ...]:
    """Return the topics of an argument that names one topic or several. Empty for streams and None."""
    if given is None or isinstance(given, StreamSelection):
        return ()
    return (given,) if isinstance(given, str) else tuple(given)


def as_streams(given: object, properties: Mapping[str, Any]) -> StreamSelection | None:
    """Return the streams of an argument; None if it names topics.

    Raises:
        ConfigError: There are properties of a consumer, which streams do not have.
    """
    if not isinstance(given, StreamSelection):
        return None
    if properties:
        raise ConfigError(
            f"{', '.join(sorted(properties))}: a worker that reads streams has no consumer with properties. Use the "
            "arguments of kinesis(...)"
        )
    return given


def _one_of(value: object, choices: tuple[object, ...], what: str) -> None:
    if value not in choices:
        raise ConfigError(f"{what} is one of {', '.join(map(repr, choices))}, not {value!r}")
