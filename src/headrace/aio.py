"""Producer, Consumer and Admin for asyncio. They have the methods of the blocking clients, which may be awaited."""

from __future__ import annotations

from headrace.clients.admin.aio import Admin
from headrace.clients.consumer.aio import Consumer
from headrace.clients.producer.aio import Producer

__all__ = ["Admin", "Consumer", "Producer"]
