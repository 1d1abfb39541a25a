"""Writes failed records to dead-letter topics and retry topics, and creates these topics."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from typing import Final, NamedTuple

from headrace.clients.consumer.records import ConsumerRecord
from headrace.dead_letters import letter_headers
from headrace.errors import HeadraceError, MessageTooLargeError
from headrace.workers.core.origins import Origins
from headrace.workers.output.outbox import Publisher
from headrace.workers.output.outlet import HEADROOM_BYTES, Outlet
from headrace.workers.source import DeadLetterDestination

LOOK_S: Final = 2.0
"""The time in seconds without a response after which the writer checks whether the topic still exists."""
STREAM_RECORD_BYTES: Final = 10 << 20
"""The size of the largest record of a Kinesis stream, in bytes."""

_log: Final = logging.getLogger("headrace.workers")


class _Origin(NamedTuple):
    source: str
    """The topic that the records come from."""
    delayed: bool
    """Whether the topic is a retry topic, whose records may have a delivery time."""


class FailedRecordWriter:
    """Writes the failed records of one worker. It creates the topics, and creates them again if they are deleted."""

    def __init__(
        self,
        worker: str,
        outlet: Outlet,
        origins: Origins,
        stream: DeadLetterDestination | None,
        *,
        reads_streams: bool,
    ) -> None:
        """Prepare to write.

        Args:
            worker: The name of the worker, for messages.
            outlet: Looks topics up and creates them.
            origins: Finds the origins of the worker's records.
            stream: Writes dead letters to a Kinesis stream; None if they go to topics.
            reads_streams: Whether the worker reads Kinesis streams.
        """
        self._worker = worker
        self._outlet = outlet
        self._origins = origins
        self._stream = stream
        self._reads_streams = reads_streams
        self._known: dict[str, _Origin] = {}
        """The topic whose records a retry topic or dead-letter topic takes, by its name."""
        self._there: set[str] = set()
        """The topics that existed at the last check."""
        self._looked_s: dict[str, float] = {}
        """The time of the last check whether a topic exists, by topic, in seconds of the event loop's clock."""

    async def prepare(self) -> None:
        """Check whether the stream for dead letters exists, if they go to a stream.

        Raises:
            HeadraceError: The stream does not exist.
        """
        if self._stream is not None:
            await self._stream.prepare()

    async def close(self) -> None:
        """Close the connection to the stream for dead letters, if there is one."""
        if self._stream is not None:
            await self._stream.close()

    async def write_letter(
        self, out: Publisher, topic: str, record: ConsumerRecord, headers: letter_headers.Headers
    ) -> None:
        """Write a dead letter, and wait until it is acknowledged.

        A dead letter that is too large is written without headers or without its value.

        Raises:
            HeadraceError: The dead letter was not written.
        """
        if self._stream is not None:
            await self._stream.write(record, headers)
            return
        too_large: MessageTooLargeError | None = None
        for letter in letter_headers.ever_smaller(record, headers):
            try:
                await self._write(out, topic, _Origin(record.topic, delayed=False), letter)
            except MessageTooLargeError as error:
                too_large = error
                continue
            if letter.left_out:
                _log.warning(
                    "%s: the dead letter of the record at %s in %s is without its %s, which the topic does not take",
                    self._worker,
                    self._origins.text(record),
                    topic,
                    letter.left_out,
                )
            return
        assert too_large is not None, "`ever_smaller` yields at least one dead letter"
        raise too_large

    async def write_retry(
        self, out: Publisher, topic: str, record: ConsumerRecord, headers: letter_headers.Headers
    ) -> None:
        """Write a record to a retry topic, and wait until it is acknowledged.

        Raises:
            MessageTooLargeError: The record with its headers exceeds the limit of the topic.
            HeadraceError: The record was not written.
        """
        letter = letter_headers.FailedRecord(record.value, record.key, headers)
        await self._write(out, topic, _Origin(record.topic, delayed=True), letter)

    async def restore(self, topic: str) -> None:
        """Create a topic again if it was deleted. Topics of other writers are left alone."""
        origin = self._known.get(topic)
        if origin is not None:
            self._there.discard(topic)
            await self._ensure(topic, origin)

    async def _write(
        self, out: Publisher, topic: str, origin: _Origin, letter: letter_headers.FailedRecord
    ) -> None:
        await self._ensure(topic, origin)
        writing = asyncio.ensure_future(
            out.write(topic, letter.value, key=letter.key, headers=letter.headers)
        )
        try:
            while not (await asyncio.wait({writing}, timeout=LOOK_S))[0]:
                await self._look_again(topic)
        except BaseException:
            writing.cancel()
            raise
        try:
            await writing
        except HeadraceError:
            self._there.discard(topic)
            raise

    async def _look_again(self, topic: str) -> None:
        """Create a topic again if it was deleted. One check serves all records that wait for the topic."""
        now_s = asyncio.get_running_loop().time()
        if now_s < self._looked_s.get(topic, -math.inf) + LOOK_S:
            return
        self._looked_s[topic] = now_s
        with contextlib.suppress(HeadraceError):
            await self.restore(topic)

    async def _ensure(self, topic: str, origin: _Origin) -> None:
        """Create a topic that does not exist, with the partitions and the record limit of the origin's topic."""
        self._known[topic] = origin
        # The check runs before each write: a producer would create the topic with the broker's defaults.
        if topic in self._there and (await self._outlet.partition_counts([topic])).get(topic):
            return
        count, limit = 0, STREAM_RECORD_BYTES
        if not self._reads_streams:
            count = (await self._outlet.partition_counts([origin.source]))[origin.source]
            limit = await self._outlet.max_message_bytes(origin.source)
        await self._outlet.create_topics(
            {topic: count or -1}, delayed=origin.delayed, max_message_bytes=limit + HEADROOM_BYTES
        )
        self._there.add(topic)
