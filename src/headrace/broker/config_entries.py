"""Configurations as clients see them: name, value, where it comes from, and what it would be otherwise."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from headrace.config.broker import BROKER_OPTIONS, BrokerConfig
from headrace.config.options import Option, Source, render_value
from headrace.config.topic import TOPIC_OPTIONS, TopicConfig

_DEFAULTS: Final = BrokerConfig()


class Synonym(NamedTuple):
    """One place that a value could come from."""

    name: str
    value: str
    source: Source


class ConfigEntry(NamedTuple):
    """One configuration of a topic or of the broker."""

    name: str
    value: str
    option: Option
    synonyms: tuple[Synonym, ...]
    """In the order in which they count; the first one is in force."""
    is_read_only: bool

    @property
    def source(self) -> Source:
        """Where the value comes from."""
        return self.synonyms[0].source


def topic_entries(
    config: TopicConfig, settings: Mapping[str, str | None], broker_config: BrokerConfig
) -> Iterator[ConfigEntry]:
    """Yield all configurations of a topic; `settings` are those of its own."""
    for name, option in TOPIC_OPTIONS.items():
        value = render_value(getattr(config, _attribute(name)))
        own = [Synonym(name, value, Source.TOPIC)] if settings.get(name) is not None else []
        assert option.broker_name is not None
        inherited = _broker_synonyms(option.broker_name, broker_config)
        yield ConfigEntry(name, value, option, (*own, *inherited), is_read_only=False)


def broker_entries(config: BrokerConfig) -> Iterator[ConfigEntry]:
    """Yield all configurations of a broker. They are fixed at its start."""
    for name, option in BROKER_OPTIONS.items():
        synonyms = _broker_synonyms(name, config)
        yield ConfigEntry(name, synonyms[0].value, option, synonyms, is_read_only=True)


def _broker_synonyms(name: str, config: BrokerConfig) -> tuple[Synonym, ...]:
    value = getattr(config, _attribute(name))
    default = getattr(_DEFAULTS, _attribute(name))
    fallback = Synonym(name, render_value(default), Source.DEFAULT)
    if value == default:
        return (fallback,)
    return Synonym(name, render_value(value), Source.STATIC_BROKER), fallback


def _attribute(name: str) -> str:
    return name.replace(".", "_")
