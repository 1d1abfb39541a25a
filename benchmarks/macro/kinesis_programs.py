"""Run one consumer of a Kinesis stream: Headrace's worker, or async-kinesis.

    python kinesis_programs.py LIBRARY SETTINGS

SETTINGS is JSON: `stream, endpoint, region, output`, and the fields of `Settings`. Each handled record is a line of the
file `output`: the monotonic time in nanoseconds, the process id, and the text of the record. The program needs only its
library, so each library can be installed in its own environment.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import sys
import time
from dataclasses import dataclass
from importlib.metadata import version

HEADRACE, ASYNC_KINESIS = "headrace", "async-kinesis"


@dataclass(frozen=True)
class Settings:
    """The settings of a consumer of either library."""

    stream: str
    endpoint: str
    region: str
    output: str
    lease_s: int = 10
    """The seconds after which other consumers take over the shards of a consumer that does not renew its leases."""
    shards: int | None = None
    """The largest number of shards of an async-kinesis consumer, which gives up none when another one joins."""
    pause_at: int = 0
    """The number of the record before which the handler pauses, as for a slow database; 0 means no pause."""
    pause_s: float = 0.0
    queue: int = 0
    """The number of records to read ahead, if the library counts them; 0 means the default of the library."""
    stop_after: int = 0
    """The number of records after which the program ends; 0 means that it runs until SIGTERM."""
    aggregated: bool = False
    """Whether records may be aggregated by the Kinesis Producer Library."""


class Handled:
    """The records that the handler received."""

    def __init__(self, library: str, settings: Settings) -> None:
        self._library = library
        self._settings = settings
        self._file = os.open(settings.output, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        self._lines: list[bytes] = []
        self.count = 0
        self.begun = self.ended = (0.0, 0.0)

    def one(self, text: str) -> float:
        """Count a record; return how many seconds the handler pauses."""
        if not self.count:
            self.begun = time.perf_counter(), time.process_time()
        self.count += 1
        if self._settings.stop_after:
            self._lines.append(text.encode())
        else:
            os.write(self._file, f"{time.monotonic_ns()} {os.getpid()} {text}\n".encode())
        if self.count == self._settings.stop_after:
            self.ended = time.perf_counter(), time.process_time()
            print(self.report(), flush=True)
            os._exit(0)  # the duration of an orderly end is not measured
        return self._settings.pause_s if self.count == self._settings.pause_at else 0.0

    def report(self) -> str:
        """Return the measurements as JSON."""
        for line in self._lines:
            os.write(self._file, b"0 %d %b\n" % (os.getpid(), line))
        wall, cpu = (end - begin for begin, end in zip(self.begun, self.ended, strict=True))
        return json.dumps(
            {"records": self.count, "wall_s": wall, "cpu_s": cpu, "version": version(self._library)}
        )


def run_headrace(settings: Settings, handled: Handled) -> None:
    """Run a worker of Headrace: at least once, leases in DynamoDB."""
    import headrace
    from headrace.kinesis import kinesis

    app = headrace.App()
    stream = kinesis(
        settings.stream,
        region=settings.region,
        endpoint_url=settings.endpoint,
        lease_duration_ms=settings.lease_s * 1_000,
    )

    @app.worker(stream, group="bench")
    async def handle(value: bytes) -> None:
        if pause_s := handled.one(value.decode()):
            await asyncio.sleep(pause_s)

    app.run()


def run_async_kinesis(settings: Settings, handled: Handled) -> None:
    """Run a consumer of async-kinesis with its defaults, checkpoints and leases in DynamoDB."""
    asyncio.run(_consume(settings, handled))


async def _consume(settings: Settings, handled: Handled) -> None:
    from kinesis import Consumer
    from kinesis.dynamodb import DynamoDBCheckPointer
    from kinesis.processors import KPLStringProcessor, StringProcessor

    task = asyncio.current_task()
    assert task is not None
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    checkpointer = DynamoDBCheckPointer(
        "bench",
        id=os.getpid(),
        session_timeout=settings.lease_s,
        heartbeat_frequency=max(1, settings.lease_s // 3),
        endpoint_url=settings.endpoint,
        region_name=settings.region,
    )
    async with Consumer(
        settings.stream,
        endpoint_url=settings.endpoint,
        region_name=settings.region,
        checkpointer=checkpointer,
        processor=KPLStringProcessor() if settings.aggregated else StringProcessor(),
        max_shard_consumers=settings.shards,
        **({"max_queue_size": settings.queue} if settings.queue else {}),
    ) as consumer:
        try:
            while True:  # its iteration ends after two seconds without a record
                async for text in consumer:
                    if pause_s := handled.one(text):
                        await asyncio.sleep(pause_s)
        except asyncio.CancelledError:
            return


RUN = {HEADRACE: run_headrace, ASYNC_KINESIS: run_async_kinesis}


def main() -> int:
    """Run one consumer until SIGTERM."""
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr)
    library, text = sys.argv[1:]
    settings = Settings(**json.loads(text))
    RUN[library](settings, Handled(library, settings))
    return 0


if __name__ == "__main__":
    sys.exit(main())
