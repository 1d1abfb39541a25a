"""One call of a handler: values made of bytes before it, results written after it."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Collection, Iterable
from functools import partial
from typing import Any, Final

from headrace.clients.consumer.records import ConsumerRecord
from headrace.dead_letters.error_text import message_of
from headrace.errors import SerializationError
from headrace.serdes.serde import resolve_serde
from headrace.types import TopicPartition
from headrace.workers.context import NOT_OURS, Context, Hold, SyncContext
from headrace.workers.dedupe import Deduplication, check_keys, open_keys
from headrace.workers.outbox import HandledKey, Outbox, Publisher
from headrace.workers.outlet import Outlet
from headrace.workers.results import each_of, finished, ready
from headrace.workers.revocation import LOOK_AGAIN_S
from headrace.workers.scheduler import Job, Scheduler
from headrace.workers.settings import WorkerSettings
from headrace.workers.source import RecordSource
from headrace.workers.threads import HandlerThreads

Decode = Callable[[bytes], Any]
CLOSE_TIMEOUT_S: Final = 1.0
"""How long a `seen=` may take to keep the keys of the last transaction."""


class Processor:
    """Calls the handler of one worker."""

    def __init__(
        self,
        settings: WorkerSettings,
        outlet: Outlet,
        threads: HandlerThreads,
        source: RecordSource,
        scheduler: Scheduler,
    ) -> None:
        self._settings = settings
        self._handler = settings.handler
        self._outlet = outlet
        self._threads = threads
        self._source = source
        self._scheduler = scheduler
        self._sources = settings.retry_topics()
        self._origins = settings.origins()
        self._decoders: dict[str, Decode] = {}
        self._deduplication = (
            None
            if settings.dedupe is None
            else Deduplication(open_keys(settings, outlet), settings.name)
        )

    async def prepare(self) -> None:
        """Make sure that the keys of handled records can be kept.

        Raises:
            HeadraceError: They cannot.
        """
        if self._deduplication is not None:
            await self._deduplication.prepare()

    async def process(self, job: Job, out: Publisher) -> list[ConsumerRecord]:
        """Handle a job's records; whatever is raised says why they failed.

        Args:
            job: One record, or a batch.
            out: Where results go.

        Returns:
            Those that were handled; others were before, by their keys.
        """
        records, name = job.records, job.topic_partition
        # Asked before anything waits, as the partition is this member's now.
        epoch = -1 if self._handler.context is None else self._source.epoch(name)
        hold = Hold(self._source, self._scheduler, job, epoch)
        decode = self._decoders.get(name.topic) or await self._decoder(name.topic)
        if not self._handler.wants_batches:
            values = [self._value(decode, records[0])]
        else:
            values = [self._value(decode, record) for record in records]
        if self._deduplication is not None:
            return await self._handle_new(records, values, job.attempt, out, hold)
        await self._handle(records, values, job.attempt, out, hold)
        return records

    async def _handle_new(
        self,
        records: list[ConsumerRecord],
        values: list[Any],
        attempt: int,
        out: Publisher,
        hold: Hold,
    ) -> list[ConsumerRecord]:
        deduplication = self._deduplication
        assert deduplication is not None, "only then this is called"
        assert self._settings.dedupe is not None, "there is a deduplication"
        keys = [self._settings.dedupe(value) for value in values]
        check_keys(keys)
        name = TopicPartition(records[0].topic, records[0].partition)
        fresh = await deduplication.begin(name, keys)
        chosen = list(itertools.compress(records, fresh))
        new = [
            HandledKey(name, record.offset, key)
            for record, key in itertools.compress(zip(records, keys, strict=True), fresh)
        ]
        handled = False
        try:
            if chosen:
                news = list(itertools.compress(values, fresh))
                await self._handle(chosen, news, attempt, out, hold)
            handled = hold.wanted()
        finally:
            if handled and isinstance(out, Outbox):
                await deduplication.hold(out, new)
            else:
                await deduplication.end(new, handled=handled)
        return chosen

    async def restore(self, topic: str) -> None:
        """Create the topic with keys again, if it is this one and was deleted."""
        if self._deduplication is not None:
            await self._deduplication.restore(topic)

    def forget(self, partitions: Collection[TopicPartition]) -> None:
        """Take note that partitions are other members' now."""
        if self._deduplication is not None:
            self._deduplication.forget(partitions)

    def written(self, boxes: Iterable[Outbox], committed: bool) -> None:  # noqa: FBT001 - it is what this says
        """Take note that what was kept is committed, or never will be: then its keys are new again."""
        if self._deduplication is not None:
            for box in boxes:
                self._deduplication.release(box.keys, handled=committed)

    async def close(self) -> None:
        """End, when the keys of committed records are kept, or after a moment."""
        if self._deduplication is not None:
            await self._deduplication.close(CLOSE_TIMEOUT_S)

    async def _handle(
        self,
        records: list[ConsumerRecord],
        values: list[Any],
        attempt: int,
        out: Publisher,
        hold: Hold,
    ) -> None:
        handler = self._handler
        argument = values if handler.wants_batches else values[0]
        if not (hold.valid() or await _is_ours(hold)):
            return
        context: Context | None = None
        if handler.context is not None:
            kind = Context if handler.is_async else SyncContext
            context = kind(records, self._origins.of(records[0]), attempt, out, hold)
        if not handler.is_async:
            result = await self._in_thread(argument, context, hold)
        elif context is None:
            result = await handler.call(argument)
        else:
            result = await handler.call(argument, context=context)
        if result is not None:
            result = await finished(result)
        if not hold.wanted():
            return
        if context is not None:
            await context.finish()
        if result is not None:
            await self._publish(records, result, out)

    async def _in_thread(self, argument: Any, context: Context | None, hold: Hold) -> Any:
        """Call a handler that is a plain function; None if it was not called, as the partition has gone."""
        call = partial(self._handler.call, argument)
        if context is not None:
            call = partial(call, context=context)
        while (result := await hold.in_thread(self._threads, call)) is NOT_OURS:
            if not await _is_ours(hold):
                return None
        return result

    async def _publish(self, records: list[ConsumerRecord], result: Any, out: Publisher) -> None:
        """Write what a handler returned; of a handler of batches each item of a list, a tuple or a set."""
        batch = self._handler.wants_batches
        results = each_of(result) if batch else [result]
        for publication in self._settings.publications:
            for one in results:
                if publication.key is not None:
                    key = ready("key=", publication.key(one))
                else:
                    key = None if batch else records[0].key
                await out.publish(publication.topic, one, key=key, serde=publication.serde)

    # Values

    async def _decoder(self, topic: str) -> Decode:
        """Return what makes values of a topic's bytes: the worker's serde, or the topic's own."""
        decode: Decode = bytes
        if self._settings.serde is not None:
            decode = self._settings.serde.deserialize
        elif self._settings.streams is None:
            settings = await self._outlet.settings(self._sources.get(topic, topic))
            decode = resolve_serde(settings.serde or "bytes").deserialize
        self._decoders[topic] = decode
        return decode

    def _value(self, decode: Decode, record: ConsumerRecord) -> Any:
        if record.value is None:
            return None
        try:
            return decode(record.value)
        except Exception as error:
            raise SerializationError(
                f"the value of the record at {self._origins.text(record)} does not decode: {message_of(error)}",
                topic=record.topic,
                partition=record.partition,
                offset=record.offset,
            ) from error


async def _is_ours(hold: Hold) -> bool:
    """Return whether records may be handled: values, keys or a thread may have been waited for."""
    while not hold.valid() and hold.wanted():  # noqa: ASYNC110 - nothing tells of time
        await asyncio.sleep(LOOK_AGAIN_S)  # the group decides in a moment
    return hold.wanted()
