"""The lease store that a URL names."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import parse_qsl

from headrace.errors import ConfigError
from headrace.kinesis.leases.memory import MemoryLeaseStore
from headrace.kinesis.leases.store import LeaseStore

if TYPE_CHECKING:
    from headrace.kinesis.client.settings import AwsSettings

_FORMS: Final = (
    "dynamodb://TABLE[?region=..], sqlite:///FILE (one machine) or memory://NAME (one process)"
)

_TABLE: Final = re.compile(r"[a-zA-Z0-9_.-]{3,255}")
_TAG: Final = "tag."
_AWS: Final = frozenset({"region", "endpoint_url", "profile"})
_NUMBERS: Final = frozenset({"read_capacity", "write_capacity", "timeout_ms"})


def open_store(text: str, aws: AwsSettings | None = None, *, create: bool = True) -> LeaseStore:
    """Return the store that a URL names. The caller has to open the store.

    Args:
        text: `dynamodb://table`, optionally with `?region=`, `endpoint_url=`, `create=false` and more (see
            docs/reference/kinesis-leases.md); `sqlite:///file` (four slashes begin an absolute path); or
            `memory://name`.
        aws: Region, credentials and endpoint for DynamoDB. Values in the URL take precedence.
        create: Whether a missing table or file is created.

    Raises:
        ConfigError: The text is not the URL of a lease store.
    """
    scheme, separator, rest = text.partition("://")
    if separator and scheme == "memory":
        return MemoryLeaseStore(rest)
    if separator and scheme == "sqlite":
        return _sqlite(text, rest, create=create)
    if separator and scheme == "dynamodb":
        return _dynamodb(text, aws, create=create)
    raise ConfigError(f"{text!r} is not the URL of a lease store. Use {_FORMS}")


def _sqlite(text: str, rest: str, *, create: bool) -> LeaseStore:
    from headrace.kinesis.leases.sqlite import SqliteLeaseStore  # noqa: PLC0415 - loaded only when used

    path = rest.removeprefix("/")
    if path == rest or not path:
        raise ConfigError(
            f"{text!r} contains no file name: sqlite:///leases.db is relative, sqlite:////var/lib/leases.db absolute"
        )
    return SqliteLeaseStore(Path(path).expanduser(), create=create)


def _dynamodb(text: str, aws: AwsSettings | None, *, create: bool) -> LeaseStore:
    from headrace.kinesis.leases.dynamodb import DynamoLeaseStore  # noqa: PLC0415 - AWS only for whom it is
    from headrace.kinesis.leases.dynamodb_table import TableSettings  # noqa: PLC0415 - AWS only for whom it is

    table, aws, given = table_place(text, aws)
    numbers = {name: _number(name, given[name]) for name in sorted(_NUMBERS & given.keys())}
    timeout = {"timeout_ms": numbers.pop("timeout_ms")} if "timeout_ms" in numbers else {}
    settings = TableSettings(
        create=create and _truth("create", given.get("create", "true")),
        read_capacity=numbers.get("read_capacity"),
        write_capacity=numbers.get("write_capacity"),
        tags={name.removeprefix(_TAG): given[name] for name in given if name.startswith(_TAG)},
    )
    return DynamoLeaseStore(table, aws, settings=settings, **timeout)


def table_place(text: str, aws: AwsSettings | None) -> tuple[str, AwsSettings, dict[str, str]]:
    """Return a table's name, how to reach it, and all parameters of `dynamodb://TABLE?name=value`.

    Raises:
        ConfigError: The URL contains no table name, or an unknown parameter.
    """
    from headrace.kinesis.client.settings import AwsSettings  # noqa: PLC0415 - AWS only for whom it is

    table, _, query = text.removeprefix("dynamodb://").partition("?")
    if not _TABLE.fullmatch(table):
        raise ConfigError(
            f"{text!r} contains no table name: use 3 to 255 of a-z, A-Z, 0-9, '_', '-' and '.'"
        )
    try:
        given = dict(parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query)))
    except ValueError:
        raise ConfigError(
            f"{text!r}: write name=value&name=value behind the question mark"
        ) from None
    known = _AWS | _NUMBERS | {"create"}
    if unknown := [name for name in given if name not in known and not name.startswith(_TAG)]:
        raise ConfigError(
            f"{text!r}: the parameter {unknown[0]!r} is unknown. Use {', '.join(sorted(known))}, tag.NAME"
        )
    aws = aws or AwsSettings()
    aws = replace(
        aws,
        region=given.get("region", aws.region),
        endpoint_url=given.get("endpoint_url", aws.endpoint_url),
        profile=given.get("profile", aws.profile),
    )
    return table, aws, given


def _number(name: str, text: str) -> int:
    if not text.isascii() or not text.isdecimal() or int(text) < 1:
        raise ConfigError(f"{name}={text} is not allowed: use a whole number from 1 on")
    return int(text)


def _truth(name: str, text: str) -> bool:
    if text not in {"true", "false"}:
        raise ConfigError(f"{name}={text} is not allowed: use true or false")
    return text == "true"
