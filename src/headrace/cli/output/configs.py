"""Configurations of topics and groups, for people and for programs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from headrace.cli.output.printing import print_table, say

if TYPE_CHECKING:
    from headrace.clients.blocking import ConfigEntry


def look_at_strategies(configs: Mapping[str, str]) -> None:
    """Warn of probably mistyped names of serdes and partitioners, and check the parameters of known ones.

    Raises:
        ConfigError: A serde or partitioner does not accept its parameters.
    """
    if not any(name.startswith("headrace.") for name in configs):
        return
    from headrace.clients.topic_strategies import check_configs, doubtful_names

    check_configs(configs)
    for text in doubtful_names(configs):
        say(f"Warning: {text}")


def config_document(config: ConfigEntry) -> dict[str, Any]:
    """Return one configuration for JSON: the effective value, its source, and the values that it overrides."""
    from headrace.clients.flows.admin import source_of

    return {
        "name": config.name,
        "value": config.value,
        "source": source_of(config.source).name.lower(),
        "read_only": config.read_only,
        "sensitive": config.is_sensitive,
        "synonyms": [
            {
                "name": synonym.name,
                "value": synonym.value,
                "source": synonym.source.name.lower(),
            }
            for synonym in config.synonyms
        ],
    }


def print_configs(configs: list[dict[str, Any]]) -> None:
    """Write configurations as a table."""
    rows = []
    for config in configs:
        # The first synonym is the value itself.
        others = ", ".join(
            f"{s['name']}={s['value']} ({s['source']})" for s in config["synonyms"][1:]
        )
        rows.append((config["name"], config["value"], config["source"], others or None))
    print_table(("CONFIG", "VALUE", "SOURCE", "OTHERWISE"), rows)
