"""The APIs and versions that the broker serves, as ApiVersions reports them."""

from __future__ import annotations

from typing import NamedTuple

from headrace.protocol.versions import VersionRange


class Api(NamedTuple):
    """The versions of one Kafka API."""

    key: int
    advertised: VersionRange
    """The versions that ApiVersions reports."""
    served: VersionRange
    """The versions that the broker handles; see `api_versions` for the difference."""


class AdvertisedApis:
    """The APIs that ApiVersions reports. A test replaces `rows` to make the broker report an older release."""

    __slots__ = ("rows",)

    def __init__(self, rows: tuple[Api, ...]) -> None:
        self.rows = rows
        """One row for each API, in the order of the API keys."""
