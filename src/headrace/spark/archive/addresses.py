"""Open the location that the address of a table names."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from headrace.spark.archive.directory import Directory
from headrace.spark.archive.table_location import TableLocation

_SCHEME: Final = re.compile(r"([a-z][a-z0-9+.-]*)://", re.IGNORECASE)


def open_location(location: str | Path | TableLocation) -> TableLocation:
    """Open the location of an address: a path, `file://PATH`, or an object store's address as `s3://BUCKET/TABLE`.

    Raises:
        ConfigError: The address has an unknown scheme, or the store cannot be reached.
    """
    if not isinstance(location, (str, Path)):
        return location
    text = str(location)
    scheme = _SCHEME.match(text)
    if scheme is None:
        return Directory(Path(text).absolute())
    if scheme[1].lower() == "file":
        return Directory(Path(text[scheme.end() :]).absolute())
    from headrace.spark.archive.stores import bucket

    return bucket(text)
