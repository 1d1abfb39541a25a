"""The membership of a broker in a cluster of processes: the metadata store that it shares, and its addresses."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from headrace.config.broker import BrokerConfig
from headrace.config.listeners import Listener, parse_advertised
from headrace.errors import ConfigError
from headrace.ports import Journal, MetadataStore


class SharedStore(MetadataStore, Protocol):
    """A metadata store outside of this process."""

    def run_pending(self) -> None:
        """Resolve the outcomes that have arrived, and notify the watches."""


class StoreContext(NamedTuple):
    """The parts of the process that a shared store uses.

    Attributes:
        loop: The event loop of the broker.
        clock: Returns the time of the broker in milliseconds.
        journal: Receives the log events.
        arrived: Has to be called on the event loop when something has arrived.
        lost: Has to be called on the event loop if the store will never respond again.
    """

    loop: asyncio.AbstractEventLoop
    clock: Callable[[], int]
    journal: Journal
    arrived: Callable[[], object]
    lost: Callable[[], object]


class Membership(Protocol):
    """A cluster, as the process of one of its brokers uses it."""

    def open_store(self, context: StoreContext) -> SharedStore:
        """Open the metadata store. Blocks until its session has begun.

        Raises:
            ConfigError: The store cannot be used with this configuration.
            StorageError: The store does not respond.
        """

    def announce(self, listeners: Sequence[Listener], cluster_id: str) -> bool:
        """Report that the broker is ready. Return False if the process has to print the ready line."""


def advertised(config: BrokerConfig, listeners: Sequence[Listener]) -> str:
    """Return `advertised.listeners` with every listener: other brokers need an address of each.

    Raises:
        ConfigError: A listener is on all addresses, and none is advertised.
    """
    given = parse_advertised(config.advertised_listeners)
    entries: list[str] = []
    for listener in listeners:
        address = given.get(listener.name, listener.address)
        if address.is_wildcard:
            raise ConfigError(
                f"advertised.listeners has no {listener.name}: {listener} stands for all addresses, and the other "
                "brokers of the cluster need one of them"
            )
        entries.append(f"{listener.name}://{address}")
    return ",".join(entries)
