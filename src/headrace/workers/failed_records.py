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
from headrace.workers.outbox import Publisher
from headrace.workers.outlet import HEADROOM_BYTES, Outlet
from headrace.workers.settings import WorkerSettings

LOOK_S: Final = 2.0
"""After so long without an answer it is looked whether the topic is still there."""
STREAM_RECORD_BYTES: Final = 10 << 20
"""The largest record of a stream of Kinesis."""

_log: Final = logging.getLogger("headrace.workers")


class _Origin(NamedTuple):
    source: str
    """The topic that the records come from."""
    delayed: bool


class FailedRecordWriter:
    """Writes the failed records of one worker. It creates the topics, and creates them again if they are deleted."""

    def __init__(self, settings: WorkerSettings, outlet: Outlet) -> None:
        self._settings = settings
        self._outlet = outlet
        self._letters = settings.open_letters()
        self._origins = settings.origins()
        self._known: dict[str, _Origin] = {}
        """The topic whose records a retry topic or dead-letter topic takes, by its name."""
        self._there: set[str] = set()
        self._looked_s: dict[str, float] = {}
        """The time of the last check whether a topic exists, by topic, in seconds of the event loop's clock."""

    async def prepare(self) -> None:
        """Look whether the stream for dead letters is there, if they go to one.

        Raises:
            HeadraceError: It is not.
        """
        if self._letters is not None:
            await self._letters.prepare()

    async def close(self) -> None:
        """Close what writes to streams."""
        if self._letters is not None:
            await self._letters.close()

    async def write_letter(
        self, out: Publisher, topic: str, record: ConsumerRecord, headers: letter_headers.Headers
    ) -> None:
        """Write a dead letter, and wait until it is safe. One that is too large loses what it can be read without.

        Raises:
            HeadraceError: It was not written.
        """
        if self._letters is not None:
            await self._letters.write(record, headers)
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
                    self._settings.name,
                    self._origins.text(record),
                    topic,
                    letter.left_out,
                )
            return
        assert too_large is not None, "there is at least one letter to try"
        raise too_large

    async def write_retry(
        self, out: Publisher, topic: str, record: ConsumerRecord, headers: letter_headers.Headers
    ) -> None:
        """Write a record to the topic where it waits, and wait until it is safe there.

        Raises:
            MessageTooLargeError: With its headers it is too large for any topic like its own.
            HeadraceError: It was not written.
        """
        letter = letter_headers.Letter(record.value, record.key, headers)
        await self._write(out, topic, _Origin(record.topic, delayed=True), letter)

    async def restore(self, topic: str) -> None:
        """Create one of these topics again, if it is not there any more; others are left alone."""
        origin = self._known.get(topic)
        if origin is not None:
            self._there.discard(topic)
            await self._ensure(topic, origin)

    async def _write(
        self, out: Publisher, topic: str, origin: _Origin, letter: letter_headers.Letter
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
        """Create a topic again that was deleted; the producer goes on by itself. One look is enough for all letters."""
        now_s = asyncio.get_running_loop().time()
        if now_s < self._looked_s.get(topic, -math.inf) + LOOK_S:
            return
        self._looked_s[topic] = now_s
        with contextlib.suppress(HeadraceError):
            await self.restore(topic)

    async def _ensure(self, topic: str, origin: _Origin) -> None:
        """Create a topic that is not there, with the partitions and the room for records of the one they come from."""
        self._known[topic] = origin
        # A producer would create it with the broker's defaults, so it is looked each time: letters are few.
        if topic in self._there and (await self._outlet.partition_counts([topic])).get(topic):
            return
        count, limit = 0, STREAM_RECORD_BYTES
        if self._settings.streams is None:
            count = (await self._outlet.partition_counts([origin.source]))[origin.source]
            limit = await self._outlet.max_message_bytes(origin.source)
        await self._outlet.create_topics(
            {topic: count or -1}, delayed=origin.delayed, max_message_bytes=limit + HEADROOM_BYTES
        )
        self._there.add(topic)
