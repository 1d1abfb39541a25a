"""Configurations as clients see them: name, value, source, and the values of other sources."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from headrace.broker.configs.broker_settings import ConfigLayers
from headrace.config.broker import BROKER_OPTIONS, BrokerConfig
from headrace.config.group import GROUP_OPTIONS, GroupAttachments
from headrace.config.options import Option, Source, attribute_name, parse_value, render_value
from headrace.config.topic import TOPIC_OPTIONS, TopicConfig

_DEFAULTS: Final = BrokerConfig()
_GROUP_DEFAULTS: Final = GroupAttachments()
_TOPIC_DEFAULTS: Final = TopicConfig()


class Synonym(NamedTuple):
    """One source of a value, and the value there."""

    name: str
    value: str
    source: Source


class DescribedConfig(NamedTuple):
    """One setting of a topic, of a group or of the broker, as DescribeConfigs returns it."""

    name: str
    value: str
    option: Option
    synonyms: tuple[Synonym, ...]
    """The values by precedence. The first one is in force."""
    is_read_only: bool

    @property
    def source(self) -> Source:
        """The source of the value in force."""
        return self.synonyms[0].source


def topic_entries(
    config: TopicConfig, settings: Mapping[str, str | None], layers: ConfigLayers
) -> Iterator[DescribedConfig]:
    """Yield all settings of a topic. `settings` are the topic's own."""
    for name, option in TOPIC_OPTIONS.items():
        value = render_value(getattr(config, attribute_name(name)))
        own = [Synonym(name, value, Source.TOPIC)] if settings.get(name) is not None else []
        if option.broker_name is None:
            default = render_value(getattr(_TOPIC_DEFAULTS, attribute_name(name)))
            inherited: tuple[Synonym, ...] = (Synonym(name, default, Source.DEFAULT),)
        else:
            inherited = _broker_synonyms(option.broker_name, layers)
        yield DescribedConfig(name, value, option, (*own, *inherited), is_read_only=False)


def group_entries(settings: Mapping[str, str], layers: ConfigLayers) -> Iterator[DescribedConfig]:
    """Yield all settings of a group."""
    for name, option in GROUP_OPTIONS.items():
        if option.broker_name is None:
            default = render_value(getattr(_GROUP_DEFAULTS, attribute_name(name)))
            synonyms: tuple[Synonym, ...] = (Synonym(name, default, Source.DEFAULT),)
        else:
            synonyms = _broker_synonyms(option.broker_name, layers)
        if name in settings:
            value = render_value(parse_value(name, option, settings[name]))
            synonyms = (Synonym(name, value, Source.GROUP), *synonyms)
        yield DescribedConfig(name, synonyms[0].value, option, synonyms, is_read_only=False)


def broker_entries(layers: ConfigLayers) -> Iterator[DescribedConfig]:
    """Yield all settings of this broker. Those that are not dynamic are fixed at its start."""
    for name, option in BROKER_OPTIONS.items():
        synonyms = _broker_synonyms(name, layers)
        yield DescribedConfig(
            name, synonyms[0].value, option, synonyms, is_read_only=not option.dynamic
        )


def cluster_entries(layers: ConfigLayers) -> Iterator[DescribedConfig]:
    """Yield the settings that were set for all brokers while they ran."""
    for name in sorted(layers.cluster):
        synonym = _dynamic(name, layers.cluster, Source.DYNAMIC_DEFAULT_BROKER)
        yield DescribedConfig(
            name, synonym[0].value, BROKER_OPTIONS[name], synonym, is_read_only=False
        )


def _broker_synonyms(name: str, layers: ConfigLayers) -> tuple[Synonym, ...]:
    value = getattr(layers.static, attribute_name(name))
    default = getattr(_DEFAULTS, attribute_name(name))
    synonyms = (
        *_dynamic(name, layers.broker, Source.DYNAMIC_BROKER),
        *_dynamic(name, layers.cluster, Source.DYNAMIC_DEFAULT_BROKER),
    )
    if value != default:
        synonyms += (Synonym(name, render_value(value), Source.STATIC_BROKER),)
    return (*synonyms, Synonym(name, render_value(default), Source.DEFAULT))


def _dynamic(name: str, settings: Mapping[str, str], source: Source) -> tuple[Synonym, ...]:
    text = settings.get(name)
    if text is None:
        return ()
    value = parse_value(name, BROKER_OPTIONS[name], text)
    return (Synonym(name, render_value(value), source),)
