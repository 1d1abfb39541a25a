"""Where dead letters are sent back to, and how far that has come."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from headrace.cli.output.progress import Progress
from headrace.clients.flows.offsets import OffsetAndMetadata
from headrace.clients.producer.blocking import Producer
from headrace.dead_letters import letter_headers
from headrace.records.decoding import MAX_HEADERS
from headrace.types import TopicPartition
from headrace.workers.outlet import LARGEST_RECORD_BYTES

if TYPE_CHECKING:
    from headrace.clients.consumer.blocking import Consumer
    from headrace.clients.consumer.records import ConsumerRecord

FLUSH_EVERY: Final = 500
MAX_LEFT: Final = 100
"""Letters that were left where they are, and of which it is said where that is; of the others only how many."""
MAX_NAME: Final = 249
"""Characters of what such a letter names; no topic's name is longer."""


_KEPT: Final = re.compile(r"kept=([0-9]{1,18})", re.ASCII)
"""In the metadata of a committed offset: the first letter before it that was not sent back."""


def kept_of(committed: OffsetAndMetadata) -> int | None:
    """Return the offset of the first letter before a committed one that was not sent back; None if all were."""
    found = _KEPT.fullmatch(committed.metadata)
    return None if found is None else int(found[1])


class Targets:
    """Which topic each letter of one dead-letter topic goes back to.

    Whoever may write to a dead-letter topic chooses the headers of a letter, and may have fewer rights than the
    operator who sends it back. So a letter's headers choose among the topics that the operator allows, and never
    another one.
    """

    def __init__(
        self,
        topic: str,
        *,
        to: str | None = None,
        sources: Sequence[str] = (),
        existing: Collection[str] = (),
    ) -> None:
        """Say what is allowed.

        Args:
            topic: The dead-letter topic. One that is called dlq.TOPIC belongs to TOPIC, which is allowed unless another
                argument says what is; one of any other name belongs to no topic.
            to: Where all letters go, whatever they name; None is where they come from.
            sources: The topics whose letters are wanted. Others are passed over.
            existing: Topics that are allowed besides.
        """
        self._to = to
        self._sources = frozenset(sources)
        allowed = {*sources, *existing}
        if not allowed and topic.startswith(letter_headers.DEAD_LETTER_PREFIX):
            allowed = {topic.removeprefix(letter_headers.DEAD_LETTER_PREFIX)}
        self._allowed = allowed - {topic}

    def wants(self, record: ConsumerRecord) -> bool:
        """Whether a letter is of one of the topics whose letters are wanted."""
        return not self._sources or _source(record) in self._sources

    def of(self, record: ConsumerRecord) -> str | None:
        """Return where a letter goes; None where it may go nowhere."""
        if self._to is not None:
            return self._to
        source = _source(record)
        return source if source in self._allowed else None


class Redrive:
    """Sends letters back; how far is committed when what was sent is safe."""

    def __init__(
        self,
        bootstrap: str,
        targets: Targets,
        options: dict[str, Any],
        *,
        client: dict[str, Any],
        positions: Consumer,
        before: Mapping[TopicPartition, OffsetAndMetadata] | None = None,
    ) -> None:
        """Connect to nothing yet.

        Args:
            bootstrap: Where the brokers are.
            targets: Where letters go.
            options: Of the command: `dry_run`, `error_type`, `limit`, `max_redrives` and `quiet`.
            client: Properties of the producer.
            positions: Commits how far letters were sent back.
            before: What was committed before; None is nothing.
        """
        self._kept_before = {name: kept_of(each) for name, each in (before or {}).items()}
        self._kept: dict[TopicPartition, int] = {}
        """The first letter of each partition that this run has not sent."""
        self._targets = targets
        self._options = options
        large = {"recreate_topics": False, "max_request_size": LARGEST_RECORD_BYTES, **client}
        self._producer = Producer(bootstrap, serde="bytes", key_serde="bytes", **large)
        self._positions = positions
        self._done: dict[TopicPartition, int] = {}
        self._seen: dict[TopicPartition, int] = {}
        """Where this run began in each partition."""
        self._sent = self._passed_over = self._homeless = 0
        self._left: list[dict[str, Any]] = []

    def run(self, records: Iterator[ConsumerRecord]) -> dict[str, Any]:
        """Send letters, and return what became of them."""
        progress = Progress("looked at", wanted=not self._options["quiet"])
        with progress, self._producer, self._positions:
            for count, record in enumerate(records, 1):
                if self._sent == self._options["limit"]:
                    break
                self._one(record)
                progress.add(1, len(record.value or b""))
                if count % FLUSH_EVERY == 0:
                    self._settle()
            self._settle()
        return {
            "sent": self._sent,
            "passed_over": self._passed_over,
            "homeless": self._homeless,
            "left": self._left,
        }

    def _one(self, record: ConsumerRecord) -> None:
        target = self._targets.of(record)
        name = TopicPartition(record.topic, record.partition)
        self._seen.setdefault(name, record.offset)
        if self._is_passed_over(record):
            self._passed_over += 1
            self._kept.setdefault(name, record.offset)
        elif target is None:
            self._leave(record)
            self._kept.setdefault(name, record.offset)
            return
        else:
            if not self._options["dry_run"]:
                headers = letter_headers.redrive_headers(record)
                self._producer.send(target, record.value, key=record.key, headers=headers)
            self._sent += 1
        self._done[name] = record.offset + 1

    def _is_passed_over(self, record: ConsumerRecord) -> bool:
        wanted = self._options["error_type"]
        named = letter_headers.header_text(
            letter_headers.ERROR_TYPE, letter_headers.header(record, letter_headers.ERROR_TYPE)
        )  # what `show` shows
        # A letter without its value is no record to send back; its headers say where the whole record is.
        return (
            letter_headers.header(record, letter_headers.LEFT_OUT) is not None
            or (wanted is not None and named != wanted)
            or not self._targets.wants(record)
            or letter_headers.redrives(record) >= self._options["max_redrives"]
            # What is sent back has headers of its own; no worker writes a letter with so many.
            or len(record.headers) > MAX_HEADERS - 2
        )

    def _leave(self, record: ConsumerRecord) -> None:
        """Note a letter that may go nowhere. Where no letter behind it is sent, the next redrive begins with it."""
        self._homeless += 1
        if len(self._left) < MAX_LEFT:
            named = letter_headers.named_origin(record, letter_headers.LETTER)
            name = None if named is None else named.topic[:MAX_NAME]
            place = {"partition": record.partition, "offset": record.offset}
            self._left.append({**place, "names": name})

    def _settle(self) -> None:
        if self._done and not self._options["dry_run"]:
            self._producer.flush()
            self._positions.assign(self._done)
            self._positions.commit({name: self._position(name) for name in self._done})

    def _position(self, name: TopicPartition) -> OffsetAndMetadata:
        """Return how far a partition is done, with the first letter before that which was not sent."""
        seen, done = self._seen[name], self._done[name]
        kept = [self._kept[name]] if name in self._kept else []
        before = self._kept_before.get(name)
        if before is not None and not seen <= before < done:  # this run has not come by it
            kept.append(before)
        return OffsetAndMetadata(done, f"kept={min(kept)}" if kept else "")


def _source(record: ConsumerRecord) -> str | None:
    """Return the topic that a letter says it comes from; None where it names none, as one of a stream."""
    place = letter_headers.named_origin(record, letter_headers.LETTER)
    if place is None or letter_headers.header(record, letter_headers.SHARD) is not None:
        return None
    return place.topic
