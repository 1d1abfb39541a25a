"""Reading passwords: never from arguments, which other users can see in the list of processes."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Final

import click

from headrace.cli.output.printing import say
from headrace.config.secrets import warn_if_exposed
from headrace.errors import ConfigError

VARIABLE: Final = "HEADRACE_PASSWORD"
_BYTES_LIMIT: Final = 4096


def ask_password(user: str, file: Path | None) -> str:
    """Return a password: from a file, else the environment, else the terminal, else standard input.

    Args:
        user: The user whose password it is.
        file: A file with the password on its only line, or None.

    Raises:
        ConfigError: No password is given, or it has more than one line.
    """
    if file is not None:
        warn_if_exposed(file, _exposed)
        try:
            with file.open("rb") as opened:
                return _line(opened.read(_BYTES_LIMIT + 1), str(file))
        except OSError as error:
            raise ConfigError(f"{file}: {error.strerror}") from None
    if given := os.environ.get(VARIABLE):
        return given
    if sys.stdin.isatty():
        entered: str = click.prompt(
            f"Password for {user}", hide_input=True, confirmation_prompt="Once more", err=True
        )
        return entered
    return _line(sys.stdin.buffer.read(_BYTES_LIMIT + 1), "standard input")


def _line(data: bytes, source: str) -> str:
    if len(data) > _BYTES_LIMIT:
        raise ConfigError(f"{source} has more than {_BYTES_LIMIT} bytes, the limit of a password")
    line = data.removesuffix(b"\n").removesuffix(b"\r")
    if not line:
        raise ConfigError(
            f"no password in {source}: give --password-file, set {VARIABLE}, or write the password to standard input"
        )
    if b"\n" in line:
        raise ConfigError(f"{source} has more than one line; a password must be one line")
    try:
        return line.decode()
    except UnicodeDecodeError:
        raise ConfigError(f"the password in {source} is not UTF-8") from None


def _exposed(path: str) -> None:
    say(
        f"Warning: {path} contains a password and is readable by every user of this machine: run chmod o-r"
    )
