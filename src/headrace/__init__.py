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
    "Broker": "headrace.embedded.broker",
    "Consumer": "headrace.clients.consumer.blocking",
    "ConsumerRecord": "headrace.clients.consumer.records",
    "Context": "headrace.workers.handler.context",
    "DeadLetter": "headrace.workers.failure.outcomes",
    "Event": "headrace.workers.monitoring.counters",
    "HeadraceError": "headrace.errors",
    "ManualClock": "headrace.embedded.clock",
    "Producer": "headrace.clients.producer.blocking",
    "RecordMetadata": "headrace.clients.producer.delivery",
    "Retry": "headrace.workers.failure.outcomes",
    "RetryLater": "headrace.workers.failure.outcomes",
    "SeenFile": "headrace.workers.deduplication.declared",
    "SeenTopic": "headrace.workers.deduplication.declared",
    "Skip": "headrace.workers.failure.outcomes",
    "SyncContext": "headrace.workers.handler.context",
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
