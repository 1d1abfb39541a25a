"""Client properties from a file and from -X. Secrets belong into the file, which others need not be able to read."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path
from typing import Final

from headrace.cli._output import say
from headrace.cli.properties import read_settings
from headrace.clients.config import ALIASES, ClientConfig, ConsumerConfig, ProducerConfig

_SECRET: Final = re.compile(
    r"(.*\.)?(password|secret|token|jaas\.config|ssl\.key\.pem|ssl\.keystore\.key)"
)
_REFERENCE: Final = re.compile(r"\$\{[^}]+\}")
_ROLES: Final = {"client": ClientConfig, "producer": ProducerConfig, "consumer": ConsumerConfig}


def client_settings(path: Path | None, given: dict[str, str], role: str) -> dict[str, str]:
    """Return a client's properties: those of a file, and over them those of the command line.

    Args:
        path: A file of properties, or None. Producers, consumers and others may share it: each takes what is its own.
        given: Properties of the command line.
        role: Whose properties: "client", "producer" or "consumer".

    Raises:
        ConfigError: The file cannot be read or understood.
    """
    for name, value in given.items():
        if _SECRET.fullmatch(name.replace("_", ".")) and not _REFERENCE.fullmatch(value):
            say(
                f"Warning: whoever may list processes can read the {name} in -X. Put it into a file that only you can "
                "read, and name the file with --config-file or HEADRACE_CLIENT_CONFIG."
            )
    found = {} if path is None else _of_role(read_settings(path), _ROLES[role])
    return found | given


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
