"""A worker of Headrace's that processes exactly once: `delivery="exactly_once"`. Its argument is JSON.

Handlers run side by side and do not learn what became of their transaction, so each attempt is an operation of its own
whose end is unknown. The worker ends with code 3 if it was fenced, and with 5 if it could not commit a partition that
it had to hand over.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
from pathlib import Path
from typing import Any

import headrace
from headrace.errors import FatalTransactionError, TransportError, WorkerFailedError

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))
from tests.fixtures.history.operations import INFO, INVOKE, Journal

SETTINGS = json.loads(sys.argv[1])
NAME = SETTINGS["name"]
JOURNAL = Journal(Path(SETTINGS["journal"]), NAME)
ATTEMPTS = itertools.count(1)
GROUP: dict[str, Any] = {"group_protocol": "consumer"}
if SETTINGS["protocol"] == "classic":
    GROUP = {
        "group_protocol": "classic",
        "assignor": SETTINGS["assignor"],
        "session_timeout_ms": SETTINGS["session_timeout_ms"],
        "heartbeat_interval_ms": SETTINGS["session_timeout_ms"] // 5,
    }
app = headrace.App(
    SETTINGS["bootstrap"],
    client_id=NAME,
    drain_timeout_s=3,
    retry_backoff_ms=30,
    retry_backoff_max_ms=200,
    request_timeout_ms=2_500,
)


@app.worker(
    SETTINGS["input"],
    group=SETTINGS["group"],
    ordering="key",
    delivery="exactly_once",
    transactional_id=SETTINGS["transactional_id"] if SETTINGS["shares_id"] else None,
    fetch_max_wait_ms=100,
    auto_offset_reset="none",
    **GROUP,
)
async def transform(value: bytes, context: headrace.Context) -> None:
    number = next(ATTEMPTS)
    place = f"{SETTINGS['input']}-{context.partition}"
    result = f"{value.decode()}|{NAME}.{number}"
    steps = [
        ["poll", {place: [[context.offset, value.decode()]]}],
        ["send", "anywhere", result],
    ]
    JOURNAL.process = f"{NAME}.{number}"
    JOURNAL.write(INVOKE, "txn", steps)
    JOURNAL.write(INFO, "txn", steps)
    await context.publish(SETTINGS["output"], result, key=context.key)


try:
    app.run()
except TransportError as error:
    # With this `request.timeout.ms` a worker that starts does not wait until a killed broker is back. As a supervisor
    # would, start it again.
    print(repr(error), file=sys.stderr, flush=True)
    os.execv(sys.executable, [sys.executable, *sys.argv])
except FatalTransactionError as error:
    print(repr(error), file=sys.stderr)
    sys.exit(3)
except WorkerFailedError as error:
    if "the finished records could not be committed" not in str(error):
        raise
    print(repr(error), file=sys.stderr)
    sys.exit(5)
