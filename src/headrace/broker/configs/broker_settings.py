"""The layers of the broker's configuration: the settings at its start, and the changes since.

The metadata store keeps the settings that were changed while the broker ran, for one broker or for all brokers (Kafka's
"cluster-wide default"). The precedence is: settings of this broker, settings of all brokers, settings at the start,
defaults.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from headrace.broker.configs.loggers import Loggers
from headrace.broker.metadata.metadata_writer import MetadataWriter
from headrace.broker.waiting.steps import Work
from headrace.config.broker import BrokerConfig, with_dynamic_settings
from headrace.core.cluster.image import Changes
from headrace.core.cluster.records import (
    BROKER_CONFIGS,
    BrokerConfigRecord,
    decode,
    encode,
)
from headrace.errors import (
    ApiError,
    ConfigError,
    InvalidConfigError,
    InvalidRequestError,
    StorageError,
)
from headrace.ports import Delete, Journal, MetadataEntry, Put

ALL_BROKERS: Final = "default"
"""The word that replaces the id of a broker in keys of the metadata store, for settings of all brokers."""


@dataclass(frozen=True, slots=True)
class ConfigLayers:
    """One state of the configuration, by layer.

    Attributes:
        static: The settings with which the broker was started.
        cluster: The settings of all brokers.
        broker: The settings of this broker.
        effective: The configuration in force.
    """

    static: BrokerConfig
    cluster: Mapping[str, str] = field(default_factory=dict)
    broker: Mapping[str, str] = field(default_factory=dict)

    @property
    def effective(self) -> BrokerConfig:
        """The configuration in force.

        Raises:
            ApiError: A setting is invalid.
        """
        try:
            return with_dynamic_settings(self.static, {**self.cluster, **self.broker})
        except ConfigError as error:
            raise InvalidConfigError(str(error)) from error


class BrokerSettings:
    """The configuration of the broker: the stored settings, and the configuration in force."""

    __slots__ = (
        "_journal",
        "_metadata",
        "changes",
        "check",
        "config",
        "layers",
        "loggers",
        "on_change",
    )

    def __init__(
        self, static: BrokerConfig, metadata: MetadataWriter, journal: Journal, loggers: Loggers
    ) -> None:
        self._metadata = metadata
        self._journal = journal
        self.layers = ConfigLayers(static)
        self.config = static
        """The configuration in force."""
        self.changes = 0
        """The number of changes of settings since the start."""
        self.check: Callable[[BrokerConfig], object] = lambda _: None
        """Raises ApiError for a configuration that the broker cannot use."""
        self.on_change: Callable[[BrokerConfig], object] = lambda _: None
        """Called with the configuration after every change."""
        self.loggers = loggers
        """The loggers whose levels clients can change."""

    def load(self) -> None:
        """Read the stored settings, and follow their changes from now on.

        Raises:
            StorageError: A setting cannot be read, or is not valid in this version.
        """
        present = self._metadata.image.consume(BROKER_CONFIGS, self._read, self._apply)
        static = self.layers.static
        layers = ConfigLayers(static, *(present.get(key, {}) for key in self._keys))
        try:
            self.layers, self.config = layers, layers.effective
        except ApiError as error:
            raise StorageError(f"{BROKER_CONFIGS}: {error.message}") from error

    @property
    def _keys(self) -> tuple[str, str]:
        """The keys in the metadata store: of the settings of all brokers, and of those of this broker."""
        return BROKER_CONFIGS + ALL_BROKERS, f"{BROKER_CONFIGS}{self.layers.static.broker_id}"

    def _read(self, entry: MetadataEntry) -> Mapping[str, str]:
        return decode(entry, BrokerConfigRecord).settings if entry.key in self._keys else {}

    def _apply(self, changes: Changes[Mapping[str, str]]) -> None:
        changed = {**{key: {} for key in changes.deletes}, **changes.puts}
        for key in self._keys:
            if key in changed:
                self._replace(key.removeprefix(BROKER_CONFIGS), changed[key])

    def _replace(self, scope: str, settings: Mapping[str, str]) -> None:
        """Put the settings of this broker, or of all brokers, in force."""
        layers = self._with(settings, all_brokers=scope == ALL_BROKERS)
        try:
            config = layers.effective
            self.check(config)
        except ApiError as error:
            self._journal.error("broker_settings_not_applied", scope=scope, error=error.message)
            return
        self.layers, self.config = layers, config
        self.changes += 1
        self._journal.info("broker_settings_changed", scope=scope, settings=dict(settings))
        self.on_change(config)

    def _with(self, settings: Mapping[str, str], *, all_brokers: bool) -> ConfigLayers:
        now = self.layers
        if all_brokers:
            return ConfigLayers(now.static, settings, now.broker)
        return ConfigLayers(now.static, now.cluster, settings)

    def require_this_broker(self, name: str) -> None:
        """Raise an error if the name of a resource is not the id of this broker.

        Raises:
            InvalidRequestError: The name is another one.
        """
        broker_id = self.config.broker_id
        if name != str(broker_id):
            raise InvalidRequestError(f"broker {name[:40]!r} is not this one, which is {broker_id}")

    def changed(self, settings: Mapping[str, str], *, all_brokers: bool) -> ConfigLayers:
        """Return the layers with other settings of this broker, or of all brokers.

        Raises:
            ApiError: A setting is invalid.
        """
        layers = self._with(settings, all_brokers=all_brokers)
        # The settings of all brokers must be valid by themselves, even if settings of this broker override them.
        with_dynamic = ConfigLayers(layers.static, settings)
        _ = with_dynamic.effective, layers.effective
        return layers

    def change(self, settings: Mapping[str, str], *, all_brokers: bool) -> Work[None]:
        """Store other settings. They are durable and in force when the work is done.

        Raises:
            ApiError: A setting is invalid, or the settings could not be stored.
        """
        _ = self.changed(settings, all_brokers=all_brokers)
        key = self._keys[0 if all_brokers else 1]
        record = BrokerConfigRecord(dict(settings))
        operation = Put(key, encode(record)) if settings else Delete(key)
        yield from self._metadata.committing([], [operation])
