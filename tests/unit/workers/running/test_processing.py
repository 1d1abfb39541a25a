"""Waits between a record and its handler: afterwards the partition must still belong to this member."""

from __future__ import annotations

import asyncio
import threading
from types import SimpleNamespace
from typing import Any

import pytest

import headrace
from headrace.clients.consumer.records import ConsumerRecord
from headrace.errors import TransportError
from headrace.kinesis import Streams, kinesis
from headrace.types import TopicPartition
from headrace.workers.committing.offsets import OffsetCommitter
from headrace.workers.core.delivery import AtLeastOnce
from headrace.workers.core.origins import Origins
from headrace.workers.core.scheduler import Scheduler
from headrace.workers.core.worker_core import WorkerCore
from headrace.workers.handler.threads import HandlerThreads
from headrace.workers.monitoring.counters import Tally
from headrace.workers.running import job_runner
from headrace.workers.running.job_runner import JobRunner
from headrace.workers.running.processor import Processor

RECORD = ConsumerRecord("orders", 0, 1, 0, None, b"one", (), 0)


class Source:
    def __init__(self) -> None:
        self.is_ours = True
        self.looked = 0

    def valid(self, _name: object) -> bool:
        self.looked += 1
        return self.is_ours


@pytest.mark.parametrize("comes_back", [False, True])
def test_a_record_that_waited_for_a_thread_is_handled_only_by_its_owner(
    *, comes_back: bool
) -> None:
    handled: list[bytes] = []
    free = threading.Event()

    async def run() -> None:
        source: Any = Source()
        threads = HandlerThreads(1, "handlers")
        handler = SimpleNamespace(
            call=handled.append, is_async=False, context=None, wants_batches=False
        )
        settings: Any = SimpleNamespace(
            handler=handler,
            retry_topics=dict,
            origins=lambda: Origins("g"),
            dedupe=None,
            serde=SimpleNamespace(deserialize=bytes),
            publications=(),
        )
        no_object: Any = None  # no code uses it
        scheduler = Scheduler(ordering="partition", concurrency=1)
        scheduler.add([RECORD])
        [job] = scheduler.take(0)
        processor = Processor(settings, no_object, threads, source, scheduler)
        hung = asyncio.create_task(threads.run(free.wait))
        work = asyncio.create_task(processor.process(job, no_object))
        await asyncio.sleep(0)
        assert threads._busy == 2
        source.is_ours = False
        free.set()
        await hung
        if comes_back:
            source.is_ours = True
        else:
            job.let_go = True
        async with asyncio.timeout(5):
            await work
        threads.close()

    asyncio.run(run())
    assert handled == ([b"one"] if comes_back else [])


class Jobs:
    """The jobs of one worker, and their outcomes."""

    def __init__(self, app: headrace.App, source: Any, **outlet_calls: Any) -> None:
        [settings] = app._workers
        outlet: Any = SimpleNamespace(now_ms=lambda: 0, forget=lambda _: None, **outlet_calls)
        self.scheduler = Scheduler(ordering="none", concurrency=1)
        self.threads = HandlerThreads(1, "handlers")
        self.ended = asyncio.Event()
        core = WorkerCore(AtLeastOnce(), self.scheduler, Origins("g"), max_buffered=1000)
        self.runner = JobRunner(
            settings,
            self.scheduler,
            Processor(settings, outlet, self.threads, source, self.scheduler),
            outlet,
            committer=OffsetCommitter(core, source, outlet, asyncio.Event(), 1.0),
            valid=source.valid,
            tally=Tally(settings.name, app.counters[settings.name], ()),
            ended=lambda name: self.ended.set() if name is None else None,
            failed=lambda error: pytest.fail(repr(error)),
        )

    async def finish(self) -> None:
        self.runner.start()
        async with asyncio.timeout(5):
            await self.ended.wait()
        await self.runner.close()


