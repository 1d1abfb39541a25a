"""Configurations of topics and groups, for people and for programs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from headrace.cli._output import print_table

if TYPE_CHECKING:
    from headrace.clients.blocking import ConfigEntry


_SIZES: Final = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_SIZE: Final = re.compile(r"(\d+)([KMGT])i?B?", re.IGNORECASE)


def config_values(given: Mapping[str, str]) -> dict[str, str]:
    """Return configs with durations and sizes as the numbers that brokers take: retention.ms=1h, segment.bytes=64MiB.

    Only names that end with `.ms` and `.bytes` have them. K, M, G and T count in steps of 1024, with or without `iB`.
    """
    return {name: _number(name, value.strip()) for name, value in given.items()}


def _number(name: str, value: str) -> str:
    from headrace.cli._offsets import is_duration, parse_duration  # noqa: PLC0415 - not for `--help`

    if name.endswith(".ms") and is_duration(value) and not value.startswith("-"):
        return str(parse_duration(value))
    size = _SIZE.fullmatch(value) if name.endswith(".bytes") else None
    return value if size is None else str(int(size[1]) * _SIZES[size[2].upper()])


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
