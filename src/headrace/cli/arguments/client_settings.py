"""Client properties from a file and from -X. Secrets belong into the file, which other users cannot read."""

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
    """Return the properties of a client: those of files, overridden by those of the command line.

    Args:
        paths: Files of properties; a later file overrides an earlier one. Producers, consumers and other clients may
            share a file: properties of another role are ignored.
        given: Properties of the command line.
        role: The role of the client: "client", "producer" or "consumer".

    Raises:
        ConfigError: A file cannot be read or parsed, or a reference to a secret cannot be resolved.
    """
    for name, value in given.items():
        if is_secret(name) and not has_reference(value):
            say(
                f"Warning: other users can read the {name} in -X in the process list. Put it into a file that only "
                "you can read, and name the file with --config-file or HEADRACE_CLIENT_CONFIG."
            )
    found: dict[str, str] = {}
    for path in paths:
        of_file = _of_role(read_settings(path), _ROLES[role])
        warn_of_secrets(path, of_file, _exposed)
        found |= of_file
    return plain_numbers(resolve_references(found | given, _exposed))


def _exposed(path: str) -> None:
    say(
        f"Warning: {path} contains a secret and is readable by every user of this machine: run chmod o-r"
    )


def general(settings: dict[str, str]) -> dict[str, str]:
    """Return the properties that every client has, without those of producers and consumers."""
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
