"""The lease table in DynamoDB: it is created if it is missing, and refused if it has another key."""

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
    """Whether and how a missing table is created.

    Attributes:
        create: Whether a missing table is created.
        read_capacity: Read units per second, together with `write_capacity`. None for both: the table is billed by
            request.
        write_capacity: Write units per second.
        tags: The tags of the table.
        wait_ms: The time limit of the creation, in milliseconds.
    """

    create: bool = True
    read_capacity: int | None = None
    write_capacity: int | None = None
    tags: Mapping[str, str] = field(default_factory=dict)
    wait_ms: int = 120_000

    def __post_init__(self) -> None:
        """Check the capacities.

        Raises:
            ConfigError: Only one capacity is set, or one is below 1.
        """
        capacities = (self.read_capacity, self.write_capacity)
        if (None in capacities) != (capacities == (None, None)):
            raise ConfigError("read_capacity and write_capacity go together: set both, or none")
        if any(capacity is not None and capacity < 1 for capacity in capacities):
            raise ConfigError("read_capacity and write_capacity must be at least 1")


async def open_table(calls: DynamoCalls, settings: TableSettings) -> None:
    """Check that the table exists, has the key of lease tables, and can be used; create it if it is missing.

    Raises:
        ConfigError: The table is missing and is not to be created, has another key, or access is denied.
        LeaseStoreError: DynamoDB does not answer, or the creation takes too long.
    """
    description = await _described(calls)
    if description is None:
        if not settings.create:
            raise ConfigError(
                f"there is no lease table {calls.table}. Create it with the partition key {PARTITION_KEY} and the sort "
                f"key {SORT_KEY}, both strings, or allow its creation; or check region and endpoint_url"
            )
        await _create(calls, settings)
    try:
        async with asyncio.timeout(settings.wait_ms / 1000):
            description = await _usable(calls, description)
    except TimeoutError as error:
        raise LeaseStoreError(
            f"the table {calls.table} is still being created after {settings.wait_ms / 1000:.0f} s. Check its status "
            "in DynamoDB, and start again when it is ACTIVE"
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
        # Another process creates the table at the same time, or an earlier attempt did whose answer was lost.
        if error.__cause__ is None or failure_kind(error.__cause__) is not FailureKind.IN_USE:
            raise as_configuration(error) from error


async def _usable(calls: DynamoCalls, description: dict[str, Any] | None) -> dict[str, Any]:
    poll_s = _POLL_S
    while True:
        # DescribeTable may not find a table that was just created.
        status = "CREATING" if description is None else description["TableStatus"]
        if description is not None and status in _USABLE:
            return description
        if status != "CREATING":
            raise ConfigError(f"the table {calls.table} cannot be used: its status is {status}")
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
        f"the table {table} is not a lease table of Headrace: its key is {found}, not {PARTITION_KEY} (HASH, S), "
        f"{SORT_KEY} (RANGE, S). Use another table.{hint}"
    )
