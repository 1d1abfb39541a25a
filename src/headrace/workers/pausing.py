"""Which partitions are not read for now: those with much open work, and those of retry topics with nothing due."""

from __future__ import annotations

from collections.abc import Iterable

from headrace.clients.consumer.records import ConsumerRecord
from headrace.dead_letters import letter_headers
from headrace.types import TopicPartition
from headrace.workers.origins import Origins
from headrace.workers.scheduler import Scheduler
from headrace.workers.settings import WorkerSettings
from headrace.workers.source import RecordSource
from headrace.workers.transacting import Transactor


class Pauses:
    """The partitions of one worker that are paused, each for one reason or for both."""

    def __init__(
        self,
        settings: WorkerSettings,
        source: RecordSource,
        scheduler: Scheduler,
        transactor: Transactor | None,
    ) -> None:
        self._settings = settings
        self._waiting_topics = settings.retry_topics()
        self._origins = Origins(settings)
        self.may_hold = bool(self._waiting_topics)
        """Whether there is anything to ask `hold` about."""
        self._source = source
        self._scheduler = scheduler
        self._transactor = transactor
        self._full: set[TopicPartition] = set()
        self.held: dict[TopicPartition, int] = {}
        """Partitions of retry topics whose next record is not due, and when it is."""

    def hold(self, record: ConsumerRecord, now_ms: int) -> bool:
        """Whether a record has to wait in its retry topic; then its partition waits with it."""
        if record.topic not in self._waiting_topics:
            return False
        name = TopicPartition(record.topic, record.partition)
        if name in self.held:
            return True  # it comes behind one that waits, and is read again with it
        due_ms = self._origins.due_ms(record, now_ms)
        if due_ms <= now_ms or not letter_headers.is_for(record, self._settings.group):
            return False
        self.held[name] = due_ms
        self._source.seek(name, record.offset)
        self._source.pause([name])
        return True

    def release(self, now_ms: int) -> None:
        """Read what is due by now."""
        for name in [name for name, due_ms in self.held.items() if due_ms <= now_ms]:
            del self.held[name]
            if name not in self._full:
                self._source.resume([name])

    def look(self, partitions: Iterable[TopicPartition]) -> None:
        """Pause those of which records were taken in and that are full by that."""
        for name in partitions:
            if name not in self._full and self._is_full(name):
                self._full.add(name)
                self._source.pause([name])

    def make_room(self, name: TopicPartition) -> None:
        """Read a partition again that was full, and of which records were finished."""
        if name in self._full and self._scheduler.roomy(name) and not self._is_full(name):
            self._full.discard(name)
            if name not in self.held:
                self._source.resume([name])

    def forget(self, partitions: Iterable[TopicPartition]) -> None:
        """Forget partitions that are others' now."""
        for name in partitions:
            self.held.pop(name, None)
            self._full.discard(name)

    def _is_full(self, name: TopicPartition) -> bool:
        limit = self._settings.max_buffered
        crowded = self._transactor is not None and self._transactor.crowded(name, limit)
        return crowded or self._scheduler.full(name)
