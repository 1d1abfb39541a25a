"""Where records are that the brokers do not keep any more: a table that `headrace archive` writes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from headrace.errors import ConfigError
from headrace.spark.options.reader import OptionReader

HISTORY_OPTIONS: Final = ("archive", "archiveFormat")
_FORMATS: Final = ("delta", "iceberg")


@dataclass(frozen=True)
class HistoryOptions:
    """The archive that old offsets are read from."""

    table: str
    format: Literal["delta", "iceberg"] = "delta"


def history_options(reader: OptionReader) -> HistoryOptions | None:
    """Return the archive, or None where only brokers are read.

    Raises:
        ConfigError: The format is unknown, or given without a table.
    """
    table = reader.text("archive")
    kind = reader.choice("archiveFormat", _FORMATS)
    if not table:
        for option in HISTORY_OPTIONS:
            if reader.text(option) is not None:
                raise ConfigError(f"option {option} needs option archive, the table's path")
        return None
    return HistoryOptions(table, kind)  # type: ignore[arg-type]  # one of _FORMATS
