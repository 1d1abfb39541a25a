"""Settings of brokers, topics and groups, and what becomes of Kafka's other broker options."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import groupby
from typing import Final

from headrace.config.broker import BROKER_ALIASES, BROKER_OPTIONS, BrokerConfig
from headrace.config.foreign import ACCEPTED, KAFKA_VERSION, REFUSED, kafka_options
from headrace.config.group import GROUP_OPTIONS, GroupAttachments
from headrace.config.options import Option, OptionType, attribute_name
from headrace.config.security import LISTENER_PREFIX, SECURITY_OPTIONS, split_overrides
from headrace.config.topic import TOPIC_OPTIONS, UNSUPPORTED_TOPIC_OPTIONS, TopicConfig
from headrace.errors import ConfigError
from tools.reference.markdown import bounds, code, prose, table, unit_of, value_of

TYPES: Final = {
    OptionType.BOOLEAN: "boolean",
    OptionType.STRING: "text",
    OptionType.INT: "integer",
    OptionType.SHORT: "integer",
    OptionType.LONG: "integer",
    OptionType.DOUBLE: "number",
    OptionType.LIST: "list",
    OptionType.PASSWORD: "secret",
}
AREAS: Final = {
    "Listeners and connections": (
        "advertised.listeners", "connection", "listener", "max.connections", "socket.",
    ),
    "Groups and committed offsets": ("group.", "offset"),
    "Transactions and idempotent producers": (
        "transaction", "producer.", "max.transactional.ids", "headrace.transaction.",
    ),
    "Quotas": ("quota.",),
}  # fmt: skip
"""Sections of the page of brokers, and how the names of their settings begin."""
SECURITY: Final = "Encryption, authentication and authorization"
STORAGE: Final = "Topics, storage and fetches"

BROKER_HEAD: Final = f"""\
# Settings of a broker

This page lists every setting of `headrace serve` and `headrace dev`, and every broker option of Apache Kafka
{KAFKA_VERSION}. [Settings](settings.md) says where settings are given and which units they take.

In the column "dynamic", "yes" means that the setting can change while the broker runs: with `kafka-configs.sh` or
[`Admin.alter_configs`](python-api.md), for one broker or for all brokers. The other settings need a restart. In the
column "listener", "yes" means that one listener can have its own value: `listener.name.<name>.<setting>`. In the
column "origin", "Kafka" means that Apache Kafka has a broker option of this name and meaning.

`headrace doctor broker` checks settings without starting a broker.
"""
TOPIC_HEAD: Final = """\
# Settings of a topic

Set them when you create a topic (`headrace topic create orders -c retention.ms=7d`) or later (`headrace topic
alter`, `kafka-configs.sh`, [`Admin.alter_configs`](python-api.md)). Every setting can change while the topic is in
use. A topic without its own value has the value of the broker's setting in the column "broker".
[Settings](settings.md) describes units.

Settings whose names begin with `headrace.` are Headrace's own. All others have Kafka's name and meaning.
"""
GROUP_HEAD: Final = """\
# Settings of a consumer group

Set them with `headrace group config`, `headrace group attach`, or `kafka-configs.sh --entity-type groups`. Every
setting can change while the group is in use. A group without its own value has the value of the broker's setting in
the column "broker". [Settings](settings.md) describes units.

Settings whose names begin with `headrace.` are Headrace's own. All others have Kafka's name and meaning.
"""
HEAD: Final = ("setting", "type", "default", "values")


def broker_page() -> str:
    """Return the page of a broker's settings."""
    inherited = {option.broker_name for option in TOPIC_OPTIONS.values()}
    sections: dict[str, list[str]] = {}
    for name in sorted(BROKER_OPTIONS):
        if name not in inherited:
            sections.setdefault(area_of(name), []).append(name)
    text = BROKER_HEAD
    for title in sorted(sections):
        rows = [_broker_row(name) for name in sections[title]]
        head = (*HEAD, "dynamic", "listener", "origin", "meaning")
        text += f"\n## {title}\n\n{table(head, rows)}"
    return text + _defaults_of_topics() + _other_names() + _foreign()


def area_of(name: str) -> str:
    """Return the section of the page to which a setting belongs."""
    for title, beginnings in AREAS.items():
        if name.startswith(beginnings):
            return title
    return SECURITY if name in SECURITY_OPTIONS else STORAGE


