"""Two workers share a Kinesis stream while it is resharded; then one leaves. The stream is in the fake of Kinesis.

$ python examples/kinesis_workers.py
"""

import asyncio
from collections import Counter

import headrace
from headrace.kinesis import AwsSettings, kinesis
from headrace.testing.kinesis import FakeAws

handled: list[str] = []


def worker(name: str, aws: FakeAws) -> headrace.App:
    """Return an app; in production each would be a process of its own."""
    app = headrace.App(group="billing")
    settings = AwsSettings(
        region=aws.region,
        endpoint_url=aws.endpoint_url,
        access_key_id="fake",
        secret_access_key="fake",
    )

    @app.worker(kinesis("orders", aws=settings, lease_duration_ms=3_000, poll_ms=200), name=name)
    async def bill(order: str, context: headrace.Context) -> None:
        handled.append(order)
        if len(handled) % 50 == 0:
            print(f"{name} handles {order} of {context.shard}, epoch {context.epoch}")

    return app


async def until(count: int) -> None:
    """Wait until `count` orders are handled."""
    while len(handled) < count:  # noqa: ASYNC110 - handlers set no event
        await asyncio.sleep(0.05)


async def main(aws: FakeAws) -> None:
    """Write orders, reshard the stream, and stop one worker, while both process the orders."""
    aws.kinesis.create_stream("orders", 2)

    def put(numbers: range) -> None:
        for number in numbers:
            aws.kinesis.put("orders", f"order-{number}".encode(), f"customer-{number % 20}")

    first, second = worker("first", aws), worker("second", aws)
    put(range(100))
    running = [asyncio.create_task(app.serve()) for app in (first, second)]
    await until(100)
    aws.kinesis.reshard("orders", 4)
    put(range(100, 200))
    await until(200)
    second.stop()
    await running[1]
    put(range(200, 300))
    await until(300)
    first.stop()
    await running[0]
    assert set(Counter(handled).values()) == {1}
    print(f"{len(handled)} orders, each handled once")


if __name__ == "__main__":
    with FakeAws() as fake:
        asyncio.run(main(fake))
