"""Clients for one test, which are closed at its end."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from types import TracebackType

    from headrace.clients.admin.blocking import Admin
    from headrace.clients.consumer.blocking import Consumer
    from headrace.clients.drivers import Target
    from headrace.clients.producer.blocking import Producer


class Clients:
    """Producers, consumers and admin clients of one cluster. Closing this object closes them in reverse order.

    Attributes:
        target: The cluster: a broker of this process, or HOST:PORT.
    """

    def __init__(self, target: Target, **properties: Any) -> None:
        """Create an object without clients.

        Args:
            target: A broker of this process, or HOST:PORT.
            properties: Properties of all clients; a client can override them.
        """
        self.target = target
        self._properties = properties
        self._open = ExitStack()

    def producer(self, **options: Any) -> Producer:
        """Return a new `headrace.Producer`."""
        from headrace.clients.producer.blocking import Producer

        return self._open.enter_context(Producer(self.target, **self._with(options)))

    def consumer(self, *topics: str, **options: Any) -> Consumer:
        """Return a new `headrace.Consumer`, subscribed to topics if any are named.

        Without a committed offset it begins at the earliest record, unless `options` say otherwise.
        """
        from headrace.clients.consumer.blocking import Consumer

        wanted = self._with({"auto_offset_reset": "earliest", **options})
        consumer = self._open.enter_context(Consumer(self.target, **wanted))
        if topics:
            consumer.subscribe(list(topics))
        return consumer

    def admin(self, **options: Any) -> Admin:
        """Return a new `headrace.Admin`."""
        from headrace.clients.admin.blocking import Admin

        return self._open.enter_context(Admin(self.target, **self._with(options)))

    def _with(self, options: Mapping[str, Any]) -> dict[str, Any]:
        return {**self._properties, **options}

    def close(self) -> None:
        """Close all clients in reverse order."""
        self._open.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
