"""A worker over a stream of Kinesis; parcels without an address become dead letters in a topic."""

import os

import msgspec

import headrace
from headrace.kinesis import kinesis


class Parcel(msgspec.Struct):
    id: int
    address: str


app = headrace.App(os.environ["BOOTSTRAP"], group="delivery")


@app.worker(
    kinesis("parcels", owner="van-7", poll_ms=250),
    ordering="key",
    retry=headrace.Retry(attempts=2, first=0.01),
    dead_letter=True,
)
async def deliver(parcel: Parcel, context: headrace.Context) -> None:
    if not parcel.address:
        raise ValueError("no address")
    print("delivered", parcel.id, context.shard, flush=True)
