"""The origin of a record: the partition and offset where it was read for the first time.

A record in a retry topic names its origin in headers. Any client that may write to the topic can forge these headers.
So a worker trusts them only if the record is in one of its own retry topics, if they name its own group, and if they
name a topic whose records wait in that retry topic. The origin of any other record is the place where it was read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from headrace.clients.consumer.records import ConsumerRecord
from headrace.dead_letters.letter_headers import (
    ONLY_GROUP,
    RETRIED,
    RETRY_ATTEMPT,
    RETRY_DUE,
    STREAM_PREFIX,
    RecordOrigin,
    header,
    named_origin,
    number,
    origin_of,
    origin_text,
    retry_topic,
)
from headrace.stream_record import StreamRecord

MAX_WAIT_MS: Final = 86_400_000
"""The longest time in milliseconds that a record of a retry topic holds up its partition, unless a pause is longer."""


class Origins:
    """Finds the origins of the records of one worker."""

    def __init__(
        self,
        group: str,
        topics: Sequence[str] = (),
        retry_topics: Mapping[str, str] | None = None,
        pauses_s: Sequence[float] = (),
    ) -> None:
        """Determine the topics from which the records of each retry topic can come.

        Args:
            group: The worker's group.
            topics: The worker's topics.
            retry_topics: The topic whose records wait, by retry topic.
            pauses_s: The pauses between attempts, in seconds.
        """
        self.group = group
        self._group_bytes = group.encode()
        self._sources = dict(retry_topics or {})
        self.has_retry_topics = bool(self._sources)
        """Whether records of this worker wait in retry topics."""
        self._max_wait_ms = max(MAX_WAIT_MS, *(round(s * 1000) for s in pauses_s), 0)
        self._believed: dict[str, set[str]] = {}
        """The topics that a record may name as its origin, by retry topic."""
        for waiting in self._sources:
            homes = {
                topic
                for topic in topics
                for pause_s in pauses_s
                if retry_topic(topic, pause_s) == waiting
            }
            # A record that another program wrote to a retry topic has its origin in that retry topic.
            strays = {name for name, source in self._sources.items() if source in homes}
            self._believed[waiting] = homes | strays

    def is_in_retry_topic(self, record: ConsumerRecord) -> bool:
        """Return whether a record was read from one of the worker's retry topics."""
        return record.topic in self._sources

    def of(self, record: ConsumerRecord) -> RecordOrigin:
        """Return where a record was read for the first time."""
        if record.topic in self._sources:
            return self._trusted(record) or origin_of(record)
        return origin_of(record)

    def source(self, record: ConsumerRecord) -> str:
        """Return the worker's topic that a record belongs to. The names of its retry topics contain it."""
        topic = self.of(record).topic
        return self._sources.get(topic, topic)

    def home(self, record: ConsumerRecord) -> str:
        """Return the name that follows `dlq.` in a record's dead-letter topic: its topic, or `kinesis.<stream>`."""
        topic = self.source(record)
        return f"{STREAM_PREFIX}{topic}" if isinstance(record, StreamRecord) else topic

    def text(self, record: ConsumerRecord) -> str:
        """Return a record's origin for messages: "offset 7 of orders-3"."""
        if isinstance(record, StreamRecord):
            return f"{record.place} of {record.shard} of {record.topic}"
        return origin_text(self.of(record))

    def attempt(self, record: ConsumerRecord) -> int:
        """Return the number of the next attempt for a record that was just read, from 1."""
        if record.topic not in self._sources or self._trusted(record) is None:
            return 1
        return max(1, number(record, RETRY_ATTEMPT) or 1)

    def due_ms(self, record: ConsumerRecord, now_ms: int) -> int:
        """Return when to handle a record of a retry topic, in milliseconds since 1970; 0 means at once.

        The record's partition waits for it. So the result is at most `MAX_WAIT_MS`, or the worker's longest pause,
        after the record's timestamp.
        """
        written_ms = record.timestamp_ms
        if self._trusted(record) is None or written_ms > now_ms + self._max_wait_ms:
            return 0
        return min(number(record, RETRY_DUE) or 0, written_ms + self._max_wait_ms)

    def _trusted(self, record: ConsumerRecord) -> RecordOrigin | None:
        """Return the origin that a worker of this group wrote into a record's headers; None if no worker did."""
        if header(record, ONLY_GROUP) != self._group_bytes:
            return None
        origin = named_origin(record, RETRIED)
        known = origin is not None and origin.topic in self._believed[record.topic]
        return origin if known else None
