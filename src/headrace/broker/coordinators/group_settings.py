"""The stored configurations of groups, which administrators change and members use."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Final
from urllib.parse import quote, unquote

from headrace.broker.configs.config_changes import MergeSettings
from headrace.broker.metadata.commit_lane import Change
from headrace.broker.metadata.metadata_writer import MetadataWriter, replacement
from headrace.broker.topic_names import check_topic_name
from headrace.broker.waiting.steps import Work
from headrace.config.broker import BrokerConfig
from headrace.config.group import ATTACHMENTS_PREFIX, GroupAttachments, parse_group_settings
from headrace.core.cluster.image import Changes
from headrace.core.cluster.records import (
    GROUP_CONFIGS,
    GroupConfigRecord,
    decode,
    encode,
)
from headrace.core.coordinator.state.config import ConsumerTimes
from headrace.errors import (
    ApiError,
    ConfigError,
    ErrorCode,
    InvalidConfigError,
    InvalidRequestError,
    StorageError,
)
from headrace.ports import Journal, MetadataEntry

GROUPS_LIMIT: Final = 10_000
"""The greatest number of groups with a configuration."""
_TIMES_PREFIX: Final = "consumer."
NAME_CHARACTERS_LIMIT: Final = 900
"""The longest name of a group with a configuration, in characters of the escaped key in the metadata store."""


def check_group_name(name: str) -> None:
    """Refuse a group name under which no configuration can be stored.

    Raises:
        InvalidRequestError: The message has the reason.
    """
    if not name:
        raise InvalidRequestError("the group's name is empty; there are no defaults for all groups")
    if len(name) > NAME_CHARACTERS_LIMIT or len(quote(name, safe="")) > NAME_CHARACTERS_LIMIT:
        raise InvalidRequestError(
            f"the group's name is longer than {NAME_CHARACTERS_LIMIT} characters"
        )


def parse_settings(settings: Mapping[str, str]) -> GroupAttachments:
    """Parse the settings of a group.

    Raises:
        InvalidConfigError: A name is unknown, or a value is invalid.
    """
    try:
        attachments = parse_group_settings(settings)
        for topic in attachments.topics:
            check_topic_name(topic)
    except ConfigError as error:
        raise InvalidConfigError(str(error)) from error
    except ApiError as error:
        raise InvalidConfigError(f"headrace.topics: {error.message}") from error
    return attachments


def check_times(settings: Mapping[str, str], config: BrokerConfig) -> None:
    """Refuse times of a group that the configuration of the broker does not allow.

    Raises:
        InvalidConfigError: The message has the reason.
    """
    parsed = parse_settings(settings)
    for name in settings:
        if name.startswith(_TIMES_PREFIX):
            low, high = _bounds(name, config)
            value = getattr(parsed, _attribute(name))
            if not low <= value <= high:
                raise InvalidConfigError(
                    f"{name}: must be from {low} to {high}, got {value}: the broker's "
                    f"{_bound(name, 'min')} and {_bound(name, 'max')}"
                )
    times = consumer_times(settings, config)
    if times.session_timeout_ms <= times.heartbeat_interval_ms:
        raise InvalidConfigError(
            f"consumer.session.timeout.ms ({times.session_timeout_ms}) must be greater than "
            f"consumer.heartbeat.interval.ms ({times.heartbeat_interval_ms})"
        )


def consumer_times(settings: Mapping[str, str], config: BrokerConfig) -> ConsumerTimes:
    """Return the times of a group in force.

    Its own times within the broker's present limits, otherwise the broker's.
    """

    def effective(name: str) -> int:
        text = settings.get(name)
        if text is None:
            value: int = getattr(config, _attribute(f"group.{name}"))
            return value
        low, high = _bounds(name, config)
        return min(max(int(text), low), high)

    return ConsumerTimes(
        effective("consumer.session.timeout.ms"),
        effective("consumer.heartbeat.interval.ms"),
        effective("consumer.assignment.interval.ms"),
    )


def _bounds(name: str, config: BrokerConfig) -> tuple[int, int]:
    low, high = (getattr(config, _attribute(_bound(name, word))) for word in ("min", "max"))
    return low, high


def _bound(name: str, word: str) -> str:
    """Return the broker option that limits a group option."""
    return f"group.{_TIMES_PREFIX}{word}.{name.removeprefix(_TIMES_PREFIX)}"


def _attribute(name: str) -> str:
    return name.replace(".", "_")


class StoredGroupSettings:
    """The settings of all groups that have any: for each group a mapping from Kafka's names to text."""

    __slots__ = ("_groups", "_journal", "_metadata", "on_attachment")

    def __init__(self, metadata: MetadataWriter, journal: Journal) -> None:
        self._metadata = metadata
        self._journal = journal
        self._groups: dict[str, Mapping[str, str]] = {}
        self.on_attachment: Callable[[str], object] = lambda _: None
        """Called with the name of a group after the topics that it is attached to have changed."""

    def load(self) -> None:
        """Read the stored settings, and follow their changes from now on.

        Raises:
            StorageError: A setting cannot be read, or is not valid in this version.
        """
        present = self._metadata.image.consume(GROUP_CONFIGS, _read, self._apply)
        self._groups = {_group_of(key): settings for key, settings in present.items()}

    def _apply(self, changes: Changes[Mapping[str, str]]) -> None:
        for key in changes.deletes:
            self._replace(_group_of(key), {})
        for key, settings in changes.puts.items():
            self._replace(_group_of(key), settings)

    def _replace(self, group: str, settings: Mapping[str, str]) -> None:
        former = self._groups.pop(group, {})
        if settings:
            self._groups[group] = settings
        self._journal.info("group_settings_changed", group=group, settings=dict(settings))
        if _attachments(settings) != _attachments(former):
            self.on_attachment(group)

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._groups))

    def __contains__(self, group: str) -> bool:
        return group in self._groups

    @property
    def attached(self) -> Iterator[str]:
        """The groups that an administrator has attached to topics. Such a group exists before it has members."""
        return (group for group in self if self.is_attached(group))

    def is_attached(self, group: str) -> bool:
        """Return whether a group is attached to topics."""
        return bool(_attachments(self.get(group)))

    def get(self, group: str) -> Mapping[str, str]:
        """Return the settings of one group."""
        return self._groups.get(group, {})

    def change(self, group: str, merge: MergeSettings) -> Work[None]:
        """Change the settings of a group. The change is in force when the work is done.

        Args:
            group: The name of the group.
            merge: Returns the new settings for the stored ones; an empty mapping removes all. It is called again if
                another request was faster.

        Raises:
            ApiError: There are too many groups, or the settings could not be stored.
        """
        yield from self._metadata.merging(partial(self._changed, group, merge))

    def _changed(self, group: str, merge: MergeSettings) -> Change | None:
        key = GROUP_CONFIGS + quote(group, safe="")
        entry = self._metadata.image.get(key)
        present = {} if entry is None else _read(entry)
        settings = merge(present)
        if settings == present:
            return None
        if settings and entry is None and len(self._groups) >= GROUPS_LIMIT:
            raise ApiError(
                ErrorCode.POLICY_VIOLATION, f"{GROUPS_LIMIT} groups have a configuration already"
            )
        record = GroupConfigRecord(dict(settings))
        return replacement(key, entry, encode(record) if settings else None)


def _attachments(settings: Mapping[str, str]) -> Mapping[str, str]:
    return {name: value for name, value in settings.items() if name.startswith(ATTACHMENTS_PREFIX)}


def _group_of(key: str) -> str:
    return unquote(key.removeprefix(GROUP_CONFIGS))


def _read(entry: MetadataEntry) -> Mapping[str, str]:
    settings = decode(entry, GroupConfigRecord).settings
    try:
        parse_settings(settings)
    except ApiError as error:
        raise StorageError(f"{entry.key}: {error.message}") from error
    return settings
