"""One call of a handler: decode the values, skip duplicates, call the handler, write the results."""

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
from headrace.workers.core.revocation import LOOK_AGAIN_S
from headrace.workers.core.scheduler import Job, Scheduler
from headrace.workers.deduplication.deduplication import Deduplication, check_keys
from headrace.workers.deduplication.stores import open_keys
from headrace.workers.handler.context import NOT_OURS, Context, Hold, SyncContext
from headrace.workers.handler.results import each_of, finished, ready
from headrace.workers.handler.threads import HandlerThreads
from headrace.workers.output.outbox import HandledKey, Outbox, Publisher
from headrace.workers.output.outlet import Outlet
from headrace.workers.settings import WorkerSettings
from headrace.workers.source import RecordSource

Decode = Callable[[bytes], Any]
CLOSE_TIMEOUT_S: Final = 1.0
"""The longest wait at the end for `seen=` to keep the keys of the last transaction, in seconds."""


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
        self._deduplication: Deduplication | None = None
        if settings.dedupe is not None:
            store = open_keys(
                settings.seen,
                outlet,
                group=settings.group,
                worker=settings.name,
                sources=settings.topics,
            )
            self._deduplication = Deduplication(store, settings.name)

    async def prepare(self) -> None:
        """Check that the keys of handled records can be kept.

        Raises:
            HeadraceError: Keys cannot be kept.
        """
        if self._deduplication is not None:
            await self._deduplication.prepare()

    async def process(self, job: Job, out: Publisher) -> list[ConsumerRecord]:
        """Handle a job's records. Any exception is the failure of the records.

        Args:
            job: One record, or a batch.
            out: Writes the results.

        Returns:
            The records that were handled. The others are duplicates by their keys.
        """
        records, name = job.records, job.topic_partition
        # Read before the first `await`, while the partition certainly belongs to this member.
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
        assert deduplication is not None, "`process` checks this"
        assert self._settings.dedupe is not None, "the constructor checks this"
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
        """Create the key topic again, if `topic` is the key topic and was deleted."""
        if self._deduplication is not None:
            await self._deduplication.restore(topic)

    def forget(self, partitions: Collection[TopicPartition]) -> None:
        """Forget the keys of partitions that belong to other members now."""
        if self._deduplication is not None:
            self._deduplication.forget(partitions)

    def written(self, boxes: Iterable[Outbox], committed: bool) -> None:  # noqa: FBT001 - a callback's only argument
        """Keep the keys in committed outboxes. The keys in dropped outboxes are new again."""
        if self._deduplication is not None:
            for box in boxes:
                self._deduplication.release(box.keys, handled=committed)

    async def close(self) -> None:
        """Close the store of keys. Wait a limited time until the keys of committed records are kept."""
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
        """Call a plain function in a thread. None if the partition was revoked before the call."""
        call = partial(self._handler.call, argument)
        if context is not None:
            call = partial(call, context=context)
        while (result := await hold.in_thread(self._threads, call)) is NOT_OURS:
            if not await _is_ours(hold):
                return None
        return result

    async def _publish(self, records: list[ConsumerRecord], result: Any, out: Publisher) -> None:
        """Write the result of a handler, or each result of a handler of batches."""
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
        """Return the function that decodes a topic's values: that of the worker's serde, or of the topic's serde."""
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
    """Wait until the ownership of the partition is certain, and return whether its records may be handled."""
    while not hold.valid() and hold.wanted():  # noqa: ASYNC110 - no event announces the end of this wait
        await asyncio.sleep(LOOK_AGAIN_S)  # a heartbeat or a revocation decides soon
    return hold.wanted()
