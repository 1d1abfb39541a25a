"""Secrets by reference: a setting's value that says where the secret is, instead of being it.

`${env:NAME}` is a variable of the environment, `${file:/path}` the text of a file, `${file:/path:key}` an entry of a
properties file, `${dir:/path:file}` the text of a file in a directory. These are Kafka's configuration providers
(KIP-297, KIP-421) under their usual names, without classes to name: nothing that a configuration says is ever loaded.
A reference may be a part of a value. What it stands for is taken as it is, and not searched for references again.
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
"""Largest file with a secret, in bytes: a chain of certificates is far smaller."""
_SECRET_NAME: Final = re.compile(
    r"(.*\.)?(password|secret|token|jaas\.config|ssl\.key\.pem|ssl\.keystore\.key)"
)
_REFERENCE: Final = re.compile(r"\$\{([A-Za-z]+):([^}]*)\}")

Warn = Callable[[str], object]


def is_secret(name: str) -> bool:
    """Return whether the value of a setting is a secret, as far as the name tells: a broker's or a client's."""
    return _SECRET_NAME.fullmatch(name.replace("_", ".")) is not None


def has_reference(value: str) -> bool:
    """Return whether a value refers to something instead of being it."""
    return _REFERENCE.search(value) is not None


def resolve_references(
    settings: Mapping[str, str], warn: Warn, environment: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Return settings with every reference replaced by what it stands for.

    Args:
        settings: Text by name.
        warn: Called with the path of every file among them that everybody on the machine may read.
        environment: The environment; None is the process's.

    Raises:
        ConfigError: What a reference names is not there, or cannot be read; the message has the reference, and nothing
            of what it stands for.
    """
    environment = os.environ if environment is None else environment
    resolved = {}
    for name, value in settings.items():
        found = partial(_resolve, name, warn=warn, environment=environment)
        resolved[name] = _REFERENCE.sub(found, value)
    return resolved


def warn_if_exposed(path: Path, warn: Warn) -> None:
    """Call `warn` if everybody on the machine may read a file."""
    try:
        mode = path.stat().st_mode
    except OSError:
        return
    if stat.S_ISREG(mode) and mode & stat.S_IROTH:
        warn(str(path))


def warn_of_secrets(path: Path, settings: Mapping[str, str], warn: Warn) -> None:
    """Call `warn` if a file of settings holds a secret itself and everybody on the machine may read it.

    Args:
        path: The file.
        settings: What is in it, references not replaced.
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
    if name != os.path.basename(name) or name in {".", ".."}:  # noqa: PTH119 - Path drops a "." in front
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
        return content.decode("utf-8-sig")  # editors of Windows begin a file with a mark
    except UnicodeDecodeError:
        raise ConfigError("the file is not text in UTF-8") from None
