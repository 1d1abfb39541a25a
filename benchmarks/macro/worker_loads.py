"""Measure the records per second of a handler that does nothing: Headrace's workers, FastStream, Quix Streams.

    python worker_loads.py FRAMEWORK BOOTSTRAP TOPIC RECORDS SECONDS

The program prints a JSON object with `records`, `wall_s`, `cpu_s` and `version`. The times begin when the handler
receives its first record. They end with the last of RECORDS, or after SECONDS. The program needs only the framework, so
each framework can be installed in an environment of its own.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import threading
import time
from importlib.metadata import version

HEADRACE, FASTSTREAM, QUIX = "headrace", "faststream", "quixstreams"


class RecordCounter:
    """A counter of handled records. It stops the program after the last record, or after a number of seconds."""

    def __init__(self, records: int, seconds: float) -> None:
        self.records, self._seconds = records, seconds
        self.seen = 0
        self._begun = self._ended = (0.0, 0.0)

    def add_one(self) -> None:
        """Count one record that the handler received."""
        if not self.seen:
            self._begun = time.perf_counter(), time.process_time()
            timer = threading.Timer(self._seconds, self._stop)
            timer.daemon = True
            timer.start()
        self.seen += 1
        if self.seen == self.records:
            self._stop()

    def _stop(self) -> None:
        if not self._ended[0]:
            self.records = self.seen
            self._ended = time.perf_counter(), time.process_time()
            os.kill(os.getpid(), signal.SIGINT)

    def report(self, name: str) -> str:
        """Return the measurements as JSON."""
        wall, cpu = (end - begin for begin, end in zip(self._begun, self._ended, strict=True))
        found = {"records": self.records, "wall_s": wall, "cpu_s": cpu, "version": version(name)}
        return json.dumps(found)


def run_headrace(bootstrap: str, topic: str, counter: RecordCounter) -> None:
    """Run a worker of Headrace: at least once."""
    import headrace

    app = headrace.App(bootstrap)

    @app.worker(topic, group="bench", auto_offset_reset="earliest")
    async def handle(_: bytes) -> None:
        counter.add_one()

    app.run()


def run_faststream(bootstrap: str, topic: str, counter: RecordCounter) -> None:
    """Run a subscriber of FastStream with its defaults: at most once."""
    import asyncio
    import logging

    from faststream import FastStream
    from faststream.kafka import KafkaBroker

    broker = KafkaBroker(bootstrap, logger=None)

    async def handle(_: bytes) -> None:
        counter.add_one()

    broker.subscriber(topic, group_id="bench", auto_offset_reset="earliest")(handle)
    asyncio.run(FastStream(broker, logger=None).run(log_level=logging.ERROR))


def run_quix(bootstrap: str, topic: str, counter: RecordCounter) -> None:
    """Run a dataframe of Quix Streams with its defaults: at least once."""
    from quixstreams import Application

    app = Application(
        bootstrap, consumer_group="bench", auto_offset_reset="earliest", loglevel=None
    )
    frame = app.dataframe(app.topic(topic, value_deserializer="bytes"))
    frame.update(lambda _: counter.add_one())
    app.run()


RUN = {HEADRACE: run_headrace, FASTSTREAM: run_faststream, QUIX: run_quix}


def main() -> int:
    """Run the framework of the command line."""
    name, bootstrap, topic, records, seconds = sys.argv[1:]
    counter = RecordCounter(int(records), float(seconds))
    with contextlib.suppress(KeyboardInterrupt):
        RUN[name](bootstrap, topic, counter)
    print(counter.report(name))
    return 0


if __name__ == "__main__":
    sys.exit(main())
