"""Keys in a topic, the key topic. A member reads the keys of a partition when the first record of the partition comes.

The keys of partition 3 are in partition 3 of the key topic, modulo its number of partitions. A key is stored as
`["group","worker","orders",3,"the key"]`; the value is the record's offset. So a member reads only the keys of its own
partitions. What it reads is complete, for these reasons:

1. The former owner writes a key before it commits the offset behind the record, or in the same transaction.
2. The group assigns the partition to the new owner after the former owner has released it or its session has expired.
3. The new owner reads the committed offset, and then the end offset of the key topic.
4. The new owner reads up to this end offset and waits for open transactions. One of them may be a committed transaction
   of the former owner whose markers are not written yet.

There is one exception. A former owner whose session has expired may still run a handler, and write the key later. The
new owner does not know this key and handles the record, too. The counter `overlaps` counts such handlers.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import OrderedDict
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from functools import partial
from typing import Final

import msgspec

from headrace.clients.consumer.aio import Consumer
from headrace.errors import ApiError, HeadraceError, TransportError
from headrace.types import TopicPartition
from headrace.workers.deduplication.declared import SeenTopic
from headrace.workers.deduplication.keys import decoded, key_text
from headrace.workers.deduplication.persistence import Persistence
from headrace.workers.failure.refusals import remedy
from headrace.workers.output.outbox import HandledKey, Outbox, Publisher
from headrace.workers.output.outlet import Outlet

DEFAULT_PARTITIONS: Final = 8
"""The number of partitions of a new key topic, if the number of partitions of the input topics is not known."""
POLL_S: Final = 1.0
"""The longest time in seconds that one poll waits for keys."""
LOOK_S: Final = 2.0
"""The time in seconds without a response after which a writer checks whether the key topic still exists."""


class TopicKeys:
    """The `KeyStore` of `SeenTopic`."""

    def __init__(
        self,
        declared: SeenTopic,
        outlet: Outlet,
        *,
        group: str,
        worker: str,
        sources: Collection[str],
    ) -> None:
        """Prepare the store, without a request.

        Args:
            declared: The declaration of the program.
            outlet: Writes keys, and looks topics up.
            group: The worker's group.
            worker: The worker's name.
            sources: The topics that the worker names; empty if it reads topics by a pattern.
        """
        self._declared = declared
        self._outlet = outlet
        self._group = group
        self._worker = worker
        self._sources = sources
        self._topic = declared.name_for(group, worker)
        self._persistence = Persistence(worker, f"the topic {self._topic!r}", outlet.now_ms)
        self._partitions = 0
        """The number of partitions of the key topic; 0 if it is not known yet."""
        self._windows: dict[TopicPartition, OrderedDict[bytes, int]] = {}
        """The keys of each input partition with their times in milliseconds since 1970, the newest last."""
        self._loading: dict[TopicPartition, asyncio.Task[None]] = {}
        """The tasks that read the keys of an input partition."""
        self._consumer: Consumer | None = None
        self._reading = asyncio.Lock()
        """Held by the task that uses the consumer."""

    async def prepare(self) -> None:
        """Create the key topic if it does not exist."""
        try:
            await self._look()
        except ApiError as error:
            raise type(error).for_code(
                error.code,
                f"the worker {self._worker!r}: the topic {self._topic!r} of seen= cannot be created: {error.message}. "
                f"{remedy(error)}",
            ) from error

    async def known(
        self, partition: TopicPartition, keys: Collection[Hashable]
    ) -> Collection[Hashable]:
        """Return the keys that were handled. The first call for a partition reads the partition's keys."""
        texts = {key: key_text(key) for key in keys}
        window = self._windows.get(partition)
        if window is None:
            window = await self._loaded(partition)
        oldest_ms = self._oldest_ms
        return {key for key, text in texts.items() if window.get(text, -1) >= oldest_ms}

    async def keep(self, marks: Sequence[HandledKey]) -> None:
        """Write keys, and wait until they are acknowledged. Failed writes are repeated like those of dead letters."""
        await self._persistence.until_done(
            partial(self._write_at_once, marks), handled=True, what="its key cannot be written to"
        )
        self.note(marks)

    async def write(self, out: Publisher, marks: Sequence[HandledKey]) -> None:
        """Put keys into the transaction of their records."""
        if isinstance(out, Outbox):
            await self._persistence.until_done(
                partial(self._write, out, marks), handled=True, what="its key cannot be written to"
            )

    def note(self, marks: Sequence[HandledKey]) -> bool:
        """Remember keys that are in the key topic."""
        now_ms = self._outlet.now_ms()
        for mark in marks:
            window = self._windows.get(mark.partition)
            if window is not None and mark.key is not None:
                self._add(window, key_text(mark.key), now_ms)
        return True

    async def restore(self, topic: str) -> None:
        """Create the key topic again, if `topic` is the key topic and was deleted."""
        if topic == self._topic:
            self._partitions = 0
            await self._look()

    def forget(self, partitions: Iterable[TopicPartition]) -> None:
        """Forget the keys of partitions: other members write them now."""
        for name in partitions:
            self._windows.pop(name, None)
            if (loading := self._loading.pop(name, None)) is not None:
                loading.cancel()

    async def close(self) -> None:
        """Close the connections to the brokers."""
        self.forget([*self._windows, *self._loading])
        if self._consumer is not None:
            await self._consumer.close()

    # Writing

    async def _write_at_once(self, marks: Sequence[HandledKey]) -> None:
        """Write keys without a transaction. A deleted key topic is created again; the producer repeats its requests."""
        writing = asyncio.ensure_future(self._write(self._outlet, marks))
        try:
            while not (await asyncio.wait({writing}, timeout=LOOK_S))[0]:
                with contextlib.suppress(HeadraceError):
                    await self._look()
        except BaseException:
            writing.cancel()
            raise
        await writing

    async def _write(self, out: Publisher, marks: Sequence[HandledKey]) -> None:
        count = self._partitions or await self._look()
        try:
            await asyncio.gather(
                *(
                    out.write(
                        self._topic,
                        b"%d" % mark.offset,
                        key=self._name(mark.partition) + key_text(mark.key) + b"]",
                        partition=mark.partition.partition % count,
                    )
                    for mark in marks
                    if mark.key is not None
                )
            )
        except HeadraceError:
            self._partitions = 0  # the topic may have been deleted
            self._outlet.forget(self._topic)
            raise

    def _name(self, partition: TopicPartition) -> bytes:
        """Return the beginning of the stored keys of a partition's records."""
        text = msgspec.json.encode([self._group, self._worker, *partition])
        return text[:-1] + b","

    async def _look(self) -> int:
        """Return the number of partitions of the key topic, and create the topic if it does not exist."""
        counts = await self._outlet.partition_counts([self._topic, *self._sources])
        count = counts[self._topic]
        if not count:
            wanted = max((counts[name] for name in self._sources), default=0) or DEFAULT_PARTITIONS
            configs = {
                "cleanup.policy": "compact,delete",
                "retention.ms": str(round(self._declared.retention_s * 1000)),
            }
            await self._outlet.create_topics({self._topic: wanted}, configs=configs)
            count = (await self._outlet.partition_counts([self._topic]))[self._topic] or wanted
        self._partitions = count
        return count

    # Reading

    @property
    def _oldest_ms(self) -> int:
        return self._outlet.now_ms() - round(self._declared.retention_s * 1000)

    async def _loaded(self, partition: TopicPartition) -> OrderedDict[bytes, int]:
        """Return the keys of a partition. One task reads them for all records that wait."""
        loading = self._loading.get(partition)
        if loading is None:
            loading = self._loading[partition] = asyncio.create_task(self._load(partition))
        # Unlike `await loading`: a cancelled handler does not cancel the task.
        await asyncio.wait({loading})
        if self._loading.get(partition) is loading:
            del self._loading[partition]
        loading.result()
        return self._windows.get(partition, OrderedDict())

    async def _load(self, partition: TopicPartition) -> None:
        window = await self._persistence.until_done(
            partial(self._read, partition), handled=False, what="earlier keys cannot be read from"
        )
        self._windows[partition] = window

    async def _read(self, partition: TopicPartition) -> OrderedDict[bytes, int]:
        count = self._partitions or await self._look()
        home = TopicPartition(self._topic, partition.partition % count)
        window: OrderedDict[bytes, int] = OrderedDict()
        async with self._reading:
            consumer = self._consumer = self._consumer or self._outlet.reader()
            try:
                start, end = await self._span(consumer, home)
                if start < end:
                    await consumer.assign({home: start})
                while start < end:
                    records = await consumer.poll(POLL_S)
                    for record in records:
                        if (key := self._key_of(record.key, partition)) is not None:
                            self._add(window, key, record.timestamp_ms)
                    start = consumer.positions()[home] or 0
                    if not records:
                        await self._check_end(home, end)
            except BaseException:
                self._consumer, self._partitions = None, 0  # the topic may have been deleted
                await consumer.close()
                raise
        return window

    async def _check_end(self, home: TopicPartition, end: int) -> None:
        """Check that a partition of the key topic still has the offsets up to `end`.

        Raises:
            TransportError: The partition ends earlier, because its topic was deleted and created again.
        """
        if (await self._outlet.written_ends([home]))[home] < end:
            raise TransportError(f"{home} has lost records, or was created again")

    async def _span(self, consumer: Consumer, home: TopicPartition) -> tuple[int, int]:
        """Return the first offset to read in a partition of the key topic, and the offset at which to stop.

        A search by time does not find records behind the first open transaction. All of those are read.
        """
        # This request comes before the search, because the last stable offset grows in between.
        stable = (await consumer.end_offsets([home]))[home]
        end = (await self._outlet.written_ends([home]))[home]
        found: Mapping[TopicPartition, object] = await consumer.offsets_for_times(
            {home: max(0, self._oldest_ms)}
        )
        recent = getattr(found.get(home), "offset", -1)
        begin = (await consumer.begin_offsets([home]))[home]
        if recent < 0:  # all records before the first open transaction are expired
            recent = stable
        return max(begin, recent, end - self._declared.max_keys), end

    def _key_of(self, name: bytes | None, partition: TopicPartition) -> bytes | None:
        """Return the text of a stored key; None if it does not belong to the partition."""
        prefix = self._name(partition)
        if name is None or not (name.startswith(prefix) and name.endswith(b"]")):
            return None
        text = name[len(prefix) : -1]
        return text if decoded(name) is not None else None

    def _add(self, window: OrderedDict[bytes, int], text: bytes, at_ms: int) -> None:
        window[text] = at_ms
        window.move_to_end(text)
        if len(window) > self._declared.max_keys:
            window.popitem(last=False)
