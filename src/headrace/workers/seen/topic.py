"""Keys in a topic. What is known of a partition is read from there when its first record comes.

The keys of partition 3 are in partition 3 of the topic with keys (modulo its partitions), as
`["group","worker","orders",3,"the key"]`, with the record's offset as the value. So a member reads only what concerns
the partitions that it has. Why what it reads is complete:

1. The former owner writes a key before it commits the position behind the record (or in one transaction with it).
2. The new owner learns its position, and then asks where the topic with keys ends. The group lets it do so only when
   the former owner has given the partition up, or is taken for dead.
3. It reads up to that end, and waits for open transactions: one may be the former owner's, committed,
   with markers that are not written yet.

A former owner that was wrongly taken for dead may still write the key of a record that its handler is busy with. The
new owner then does not know that key, and handles the record, too. The counter `overlaps` says how often that happened.
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
from headrace.workers.outbox import HandledKey, Outbox, Publisher
from headrace.workers.outlet import Outlet
from headrace.workers.refusals import remedy
from headrace.workers.seen.declared import SeenTopic
from headrace.workers.seen.keys import decoded, key_text
from headrace.workers.seen.persistent import Persistence

DEFAULT_PARTITIONS: Final = 8
"""The partitions of a new topic with keys, if the number of partitions of the worker's topics is not known."""
POLL_S: Final = 1.0
LOOK_S: Final = 2.0
"""After so long without an answer it is looked whether the topic is still there."""


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
        """Prepare; nothing is asked for before `prepare`.

        Args:
            declared: What the program says.
            outlet: What writes and asks.
            group: The worker's group.
            worker: Its name.
            sources: The topics that it reads, as far as they are known before.
        """
        self._declared = declared
        self._outlet = outlet
        self._group = group
        self._worker = worker
        self._sources = sources
        self._topic = declared.name_for(group, worker)
        self._persistence = Persistence(worker, f"the topic {self._topic!r}", outlet.now_ms)
        self._partitions = 0
        """The number of partitions of the topic with keys; 0 if it is not known yet."""
        self._windows: dict[TopicPartition, OrderedDict[bytes, int]] = {}
        """The keys of each partition that is read, with their times in milliseconds since 1970, the newest last."""
        self._loading: dict[TopicPartition, asyncio.Task[None]] = {}
        self._consumer: Consumer | None = None
        self._reading = asyncio.Lock()

    async def prepare(self) -> None:
        """Create the topic, unless it is there."""
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
        """Return which keys are in the partition's window, which is read when there is none yet."""
        texts = {key: key_text(key) for key in keys}
        window = self._windows.get(partition)
        if window is None:
            window = await self._loaded(partition)
        oldest_ms = self._oldest_ms
        return {key for key, text in texts.items() if window.get(text, -1) >= oldest_ms}

    async def keep(self, marks: Sequence[HandledKey]) -> None:
        """Write keys, and wait until they are safe; they are tried again like dead letters."""
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
        """Take note that keys are in the topic."""
        now_ms = self._outlet.now_ms()
        for mark in marks:
            window = self._windows.get(mark.partition)
            if window is not None and mark.key is not None:
                self._add(window, key_text(mark.key), now_ms)
        return True

    async def restore(self, topic: str) -> None:
        """Create the topic again, if it was deleted."""
        if topic == self._topic:
            self._partitions = 0
            await self._look()

    def forget(self, partitions: Iterable[TopicPartition]) -> None:
        """Forget the keys of partitions: others write them now."""
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
        """Write keys now. A topic that was deleted is created again, and the producer goes on by itself."""
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
        """Return what the keys of a partition's records begin with in the topic."""
        text = msgspec.json.encode([self._group, self._worker, *partition])
        return text[:-1] + b","

    async def _look(self) -> int:
        """Return how many partitions the topic has; it is created where there is none."""
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
        """Return a partition's window, read once however many records wait for it."""
        loading = self._loading.get(partition)
        if loading is None:
            loading = self._loading[partition] = asyncio.create_task(self._load(partition))
        await asyncio.wait(
            {loading}
        )  # a record whose partition goes ends the wait, not the reading
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
        """Make sure that a partition still reaches as far as it is to be read.

        Raises:
            TransportError: It does not, and never may: its topic was deleted and created again.
        """
        if (await self._outlet.written_ends([home]))[home] < end:
            raise TransportError(f"{home} has lost records, or was created again")

    async def _span(self, consumer: Consumer, home: TopicPartition) -> tuple[int, int]:
        """Return from where to where a partition of the topic is to be read.

        A search by time does not see what is behind an open transaction, so that part is read whatever its time.
        """
        decided = (await consumer.end_offsets([home]))[
            home
        ]  # before the search: it moves meanwhile
        end = (await self._outlet.written_ends([home]))[home]
        found: Mapping[TopicPartition, object] = await consumer.offsets_for_times(
            {home: max(0, self._oldest_ms)}
        )
        recent = getattr(found.get(home), "offset", -1)
        begin = (await consumer.begin_offsets([home]))[home]
        if recent < 0:  # every record before the first open transaction is too old
            recent = decided
        return max(begin, recent, end - self._declared.max_keys), end

    def _key_of(self, name: bytes | None, partition: TopicPartition) -> bytes | None:
        """Return the text of a key in the topic, if it is one of a partition."""
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
