"""Find the Java that Spark needs. Without Java, Spark's own error message does not name the cause."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Final

from headrace.errors import ConfigError

MINIMUM: Final = 17
HOW_TO_GET: Final = (
    f"Spark needs Java {MINIMUM} or newer. Install one and set JAVA_HOME to it, or put it on the PATH "
    "(Debian, Ubuntu: apt-get install default-jre-headless; macOS: brew install openjdk)."
)
_VERSION_TIMEOUT_S = 30


def java_command() -> Path:
    """Find the `java` that Spark would start.

    Raises:
        ConfigError: Java is not installed, or JAVA_HOME has none.
    """
    home = os.environ.get("JAVA_HOME")
    if home:
        command = Path(home) / "bin" / "java"
        if not command.is_file():
            raise ConfigError(f"JAVA_HOME is {home}, but there is no bin/java in it. {HOW_TO_GET}")
        return command
    found = shutil.which("java")
    if found is None:
        raise ConfigError(f"Java is not installed. {HOW_TO_GET}")
    return Path(found)


def check_java() -> int:
    """Return the major version of the Java that Spark would start.

    Raises:
        ConfigError: Java is missing, does not run, or is too old for Spark.
    """
    command = java_command()
    try:
        done = subprocess.run(  # noqa: S603 - the user's own Java
            [str(command), "-version"],
            capture_output=True,
            text=True,
            timeout=_VERSION_TIMEOUT_S,
            check=True,
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise ConfigError(f"{command} does not run ({error}). {HOW_TO_GET}") from None
    version = parse_version(done.stderr)
    if version is None:
        raise ConfigError(f"{command} does not print its version. {HOW_TO_GET}")
    if version < MINIMUM:
        raise ConfigError(f"{command} is Java {version}. {HOW_TO_GET}")
    return version


def parse_version(text: str) -> int | None:
    """Parse the major version in the output of `java -version`. Java 8 prints 1.8."""
    match = re.search(r'version "(?:1\.)?(\d+)', text)
    return None if match is None else int(match[1])
