"""The published program that the low-level consumer comes from, as its reader writes it: only the imports are others.

    python printer.py [structlog]

Beside the imports two lines are not as they were in 2018, and both are aiobotocore's and asyncio's own: how a session
is made, and how a program gets an event loop.
"""

import asyncio
import logging
import os
import sys

from aiobotocore.session import get_session

from headrace.kinesis.consumer import Consumer
from headrace.kinesis.consumer import Message as Msg

AWS_SESSION_CONFIG = {
    "region_name": os.environ["AWS_REGION"],
    "aws_access_key_id": os.environ["AWS_ACCESS_KEY_ID"],
    "aws_secret_access_key": os.environ["AWS_SECRET_ACCESS_KEY"],
}


class BindingLogger:
    """A logger with the interface of structlog's loggers, which prints."""

    def __init__(self, **fields: object) -> None:
        self._fields = fields

    def bind(self, **fields: object) -> "BindingLogger":
        return BindingLogger(**(self._fields | fields))

    def info(self, event: str, **fields: object) -> None:
        print("log", event, {**self._fields, **fields}, file=sys.stderr, flush=True)

    debug = warning = info


class Printer(Consumer):
    async def process_batch(self, batch: list[Msg]) -> None:
        for msg in batch:
            print(msg, flush=True)

        await asyncio.sleep(0.05)


def run() -> None:
    logging.basicConfig(level=logging.INFO)
    logger: object = BindingLogger() if "structlog" in sys.argv else logging.getLogger("printer")

    loop = asyncio.new_event_loop()

    session = get_session()

    owner = "me-" + str(os.getpid())

    kinesis = session.create_client("kinesis", **AWS_SESSION_CONFIG)
    dynamodb = session.create_client("dynamodb", **AWS_SESSION_CONFIG)

    c = Printer(
        kinesis=kinesis,
        dynamodb=dynamodb,
        table="printer_group_a",
        stream="messages",
        group="printer_group_a",
        owner=owner,
        initial_checkpoint="TRIM_HORIZON",
        lock_duration=60000,
        logger=logger,
    )

    try:
        loop.run_until_complete(c.run())

    finally:
        loop.run_until_complete(c.clean())


if __name__ == "__main__":
    run()
