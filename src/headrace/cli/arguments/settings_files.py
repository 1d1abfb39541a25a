"""Broker settings from files and from KEY=VALUE arguments."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path

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


def broker_settings(
    config_file: Path | None,
    given: Mapping[str, str],
    journal: Journal,
    environment: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """Return the settings of a broker. Given settings override the environment, which overrides the file.

    Args:
        config_file: A file of settings; None without a file.
        given: Settings of the command line.
        journal: The journal for warnings.
        environment: Environment variables; None for those of the process.

    Raises:
        ConfigError: The file cannot be read, a secret cannot be resolved, or an option of Kafka is refused.
    """
    from_file = read_properties(config_file, journal) if config_file else {}
    variables = os.environ if environment is None else environment
    settled = _layered(from_file, read_environment(variables, journal), given)
    return without_foreign(resolved(settled, journal), journal)


def _layered(*layers: Mapping[str, str]) -> dict[str, str]:
    """Merge settings. A later layer overrides an option of an earlier layer, under any of the option's names."""
    settled: dict[str, str] = {}
    for layer in layers:
        named = {_option_of(name) for name in layer}
        settled = {name: text for name, text in settled.items() if _option_of(name) not in named}
        settled |= layer
    return settled


def _option_of(name: str) -> str:
    """Return the canonical name of an option."""
    from headrace.config.broker import BROKER_ALIASES
    from headrace.config.foreign import DIRECTORY_OPTIONS
    from headrace.config.security import LISTENER_PREFIX

    if name.startswith(LISTENER_PREFIX):
        return name.lower()  # listener names are case-insensitive
    if name in DIRECTORY_OPTIONS:
        return "log.dirs"
    return BROKER_ALIASES.get(name, (name, 1))[0]


def read_properties(path: Path, journal: Journal) -> dict[str, str]:
    """Read a file of broker settings; references to secrets are not resolved.

    Raises:
        ConfigError: The file cannot be read or parsed.
    """
    settings = read_settings(path)
    warn_of_secrets(path, settings, partial(_exposed, journal))
    return settings


def read_environment(environment: Mapping[str, str], journal: Journal) -> dict[str, str]:
    """Return the settings from `KAFKA_...` environment variables; see `headrace.config.environment`."""
    from headrace.config.environment import from_environment

    found = from_environment(environment)
    for variable, remedy in found.doubtful.items():
        journal.warning("environment_variable_ignored", variable=variable, remedy=remedy)
    if found.settings:
        journal.info("config_from_environment", keys=",".join(found.settings))
    return found.settings


def without_foreign(settings: Mapping[str, str], journal: Journal) -> dict[str, str]:
    """Return settings without Kafka options that have no effect here; one warning names them.

    Raises:
        ConfigError: An option of Kafka is refused.
    """
    from headrace.config.foreign import part_foreign

    ours, ignored = part_foreign(settings)
    if ignored:
        journal.warning(
            "config_ignored",
            keys=",".join(sorted(ignored)),
            meaning="these options of Apache Kafka do nothing here; docs/reference/settings-broker.md says why",
        )
    return ours


def warn_of_visible_secrets(given: Mapping[str, str], journal: Journal) -> None:
    """Warn of secrets in the arguments of the command, which the list of processes shows."""
    for name, value in given.items():
        if is_secret(name) and value and not has_reference(value):
            journal.warning(
                "secret_on_command_line",
                option=name,
                remedy="a file, or a reference: ${file:/path}",
            )


def resolved(settings: Mapping[str, str], journal: Journal) -> dict[str, str]:
    """Return settings with secrets resolved, and with durations and sizes as numbers.

    Raises:
        ConfigError: A reference to a secret cannot be resolved.
    """
    return plain_numbers(resolve_references(settings, partial(_exposed, journal)))


def _exposed(journal: Journal, path: str) -> None:
    journal.warning("secret_readable_by_everybody", file=path, remedy="chmod o-r")


def read_settings(path: Path) -> dict[str, str]:
    """Read a file of settings: TOML if the name ends in .toml, otherwise Java properties.

    Raises:
        ConfigError: The file cannot be read or parsed.
    """
    try:
        # Editors on Windows write a byte order mark first.
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: {error}") from error
    return _parse_toml(path, text) if path.suffix == ".toml" else parse_properties(text, str(path))


def _parse_toml(path: Path, text: str) -> dict[str, str]:
    import tomllib

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
