"""Configurations of topics and groups, for people and for programs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace.cli._output import print_table

if TYPE_CHECKING:
    from headrace.clients.blocking import ConfigEntry


def config_document(config: ConfigEntry) -> dict[str, Any]:
    """Return one configuration for JSON: the value in force, where it comes from, and what else could give one."""
    from headrace.clients.flows.admin import source_of  # noqa: PLC0415 - not for `--help`

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
    """Write documents of configurations as a table."""
    rows = []
    for config in configs:
        # The first synonym is the value itself.
        others = ", ".join(
            f"{s['name']}={s['value']} ({s['source']})" for s in config["synonyms"][1:]
        )
        rows.append((config["name"], config["value"], config["source"], others or None))
    print_table(("CONFIG", "VALUE", "SOURCE", "OTHERWISE"), rows)
