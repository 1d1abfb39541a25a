"""The names in a data directory: of the metadata store, and of the brokers that share the directory (`--brokers`)."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from headrace.core.meta_properties import META_FILE

METADATA_FILE: Final = "metadata.sqlite"
BROKER_DIRECTORY: Final = "broker-"
"""The directory of a broker begins with it, if several brokers share a data directory. Its id follows."""


def broker_directories(path: Path) -> dict[int, Path]:
    """Return the directories of the brokers that share a data directory, by the id of the broker."""
    found: dict[int, Path] = {}
    for directory in path.glob(f"{BROKER_DIRECTORY}*"):
        number = directory.name.removeprefix(BROKER_DIRECTORY)
        if number.isdecimal() and (directory / META_FILE).exists():
            found[int(number)] = directory
    return found
