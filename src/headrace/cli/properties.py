"""Broker settings from files and from KEY=VALUE arguments."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Final

from headrace.config.properties_file import parse_properties
from headrace.config.secrets import (
    has_reference,
    is_secret,
    resolve_references,
    warn_of_secrets,
)
from headrace.config.units import plain_numbers
from headrace.errors import ConfigError
from headrace.ports import Journal

_NOT_OURS: Final = re.compile(
    r"""
    num\.(network|io|replica\.fetchers|recovery\.threads.*) (\..*)? | background\.threads
    | socket\.(send|receive)\.buffer\.bytes | queued\.max\.requests
    | (zookeeper|controller|kafka|metadata|metrics?|process|share|remote|transaction|quota|principal)\..*
    | ssl\.(protocol|provider|engine|endpoint|secure|keymanager|trustmanager|allow)\..* | ssl\.(protocol|provider)
    | sasl\.(kerberos|login|mechanism)\..* | security\.(inter\.broker\.protocol|providers)
    | config\.providers(\..*)? | inter\.broker\..* | log\.(cleaner|flush)\..* | replica\..*
    | offsets\.topic\.replication\.factor | transaction\.state\.log\..*
    | group\.(consumer|share|streams|coordinator)\..*
    """,
    re.VERBOSE,
)
"""Settings of Apache Kafka that mean nothing here; a server.properties may carry them, and gets one warning."""


def split_assignments(assignments: Iterable[str]) -> dict[str, str]:
    """Split KEY=VALUE arguments.

    Raises:
        ConfigError: One has no "=".
    """
    settings: dict[str, str] = {}
    for assignment in assignments:
        key, separator, value = assignment.partition("=")
        if not separator or not key.strip():
            raise ConfigError(f"--config {assignment!r}: expected KEY=VALUE")
        settings[key.strip()] = value.strip()
    return settings


def read_properties(path: Path, journal: Journal) -> dict[str, str]:
    """Read a file of a broker's settings, references to secrets as they are.

    Raises:
        ConfigError: It cannot be read or understood.
    """
    from headrace.config.broker import BROKER_OPTIONS  # noqa: PLC0415 - not for `--help`

    settings = read_settings(path)
    warn_of_secrets(path, settings, partial(_exposed, journal))
    ignored = [key for key in settings if key not in BROKER_OPTIONS and _NOT_OURS.fullmatch(key)]
    if ignored:
        journal.warning("config_ignored", file=str(path), keys=",".join(sorted(ignored)))
    return {key: value for key, value in settings.items() if key not in ignored}


def warn_of_visible_secrets(given: Mapping[str, str], journal: Journal) -> None:
    """Warn of secrets among the arguments of the command, which a list of processes shows."""
    for name, value in given.items():
        if is_secret(name) and value and not has_reference(value):
            journal.warning(
                "secret_on_command_line",
                option=name,
                remedy="a file, or a reference: ${file:/path}",
            )


def resolved(settings: Mapping[str, str], journal: Journal) -> dict[str, str]:
    """Return settings with what references to secrets stand for, and with durations and sizes as numbers.

    Raises:
        ConfigError: What a reference names is not there.
    """
    return plain_numbers(resolve_references(settings, partial(_exposed, journal)))


def _exposed(journal: Journal, path: str) -> None:
    journal.warning("secret_readable_by_everybody", file=path, remedy="chmod o-r")


def read_settings(path: Path) -> dict[str, str]:
    """Read a file of anybody's settings: TOML if its name ends so, Java properties otherwise.

    Raises:
        ConfigError: It cannot be read or understood.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")  # editors of Windows begin a file with a mark
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: {error}") from error
    return _parse_toml(path, text) if path.suffix == ".toml" else parse_properties(text, str(path))


def _parse_toml(path: Path, text: str) -> dict[str, str]:
    import tomllib  # noqa: PLC0415 - rarely needed

    try:
        tables = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: {error}") from error
    return dict(_flatten(tables, ""))


def _flatten(table: dict[str, object], prefix: str) -> Iterable[tuple[str, str]]:
    """Turn `[log.retention] ms = 5` and `"log.retention.ms" = 5` into the same pair."""
    for key, value in table.items():
        name = prefix + key
        if isinstance(value, dict):
            yield from _flatten(value, name + ".")
        elif isinstance(value, bool):
            yield name, str(value).lower()
        elif isinstance(value, list):
            yield name, ",".join(map(str, value))
        else:
            yield name, str(value)
