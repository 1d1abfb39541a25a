"""A worker in a process of its own. It writes the handled records to a file, and Kinesis sometimes throttles it."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import sys
import time
from types import SimpleNamespace
from typing import Any

import headrace
from headrace.kinesis import kinesis
from headrace.kinesis.client.opening import open_client
from headrace.kinesis.client.settings import AwsSettings
from headrace.workers.handler.context import Context

SAID = json.dumps(
    {"__type": "ProvisionedThroughputExceededException", "message": "Rate exceeded for shard"}
).encode()


class Refusal:
    """An error of AWS for too many requests."""

    status_code = 400
    headers = {"Content-Type": "application/x-amz-json-1.1"}  # noqa: RUF012 - never changed
    raw = SimpleNamespace(raw_headers=[(b"Content-Type", b"application/x-amz-json-1.1")])

    @property
    async def content(self) -> bytes:
        return SAID

    @property
    async def text(self) -> str:
        return SAID.decode()


def throttled(chance: float) -> Any:
    """Return a hook of botocore that refuses some calls before they are sent."""

    def before_send(**_: Any) -> Refusal | None:
        return Refusal() if random.random() < chance else None

    return before_send


async def main(settings: dict[str, Any]) -> None:
    ledger = os.open(settings["ledger"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def write(**entry: Any) -> None:
        line = {"worker": settings["name"], "at": time.monotonic(), **entry}
        os.write(ledger, json.dumps(line).encode() + b"\n")

    aws = AwsSettings(region="us-east-1", endpoint_url=settings["kinesis_url"])
    async with open_client(aws, "kinesis") as client:
        hook = throttled(settings["throttled"])
        for operation in ("GetRecords", "GetShardIterator", "ListShards"):
            meta: Any = client.meta
            meta.events.register(f"before-send.kinesis.{operation}", hook)
        streams = kinesis(
            settings["stream"],
            clients={"kinesis": client},
            leases=f"dynamodb://{settings['table']}?region=us-east-1&endpoint_url={settings['dynamodb_url']}",
            lease_duration_ms=settings["lease_ms"],
            poll_ms=400,
        )
        app = headrace.App(group="billing", drain_timeout_s=3, commit_interval_s=0.3)

        @app.worker(streams, concurrency=8)
        async def handle(value: str, context: Context) -> None:
            place = {"shard": context.shard, "epoch": context.epoch, "value": value}
            write(kind="begun", sequence_number=context.sequence_number, **place)
            await asyncio.sleep(0.005)

        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, app.stop)
        write(kind="started")
        await app.serve()
        write(kind="left")


if __name__ == "__main__":
    asyncio.run(main(json.loads(sys.argv[1])))
