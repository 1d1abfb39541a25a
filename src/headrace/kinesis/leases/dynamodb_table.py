"""The table of leases in DynamoDB: created where it is missing, refused where it is another one."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from headrace.errors import ConfigError, LeaseStoreError
from headrace.kinesis.client.errors import FailureKind, failure_kind
from headrace.kinesis.leases.dynamodb_calls import DynamoCalls, as_configuration
from headrace.kinesis.leases.dynamodb_rows import PARTITION_KEY, SORT_KEY

_KEYS: Final = {PARTITION_KEY: "HASH", SORT_KEY: "RANGE"}
_USABLE: Final = frozenset({"ACTIVE", "UPDATING"})
_POLL_S: Final = 0.1
_LONGEST_POLL_S: Final = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSettings:
    """What to do where the table is missing, and how to create it.

    Attributes:
        create: Whether to create it.
        read_capacity: Units a second, with `write_capacity`; without both the table is paid for by request.
        write_capacity: Units a second.
        tags: What the table is marked with.
        wait_ms: How long creation may take.
    """

    create: bool = True
    read_capacity: int | None = None
    write_capacity: int | None = None
    tags: Mapping[str, str] = field(default_factory=dict)
    wait_ms: int = 120_000

    def __post_init__(self) -> None:
        """Refuse what DynamoDB would.

        Raises:
            ConfigError: It says which setting, and why.
        """
        capacities = (self.read_capacity, self.write_capacity)
        if (None in capacities) != (capacities == (None, None)):
            raise ConfigError("read_capacity and write_capacity go together: one is missing")
        if any(capacity is not None and capacity < 1 for capacity in capacities):
            raise ConfigError("read_capacity and write_capacity are at least 1")


async def open_table(calls: DynamoCalls, settings: TableSettings) -> None:
    """See that the table is there, is ours, and can be used.

    Raises:
        ConfigError: It is missing and not to be created, has another key, or is not allowed.
        LeaseStoreError: DynamoDB cannot be reached, or creation takes too long.
    """
    description = await _described(calls)
    if description is None:
        if not settings.create:
            raise ConfigError(
                f"there is no table {calls.table} for leases: create it with the partition key {PARTITION_KEY} and the "
                f"sort key {SORT_KEY}, both strings, or let it be created; or check region and endpoint_url"
            )
        await _create(calls, settings)
    try:
        async with asyncio.timeout(settings.wait_ms / 1000):
            description = await _usable(calls, description)
    except TimeoutError as error:
        raise LeaseStoreError(
            f"the table {calls.table} is still being created after {settings.wait_ms / 1000:.0f} s: look at its "
            "status in DynamoDB, and start again when it is ACTIVE"
        ) from error
    _check_key(calls.table, description)


async def _described(calls: DynamoCalls) -> dict[str, Any] | None:
    try:
        answer = await calls.call("describe_table")
    except LeaseStoreError as error:
        if error.__cause__ is not None and failure_kind(error.__cause__) is FailureKind.MISSING:
            return None
        raise as_configuration(error) from error
    description: dict[str, Any] = answer["Table"]
    return description


async def _create(calls: DynamoCalls, settings: TableSettings) -> None:
    parameters: dict[str, Any] = {
        "AttributeDefinitions": [{"AttributeName": name, "AttributeType": "S"} for name in _KEYS],
        "KeySchema": [{"AttributeName": name, "KeyType": kind} for name, kind in _KEYS.items()],
        "BillingMode": "PAY_PER_REQUEST",
    }
    if settings.read_capacity is not None:
        parameters["BillingMode"] = "PROVISIONED"
        parameters["ProvisionedThroughput"] = {
            "ReadCapacityUnits": settings.read_capacity,
            "WriteCapacityUnits": settings.write_capacity,
        }
    if settings.tags:
        parameters["Tags"] = [{"Key": key, "Value": value} for key, value in settings.tags.items()]
    try:
        await calls.call("create_table", **parameters)
    except LeaseStoreError as error:
        # Somebody else creates it at the same time, or an attempt of ours did whose answer was lost.
        if error.__cause__ is None or failure_kind(error.__cause__) is not FailureKind.IN_USE:
            raise as_configuration(error) from error


async def _usable(calls: DynamoCalls, description: dict[str, Any] | None) -> dict[str, Any]:
    poll_s = _POLL_S
    while True:
        # A table that was just created may not be known everywhere yet.
        status = "CREATING" if description is None else description["TableStatus"]
        if description is not None and status in _USABLE:
            return description
        if status != "CREATING":
            raise ConfigError(f"the table {calls.table} cannot be used: it is {status}")
        await asyncio.sleep(poll_s)
        poll_s = min(_LONGEST_POLL_S, poll_s * 1.5)
        description = await _described(calls)


def _check_key(table: str, description: dict[str, Any]) -> None:
    keys = {each["AttributeName"]: each["KeyType"] for each in description["KeySchema"]}
    types = {
        each["AttributeName"]: each["AttributeType"] for each in description["AttributeDefinitions"]
    }
    if keys == _KEYS and all(types.get(name) == "S" for name in _KEYS):
        return
    found = ", ".join(f"{name} ({kind}, {types.get(name)})" for name, kind in keys.items())
    hint = (
        " It is a lease table of the Kinesis Client Library: `headrace kinesis import-kcl` copies from it."
        if "leaseKey" in keys
        else ""
    )
    raise ConfigError(
        f"the table {table} is not one of Headrace's leases: its key is {found}, not {PARTITION_KEY} (HASH, S), "
        f"{SORT_KEY} (RANGE, S); name another one.{hint}"
    )