def test_each_handler_call_checks_the_ownership_once() -> None:
    app, handled = headrace.App(group="g"), []

    @app.worker("orders")
    async def handle(value: bytes) -> None:
        handled.append(value)

    async def run() -> int:
        source: Any = Source()
        jobs = Jobs(app, source)
        jobs.scheduler.add(RECORD._replace(offset=offset) for offset in range(10))
        await jobs.finish()
        return int(source.looked)

    assert asyncio.run(run()) == len(handled) == 10


def test_a_job_cancelled_before_its_begin_frees_its_slot() -> None:
    app, handled = headrace.App(group="g"), []

    @app.worker("orders")
    async def handle(value: bytes) -> None:
        handled.append(value)

    async def run() -> None:
        jobs = Jobs(app, Source())
        jobs.scheduler.add([RECORD])
        jobs.runner.start()  # its task has not begun when the partition is revoked
        await jobs.runner.let_go({TopicPartition("orders", 0)})
        jobs.scheduler.drop([TopicPartition("orders", 0)])
        jobs.ended.clear()
        jobs.scheduler.add([RECORD._replace(partition=1)])
        await jobs.finish()

    asyncio.run(run())
    assert handled == [b"one"]


def letters_of(outlet_calls: dict[str, Any], source: str | Streams, count: int) -> None:
    """Have records handled that all fail for good."""
    app = headrace.App(group="g")

    @app.worker(source, retry=1, dead_letter=True)
    async def handle(value: bytes) -> None:
        raise ValueError("poison")

    async def run() -> None:
        jobs = Jobs(app, Source(), **outlet_calls)
        jobs.scheduler.add(RECORD._replace(offset=offset) for offset in range(count))
        await jobs.finish()

    asyncio.run(run())


def test_dead_letters_are_logged_at_growing_intervals(caplog: pytest.LogCaptureFixture) -> None:
    async def done(*_: object, **__: object) -> dict[str, int]:
        return {"orders": 1, "dlq.orders": 1}

    async def limit(_: object) -> int:
        return 100

    caplog.set_level("INFO", "headrace.workers")
    calls = {
        "partition_counts": done,
        "create_topics": done,
        "write": done,
        "max_message_bytes": limit,
    }
    letters_of(calls, "orders", 9)
    assert [text for text in caplog.messages if "failed in attempt" not in text] == [
        f"handle: the record at offset {count - 1} of orders-0 is in the dead-letter topic dlq.orders "
        f"({count} so far): ValueError('poison')"
        for count in (1, 2, 4, 8)
    ]


def test_a_worker_on_streams_without_a_broker_gets_the_alternatives_in_the_error(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def refused(*_: object, **__: object) -> None:
        raise TransportError("cannot connect to 127.0.0.1:1")

    streams = kinesis("orders", region="eu-central-1", leases="memory://letters")
    letters_of({"create_topics": refused}, streams, 1)
    [_failure, said] = caplog.messages
    assert said.startswith("handle: a record cannot be written to dlq.orders; the worker retries")
    assert said.endswith('Is a broker running there? dead_letter="kinesis://STREAM" needs none')


def test_a_topic_that_refuses_dead_letters_logs_one_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def refused(*_: object, **__: object) -> None:
        raise TransportError("cannot connect to 127.0.0.1:1")

    letters_of({"partition_counts": refused, "create_topics": refused}, "orders", 5)
    assert sum("cannot be written to dlq.orders" in text for text in caplog.messages) == 1


def test_a_slow_write_of_a_dead_letter_is_logged(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_runner, "SLOW_WRITE_S", 0.0)

    async def told(*_: object, **__: object) -> None:
        async with asyncio.timeout(5):
            while not caplog.messages:  # noqa: ASYNC110 - a log line wakes no task
                await asyncio.sleep(0)

    async def written(*_: object, **__: object) -> None: ...

    streams = kinesis("orders", region="eu-central-1", leases="memory://letters")
    letters_of({"create_topics": told, "write": written}, streams, 1)
    assert caplog.messages[1] == (
        "handle: the record at offset 0 of orders-0 waits to be written to dlq.orders (ValueError('poison')); "
        "the records behind it wait, too"
    )
