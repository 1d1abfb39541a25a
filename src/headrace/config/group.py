"""The configuration of a group: Kafka's times of consumer groups, and Headrace's own settings.

Headrace's own settings attach a group to topics. Their names begin with `headrace.`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from headrace.config.options import Option, OptionType, option, options_of, parse, unknown_key
from headrace.errors import ConfigError

PATTERN_LIMIT: Final = 1000
ASSIGNOR_LIMIT: Final = 249
DEFAULT_ASSIGNOR: Final = "range"


def _check_pattern(text: str) -> None:
    if len(text) > PATTERN_LIMIT:
        raise ConfigError(f"the pattern is longer than {PATTERN_LIMIT} characters")
    try:
        re.compile(text)
    except (re.error, OverflowError, RecursionError) as error:
        raise ConfigError(f"{text[:80]!r} is no regular expression: {error}") from None


def _check_assignor(text: str) -> None:
    if len(text) > ASSIGNOR_LIMIT or not text.isprintable() or "," in text:
        raise ConfigError(f"{text[:80]!r} is not the name of an assignor; a group has one")


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupAttachments:
    """The settings of a group.

    Topics for members without a subscription, and times that override those of the broker.
    """

    consumer_assignment_interval_ms: int = option(
        0,
        "The least time between two target assignments of the group. For groups of KIP-848.",
        type=OptionType.INT,
        minimum=0,
        broker_name="group.consumer.assignment.interval.ms",
    )
    consumer_heartbeat_interval_ms: int = option(
        5000,
        "The time between two heartbeats of a member. For groups of KIP-848.",
        type=OptionType.INT,
        minimum=1,
        broker_name="group.consumer.heartbeat.interval.ms",
    )
    consumer_session_timeout_ms: int = option(
        45_000,
        "The time without a heartbeat after which a member is removed. For groups of KIP-848; members of "
        "the classic protocol choose their own.",
        type=OptionType.INT,
        minimum=1,
        broker_name="group.consumer.session.timeout.ms",
    )
    headrace_assignor: str = option(
        "",
        "The name of the assignor that divides the partitions: range (also if empty), roundrobin, sticky, "
        "cooperative-sticky, equal, or a name that every member has registered.",
        check=_check_assignor,
    )
    headrace_pattern: str = option(
        "",
        "A regular expression. The group reads all topics whose whole name it matches.",
        check=_check_pattern,
    )
    headrace_topics: str = option(
        "",
        "The topics that the group reads, separated by commas.",
        type=OptionType.LIST,
    )

    @property
    def topics(self) -> list[str]:
        """The names of the attached topics."""
        return self.headrace_topics.split(",") if self.headrace_topics else []


GROUP_OPTIONS: Final[Mapping[str, Option]] = options_of(GroupAttachments)

ATTACHMENTS_PREFIX: Final = "headrace."
"""The prefix of the options that attach a group to topics."""
_UNSUPPORTED: Final = {
    "consumer.": "assignments are computed when they are needed, at once",
    "share.": "there are no share groups",
    "streams.": "there are no streams groups",
}


def group_option(name: str) -> Option:
    """Return the option of a name.

    Raises:
        ConfigError: The option does not exist, or Headrace does not support this option of Kafka.
    """
    described = GROUP_OPTIONS.get(name)
    if described is not None:
        return described
    unknown = unknown_key(name, GROUP_OPTIONS)
    for prefix, reason in _UNSUPPORTED.items():
        if name.startswith(prefix):
            raise ConfigError(f"{unknown}; not supported: {reason}")
    raise unknown


def parse_group_settings(settings: Mapping[str, str]) -> GroupAttachments:
    """Parse the settings of a group.

    Raises:
        ConfigError: A name is unknown, or a value is invalid, alone or with other values.
    """
    for name in settings:
        group_option(name)
    attachments = parse(GroupAttachments, settings)
    if attachments.headrace_topics and attachments.headrace_pattern:
        raise ConfigError(
            "a group is attached to topics by name (headrace.topics) or to a pattern (headrace.pattern), not both: "
            "detach it from one first"
        )
    return attachments
