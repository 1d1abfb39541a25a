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
from headrace.config.broker import BrokerConfig, with_dynamic_settings
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
from headrace.ports import Delete, Journal, Put

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

    __slots__ = ("_journal", "_metadata", "changes", "config", "layers", "loggers")

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
        self.loggers = loggers
        """The loggers whose levels clients can change."""

    def load(self) -> None:
        """Read the stored settings.

        Raises:
            StorageError: A setting cannot be read, or is not valid in this version.
        """
        static = self.layers.static
        own = str(static.broker_id)
        layers = ConfigLayers(static, self._read(ALL_BROKERS), self._read(own))
        try:
            self.layers, self.config = layers, layers.effective
        except ApiError as error:
            raise StorageError(f"{BROKER_CONFIGS}: {error.message}") from error

    def _read(self, scope: str) -> Mapping[str, str]:
        entry = self._metadata.get(BROKER_CONFIGS + scope)
        return {} if entry is None else decode(entry, BrokerConfigRecord).settings

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
        now = self.layers
        layers = (
            ConfigLayers(now.static, settings, now.broker)
            if all_brokers
            else ConfigLayers(now.static, now.cluster, settings)
        )
        # The settings of all brokers must be valid by themselves, even if settings of this broker override them.
        with_dynamic = ConfigLayers(now.static, settings)
        _ = with_dynamic.effective, layers.effective
        return layers

    def change(
        self,
        settings: Mapping[str, str],
        applied: Callable[[BrokerConfig], object],
        *,
        all_brokers: bool,
    ) -> None:
        """Store other settings. They are durable and in force when `applied` is called.

        Raises:
            ApiError: A setting is invalid, or the settings could not be stored.
        """
        layers = self.changed(settings, all_brokers=all_brokers)
        scope = ALL_BROKERS if all_brokers else str(layers.static.broker_id)
        key = BROKER_CONFIGS + scope
        operation = (
            Put(key, encode(BrokerConfigRecord(dict(settings)))) if settings else Delete(key)
        )

        def count() -> None:
            self.layers, self.config = layers, layers.effective
            self.changes += 1
            self._journal.info("broker_settings_changed", scope=scope, settings=dict(settings))
            applied(self.config)

        self._metadata.commit([], [operation], count)
