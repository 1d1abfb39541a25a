"""The operations CreateTable, DescribeTable, ListTables and DeleteTable."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, Final

from headrace.testing.kinesis.calls import Call
from headrace.testing.kinesis.dynamodb.table import Table
from headrace.testing.kinesis.dynamodb.values import refused, wrong
from headrace.testing.kinesis.errors import in_use, not_found
from headrace.testing.kinesis.stream import ACCOUNT

_NAME: Final = re.compile(r"[a-zA-Z0-9_.-]{3,255}", re.ASCII)
_PAGE: Final = 100


@dataclass(slots=True)
class Tables:
    """The tables of an account in a region.

    Attributes:
        region: The region in ARNs.
        transition_ms: The milliseconds that creating and deleting take.
        tables: The tables by name.
    """

    region: str
    transition_ms: int
    tables: dict[str, Table] = field(default_factory=dict)

    def find(self, call: Call) -> Table:
        """Return the table that a request names, in any state.

        Raises:
            AwsError: The table does not exist.
        """
        name = call.request.get("TableName")
        if not isinstance(name, str):
            raise refused(
                "1 validation error detected: Value null at 'tableName' failed to satisfy "
                "constraint: Member must not be null"
            )
        name = name.rpartition(":table/")[2]
        table = self.tables.get(name)
        if table is not None and table.gone_ms is not None and call.now_ms >= table.gone_ms:
            del self.tables[name]
            table = None
        if table is None:
            raise not_found(f"Requested resource not found: Table: {name} not found")
        return table

    def usable(self, call: Call) -> Table:
        """Return the table that a request names, if it can be read and written."""
        table = self.find(call)
        table.require_usable(call.now_ms)
        return table


def create_table(tables: Tables, call: Call) -> dict[str, object]:
    """Handle CreateTable: create a table."""
    request = call.request
    name = request.get("TableName", "")
    if not _NAME.fullmatch(name):
        raise refused(
            f"1 validation error detected: Value '{name}' at 'tableName' failed to satisfy "
            f"constraint: Member must satisfy regular expression pattern: {_NAME.pattern}"
        )
    existing = tables.tables.get(name)
    if existing is not None and (existing.gone_ms is None or call.now_ms < existing.gone_ms):
        raise in_use(f"Table already exists: {name}")
    billing = request.get("BillingMode", "PROVISIONED")
    units = request.get("ProvisionedThroughput", {})
    if billing == "PROVISIONED" and not units:
        raise wrong(
            "ReadCapacityUnits and WriteCapacityUnits must both be specified when BillingMode "
            "is PROVISIONED"
        )
    if billing == "PAY_PER_REQUEST" and units:
        raise wrong(
            "Neither ReadCapacityUnits nor WriteCapacityUnits can be specified when BillingMode "
            "is PAY_PER_REQUEST"
        )
    table = Table(
        name,
        f"arn:aws:dynamodb:{tables.region}:{ACCOUNT}:table/{name}",
        _keys(request),
        call.now_ms,
        call.now_ms + tables.transition_ms,
        billing,
        units,
    )
    tables.tables[name] = table
    return {"TableDescription": table.described(call.now_ms)}


def _keys(request: dict[str, Any]) -> dict[str, str]:
    """Return the types of the key's attributes, by name; the hash key is first."""
    defined = dict(_pairs(request, "AttributeDefinitions", "AttributeType"))
    schema = _pairs(request, "KeySchema", "KeyType")
    if [kind for _, kind in schema] not in (["HASH"], ["HASH", "RANGE"]):
        raise refused(
            "Invalid KeySchema: The first KeySchemaElement is not a HASH key type, "
            "or the second is not a RANGE key type"
        )
    names = [name for name, _ in schema]
    if set(defined) != set(names):
        raise wrong(
            "Number of attributes in KeySchema does not exactly match number of attributes "
            "defined in AttributeDefinitions"
        )
    if not set(defined.values()) <= {"S", "N", "B"}:
        raise refused("Member must satisfy enum value set: [B, N, S]")
    return {name: defined[name] for name in names}


def _pairs(request: dict[str, Any], member: str, kind: str) -> list[tuple[str, str]]:
    """Return the names of attributes with the value of a further member of each."""
    found = []
    for each in request.get(member, []):
        if not isinstance(each, dict) or not {"AttributeName", kind} <= set(each):
            raise refused(f"1 validation error detected: {member} needs AttributeName and {kind}")
        found.append((str(each["AttributeName"]), str(each[kind])))
    return found


def describe_table(tables: Tables, call: Call) -> dict[str, object]:
    """Handle DescribeTable: describe a table."""
    return {"Table": tables.find(call).described(call.now_ms)}


def list_tables(tables: Tables, call: Call) -> dict[str, object]:
    """Handle ListTables: list tables by name."""
    after = call.request.get("ExclusiveStartTableName", "")
    limit = call.request.get("Limit", _PAGE)
    if limit < 1:
        raise refused("Member must have value greater than or equal to 1: Limit")
    names = sorted(
        name
        for name, table in tables.tables.items()
        if name > after and (table.gone_ms is None or call.now_ms < table.gone_ms)
    )
    reply: dict[str, object] = {"TableNames": names[:limit]}
    return reply | ({"LastEvaluatedTableName": names[limit - 1]} if len(names) > limit else {})


def delete_table(tables: Tables, call: Call) -> dict[str, object]:
    """Handle DeleteTable: delete a table."""
    table = tables.find(call)
    table.require_active(call.now_ms)
    table.gone_ms = call.now_ms + tables.transition_ms
    return {"TableDescription": table.described(call.now_ms)}