def _broker_row(name: str) -> tuple[str, ...]:
    option = BROKER_OPTIONS[name]
    default = getattr(BrokerConfig(), attribute_name(name))
    return (
        *_first_cells(name, option, default),
        "yes" if option.dynamic else "no",
        "yes" if is_per_listener(name) else "",
        origin(name),
        prose(option.documentation),
    )


def is_per_listener(name: str) -> bool:
    """Return whether one listener can have its own value of a setting."""
    try:
        split_overrides({f"{LISTENER_PREFIX}any.{name}": None})
    except ConfigError:
        return False
    return True


def origin(name: str) -> str:
    """Return who has a broker's setting of this name."""
    return "Kafka" if name in kafka_options() else "Headrace"


def _first_cells(name: str, option: Option, default: object) -> tuple[str, str, str, str]:
    unit = unit_of(name)
    kind = TYPES[option.type] + (
        f", {unit}" if unit and option.type is not OptionType.BOOLEAN else ""
    )
    choices = ", ".join(code(choice) for choice in option.choices if choice)
    shown = "" if option.type is OptionType.PASSWORD else value_of(name, default)
    return code(name), kind, shown, choices or bounds(option.minimum, option.maximum)


def _defaults_of_topics() -> str:
    rows = []
    for topic_name, option in sorted(TOPIC_OPTIONS.items()):
        name = option.broker_name
        if name is not None:
            default = getattr(BrokerConfig(), attribute_name(name))
            rows.append(
                (
                    code(name),
                    f"[{code(topic_name)}](settings-topic.md)",
                    value_of(name, default),
                    "yes" if BROKER_OPTIONS[name].dynamic else "no",
                    origin(name),
                )
            )
    head = ("setting", "gives the default of the topic's", "default", "dynamic", "origin")
    return f"\n## Defaults of topics\n\n{table(head, sorted(rows))}"


def _other_names() -> str:
    rows = [
        (code(name), code(target) + ("" if unit == 1 else f", in units of {unit} ms"))
        for name, (target, unit) in sorted(BROKER_ALIASES.items())
    ]
    rows.append(("`log.dir`, `log.dirs`", "the option `--data` of `headrace serve`"))
    return (
        "\n## Other names\n\n"
        "If two names of one setting are given, the one with the finer unit counts, as in Kafka.\n\n"
        + table(("name", "means"), rows)
    )


def _foreign() -> str:
    accepted = [
        (prose(reason), ", ".join(f"`{name}`" for name in sorted(names)))
        for reason, names in groupby(
            sorted(ACCEPTED, key=ACCEPTED.__getitem__), ACCEPTED.__getitem__
        )
    ]
    refused = [
        (
            code(name),
            ", ".join(code(value) if value else "empty" for value in each.harmless),
            prose(each.reason),
        )
        for name, each in sorted(REFUSED.items())
    ]
    return (
        "\n## Options of Kafka without effect\n\n"
        "The broker accepts these options and ignores them. At the start it logs their names once. Options\n"
        "of releases before 4.0 (`inter.broker.protocol.version` and others) have no effect either.\n\n"
        + table(("why", "options"), accepted)
        + "\n## Options of Kafka that are refused\n\n"
        "With any other value than those in the table the broker does not start, because ignoring the\n"
        "option would break what it promises.\n\n"
        + table(("option", "accepted values", "why"), refused)
    )


def topic_page() -> str:
    """Return the page of a topic's settings."""
    rows = _rows_with_broker(TOPIC_OPTIONS, TopicConfig())
    refused = [(code(name), prose(why)) for name, why in sorted(UNSUPPORTED_TOPIC_OPTIONS.items())]
    return (
        f"{TOPIC_HEAD}\n{table((*HEAD, 'broker', 'meaning'), rows)}\n## Settings of Kafka that are refused\n\n"
        f"{table(('setting', 'why'), refused)}"
    )


def group_page() -> str:
    """Return the page of a group's settings."""
    rows = _rows_with_broker(GROUP_OPTIONS, GroupAttachments())
    return f"{GROUP_HEAD}\n{table((*HEAD, 'broker', 'meaning'), rows)}"


def _rows_with_broker(options: Mapping[str, Option], defaults: object) -> Iterator[tuple[str, ...]]:
    for name, option in sorted(options.items()):
        default = getattr(defaults, name.replace(".", "_"))
        yield (
            *_first_cells(name, option, default),
            code(option.broker_name or ""),
            prose(option.documentation),
        )
