"""The configurations of groups, as they are stored and as members and administrators are told them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final
from urllib.parse import quote, unquote

from headrace.broker.metadata.metadata_records import (
    GROUP_CONFIGS,
    GroupConfigRecord,
    decode,
    encode,
)
from headrace.broker.metadata.metadata_writer import MetadataWriter
from headrace.broker.topic_names import check_topic_name
from headrace.config.group import GroupAttachments, parse_group_settings
from headrace.errors import (
    ApiError,
    ConfigError,
    ErrorCode,
    InvalidConfigError,
    InvalidRequestError,
    StorageError,
)
from headrace.ports import Delete, Journal, Put

GROUPS_LIMIT: Final = 10_000
"""How many groups may have a configuration."""
NAME_CHARACTERS_LIMIT: Final = 900
"""Of a group that has a configuration, counted as the store's key spells it."""


def check_group_name(name: str) -> None:
    """Refuse a name under which no configuration can be kept.

    Raises:
        InvalidRequestError: With the reason.
    """
    if not name:
        raise InvalidRequestError("the group's name is empty; there are no defaults for all groups")
    if len(name) > NAME_CHARACTERS_LIMIT or len(quote(name, safe="")) > NAME_CHARACTERS_LIMIT:
        raise InvalidRequestError(
            f"the group's name is longer than {NAME_CHARACTERS_LIMIT} characters"
        )


def parse_settings(settings: Mapping[str, str]) -> GroupAttachments:
    """Return what settings mean.

    Raises:
        InvalidConfigError: A name is unknown or a value not acceptable.
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


class GroupSettings:
    """The settings of all groups that have any; by name a mapping from Kafka-style names to text."""

    __slots__ = ("_groups", "_journal", "_metadata")

    def __init__(self, metadata: MetadataWriter, journal: Journal) -> None:
        self._metadata = metadata
        self._journal = journal
        self._groups: dict[str, Mapping[str, str]] = {}

    def load(self) -> None:
        """Read what is stored.

        Raises:
            StorageError: It cannot be read, or is not acceptable to this version.
        """
        for entry in self._metadata.list(GROUP_CONFIGS):
            settings = decode(entry, GroupConfigRecord).settings
            try:
                parse_settings(settings)
            except ApiError as error:
                raise StorageError(f"{entry.key}: {error.message}") from error
            self._groups[unquote(entry.key.removeprefix(GROUP_CONFIGS))] = settings

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._groups))

    def __contains__(self, group: str) -> bool:
        return group in self._groups

    def get(self, group: str) -> Mapping[str, str]:
        """Return the settings of one group."""
        return self._groups.get(group, {})

    def change(self, group: str, settings: Mapping[str, str]) -> None:
        """Give a group other settings, or with an empty mapping none; durable when this returns.

        Raises:
            ApiError: There are too many groups, or it could not be stored.
        """
        if settings == self.get(group):
            return
        if settings and group not in self._groups and len(self._groups) >= GROUPS_LIMIT:
            raise ApiError(
                ErrorCode.POLICY_VIOLATION, f"{GROUPS_LIMIT} groups have a configuration already"
            )
        key = GROUP_CONFIGS + quote(group, safe="")

        def count() -> None:
            if settings:
                self._groups[group] = dict(settings)
            else:
                self._groups.pop(group, None)
            self._journal.info("group_settings_changed", group=group, settings=dict(settings))

        record = GroupConfigRecord(dict(settings))
        self._metadata.commit([], [Put(key, encode(record)) if settings else Delete(key)], count)
