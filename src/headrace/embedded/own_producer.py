"""The producer behind `Broker.publish`, which exists from the first call on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from headrace.clients.drivers.interrupts import uninterrupted

if TYPE_CHECKING:
    from headrace.clients.drivers import Driver
    from headrace.clients.drivers.interrupts import GuardedCondition
    from headrace.clients.drivers.local_target import LocalBroker
    from headrace.clients.producer.blocking import Producer

CLIENT_ID: Final = "headrace-embedded"
"""The client id of requests that an embedded broker sends to itself."""


class OwnProducer:
    """Creates and closes the producer of one embedded broker."""

    def __init__(self, broker: LocalBroker, condition: GuardedCondition) -> None:
        self._broker = broker
        self._condition = condition
        self._producer: Producer | None = None

    @uninterrupted
    def get(self) -> Producer:
        """Return the producer. The first call creates it."""
        if self._producer is None:
            from headrace.clients.producer.blocking import Producer  # noqa: PLC0415 - not every broker publishes

            with self._condition:  # several threads may publish first
                if self._producer is None:
                    producer = Producer(self._broker, linger_ms=0, client_id=CLIENT_ID)
                    producer._has_owner = True  # noqa: SLF001 - the broker closes this producer
                    self._producer = producer
        return self._producer

    @property
    def driver(self) -> Driver | None:
        """The driver of the producer; None if there is no producer."""
        return None if self._producer is None else self._producer._driver  # noqa: SLF001 - the broker owns it

    def forget(self, topic: str) -> None:
        """Have the producer read the metadata of a topic again."""
        if self._producer is not None:
            with self._producer._driver.enter():  # noqa: SLF001 - the broker owns this producer
                self._producer._core.forget(topic)  # noqa: SLF001 - the broker owns this producer

    def close(self) -> None:
        """Close the producer, if there is one. Later calls of `publish` fail."""
        if self._producer is not None:
            self._producer.close()

    def renew(self) -> None:
        """Close the producer, if there is one. The next call of `publish` creates another."""
        self.close()
        self._producer = None
