"""One call of a handler: values made of bytes before it, results written after it."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, Final

from headrace.clients.consumer.records import ConsumerRecord
from headrace.errors import SerializationError
from headrace.serdes.serde import resolve_serde
from headrace.serdes.typed import serde_of_type
from headrace.workers.context import Context, Hold, ThreadContext
from headrace.workers.dedupe import Deduplication
from headrace.workers.letters import place_text
from headrace.workers.outbox import Outbox, Publisher
from headrace.workers.outlet import Outlet
from headrace.workers.scheduler import Job, Scheduler
from headrace.workers.settings import WorkerSettings
from headrace.workers.source import Source
from headrace.workers.threads import HandlerThreads

Decode = Callable[[bytes], Any]
LOOK_AGAIN_S: Final = 0.05
"""The pause before it is asked again whether a partition is still this member's."""
_NOT_OURS: Final = object()


class Processor:
    """Calls the handler of one worker."""

    def __init__(
        self,
        settings: WorkerSettings,
        outlet: Outlet,
        threads: HandlerThreads,
        source: Source,
        scheduler: Scheduler,
    ) -> None:
        self._settings = settings
        self._handler = settings.handler
        self._outlet = outlet
        self._threads = threads
        self._source = source
        self._scheduler = scheduler
        self._sources = settings.retry_topics()
        self._decoders: dict[str, Decode] = {}
        self._deduplication = None if settings.dedupe is None else Deduplication(settings.seen)

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
            values = [_value(decode, records[0])]
        else:
            values = [_value(decode, record) for record in records]
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
        fresh = await deduplication.begin(keys)
        chosen = list(itertools.compress(records, fresh))
        handled = False
        try:
            if chosen:
                news = list(itertools.compress(values, fresh))
                await self._handle(chosen, news, attempt, out, hold)
            handled = hold.wanted()
        finally:
            new = list(itertools.compress(keys, fresh))
            if handled and isinstance(out, Outbox):
                out.keys += new  # they are known when their transaction is committed
                deduplication.hold(new)
            else:
                deduplication.end(new, handled=handled)
        return chosen

    def written(self, boxes: Iterable[Outbox], committed: bool) -> None:  # noqa: FBT001 - it is what this says
        """Take note that what was kept is committed, or never will be: then its keys are new again."""
        if self._deduplication is not None:
            for box in boxes:
                self._deduplication.release(box.keys, handled=committed)

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
        if handler.is_async:
            if handler.context is None:
                result = await handler.call(argument)
            else:
                context = Context(records, attempt, out, hold)
                result = await handler.call(argument, **{handler.context: context})
        else:
            call = partial(handler.call, argument)
            if handler.context is not None:
                context = ThreadContext(records, attempt, out, hold)
                call = partial(handler.call, argument, **{handler.context: context})
            while (result := await self._threads.run(partial(_if_ours, hold, call))) is _NOT_OURS:
                if not await _is_ours(hold):
                    return
        if result is not None and hold.wanted():
            await self._publish(records, result, out)

    async def _publish(self, records: list[ConsumerRecord], result: Any, out: Publisher) -> None:
        """Write what a handler returned; of a handler of batches each item of a list."""
        batch = self._handler.wants_batches
        results: Sequence[Any] = result if batch and isinstance(result, list) else [result]
        for publication in self._settings.publications:
            for one in results:
                if publication.key is not None:
                    key = publication.key(one)
                else:
                    key = None if batch else records[0].key
                await out.publish(publication.topic, one, key=key, serde=publication.serde)

    # Values

    async def _decoder(self, topic: str) -> Decode:
        """Return what makes values of a topic's bytes: the worker's serde, the annotation's, or the topic's own."""
        decode: Decode = bytes
        if self._settings.serde is not None:
            decode = self._settings.serde.deserialize
        elif self._handler.schema is not None:
            decode = serde_of_type(self._handler.schema).deserialize
        elif self._settings.elsewhere is None:
            settings = await self._outlet.settings(self._sources.get(topic, topic))
            decode = resolve_serde(settings.serde or "bytes").deserialize
        self._decoders[topic] = decode
        return decode


def _value(decode: Decode, record: ConsumerRecord) -> Any:
    if record.value is None:
        return None
    try:
        return decode(record.value)
    except Exception as error:
        raise SerializationError(
            f"the value of the record at {place_text(record)} does not decode: {error}",
            topic=record.topic,
            partition=record.partition,
            offset=record.offset,
        ) from error


async def _is_ours(hold: Hold) -> bool:
    """Return whether records may be handled: values, keys or a thread may have been waited for."""
    while not hold.valid() and hold.wanted():  # noqa: ASYNC110 - nothing tells of time
        await asyncio.sleep(
            LOOK_AGAIN_S
        )  # it is lost in a moment, or was not told yet that it is not
    return hold.wanted()


def _if_ours(hold: Hold, call: Callable[[], Any]) -> Any:
    """Call a handler in its thread, unless its partition went while there was none free."""
    return call() if hold.valid() else _NOT_OURS
