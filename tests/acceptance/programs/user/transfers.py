"""Reads numbers, and writes their doubles and its offsets in transactions. Every third transaction fails once.

python transfers.py HOST:PORT       # or "embedded"
"""

import asyncio
import sys
from typing import Any

import headrace

COUNT = 50


def fail() -> None:
    raise ConnectionError("the power went out")


async def double_all(target: Any) -> int:
    async with headrace.aio.Admin(target) as admin:
        await admin.create_topic("numbers", 2)
        await admin.create_topic("doubles", 2)
    async with headrace.aio.Producer(target, serde="json") as producer:
        for number in range(COUNT):
            _ = await producer.send("numbers", number, key=str(number))

    failed: set[int] = set()
    done = 0
    async with (
        headrace.aio.Consumer(
            target,
            group="doubler",
            serde="json",
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            max_poll_records=7,
        ) as consumer,
        headrace.aio.Producer(target, serde="json", transactional_id="doubler-1") as producer,
    ):
        await producer.init_transactions()
        await consumer.subscribe(["numbers"])
        while done < COUNT:
            records = await consumer.poll(1.0)
            if not records:
                continue
            try:
                async with producer.transaction() as transaction:
                    for record in records:
                        _ = await producer.send("doubles", record.value * 2, key=record.key)
                    unlucky = {record.value for record in records if record.value % 3 == 0}
                    if unlucky - failed:
                        failed |= unlucky
                        fail()
                    await transaction.send_offsets(consumer.positions(), consumer)
            except ConnectionError:
                await consumer.seek_to_committed()
            else:
                done += len(records)
    return await count_doubles(target)


async def count_doubles(target: Any) -> int:
    found: list[int] = []
    async with headrace.aio.Consumer(
        target,
        group="check",
        serde="json",
        auto_offset_reset="earliest",
        isolation_level="read_committed",
    ) as consumer:
        await consumer.subscribe(["doubles"])
        while len(found) < COUNT:
            found += [record.value for record in await consumer.poll(1.0)]
        found += [record.value for record in await consumer.poll(0.2)]
    assert sorted(found) == [number * 2 for number in range(COUNT)], sorted(found)
    return len(found)


def main() -> None:
    if sys.argv[1] == "embedded":
        with headrace.Broker() as broker:
            print(asyncio.run(double_all(broker)))
    else:
        print(asyncio.run(double_all(sys.argv[1])))


if __name__ == "__main__":
    main()
