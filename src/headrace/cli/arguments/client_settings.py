"""Client properties from a file and from -X. Secrets belong into the file, which others need not be able to read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Final

from headrace.cli.arguments.settings_files import read_settings
from headrace.cli.output.printing import say
from headrace.clients.config import ALIASES, ClientConfig, ConsumerConfig, ProducerConfig
from headrace.config.secrets import (
    has_reference,
    is_secret,
    resolve_references,
    warn_of_secrets,
)
from headrace.config.units import plain_numbers

_ROLES: Final = {"client": ClientConfig, "producer": ProducerConfig, "consumer": ConsumerConfig}


def client_settings(paths: Sequence[Path], given: dict[str, str], role: str) -> dict[str, str]:
    """Return a client's properties: those of files, and over them those of the command line.

    Args:
        paths: Files of properties; what a later one says counts. Producers, consumers and others may share one: each
            takes what is its own.
        given: Properties of the command line.
        role: Whose properties: "client", "producer" or "consumer".

    Raises:
        ConfigError: The file cannot be read or understood, or what a reference to a secret names is not there.
    """
    for name, value in given.items():
        if is_secret(name) and not has_reference(value):
            say(
                f"Warning: whoever may list processes can read the {name} in -X. Put it into a file that only you can "
                "read, and name the file with --config-file or HEADRACE_CLIENT_CONFIG."
            )
    found: dict[str, str] = {}
    for path in paths:
        of_file = _of_role(read_settings(path), _ROLES[role])
        warn_of_secrets(path, of_file, _exposed)
        found |= of_file
    return plain_numbers(resolve_references(found | given, _exposed))


def _exposed(path: str) -> None:
    say(f"Warning: {path} holds a secret, and everybody on this machine may read it: chmod o-r")


def general(settings: dict[str, str]) -> dict[str, str]:
    """Return what any client may have of the properties of some role."""
    return _of_role(settings, ClientConfig)


def _of_role(settings: dict[str, str], config: type[ClientConfig]) -> dict[str, str]:
    own = {field.name for field in fields(config)}
    others = {
        field.name
        for other in (ProducerConfig, ConsumerConfig)
        for field in fields(other)
        if field.name not in own
    }
    return {name: value for name, value in settings.items() if _attribute(name) not in others}


def _attribute(name: str) -> str:
    dotted = name.replace("_", ".")
    return ALIASES.get(dotted, dotted).replace(".", "_")
