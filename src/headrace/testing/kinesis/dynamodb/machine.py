"""The fake of DynamoDB: it supports what lease stores need, and refuses everything else."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from headrace.embedded.clock import Clock
from headrace.testing.kinesis.calls import Call
from headrace.testing.kinesis.dynamodb import fetching, tables, writing
from headrace.testing.kinesis.dynamodb.tables import Tables
from headrace.testing.kinesis.dynamodb.values import Item, refused
from headrace.testing.kinesis.errors import AwsError
from headrace.testing.kinesis.faults import Reply
from headrace.testing.kinesis.service import AwsService, replied

Operation = Callable[[Tables, Call], dict[str, object]]

_IGNORED: Final = frozenset({"SSESpecification", "DeletionProtectionEnabled"})
_EXPRESSIONS: Final = frozenset({"ExpressionAttributeNames", "ExpressionAttributeValues"})
_CONDITION: Final = _EXPRESSIONS | {
    "ConditionExpression",
    "ReturnValues",
    "ReturnValuesOnConditionCheckFailure",
    "ReturnConsumedCapacity",
    "ReturnItemCollectionMetrics",
}
_READ: Final = _EXPRESSIONS | {"ProjectionExpression", "ConsistentRead", "ReturnConsumedCapacity"}
_PAGE: Final = _READ | {"FilterExpression", "Limit", "ExclusiveStartKey", "Select"}

OPERATIONS: Final[Mapping[str, tuple[Operation, frozenset[str]]]] = {
    "CreateTable": (
        tables.create_table,
        frozenset(
            {
                "AttributeDefinitions",
                "KeySchema",
                "BillingMode",
                "ProvisionedThroughput",
                "Tags",
                "SSESpecification",
                "TableClass",
                "DeletionProtectionEnabled",
            }
        ),
    ),
    "DeleteItem": (writing.delete_item, _CONDITION | {"Key"}),
    "DeleteTable": (tables.delete_table, frozenset()),
    "DescribeTable": (tables.describe_table, frozenset()),
    "GetItem": (fetching.get_item, _READ | {"Key"}),
    "ListTables": (tables.list_tables, frozenset({"ExclusiveStartTableName", "Limit"})),
    "PutItem": (writing.put_item, _CONDITION | {"Item"}),
    "Query": (fetching.query, _PAGE | {"KeyConditionExpression", "ScanIndexForward"}),
    "Scan": (fetching.scan, _PAGE),
    "UpdateItem": (writing.update_item, _CONDITION | {"Key", "UpdateExpression"}),
}
"""The handler of an operation, and the supported members of its request besides TableName."""


_TYPES: Final[Mapping[str, type]] = {
    **dict.fromkeys(("Item", "Key", "ExclusiveStartKey", "ProvisionedThroughput"), dict),
    **dict.fromkeys(_EXPRESSIONS, dict),
    **dict.fromkeys(("AttributeDefinitions", "KeySchema", "Tags"), list),
    **dict.fromkeys(("ConsistentRead", "ScanIndexForward"), bool),
    "Limit": int,
}
"""The types of the members that are not text."""


def _check_types(request: dict[str, Any]) -> None:
    for member, value in request.items():
        wanted = _TYPES.get(member, str)
        right = isinstance(value, wanted) and (wanted is bool or not isinstance(value, bool))
        if member in _IGNORED or right:
            continue
        raise AwsError("SerializationException", f"{member}: {value!r} is of another type")
    names = request.get("ExpressionAttributeNames", {})
    if not all(isinstance(name, str) for name in names.values()):
        raise AwsError("SerializationException", "ExpressionAttributeNames: a name is not text")


class FakeDynamoDB(AwsService):
    """DynamoDB in memory: tables, items, conditional writes.

    The fake refuses every operation, member of a request and word in an expression that it does not support, with a
    ValidationException. It never ignores a part of a request.
    """

    NAMESPACE = "com.amazonaws.dynamodb.v20120810#"

    def __init__(
        self, *, clock: Clock | None = None, transition_ms: int = 0, region: str = "us-east-1"
    ) -> None:
        """Create an account without tables.

        Args:
            clock: The clock; None is the process's clock, which `advance` moves ahead.
            transition_ms: The milliseconds for which a table is CREATING or DELETING.
            region: The region in ARNs.
        """
        super().__init__(clock)
        self._tables = Tables(region, transition_ms)

    def tables(self) -> list[str]:
        """Return the names of the tables."""
        return list(self.call("ListTables")["TableNames"])

    def items(self, table: str) -> list[Item]:
        """Return all items of a table in DynamoDB's form: `{"shard": {"S": "shardId-000000000000"}}`."""
        with self.lock:
            call = Call("Scan", {"TableName": table}, self.clock.now_ms())
            return [dict(item) for item in self._tables.usable(call).in_order()]

    def locate(self, call: Call) -> None:
        """Set the table of a call."""
        name: Any = call.request.get("TableName")
        call.stream = name if isinstance(name, str) else None

    def perform(self, call: Call) -> Reply:
        """Execute a request if the fake supports it."""
        known = OPERATIONS.get(call.operation)
        if known is None:
            raise AwsError(
                "UnknownOperationException", f"the fake has no operation {call.operation!r}"
            )
        operation, members = known
        unknown = set(call.request) - members - {"TableName"}
        if unknown:
            raise refused(
                f"the fake does not know {', '.join(sorted(unknown))} of {call.operation}"
            )
        _check_types(call.request)
        return replied(operation(self._tables, call))
