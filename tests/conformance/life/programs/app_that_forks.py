"""An app whose handler uses a pool of forked processes, one of which is sent SIGTERM: app_that_forks.py ADDRESS."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys

import headrace
from headrace import App, Producer

ADDRESS = sys.argv[1]
TOPIC = f"app-that-forks-{os.getpid()}"
app = App(ADDRESS, group=TOPIC)
handled: list[bytes] = []


def ended_by_sigterm() -> None:
    signal.pause()


@app.worker(TOPIC, auto_offset_reset="earliest")
def handle(value: bytes) -> None:
    child = multiprocessing.get_context("fork").Process(target=ended_by_sigterm)
    child.start()
    child.terminate()
    child.join(20)
    print(f"handled {value!r} child {child.exitcode}", flush=True)
    handled.append(value)
    if len(handled) == 3:
        app.stop()


with headrace.Admin(ADDRESS) as admin:
    admin.create_topic(TOPIC, 1)
with Producer(ADDRESS) as producer:
    producer.send_many(TOPIC, [b"1", b"2", b"3"])
app.run()
