"""The asyncio twins of `headrace.Producer`, `Consumer` and `Admin`: the same methods; every one may be awaited."""

from __future__ import annotations

from headrace.clients.admin.aio import Admin
from headrace.clients.consumer.aio import Consumer
from headrace.clients.producer.aio import Producer

__all__ = ["Admin", "Consumer", "Producer"]
