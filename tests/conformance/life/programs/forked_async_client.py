"""Like forked_client.py, for asyncio clients and Kinesis clients: forked_async_client.py ADDRESS SUBJECT DIRECTORY."""

from __future__ import annotations

import asyncio
import os
import sys
import time
import traceback
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import headrace
from headrace import TopicPartition
from headrace.errors import ClosedError, LeaseStoreError
from headrace.kinesis import Producer
from headrace.kinesis import kinesis as streams_of
from headrace.kinesis.blocking import Producer as BlockingProducer
from headrace.kinesis.client.settings import AwsSettings
from headrace.kinesis.consumer import Consumer
from headrace.kinesis.leases.sqlite import SqliteLeaseStore
from headrace.testing.kinesis import FakeAws

PARENT = os.getpid()
TOPIC = f"forked-{PARENT}"
Uses = dict[str, Callable[[], Awaitable[Any]]]


async def aio_producer(target: Any) -> tuple[Any, Uses]:
    producer = headrace.aio.Producer(target)

    async def send() -> None:
        await (await producer.send(TOPIC, b"x")).result(20)

    return producer, {"send": send, "flush": producer.flush}


async def aio_consumer(target: Any) -> tuple[Any, Uses]:
    consumer = headrace.aio.Consumer(target, group=TOPIC)
    await consumer.subscribe([TOPIC])
    return consumer, {"poll": consumer.poll, "commit": consumer.commit}


async def aio_admin(target: Any) -> tuple[Any, Uses]:
    admin = headrace.aio.Admin(target)
    return admin, {"topics": admin.topics}


KINDS = {"producer": aio_producer, "consumer": aio_consumer, "admin": aio_admin}


async def kinesis(aws: FakeAws) -> tuple[Any, Uses]:
    producer = Producer(AwsSettings(**settings_of(aws)))

    async def send() -> None:
        await (await producer.send("orders", b"x", partition_key="k"))

    return producer, {"send": send, "flush": producer.flush}


async def kinesis_consumer(aws: FakeAws) -> tuple[Any, Uses]:
    consumer = Consumer(
        "orders", "g", aws=AwsSettings(**settings_of(aws)), leases="memory://forks", poll_ms=200
    )
    consumer.close = consumer.clean  # type: ignore[attr-defined]  # as the other clients call it
    return consumer, {"fetch": consumer.fetch}


class Listener:
    async def on_revoked(self, partitions: list[TopicPartition]) -> None: ...
    async def on_lost(self, partitions: list[TopicPartition]) -> None: ...


async def kinesis_member(aws: FakeAws) -> tuple[Any, Uses]:
    """Fork while a worker reads streams. In the parent the renewals of its leases go on, and it reads."""
    streams = streams_of("orders", aws=AwsSettings(**settings_of(aws)), leases="memory://member")
    source = streams.open_source(
        "g", delivery="at_least_once", drain_timeout_s=5, client_id="forking"
    )
    await source.begin(Listener())
    source.close = lambda: source.leave(5)  # type: ignore[attr-defined]  # as the other clients call it

    async def poll() -> None:
        aws_in_parent = os.getpid() == PARENT
        if aws_in_parent:
            aws.kinesis.put("orders", b"x", "k")
        while not await source.poll(1) and aws_in_parent:
            pass

    async def commit() -> None:
        await source.commit(
            {name: position for name, position in source.positions().items() if position}
        )

    return source, {"poll": poll, "commit": commit}


async def kinesis_blocking(aws: FakeAws) -> tuple[Any, Uses]:
    producer = BlockingProducer(AwsSettings(**settings_of(aws)))

    async def send() -> None:
        producer.send("orders", b"x", partition_key="k").result(20)

    async def flush() -> None:
        producer.flush()

    class Closing:
        async def close(self) -> None:
            producer.close()

    return Closing(), {"send": send, "flush": flush}


def settings_of(aws: FakeAws) -> dict[str, Any]:
    options = aws.client_options
    return {
        "region": options["region_name"],
        "endpoint_url": options["endpoint_url"],
        "access_key_id": options["aws_access_key_id"],
        "secret_access_key": options["aws_secret_access_key"],
    }


async def leases(directory: str) -> tuple[Any, Uses]:
    store = SqliteLeaseStore(Path(directory) / "leases.db")
    await store.open()

    async def read() -> None:
        await store.leases("g", "s")

    return store, {"read": read}


async def in_child(client: Any, uses: Uses) -> None:
    for name, use in uses.items():
        began = time.monotonic()
        try:
            await use()
        except (ClosedError, LeaseStoreError) as error:
            refused = "refused" if "before a fork" in str(error) else str(error)
            print(f"child {name}: {refused}", flush=True)
        except Exception as error:  # noqa: BLE001 - the test reads what it was
            print(f"child {name}: {error!r}", flush=True)
        else:
            print(f"child {name}: done", flush=True)
        assert time.monotonic() - began < 5, name
    await client.close()
    print("child closed", flush=True)


async def run(client: Any, uses: Uses) -> None:
    for use in uses.values():
        await use()
    child = os.fork()
    if child == 0:
        try:
            asyncio.run(asyncio.wait_for(in_child(client, uses), 20))
        except Exception:  # noqa: BLE001 - the test reads what it was
            traceback.print_exc()
        os._exit(0)
    for _ in range(5):
        for use in uses.values():
            await use()
    await asyncio.to_thread(os.waitpid, child, 0)
    for use in uses.values():
        await use()
    await client.close()
    print("parent went on", flush=True)


async def main() -> None:
    address, name, directory = sys.argv[1:]
    place, _, kind = name.partition("-")
    if place == "tcp":
        async with headrace.aio.Admin(address) as admin:
            await admin.create_topic(TOPIC, 1)
        await run(*await KINDS[kind](address))
    elif place == "memory":
        with headrace.Broker() as broker:
            broker.create_topic(TOPIC)
            await run(*await KINDS[kind](broker))
    elif place == "sqlite":
        await run(*await leases(directory))
    else:
        makers = {
            "producer": kinesis,
            "blocking": kinesis_blocking,
            "consumer": kinesis_consumer,
            "member": kinesis_member,
        }
        with FakeAws() as aws:
            aws.kinesis.create_stream("orders", 1)
            await run(*await makers[kind](aws))


if __name__ == "__main__":
    asyncio.run(main())
