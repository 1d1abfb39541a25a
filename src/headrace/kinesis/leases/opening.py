"""Which store of leases a text names."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from headrace.errors import ConfigError
from headrace.kinesis.leases.memory import MemoryLeaseStore
from headrace.kinesis.leases.store import LeaseStore

if TYPE_CHECKING:
    from headrace.kinesis.client.settings import AwsSettings

_FORMS: Final = (
    "dynamodb://TABLE[?region=..], sqlite:///FILE (one machine) or memory://NAME (one process)"
)


def open_store(text: str, aws: AwsSettings | None = None) -> LeaseStore:
    """Return the store that a text names; it has still to be opened.

    Args:
        text: `dynamodb://table`, with `?region=`, `endpoint_url=`, `create=false` and more behind it; `sqlite:///file`
            (four slashes begin an absolute path); or `memory://name`.
        aws: Region, credentials and endpoint for DynamoDB; what the text says goes before.

    Raises:
        ConfigError: It names none.
    """
    scheme, separator, rest = text.partition("://")
    if separator and scheme == "memory":
        return MemoryLeaseStore(rest)
    if separator and scheme == "sqlite":
        return _sqlite(text, rest)
    if separator and scheme == "dynamodb":
        from headrace.kinesis.leases.dynamodb import dynamodb_store  # noqa: PLC0415 - for whom it is installed

        return dynamodb_store(rest, aws)
    raise ConfigError(f"{text!r} names no store of leases: {_FORMS}")


def _sqlite(text: str, rest: str) -> LeaseStore:
    from headrace.kinesis.leases.sqlite import SqliteLeaseStore  # noqa: PLC0415 - no database where there is none

    path = rest.removeprefix("/")
    if path == rest or not path:
        raise ConfigError(
            f"{text!r} names no file: sqlite:///leases.db is relative, sqlite:////var/lib/leases.db absolute"
        )
    return SqliteLeaseStore(Path(path).expanduser())
