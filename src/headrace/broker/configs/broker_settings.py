"""The layers of the broker's configuration: the settings at its start, and the changes since.

Settings that are changed while the broker runs are kept in the metadata store, for one broker or for all of them
(Kafka's "cluster-wide default"). What counts is, in this order: the broker's own, that of all brokers, what it was
started with, the default.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from headrace.broker.configs.loggers import Loggers
from headrace.broker.metadata.metadata_records import (
    BROKER_CONFIGS,
    BrokerConfigRecord,
    decode,
    encode,
)
from headrace.broker.metadata.metadata_writer import MetadataWriter
from headrace.config.broker import BrokerConfig, with_dynamic_settings
from headrace.errors import (
    ApiError,
    ConfigError,
    InvalidConfigError,
    StorageError,
)
from headrace.ports import Delete, Journal, Put

ALL_BROKERS: Final = "default"
"""Stands in keys of the metadata store where the id of a broker may stand."""


@dataclass(frozen=True, slots=True)
class ConfigLayers:
    """One state of the configuration, layer by layer.

    Attributes:
        static: The settings with which the broker was started.
        cluster: Settings of all brokers.
        broker: Settings of this broker.
        effective: The configuration in force.
    """

    static: BrokerConfig
    cluster: Mapping[str, str] = field(default_factory=dict)
    broker: Mapping[str, str] = field(default_factory=dict)

    @property
    def effective(self) -> BrokerConfig:
        """The configuration in force.

        Raises:
            ApiError: A setting is not acceptable.
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
        """How many times settings were changed since the start."""
        self.loggers = loggers
        """The loggers whose levels clients can change."""

    def load(self) -> None:
        """Read the changes that earlier processes have stored.

        Raises:
            StorageError: It cannot be read, or is not acceptable to this version.
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

    def changed(self, settings: Mapping[str, str], *, all_brokers: bool) -> ConfigLayers:
        """Return the layers with other settings of this broker, or of all brokers.

        Raises:
            ApiError: A setting is not acceptable.
        """
        now = self.layers
        layers = (
            ConfigLayers(now.static, settings, now.broker)
            if all_brokers
            else ConfigLayers(now.static, now.cluster, settings)
        )
        # The settings of all brokers have to be good by themselves, also where this broker's own hide them.
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
            ApiError: A setting is not acceptable, or they could not be stored.
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
