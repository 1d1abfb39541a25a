"""Run two workers: one makes an invoice for each order, the other adds up the invoices. Failed orders are dead letters.

python examples/billing.py                       # in one process, with a broker in memory
BROKERS=localhost:9092 headrace run examples.billing:app    # against a broker, as many processes as you like
"""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from dataclasses import dataclass

import headrace
from headrace import DeadLetter, Retry

app = headrace.App(os.environ.get("BROKERS", "127.0.0.1:9092"), group="billing")
rates_asked: Counter[str] = Counter()
revenue: defaultdict[str, float] = defaultdict(float)


@dataclass
class Order:
    """The value of a record in the topic `orders`."""

    id: int
    customer: str
    total: float
    currency: str = "EUR"


@dataclass
class Invoice:
    """The value of a record in the topic `invoices`."""

    order: int
    customer: str
    euros: float


class RateServiceBusyError(Exception):
    """A temporary error: the worker calls the handler again."""


def rate(currency: str) -> float:
    """Stand in for a service that is busy at the first request for each currency."""
    rates_asked[currency] += 1
    if rates_asked[currency] == 1:
        raise RateServiceBusyError(currency)
    return {"EUR": 1.0, "USD": 0.9}[currency]


@app.worker("orders", ordering="key", retry=Retry(attempts=3, first=0.05), dead_letter=True)
@app.publishes("invoices", key=lambda invoice: invoice.customer)
def bill(order: Order) -> Invoice:
    """Make an invoice. The worker calls this in a thread, for one order of a customer after another."""
    if order.total < 0:
        raise DeadLetter("a negative total is for people to look at")
    return Invoice(order.id, order.customer, order.total * rate(order.currency))


@app.worker("invoices", group="revenue", batch=50)
async def add_up(invoices: list[Invoice]) -> None:
    """Add up to 50 invoices to the revenue of their customers."""
    for invoice in invoices:
        revenue[invoice.customer] += invoice.euros


def main() -> None:
    """Run the app on a broker in memory, and print invoices, dead letters and counters."""
    with app.test() as t:
        for number, (customer, total, currency) in enumerate(
            [
                ("alice", 10.0, "EUR"),
                ("bob", 20.0, "USD"),
                ("alice", -5.0, "EUR"),
                ("alice", 2.5, "EUR"),
            ]
        ):
            order = Order(number, customer, total, currency)
            t.produce("orders", order, key=customer)
        t.produce("orders", "not even JSON", key="carol")
        t.wait_idle()
        print("invoices:")
        for message in t.messages("invoices"):
            print("  ", message.value.decode())
        print("dead letters:")
        for letter in t.messages("dlq.orders"):
            print("  ", letter.header("dlq-error-type"), letter.value.decode())
        print("revenue:", dict(sorted(revenue.items())))
        for name, counters in app.counters.items():
            print(f"{name}: {counters}")


if __name__ == "__main__":
    main()
