"""The layers of the broker's configuration: the settings at its start, and the changes since.

The metadata store keeps the settings that were changed while the broker ran, for one broker or for all brokers (Kafka's
"cluster-wide default"). The precedence is: settings of this broker, settings of all brokers, settings at the start,
defaults.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

from headrace.broker.configs.config_changes import MergeSettings
from headrace.broker.configs.loggers import Loggers
from headrace.broker.metadata.commit_lane import Change
from headrace.broker.metadata.metadata_writer import MetadataWriter, replacement
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
from headrace.ports import Journal, MetadataEntry

ALL_BROKERS: Final = "default"
"""The word that replaces the id of a broker in keys of the metadata store, for settings of all brokers."""
_REMEDY: Final = (
    "The setting was changed while a broker ran. Start the broker with the configuration and the version of Headrace "
    "that accepted the setting, and delete the setting there"
)


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
        "_stored",
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
        self._stored = ConfigLayers(static)
        """The layers as they are stored. They may not fit, and then other layers are in force."""
        self.layers = self._stored
        """The layers in force."""
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
        stored = ConfigLayers(self.layers.static, *(present.get(key, {}) for key in self._keys))
        for key, layers in zip(self._keys, (replace(stored, broker={}), stored), strict=True):
            try:
                self.config = layers.effective
            except ApiError as error:
                raise StorageError(f"{key}: {error.message}. {_REMEDY}") from error
        self.layers = self._stored = stored

    @property
    def _keys(self) -> tuple[str, str]:
        """The keys in the metadata store: of the settings of all brokers, and of those of this broker."""
        return BROKER_CONFIGS + ALL_BROKERS, f"{BROKER_CONFIGS}{self.layers.static.broker_id}"

    def _read(self, entry: MetadataEntry) -> Mapping[str, str]:
        return decode(entry, BrokerConfigRecord).settings if entry.key in self._keys else {}

    def _apply(self, changes: Changes[Mapping[str, str]]) -> None:
        changed = {**{key: {} for key in changes.deletes}, **changes.puts}
        of_all, own = self._keys
        if of_all in changed or own in changed:
            stored = self._stored
            self._stored = ConfigLayers(
                stored.static, changed.get(of_all, stored.cluster), changed.get(own, stored.broker)
            )
            self._put_in_force()

    def _put_in_force(self) -> None:
        """Put the stored settings in force. A layer that does not fit keeps its earlier settings."""
        stored, now = self._stored, self.layers
        refusal = ""
        for layers in (
            stored,
            replace(stored, broker=now.broker),
            replace(stored, cluster=now.cluster),
        ):
            try:
                config = layers.effective
                self.check(config)
            except ApiError as error:
                refusal = refusal or error.message or ""
                continue
            break
        else:
            layers, config = now, self.config
        self._report_refused(layers, refusal)
        changed = _differing(layers, now)
        if changed:
            self.layers, self.config = layers, config
            self.changes += 1
            for scope, settings in changed:
                self._journal.info("broker_settings_changed", scope=scope, settings=dict(settings))
            self.on_change(config)

    def _report_refused(self, layers: ConfigLayers, refusal: str) -> None:
        for scope, _ in _differing(self._stored, layers):
            self._journal.error("broker_settings_not_applied", scope=scope, error=refusal)

    def retry(self) -> None:
        """Put stored settings in force that did not fit before: a topic has other settings now."""
        if self._stored != self.layers:
            self._put_in_force()

    def require_this_broker(self, name: str) -> None:
        """Raise an error if the name of a resource is not the id of this broker.

        Raises:
            InvalidRequestError: The name is another one.
        """
        broker_id = self.config.broker_id
        if name != str(broker_id):
            raise InvalidRequestError(f"broker {name[:40]!r} is not this one, which is {broker_id}")

    def check_change(self, settings: Mapping[str, str], *, all_brokers: bool) -> None:
        """Raise an error if the broker cannot accept other settings, or a topic could not inherit from them.

        Args:
            settings: All dynamic settings of this broker, or of all brokers.
            all_brokers: Whether the settings are those of all brokers.

        Raises:
            ApiError: A setting is invalid.
        """
        now = self.layers
        # The settings of all brokers must be valid by themselves, even if settings of this broker override them.
        _ = ConfigLayers(now.static, settings).effective
        layers = replace(now, cluster=settings) if all_brokers else replace(now, broker=settings)
        self.check(layers.effective)

    def stored(self, *, all_brokers: bool) -> Mapping[str, str]:
        """Return the stored settings of this broker, or of all brokers, whether or not they are in force."""
        return self._stored.cluster if all_brokers else self._stored.broker

    def change(self, merge: MergeSettings, *, all_brokers: bool) -> Work[None]:
        """Change the settings of this broker, or of all brokers. The change is in force when the work is done.

        Args:
            merge: Returns the new settings for the stored ones. It is called again if another request was faster.
            all_brokers: Whether to change the settings of all brokers.

        Raises:
            ApiError: A setting is invalid, or the settings could not be stored.
        """
        yield from self._metadata.merging(partial(self._changed, merge, all_brokers=all_brokers))

    def _changed(self, merge: MergeSettings, *, all_brokers: bool) -> Change | None:
        key = self._keys[0 if all_brokers else 1]
        entry = self._metadata.image.get(key)
        present = {} if entry is None else self._read(entry)
        settings = merge(present)
        if settings == present:
            return None
        self.check_change(settings, all_brokers=all_brokers)
        record = BrokerConfigRecord(dict(settings))
        return replacement(key, entry, encode(record) if settings else None)


def _differing(layers: ConfigLayers, other: ConfigLayers) -> list[tuple[str, Mapping[str, str]]]:
    """Return the scopes whose settings differ between two states, and their settings in the first one."""
    pairs = (
        (ALL_BROKERS, layers.cluster, other.cluster),
        (str(layers.static.broker_id), layers.broker, other.broker),
    )
    return [(scope, settings) for scope, settings, others in pairs if settings != others]
