"""The options of an archive: a table of `headrace archive`, with records that the brokers have deleted."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Literal

from headrace.errors import ConfigError
from headrace.spark.options.declared import Option, option_names
from headrace.spark.options.reader import OptionReader

HISTORY_OPTIONS: Final = (
    Option(
        "archive",
        "A table of `headrace archive`: a directory, or an address in an object store. Offsets that the brokers no "
        "longer have are read from the table ([Archive](../guides/archive.md)).",
    ),
    Option("archiveFormat", "The table's format, `delta` or `iceberg`.", default="delta"),
    Option(
        "archiveCatalog",
        "The address of the Iceberg catalog, if the catalog is not in the table's directory.",
    ),
)
_FORMATS: Final = ("delta", "iceberg")


@dataclass(frozen=True)
class HistoryOptions:
    """The archive from which old offsets are read."""

    table: str
    format: Literal["delta", "iceberg"] = "delta"
    catalog: str | None = field(default=None, repr=False)
    """The address of the Iceberg catalog, which may contain a password. None is a catalog in the table's directory."""


def history_options(reader: OptionReader) -> HistoryOptions | None:
    """Parse the archive. None means that only brokers are read.

    Raises:
        ConfigError: The format is unknown, or an option of archives is given without `archive`.
    """
    table = reader.text("archive")
    kind = reader.choice("archiveFormat", _FORMATS)
    if not table:
        for option in option_names(HISTORY_OPTIONS):
            if reader.text(option) is not None:
                raise ConfigError(f"option {option} needs option archive, the table's path")
        return None
    return HistoryOptions(table, kind, reader.text("archiveCatalog"))  # type: ignore[arg-type]  # one of _FORMATS
