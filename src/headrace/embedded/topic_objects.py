"""The classes and objects that a program gave to an embedded broker as partitioners, serdes and storages.

The metadata of a topic store a name and parameters. `TopicObjects` keeps the object for a name while the broker is
open, separately for each topic. So two topics may have two objects of one class.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from headrace.errors import ConfigError
from headrace.ports import FileSystem, SegmentStorage
from headrace.registers import Named
from headrace.storage.registry import STORAGES


class TopicObjects:
    """The classes and objects that a program gave to one broker."""

    def __init__(self) -> None:
        self._topics: dict[str, dict[str, Named]] = {}
        self._storages: dict[str, Any] = {}
        self.storages: dict[str, Callable[[], SegmentStorage | FileSystem]] = {}
        """The function or class that creates a storage, by the name of the storage."""

    def find(self, topic: str, config: str, named: Named) -> Named:
        """Return the name and parameters of a topic's setting, with the object that the program gave for them.

        Args:
            topic: The topic.
            config: The setting, for example `headrace.serde`.
            named: The name and the parameters in the topic's metadata.

        Returns:
            `named` itself if the program gave no object with this name and these parameters.
        """
        given = self._topics.get(topic, {}).get(config)
        if given is None or given[:2] != named[:2]:
            return named
        return given

    def keep(self, topic: str, strategies: Mapping[str, Named]) -> None:
        """Keep the objects that a topic was created with. They replace the objects of a deleted topic of that name."""
        objects = {config: named for config, named in strategies.items() if named.given is not None}
        self._topics.pop(topic, None)
        if objects:
            self._topics[topic] = objects

    def keep_storage(self, storage: Any) -> str:
        """Make a storage known to this broker, and return the name of the storage.

        Args:
            storage: The class of a storage, or a log directory.

        Raises:
            ConfigError: Another storage has the same name.
        """
        # An object is the storage of all partitions. A class creates one for each partition.
        factory = storage if isinstance(storage, type) else lambda: storage
        name = STORAGES.describe(storage).name
        known = self._storages.get(name, STORAGES.known(name))
        if known is not None and known is not storage:
            raise ConfigError(
                f"storage: another storage has the name {name!r}. Give each class or object a name of its own, in its "
                "attribute `name`"
            )
        if known is None:
            self._storages[name], self.storages[name] = storage, factory
        return name
