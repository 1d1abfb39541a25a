"""Headrace: replayable, partitioned logs that speak the Apache Kafka protocol, for Python teams.

    broker = headrace.Broker()                       # in this process; or use "localhost:9092" below
    broker.create_topic("orders", partitions=6, serde="json")
    headrace.Producer(broker).send("orders", {"id": 1}, key=b"alice").result()

Each name is imported when it is first used; `__init__.pyi` has the same names for type checkers. `headrace.aio` has the
asyncio clients.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

_HOMES = {
    "Admin": "headrace.clients.admin.blocking",
    "App": "headrace.workers.app",
    "Broker": "headrace.streams.broker",
    "Consumer": "headrace.clients.consumer.blocking",
    "ConsumerRecord": "headrace.clients.consumer.records",
    "Context": "headrace.workers.context",
    "DeadLetter": "headrace.workers.outcomes",
    "Event": "headrace.workers.counters",
    "HeadraceError": "headrace.errors",
    "ManualClock": "headrace.streams.clock",
    "Producer": "headrace.clients.producer.blocking",
    "RecordMetadata": "headrace.clients.producer.delivery",
    "Retry": "headrace.workers.outcomes",
    "RetryLater": "headrace.workers.outcomes",
    "SeenFile": "headrace.workers.seen.declared",
    "SeenTopic": "headrace.workers.seen.declared",
    "Skip": "headrace.workers.outcomes",
    "SyncContext": "headrace.workers.context",
    "TopicPartition": "headrace.types",
    "register_assignor": "headrace.clients.assignors",
    "register_partitioner": "headrace.clients.partitioners",
    "register_serde": "headrace.serdes.serde",
    "register_storage": "headrace.storage.registry",
}


__all__ = ["__version__", *_HOMES]  # noqa: PLE0604 - names are text, though not literals


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used (PEP 562), so that a program imports only what it uses."""
    if name == "aio":
        return import_module("headrace.aio")
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'headrace' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(home), name)
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
