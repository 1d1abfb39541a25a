"""Partitioners, serdes and storages that programs gave to an embedded broker as classes and objects.

The topic's metadata keep a name and parameters. What stands behind a name is remembered here for as long as the broker
is open, topic by topic, so that two topics may have two objects of one class.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from headrace.errors import ConfigError
from headrace.ports import FileSystem, SegmentStorage
from headrace.registers import Named
from headrace.storage.registry import STORAGES


class TopicObjects:
    """The objects of one broker."""

    def __init__(self) -> None:
        self._topics: dict[str, dict[str, Named]] = {}
        self._storages: dict[str, Any] = {}
        self.storages: dict[str, Callable[[], SegmentStorage | FileSystem]] = {}
        """What makes a storage, by name."""

    def find(self, topic: str, config: str, named: Named) -> Named:
        """Return what a topic's metadata name, with the object behind it if one was given for that name.

        Args:
            topic: The topic.
            config: The topic's config that has the name: `headrace.serde`.
            named: The name and the parameters in the metadata.
        """
        given = self._topics.get(topic, {}).get(config)
        if given is None or given[:2] != named[:2]:
            return named
        return given

    def keep(self, topic: str, strategies: Mapping[str, Named]) -> None:
        """Remember what a topic was created with, in place of what an earlier topic of that name had."""
        objects = {config: named for config, named in strategies.items() if named.given is not None}
        self._topics.pop(topic, None)
        if objects:
            self._topics[topic] = objects

    def keep_storage(self, storage: Any) -> str:
        """Make a storage known to this broker; return its name.

        Args:
            storage: The class of a storage, or a log directory.

        Raises:
            ConfigError: Its name is that of another one.
        """
        # An object is the storage of all partitions.
        factory = storage if isinstance(storage, type) else lambda: storage
        name = STORAGES.describe(storage).name
        known = self._storages.get(name, STORAGES.known(name))
        if known is not None and known is not storage:
            raise ConfigError(
                f"storage: another one is called {name!r}: give each class or object a name of its own, in its "
                "attribute `name`"
            )
        if known is None:
            self._storages[name], self.storages[name] = storage, factory
        return name
