"""`headrace dlq redrive`: the topics to which dead letters are sent, and the progress of a redrive."""

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
from headrace.workers.output.outlet import LARGEST_RECORD_BYTES

if TYPE_CHECKING:
    from headrace.clients.consumer.blocking import Consumer
    from headrace.clients.consumer.records import ConsumerRecord

FLUSH_EVERY: Final = 500
MAX_LEFT: Final = 100
"""The most skipped dead letters whose offsets are reported. Of further ones only the number is reported."""
MAX_NAME: Final = 249
"""The most characters shown of a topic name in a header. No topic name is longer."""


_KEPT: Final = re.compile(r"kept=([0-9]{1,18})", re.ASCII)
"""Pattern in the metadata of a committed offset: the offset of the first earlier dead letter that was not redriven."""


def kept_of(committed: OffsetAndMetadata) -> int | None:
    """Return the offset of the first dead letter before the committed offset that was not redriven, or None."""
    found = _KEPT.fullmatch(committed.metadata)
    return None if found is None else int(found[1])


class Targets:
    """The topic to which each dead letter of one dead-letter topic is sent.

    Every client that can write to a dead-letter topic chooses the headers of a dead letter, and may have fewer
    permissions than the operator who redrives it. Headers therefore choose only among the topics that the operator
    allows.
    """

    def __init__(
        self,
        topic: str,
        *,
        to: str | None = None,
        sources: Sequence[str] = (),
        existing: Collection[str] = (),
    ) -> None:
        """Set the allowed topics.

        Args:
            topic: The dead-letter topic. If its name is dlq.TOPIC, then TOPIC is allowed, unless another argument
                allows topics. A dead-letter topic with another name has no such topic.
            to: The topic to which all dead letters go; None for the topics that they come from.
            sources: The topics whose dead letters are redriven. Others are skipped.
            existing: Further topics that are allowed.
        """
        self._to = to
        self._sources = frozenset(sources)
        allowed = {*sources, *existing}
        if not allowed and topic.startswith(letter_headers.DEAD_LETTER_PREFIX):
            allowed = {topic.removeprefix(letter_headers.DEAD_LETTER_PREFIX)}
        self._allowed = allowed - {topic}

    def wants(self, record: ConsumerRecord) -> bool:
        """Whether a dead letter comes from one of the topics in `sources`."""
        return not self._sources or _source(record) in self._sources

    def of(self, record: ConsumerRecord) -> str | None:
        """Return the topic to which a dead letter is sent; None if its topic is not allowed."""
        if self._to is not None:
            return self._to
        source = _source(record)
        return source if source in self._allowed else None


class Redrive:
    """Resends dead letters. It commits its position after the broker has acknowledged the records."""

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
        """Create a redrive. `run` connects.

        Args:
            bootstrap: The addresses of brokers.
            targets: The topics to which dead letters go.
            options: Options of the command: `dry_run`, `error_type`, `limit`, `max_redrives` and `quiet`.
            client: Properties of the producer.
            positions: The consumer that commits the position of the redrive.
            before: The offsets committed by the previous redrive; None for a partition without one.
        """
        self._kept_before = {name: kept_of(each) for name, each in (before or {}).items()}
        self._kept: dict[TopicPartition, int] = {}
        """The offset of the first dead letter that this run has not sent, by partition."""
        self._targets = targets
        self._options = options
        large = {"recreate_topics": False, "max_request_size": LARGEST_RECORD_BYTES, **client}
        self._producer = Producer(bootstrap, serde="bytes", key_serde="bytes", **large)
        self._positions = positions
        self._done: dict[TopicPartition, int] = {}
        self._seen: dict[TopicPartition, int] = {}
        """The offset at which this run began, by partition."""
        self._sent = self._passed_over = self._homeless = 0
        self._left: list[dict[str, Any]] = []

    def run(self, records: Iterator[ConsumerRecord]) -> dict[str, Any]:
        """Send dead letters, and return the numbers of those sent and skipped."""
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
        )  # the name that `show` prints
        # A dead letter without its value cannot be redriven; its headers name the original record.
        return (
            letter_headers.header(record, letter_headers.LEFT_OUT) is not None
            or (wanted is not None and named != wanted)
            or not self._targets.wants(record)
            or letter_headers.redrives(record) >= self._options["max_redrives"]
            # A redriven record gets further headers. No worker writes a dead letter with so many headers.
            or len(record.headers) > MAX_HEADERS - 2
        )

    def _leave(self, record: ConsumerRecord) -> None:
        """Note a skipped dead letter. The next redrive begins with it, unless this redrive sends a later one."""
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
        """Return the offset to commit for a partition; its metadata has the first earlier dead letter not sent."""
        seen, done = self._seen[name], self._done[name]
        kept = [self._kept[name]] if name in self._kept else []
        before = self._kept_before.get(name)
        if before is not None and not seen <= before < done:  # this run began after it
            kept.append(before)
        return OffsetAndMetadata(done, f"kept={min(kept)}" if kept else "")


def _source(record: ConsumerRecord) -> str | None:
    """Return the topic in the headers of a dead letter; None without one, as for records of Kinesis streams."""
    place = letter_headers.named_origin(record, letter_headers.LETTER)
    if place is None or letter_headers.header(record, letter_headers.SHARD) is not None:
        return None
    return place.topic
