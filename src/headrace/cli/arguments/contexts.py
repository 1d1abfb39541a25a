"""Contexts: named connections. Each is a file of client properties in the user's configuration directory."""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Final

from headrace.config.properties_file import parse_properties
from headrace.config.secrets import has_reference, is_secret
from headrace.errors import ConfigError

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", re.ASCII)
_BLANK: Final = "\\u0020"
_SUFFIX: Final = ".properties"
BOOTSTRAP: Final = "bootstrap.servers"


def directory() -> Path:
    """Return the directory of contexts: `headrace` in $XDG_CONFIG_HOME or in ~/.config."""
    given = os.environ.get("XDG_CONFIG_HOME")
    return (Path(given) if given else Path.home() / ".config") / "headrace"


def path_of(name: str) -> Path:
    """Return the file of a context, which need not exist.

    Raises:
        ConfigError: The name is not allowed for a context.
    """
    if not _NAME.fullmatch(name):
        raise ConfigError(
            f"{name[:100]!r} is not allowed as the name of a context: use a-z, A-Z, 0-9, dots, dashes and underscores"
        )
    return directory() / "contexts" / f"{name}{_SUFFIX}"


def names() -> list[str]:
    """Return the names of all contexts, sorted."""
    found = (path.name.removesuffix(_SUFFIX) for path in directory().glob(f"contexts/*{_SUFFIX}"))
    return sorted(name for name in found if _NAME.fullmatch(name))


def existing(name: str) -> Path:
    """Return the file of a context.

    Raises:
        ConfigError: No context has this name; the message lists the existing ones.
    """
    path = path_of(name)
    if not path.is_file():
        known = ", ".join(names())
        hint = f"there are {known}" if known else "`headrace context add` creates one"
        raise ConfigError(f"there is no context {name!r}: {hint}")
    return path


def settings_of(name: str) -> dict[str, str]:
    """Return the properties of a context; references to secrets are not resolved.

    Raises:
        ConfigError: No context has this name, or its file cannot be read.
    """
    path = existing(name)
    try:
        return parse_properties(path.read_text(encoding="utf-8"), str(path))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: {error}") from error


def current() -> str | None:
    """Return the name of the context in use, or None."""
    try:
        name = (directory() / "current-context").read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        return None
    return name or None


def use(name: str | None) -> None:
    """Make a context the one in use; None: use no context.

    Raises:
        ConfigError: No context has this name.
    """
    path = directory() / "current-context"
    if name is None:
        path.unlink(missing_ok=True)
        return
    existing(name)
    _write(path, f"{name}\n")


def add(name: str, settings: Mapping[str, str], *, replace: bool = False) -> None:
    """Store a context.

    Args:
        name: The name of the context.
        settings: Client properties. A secret among them must be a reference.
        replace: Whether to replace an existing context with this name.

    Raises:
        ConfigError: The context exists, or a secret is not a reference.
    """
    path = path_of(name)
    if path.exists() and not replace:
        raise ConfigError(f"context {name!r} exists already: --replace replaces it")
    for key, value in settings.items():
        if is_secret(key) and value and not has_reference(value):
            raise ConfigError(
                f"{key}: contexts store no secrets. Use a reference: ${{env:NAME}}, or ${{file:/path}} for a file that "
                "only you can read"
            )
    _write(path, "".join(_line(key, value) for key, value in settings.items()))


def remove(name: str) -> None:
    """Delete a context. If it was in use, no context is in use afterwards.

    Raises:
        ConfigError: No context has this name.
    """
    existing(name).unlink()
    if current() == name:
        use(None)


def _line(key: str, value: str) -> str:
    """Return a property as a line of a properties file."""
    inner = value.strip(" ")
    before, _, after = value.partition(inner) if inner else (value, "", "")
    blanks = [each.replace(" ", _BLANK) for each in (before, after)]
    name = _escaped(key, "=:#!").replace(" ", _BLANK)
    return f"{name}={blanks[0]}{_escaped(inner)}{blanks[1]}\n"


def _escaped(text: str, special: str = "") -> str:
    return "".join(map(partial(_escape, special=f"{special}\\"), text))


def _escape(character: str, *, special: str) -> str:
    if character in special:
        return f"\\{character}"
    if character.isprintable():
        return character
    units = character.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2))


def _write(path: Path, text: str) -> None:
    """Write a file atomically. Other users cannot read it."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        partial = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
        descriptor = os.open(partial, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
        partial.replace(path)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from error
