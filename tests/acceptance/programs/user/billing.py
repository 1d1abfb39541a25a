"""An order service: it bills orders, retries temporary failures, and writes dead letters for the others.

    headrace run billing:app

The environment says where the broker is, where bills are written, and whether the payment service is down.
"""

import asyncio
import os
from pathlib import Path

import msgspec

import headrace


class Order(msgspec.Struct):
    id: int
    customer: str
    total: float


class Invoice(msgspec.Struct):
    order: int
    customer: str
    attempt: int


class PaymentDownError(Exception):
    """The payment service does not answer."""


app = headrace.App(os.environ["BOOTSTRAP"])
BILLS = Path(os.environ["BILLS"])


def write(line: str) -> None:
    with BILLS.open("a") as bills:
        bills.write(line)


@app.worker(
    "orders",
    group="billing",
    ordering="key",
    concurrency=8,
    retry=headrace.Retry(attempts=3, first=0.01, max=0.05),
    dead_letter=True,
)
@app.publishes("invoices", key=lambda invoice: invoice.customer)
async def bill(order: Order, context: headrace.Context) -> Invoice:
    if order.total < 0:
        raise ValueError("negative total")
    if order.customer == "carol" and not os.environ.get("PAYMENT_UP"):
        raise PaymentDownError("no answer from the payment service")
    if order.customer == "bob" and context.attempt < 3:
        raise ConnectionError("try again")
    await asyncio.to_thread(write, f"{order.id}\n")
    return Invoice(order.id, order.customer, context.attempt)
