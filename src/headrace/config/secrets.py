"""References to secrets: a value names the place of the secret in place of the secret itself.

`${env:NAME}` is an environment variable, `${file:/path}` the text of a file, `${file:/path:key}` an entry of a
properties file, and `${dir:/path:file}` the text of a file in a directory. These are Kafka's configuration providers
(KIP-297, KIP-421) under their usual names. A configuration cannot name classes to load. A reference may be a part of a
value. References in the resolved text are not resolved again.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Final

from headrace.config.properties_file import parse_properties
from headrace.errors import ConfigError

SIZE_LIMIT: Final = 1 << 20
"""The size of the largest file with a secret, in bytes. A chain of certificates is far smaller."""
_SECRET_NAME: Final = re.compile(
    r"(.*\.)?(password|secret|token|jaas\.config|ssl\.key\.pem|ssl\.keystore\.key)"
)
_REFERENCE: Final = re.compile(r"\$\{([A-Za-z]+):([^}]*)\}")

Warn = Callable[[str], object]


def is_secret(name: str) -> bool:
    """Return whether the value of a broker or client setting is a secret, judging by the name."""
    return _SECRET_NAME.fullmatch(name.replace("_", ".")) is not None


def has_reference(value: str) -> bool:
    """Return whether a value contains a reference."""
    return _REFERENCE.search(value) is not None


def resolve_references(
    settings: Mapping[str, str], warn: Warn, environment: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Replace all references in settings.

    Args:
        settings: The values as text, by name.
        warn: Called with the path of each referenced file that every user of the machine can read.
        environment: The environment variables; None stands for those of the process.

    Raises:
        ConfigError: The target of a reference does not exist or cannot be read. The message has the reference, but
            nothing of its target.
    """
    environment = os.environ if environment is None else environment
    resolved = {}
    for name, value in settings.items():
        found = partial(_resolve, name, warn=warn, environment=environment)
        resolved[name] = _REFERENCE.sub(found, value)
    return resolved


def warn_if_exposed(path: Path, warn: Warn) -> None:
    """Call `warn` if every user of the machine can read a file."""
    try:
        mode = path.stat().st_mode
    except OSError:
        return
    if stat.S_ISREG(mode) and mode & stat.S_IROTH:
        warn(str(path))


def warn_of_secrets(path: Path, settings: Mapping[str, str], warn: Warn) -> None:
    """Call `warn` if a settings file contains a secret itself and every user of the machine can read the file.

    Args:
        path: The file.
        settings: The content of the file with unresolved references.
        warn: Called with the path.
    """
    if any(
        is_secret(name) and value and not has_reference(value) for name, value in settings.items()
    ):
        warn_if_exposed(path, warn)


def _resolve(
    setting: str, match: re.Match[str], *, warn: Warn, environment: Mapping[str, str]
) -> str:
    provider, place = match[1].lower(), match[2]
    try:
        if provider == "env":
            return _variable(place, environment)
        if provider == "file":
            return _of_file(place, warn)
        if provider == "dir":
            return _of_directory(place, warn)
    except ConfigError as error:
        raise ConfigError(f"{setting}: {match[0][:300]}: {error}") from None
    raise ConfigError(
        f"{setting}: {match[0][:300]}: references are ${{env:NAME}}, ${{file:/path}}, "
        "${file:/path:key} and ${dir:/path:file}"
    )


def _variable(name: str, environment: Mapping[str, str]) -> str:
    value = environment.get(name)
    if value is None:
        raise ConfigError("the environment has no such variable")
    return value


def _of_file(place: str, warn: Warn) -> str:
    path, colon, key = place.rpartition(":")
    if not colon:
        return _text(Path(place), warn).removesuffix("\n").removesuffix("\r")
    entries = parse_properties(_text(Path(path), warn), "the file")
    if key not in entries:
        raise ConfigError("the file has no such key")
    return entries[key]


def _of_directory(place: str, warn: Warn) -> str:
    directory, _, name = place.rpartition(":")
    if not directory or not name:
        raise ConfigError("expected ${dir:/path:file}")
    if name != os.path.basename(name) or name in {".", ".."}:  # noqa: PTH119 - Path removes a leading "."
        raise ConfigError("the part behind the colon has to be the name of a file in the directory")
    return _text(Path(directory, name), warn).removesuffix("\n").removesuffix("\r")


def _text(path: Path, warn: Warn) -> str:
    try:
        with path.open("rb") as file:
            content = file.read(SIZE_LIMIT + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "that is no path"
        raise ConfigError(f"cannot be read: {reason}") from None
    if len(content) > SIZE_LIMIT:
        raise ConfigError(f"the file is larger than {SIZE_LIMIT} bytes")
    warn_if_exposed(path, warn)
    try:
        return content.decode(
            "utf-8-sig"
        )  # editors on Windows write a byte order mark at the start
    except UnicodeDecodeError:
        raise ConfigError("the file is not text in UTF-8") from None
